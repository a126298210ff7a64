"""The command as a process: what it costs to start, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kudu_py import __version__
from kudu_py.cli import main


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "kudu_py.cli.main", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_does_not_load_arrow_or_the_client():
    loaded = (
        "import sys, kudu_py.cli.main; print([m for m in ('pyarrow', 'numpy', 'kudu_py.client') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)

    assert ended.stdout.strip() == "[]"


def test_the_version_is_said():
    ended = run("--version")

    assert (ended.returncode, ended.stdout) == (0, f"kudu_py {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "ksck", "127.0.0.1:1"),
        ("table", "list", "127.0.0.1:1"),
        ("table", "scan", "127.0.0.1:1", "t"),
        ("tserver", "list", "127.0.0.1:1"),
        ("tablet", "move_replica", "127.0.0.1:1", "f" * 32, "a" * 32, "b" * 32),
    ],
)
def test_a_cluster_without_a_reachable_master_ends_with_3_and_its_address(arguments):
    ended = run(*arguments)

    assert ended.returncode == 3
    assert ended.stderr.startswith("error: no master")
    assert "127.0.0.1:1" in ended.stderr
    assert "Traceback" not in ended.stderr


def commands(app, path=()):
    for command in app.registered_commands:
        yield (*path, command.name or command.callback.__name__), command.callback
    for group in app.registered_groups:
        yield from commands(group.typer_instance, (*path, group.name))


DAEMONS = {("master", "run"), ("tserver", "run")}


def test_commands_of_admins_have_the_names_of_upstreams_and_an_example_line():
    found = {path: callback for path, callback in commands(main.app) if path not in DAEMONS}
    assert all(name == name.replace("-", "_") for path in found for name in path)
    of_replicas = {path for path in found if path[0] in ("tablet", "op", "remote_replica", "local_replica")}
    assert len(of_replicas) > 20
    for path in of_replicas:
        assert f"Example: kudu-py {' '.join(path)} " in found[path].__doc__, path


@pytest.mark.parametrize(
    "arguments",
    [
        ("tablet", "add_replica", "nonsense", "t", "s"),
        ("tablet", "change_replica_type", "127.0.0.1:1", "t", "s", "CHIEF"),
        ("cluster", "rebalance", "127.0.0.1:1"),
        ("remote_replica", "list", "nonsense"),
        ("local_replica", "list", "--fs_wal_dir", "/nonexistent"),
        ("remote_replica", "unsafe_change_config", "127.0.0.1:1", "t", "u"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_called(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kudu-py", *arguments])

    with pytest.raises(SystemExit) as ended:
        main.main()

    assert ended.value.code == 2
