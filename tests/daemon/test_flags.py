"""Each value comes from the source that comes first, and says so; whatever is wrong is refused by its name."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon.flags import Request, Source, check_fields, config_text, flag, help_text, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data_dir: str = flag(dataclasses.MISSING, "Where the data is.", group="Storage")
    size_mb: int = flag(8, "How large.", group="Storage", minimum=1, maximum=64, aliases=("size_hard_mb",))
    factor: float = flag(1.5, "How much.", group="Other")
    fast: bool = flag(True, "Whether to hurry.", group="Other")
    form: str = flag("json", "Which form.", group="Other", choices=("json", "text"))
    port: int | None = flag(None, "Which port, if any.", group="Other")

    def __post_init__(self) -> None:
        check_fields(self)


def loaded(*argv, env=None, file=None):
    def read(path):
        if file is None:
            raise FileNotFoundError(2, "No such file or directory")
        assert path == "/etc/kudu.toml"
        return file

    if file is not None:
        argv = ("--flagfile=/etc/kudu.toml", *argv)
    return load(Options, ["--data_dir=/d", *argv], env or {}, section="tserver", read_file=read)


def value_of(name, *argv, **sources):
    return next((v.value, v.source) for v in loaded(*argv, **sources).values if v.name == name)


def refused(*argv, **sources):
    with pytest.raises(KuduError) as raised:
        loaded(*argv, **sources)
    assert raised.value.code is ErrorCode.CONFIGURATION_ERROR
    return raised.value.message


def test_the_command_line_wins_over_the_environment_that_over_the_file_that_over_the_default():
    file, env = "size_mb = 2", {"KUDU_SIZE_MB": "3"}

    assert value_of("size_mb") == (8, Source.DEFAULT)
    assert value_of("size_mb", file=file) == (2, Source.FILE)
    assert value_of("size_mb", file=file, env=env) == (3, Source.ENVIRONMENT)
    assert value_of("size_mb", "--size_mb=4", file=file, env=env) == (4, Source.COMMAND_LINE)


@pytest.mark.parametrize(
    "argv",
    [["--size_mb=4"], ["--size-mb=4"], ["-size_mb=4"], ["--size_mb", "4"], ["--SIZE_MB=4"], ["--size_hard_mb=4"]],
)
def test_a_flag_may_be_written_in_each_usual_way(argv):
    assert loaded(*argv).options.size_mb == 4


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--fast"], True),
        (["--nofast"], False),
        (["--no-fast"], False),
        (["--fast=false"], False),
        (["--fast=1"], True),
    ],
)
def test_a_switch_may_be_written_in_each_usual_way(argv, expected):
    assert loaded(*argv).options.fast is expected


def test_the_last_of_two_wins_and_an_absent_value_stays_absent():
    assert loaded("--size_mb=4", "--size_mb=5").options.size_mb == 5
    assert loaded().options.port is None
    assert loaded("--port=7").options.port == 7


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--sise_mb=4", "--sise_mb is not a flag of this daemon; did you mean size_mb?"),
        ("--xyzzy", "--xyzzy is not a flag of this daemon"),
        ("--nosize_mb", "--nosize_mb is not a flag"),
        ("--size_mb=many", "--size_mb must be a whole number, not 'many'"),
        ("--size_mb=0", "--size_mb must be at least 1, not 0"),
        ("--size_mb=65", "--size_mb must be at most 64, not 65"),
        ("--factor=nan", "--factor must be a number"),
        ("--form=xml", "--form must be one of json, text, not 'xml'"),
        ("--fast=maybe", "--fast must be true or false, not 'maybe'"),
        ("--size_mb", "--size_mb needs a value"),
        ("stray", "unexpected argument 'stray'"),
        ("--", "unexpected argument '--'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(argument, named):
    assert named in refused(argument)


def test_a_required_flag_that_nobody_gives_is_named():
    with pytest.raises(KuduError, match="--data_dir must be given: Where the data is"):
        load(Options, [], {}, section="tserver", read_file=lambda path: "")


def test_a_wrong_value_of_the_environment_names_the_variable():
    assert "(in the environment variable KUDU_SIZE_MB)" in refused(env={"KUDU_SIZE_MB": "many"})
    assert "(in the environment variable KUDU_SIZE_MB)" in refused(env={"KUDU_SIZE_MB": "900"})


def test_variables_that_name_no_flag_are_reported_and_do_no_harm():
    env = {"KUDU_MASTERS": "a:1", "KUDU_MASTER_SERVICE_HOST": "10.0.0.1", "PATH": "/bin", "KUDU_FORM": "text"}

    result = loaded(env=env)

    assert result.ignored_environment == ("KUDU_MASTERS", "KUDU_MASTER_SERVICE_HOST")
    assert result.options.form == "text"


def test_a_file_may_serve_all_daemons_of_a_host():
    file = 'size-mb = 2\nfactor = 3\n[tserver]\nsize_mb = 9\n[master]\nanything = "of the master\'s"\n'

    options = loaded(file=file).options

    assert (options.size_mb, options.factor) == (9, 3.0)


def test_a_file_in_upstreams_form_is_read_too():
    options = loaded(file="# comment\n--size_mb=2\n-nofast\n").options

    assert (options.size_mb, options.fast) == (2, False)


def test_the_environment_may_name_the_file():
    result = load(
        Options, [], {"KUDU_FLAGFILE": "/f"}, section="tserver", read_file={"/f": 'data_dir = "/x"'}.__getitem__
    )

    assert result.options.data_dir == "/x"
    assert result.ignored_environment == ()


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("sise_mb = 2", "sise_mb is not a flag of this daemon; did you mean size_mb?"),
        ("[tserver]\nsise_mb = 2", "sise_mb is not a flag"),
        ("[tsever]\nsize_mb = 2", "tsever is not a flag"),
        ('size_mb = "2"', "--size_mb must be a whole number, not '2'"),
        ("size_mb = true", "--size_mb must be a whole number, not true"),
        ("fast = 1", "--fast must be true or false, not 1"),
        ("size_mb = 2.5", "--size_mb must be a whole number, not 2.5"),
        ("size_mb = 65", "--size_mb must be at most 64, not 65"),
        ("size_mb = ", "is not valid TOML"),
        ("--size_mb=65", "--size_mb must be at most 64"),
        ("--flagfile=/other", "holds --flag=value lines only"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_in_it_and_its_own(file, named):
    message = refused(file=file)

    assert named in message
    assert "/etc/kudu.toml" in message


def test_a_file_that_is_not_there_is_named():
    assert "the file '/nope' given by --flagfile cannot be read: No such file" in refused("--config=/nope")


def test_help_and_version_ask_for_nothing_else():
    assert load(Options, ["--help"], {}, section="tserver", read_file=str).request is Request.HELP
    assert load(Options, ["--version"], {}, section="tserver", read_file=str).request is Request.VERSION


def test_help_has_every_flag_with_its_group_default_and_choices():
    text = help_text(Options, program="kudu-py x run", about="It runs x.")

    for wanted in (
        "usage: kudu-py x run", "Storage:", "--data_dir=TEXT", "Required.", "--size_mb=N", "Default: 8.",
        "--fast=true|false", "--form=json|text", "Also: --size_hard_mb.", "KUDU_<FLAG>", "--print-config",
    ):  # fmt: skip
        assert wanted in text


def test_the_printed_config_is_toml_that_gives_the_same_again():
    first = loaded("--size_mb=4", "--nofast", env={"KUDU_FORM": "text"})
    text = config_text(first.values)

    again = load(Options, ["--config=/f"], {}, section="tserver", read_file=lambda path: text)

    assert first.request is Request.RUN
    assert loaded("--print-config").request is Request.PRINT_CONFIG
    assert again.options == first.options
    assert "size_mb = 4  # command line (--size_mb)" in text
    assert 'form = "text"  # environment (KUDU_FORM)' in text
    assert "port" not in tomllib.loads(text)


def test_options_made_in_code_are_checked_too():
    with pytest.raises(KuduError, match="--size_mb must be at least 1"):
        Options(data_dir="/d", size_mb=0)
    with pytest.raises(KuduError, match="--fast must be true or false"):
        Options(data_dir="/d", fast="yes")
