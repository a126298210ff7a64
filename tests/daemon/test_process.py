"""The life of a daemon's process: real processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import kudu_py

PROGRAM = Path(__file__).with_name("little_daemon.py")
ROOT = Path(kudu_py.__file__).parent.parent
TIMEOUT_S = 30


class Daemon:
    """One run of the little daemon."""

    def __init__(self, *flags: str, mode: str = "", **env: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("KUDU_", "GRPC_"))}
        environ |= {"PYTHONPATH": str(ROOT), "LITTLE_DAEMON": mode, **env}
        argv = [sys.executable, str(PROGRAM), "--rpc_bind_addresses=127.0.0.1:0", "--webserver_port=0", *flags]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        )

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def ready(self) -> dict:
        return json.loads(self.line())

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, list[str], list[dict]]:
        """Status, the other lines of output, and the log."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        log = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        self.errors = [line for line in err.splitlines() if line.startswith("error:")]
        return self.process.returncode, out.splitlines(), log


@pytest.fixture
def run(tmp_path):
    started = []

    def start(*flags, mode="", **env):
        daemon = Daemon(f"--fs_wal_dir={tmp_path / 'data'}", *flags, mode=mode, **env)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.communicate()


def events(log):
    return [line["event"] for line in log]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_then_stops_in_reverse_order_with_status_0(run, number):
    daemon = run()
    ready = daemon.ready()
    daemon.send(number)

    status, out, log = daemon.ended()

    assert status == 0
    assert out == ["draining on uvloop", "closing", "closed"]
    assert events(log) == ["serving", "stopping", "drain_failed", "stopped"]
    assert log[0]["rpc_address"] == ready["rpc_address"]
    assert log[-1]["uuid"] == ready["uuid"]


def test_it_tells_when_it_serves_on_standard_output_and_in_the_ready_file(run, tmp_path):
    path = tmp_path / "ready.json"
    path.write_text("of an earlier run")
    daemon = run(f"--ready_file={path}", "--nouse_uvloop")
    ready = daemon.ready()

    with urllib.request.urlopen(f"http://{ready['http_address']}/varz?format=json", timeout=TIMEOUT_S) as page:
        settings = {line["name"]: line for line in json.load(page)}
    daemon.send(signal.SIGTERM)
    _, out, _ = daemon.ended()

    assert ready["event"] == "ready"
    assert ready["pid"] == daemon.process.pid
    assert json.loads(path.read_text()) == ready
    assert settings["ready_file"]["source"] == "command line (--ready_file)"
    assert out[0] == "draining on asyncio.unix_events"


def test_a_second_start_on_the_directory_is_refused_by_name(run, tmp_path):
    first = run()
    first.ready()
    second = run()

    status, _, log = second.ended()

    assert status == 1
    assert f"{tmp_path / 'data'} is in use by another process" in second.errors[0]
    assert events(log) == ["start_failed"]


def test_a_taken_port_is_refused_by_name(run, tmp_path):
    first = run()
    address = first.ready()["rpc_address"]
    second = run(f"--fs_wal_dir={tmp_path / 'other'}", f"--rpc_bind_addresses={address}")

    status, _, _ = second.ended()

    assert status == 1
    assert f"cannot listen at {address}" in second.errors[0]


def test_a_signal_while_it_starts_ends_it_cleanly(run):
    daemon = run(mode="slow start")
    assert daemon.line() == "starting"
    daemon.send(signal.SIGTERM)

    status, out, log = daemon.ended()

    assert (status, out) == (0, ["closing", "closed"])
    assert events(log) == ["stopping"]


def test_a_second_signal_ends_it_at_once(run):
    daemon = run(mode="slow drain")
    daemon.ready()
    daemon.send(signal.SIGTERM)
    assert daemon.line().startswith("draining")
    daemon.send(signal.SIGTERM)

    status, _, log = daemon.ended()

    assert status == 1
    assert events(log)[-1] == "stopping_now"


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("dying task", "/wal/segment-1"),
        ("failed assertion", "durable 7 is above accepted 6"),
        ("failed callback", "what was written"),
    ],
)
def test_what_must_not_go_on_ends_the_process_with_status_70_and_its_reason(run, mode, told):
    daemon = run(mode=mode)
    daemon.ready()

    status, out, log = daemon.ended()

    assert status == 70
    assert out == []  # nothing of the orderly stop
    assert log[-1]["event"] == "fatal_error"
    assert told in log[-1]["exception"]


def test_wrong_usage_ends_with_status_2_and_one_line(run):
    daemon = run("--fs_wal_dri=/x")

    status, out, log = daemon.ended()

    assert (status, out, log) == (2, [], [])
    assert daemon.errors == ["error: --fs_wal_dri is not a flag of this daemon; did you mean fs_wal_dir?"]


def test_print_config_shows_values_and_sources_and_starts_nothing(run, tmp_path):
    daemon = run("--print-config", KUDU_LOG_LEVEL="debug")

    status, out, _ = daemon.ended()

    assert status == 0
    assert 'log_level = "debug"  # environment (KUDU_LOG_LEVEL)' in out
    assert not (tmp_path / "data").exists()


def test_variables_that_name_no_flag_are_logged(run):
    daemon = run(KUDU_MASTERS="a:1")
    daemon.ready()
    daemon.send(signal.SIGTERM)

    _, _, log = daemon.ended()

    assert log[0]["event"] == "environment_ignored"
    assert log[0]["variables"] == ["KUDU_MASTERS"]
