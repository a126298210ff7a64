"""Flags: options of a daemon as operators give them, each value with its source.

An option class is a frozen dataclass whose fields are made by `flag`. Values come, in this order, from the command
line, the environment (`KUDU_<FLAG>`), a TOML file or a flag file in upstream's form (`--flagfile`, also `--config`),
and the default.
Unknown names are refused by name, except in the environment, which others use too: `KUDU_MASTERS` is upstream's
    convention in scripts, and Kubernetes sets `KUDU_…_SERVICE_HOST` for services so named. Those are reported, and
    the daemon logs them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum, unique
from typing import Any, Generic, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError

T = TypeVar("T")

ENVIRONMENT_PREFIX = "KUDU_"
FLAG_FILE_VARIABLE = "KUDU_FLAGFILE"
_FLAG_FILE_NAMES = ("flagfile", "config")
_METADATA = "flag"


@unique
class Source(Enum):
    """Where a value came from."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@unique
class Request(Enum):
    """What the command line asks for."""

    RUN = "run"
    HELP = "help"
    VERSION = "version"
    PRINT_CONFIG = "print-config"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option.

    Attributes:
        name: with underscores; the unit is its last word where there is one.
        kind: bool, int, float or str.
        optional: whether it may be absent (None).
        default: its value if nobody gives one; MISSING if somebody must.
        help: sentences for the operator.
        group: heading in the help text.
        minimum, maximum: bounds of a number, inclusive; None: unbounded.
        choices: the only strings allowed; empty: any.
        aliases: other names by which it may be given.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    optional: bool
    default: object
    help: str
    group: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def check(self, value: object) -> None:
        """Passes if the value is one this option may have.

        Raises:
            KuduError: CONFIGURATION_ERROR that names the flag and shows the value.
        """
        if value is None and self.optional:
            return
        # A bool is an int to Python; an operator who writes `true` for a number has made a mistake.
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise refusal(self.name, f"must be {_KIND_NAMES[self.kind]}", value)
        if self.choices and value not in self.choices:
            raise refusal(self.name, f"must be one of {', '.join(self.choices)}", value)
        if isinstance(value, int | float):
            if value != value:
                raise refusal(self.name, "must be a number", value)
            if self.minimum is not None and value < self.minimum:
                raise refusal(self.name, f"must be at least {_shown(self.minimum)}", value)
            if self.maximum is not None and value > self.maximum:
                raise refusal(self.name, f"must be at most {_shown(self.maximum)}", value)

    def parse(self, text: str) -> object:
        """The value of a command line or an environment variable.

        Raises:
            KuduError: CONFIGURATION_ERROR that names the flag and shows the text.
        """
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise refusal(self.name, f"must be {_KIND_NAMES[self.kind]}", text) from None
        if self.optional and value == "":
            return None
        return value


@dataclass(frozen=True, slots=True)
class FlagValue:
    """The value a flag has, and why.

    Attributes:
        flag: which.
        value: as the option class holds it.
        source: where it came from.
        where: the argument, variable or file, for people; empty for defaults.
    """

    flag: Flag
    value: object
    source: Source
    where: str

    @property
    def name(self) -> str:
        """The flag's name."""
        return self.flag.name

    @property
    def source_text(self) -> str:
        """Where the value came from, for people."""
        return f"{self.source.value} ({self.where})" if self.where else self.source.value

    @property
    def help(self) -> str:
        """The flag's help."""
        return self.flag.help


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """What the operator said.

    Attributes:
        request: what to do; unless RUN or PRINT_CONFIG, nothing else was read.
        options: the values, checked; None unless RUN or PRINT_CONFIG.
        values: each flag with its value and source, in the order of the option class.
        ignored_environment: variables that look like flags and name none.
    """

    request: Request
    options: T | None
    values: tuple[FlagValue, ...] = ()
    ignored_environment: tuple[str, ...] = ()


def flag(
    default: object,
    help: str,
    *,
    group: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of an option class; see `Flag`. `default=MISSING` makes it required."""
    info = {
        "help": help, "group": group, "minimum": minimum, "maximum": maximum, "choices": choices, "aliases": aliases,
    }  # fmt: skip
    if default is MISSING:
        return dataclasses.field(metadata={_METADATA: info})
    return dataclasses.field(default=default, metadata={_METADATA: info})


def flags_of(kind: type[Any]) -> tuple[Flag, ...]:
    """The flags of an option class, in the order of its fields."""
    hints = typing.get_type_hints(kind)
    flags = []
    for field in dataclasses.fields(kind):
        kinds = [arg for arg in _union_parts(hints[field.name]) if arg is not type(None)]
        of = hints[field.name]
        assert len(kinds) == 1, f"{kind.__name__}.{field.name}: no flag can be of {of}"
        assert kinds[0] in _PARSERS, f"{kind.__name__}.{field.name}: no flag can be of {of}"
        flags.append(Flag(field.name, kinds[0], len(_union_parts(of)) > 1, field.default, **field.metadata[_METADATA]))
    return tuple(flags)


def check_fields(options: object) -> None:
    """Checks every field of an option class by itself; for its `__post_init__`."""
    for each in flags_of(type(options)):
        each.check(getattr(options, each.name))


def refusal(name: str, what: str, value: object) -> KuduError:
    """The error of a value that a flag may not have."""
    shown = repr(value) if isinstance(value, str) else _shown(value)
    return KuduError(ErrorCode.CONFIGURATION_ERROR, f"--{name} {what}, not {shown[:200]}", details={"flag": name})


def load(
    kind: type[T],
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    section: str,
    read_file: Callable[[str], str],
) -> Loaded[T]:
    """Reads all sources and builds the option class.

    Args:
        argv: without the program's name.
        section: the table of a TOML file that is for this daemon only, beside the names at its top.
        read_file: the text of a flag file; raises OSError.

    Raises:
        KuduError: CONFIGURATION_ERROR that names the flag and where its value came from.
    """
    flags = flags_of(kind)
    names = {name: each for each in flags for name in (each.name, *each.aliases)}
    arguments = _Arguments(argv, names)
    if arguments.request in (Request.HELP, Request.VERSION):
        return Loaded(arguments.request, None)
    found: dict[str, FlagValue] = {}

    path, named_by = arguments.flag_file, "--flagfile"
    if path is None:
        path, named_by = environ.get(FLAG_FILE_VARIABLE) or None, FLAG_FILE_VARIABLE
    if path is not None:
        found |= _from_file(path, named_by, read_file, names, section)
    from_environment, ignored = _from_environment(environ, names)
    found |= from_environment
    found |= arguments.values

    values = []
    for each in flags:
        value = found.get(each.name)
        if value is None:
            if each.default is MISSING:
                message = f"--{each.name} must be given: {each.help}"
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, message, details={"flag": each.name})
            value = FlagValue(each, each.default, Source.DEFAULT, "")
        values.append(value)
    try:
        options = kind(**{value.flag.name: value.value for value in values})
    except KuduError as error:
        raise _with_source(error, values) from None
    return Loaded(arguments.request, options, tuple(values), ignored)


class _Arguments:
    """The command line, read.

    Attributes:
        values: of the flags given, the last one if one is given twice, as gflags has it.
        flag_file: the path given, if any.
        request: what else is asked for.
    """

    def __init__(self, argv: Sequence[str], names: Mapping[str, Flag]) -> None:
        self.values: dict[str, FlagValue] = {}
        self.flag_file: str | None = None
        self.request = Request.RUN
        self._names = names
        rest = list(argv)
        while rest:
            self._take(rest.pop(0), rest)

    def _take(self, argument: str, rest: list[str]) -> None:
        if argument == "-h":
            argument = "--help"
        if not argument.startswith("-") or argument.strip("-") == "":
            raise KuduError(
                ErrorCode.CONFIGURATION_ERROR, f"unexpected argument {argument[:200]!r}: all arguments are --flag=value"
            )
        name, equals, text = argument.lstrip("-").partition("=")
        name = _canonical(name)
        request = next((r for r in Request if r is not Request.RUN and _canonical(r.value) == name), None)
        if request is not None and not equals:
            self.request = request
            return
        if name in _FLAG_FILE_NAMES:
            self.flag_file = text if equals else _next(argument, rest)
            return
        each, negated = self._names.get(name), False
        if each is None and name.startswith("no"):  # gflags: --nofoo, and --no-foo
            each = self._names.get(name.removeprefix("no").removeprefix("_"))
            negated = each is not None and each.kind is bool and not equals
            each = each if negated else None
        if each is None:
            raise _unknown(f"--{name}", self._names)
        if negated:
            value: object = False
        elif each.kind is bool and not equals:
            value = True
        else:
            value = each.parse(text if equals else _next(argument, rest))
        self.values[each.name] = FlagValue(each, value, Source.COMMAND_LINE, f"--{name}")


def _next(argument: str, rest: list[str]) -> str:
    if not rest:
        raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{argument} needs a value")
    return rest.pop(0)


def _from_environment(
    environ: Mapping[str, str], names: Mapping[str, Flag]
) -> tuple[dict[str, FlagValue], tuple[str, ...]]:
    values: dict[str, FlagValue] = {}
    ignored = []
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FLAG_FILE_VARIABLE:
            continue
        each = names.get(variable.removeprefix(ENVIRONMENT_PREFIX).lower())
        if each is None:
            ignored.append(variable)
            continue
        try:
            value = each.parse(environ[variable])
        except KuduError as error:
            raise _from(error, f"the environment variable {variable}") from None
        values[each.name] = FlagValue(each, value, Source.ENVIRONMENT, variable)
    return values, tuple(ignored)


def _from_file(
    path: str, named_by: str, read_file: Callable[[str], str], names: Mapping[str, Flag], section: str
) -> dict[str, FlagValue]:
    try:
        text = read_file(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise KuduError(
            ErrorCode.CONFIGURATION_ERROR, f"the file {path!r} given by {named_by} cannot be read: {why}"
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    content = [line for line in lines if line and not line.startswith("#")]
    try:
        if content and all(line.startswith("-") for line in content):
            arguments = _Arguments(content, names)
            if arguments.flag_file is not None or arguments.request is not Request.RUN:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, "a flag file holds --flag=value lines only")
            given = {name: given_value.value for name, given_value in arguments.values.items()}
        else:
            given = _flat(tomllib.loads(text), section)
        values = {}
        for name, value in given.items():
            each = names.get(_canonical(name))
            if each is None:
                raise _unknown(name, names)
            if each.kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if each.kind is str and isinstance(value, list) and all(isinstance(part, str) for part in value):
                value = ",".join(value)
            each.check(value)
            values[each.name] = FlagValue(each, value, Source.FILE, path)
        return values
    except tomllib.TOMLDecodeError as error:
        raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"the file {path!r} is not valid TOML: {error}") from error
    except KuduError as error:
        raise _from(error, f"the file {path!r}") from None


def _flat(document: dict[str, object], section: str) -> dict[str, object]:
    """The names at the top, overridden by those of the daemon's own table; the tables of other daemons are theirs."""
    flat = {name: value for name, value in document.items() if not (name in SECTIONS and isinstance(value, dict))}
    own = document.get(section, {})
    return flat | (own if isinstance(own, dict) else {})


SECTIONS = frozenset({"master", "tserver"})
"""Tables that a TOML file may have, so that one file serves a whole host."""


def help_text(kind: type[Any], *, program: str, about: str) -> str:
    """What `--help` prints: flags by group, with defaults."""
    groups: dict[str, list[Flag]] = {}
    for each in flags_of(kind):
        groups.setdefault(each.group, []).append(each)
    lines = [
        f"usage: {program} [--flag=value ...]",
        "",
        about,
        "",
        f"Each flag may also be given as an environment variable ({ENVIRONMENT_PREFIX}<FLAG>, in capitals) or in a",
        "file; the command line wins over the environment, and that over the file. `-` and `_` are alike in names.",
        "",
        "General:",
        "  --flagfile=PATH, --config=PATH",
        "        A TOML file with the same names, or a file with one --flag=value a line.",
        "  --print-config",
        "        Show every value and where it came from, and exit.",
        "  --version, --help",
    ]
    for group, members in groups.items():
        lines += ["", f"{group}:"]
        for each in members:
            lines.append(f"  --{each.name}={_placeholder(each)}")
            lines += [f"        {line}" for line in _wrapped(_help_of(each), 100)]
    return "\n".join(lines) + "\n"


def config_text(values: Iterable[FlagValue]) -> str:
    """What `--print-config` prints: valid TOML, with each value's source as a comment."""
    lines = []
    for value in values:
        absent = value.value is None
        text = f"# {value.flag.name} is not set" if absent else f"{value.flag.name} = {_toml(value.value)}"
        lines.append(f"{text}  # {value.source_text}")
    return "\n".join(lines) + "\n"


def _help_of(each: Flag) -> str:
    parts = [each.help]
    if each.choices:
        parts.append(f"One of: {', '.join(each.choices)}.")
    if each.aliases:
        parts.append(f"Also: {', '.join('--' + alias for alias in each.aliases)}.")
    if each.default is MISSING:
        parts.append("Required.")
    elif each.default not in (None, ""):
        parts.append(f"Default: {_shown(each.default)}.")
    return " ".join(parts)


def _placeholder(each: Flag) -> str:
    if each.kind is bool:
        return "true|false"
    if each.choices:
        return "|".join(each.choices)
    return {int: "N", float: "X", str: "TEXT"}[each.kind]


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _canonical(name: str) -> str:
    return name.replace("-", "_").lower()


def _unknown(name: str, names: Mapping[str, Flag]) -> KuduError:
    near = difflib.get_close_matches(_canonical(name.lstrip("-")), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; --help lists the flags"
    return KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name[:200]} is not a flag of this daemon{hint}")


def _from(error: KuduError, source: str) -> KuduError:
    return KuduError(error.code, f"{error.message} (in {source})", details=error.details)


def _with_source(error: KuduError, values: Sequence[FlagValue]) -> KuduError:
    """The error of a check, with the source of the value it speaks of."""
    value = next((value for value in values if value.flag.name == error.details.get("flag")), None)
    if value is None or value.source in (Source.COMMAND_LINE, Source.DEFAULT):
        return error
    kind = {Source.ENVIRONMENT: "the environment variable", Source.FILE: "the file"}[value.source]
    return _from(error, f"{kind} {value.where}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _toml(value: object) -> str:
    """A TOML value; JSON's strings, numbers and booleans are TOML's too."""
    return json.dumps(value)


def _union_parts(hint: object) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "t", "y"):
        return True
    if text.lower() in ("false", "0", "no", "f", "n"):
        return False
    raise ValueError(text)


def _parse_int(text: str) -> int:
    if not text.isascii():
        raise ValueError(text)
    return int(text)


_PARSERS: dict[type, Callable[[str], object]] = {bool: _parse_bool, int: _parse_int, float: float, str: str}
_KIND_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
