"""The record of a playground, and what runs of it."""

from __future__ import annotations

import subprocess
import sys

from kudu_py.cli import playground
from kudu_py.cli.playground import DaemonRecord, PlaygroundRecord

ARGV = (sys.executable, "-c", "print(1, flush=True); input()", "a daemon of this test")


def test_a_daemon_started_by_its_argv_belongs_to_the_playground_and_is_stopped_with_it(tmp_path):
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    tserver = DaemonRecord("tserver-1", "", "127.0.0.1:1", "127.0.0.1:2", died.pid, str(tmp_path / "tserver-1"), ARGV)
    playground.save(tmp_path, PlaygroundRecord((), (tserver,)))
    assert not playground.load(tmp_path).tservers[0].is_running()

    revived = subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert revived.stdout is not None
        revived.stdout.readline()  # it is itself now
        assert playground.load(tmp_path).tservers[0].pid == revived.pid
        stopped = playground.stop(tmp_path, PlaygroundRecord((), (tserver,)), lambda _: None)
        assert stopped.tservers[0].pid is None
        assert not playground.load(tmp_path).tservers[0].is_running()
    finally:
        revived.kill()
        revived.communicate()
