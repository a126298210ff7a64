"""The command as a process: what it costs to start, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kudu_py import __version__


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
    ],
)
def test_a_cluster_without_a_reachable_master_ends_with_3_and_its_address(arguments):
    ended = run(*arguments)

    assert ended.returncode == 3
    assert ended.stderr.startswith("error: no master")
    assert "127.0.0.1:1" in ended.stderr
    assert "Traceback" not in ended.stderr
