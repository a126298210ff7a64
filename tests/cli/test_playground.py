"""The record of a playground, and what runs of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from kudu_py.cli import playground
from kudu_py.cli.playground import DaemonRecord, PlaygroundRecord
from kudu_py.common.errors import ErrorCode, KuduError

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


@pytest.mark.parametrize(
    "line",
    [
        '{"tablet": "a", "event": "log_disk_filled", "level": "warning"}',
        "2026-11-21T12:00:00Z [warning  ] log_disk_filled                tablet=a",
    ],
)
def test_a_daemon_that_does_not_come_up_is_quoted_with_its_last_warning_of_this_run(tmp_path, line):
    silent = subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        daemon = DaemonRecord(
            "tserver-1", "", "127.0.0.1:1", "127.0.0.1:2", silent.pid, str(tmp_path / "tserver-1"), ARGV
        )
        daemon.log_path.write_text(f'{line}\n{{"event": "config_changed", "level": "info"}}\n')

        def refusal(log_start: int) -> str:
            with pytest.raises(KuduError) as refused:
                asyncio.run(playground.await_serving(PlaygroundRecord((), (daemon,)), 0.0, {"tserver-1": log_start}))
            assert refused.value.code is ErrorCode.UNAVAILABLE
            return refused.value.message

        assert "tserver-1 to serve" in refusal(0)
        assert refusal(0).endswith(f"tserver-1 warned last: {line}")
        assert "warned" not in refusal(daemon.log_size())
    finally:
        silent.kill()
        silent.communicate()


def domains(record):
    return [flag.partition("=")[2] for t in record.tservers for flag in t.argv if flag.startswith("--fault_domain=")]


def prepared(directory, *, tservers=3, fault_domains=3):
    return playground.prepare(
        directory,
        master_count=1,
        tserver_count=tservers,
        fault_domains=fault_domains,
        extra_flags=["--log_format=json"],
    )


@pytest.mark.parametrize(("fault_domains", "dealt", "next_one"), [(4, "1234", "5"), (2, "1212", "1"), (1, "1111", "1")])
def test_tablet_servers_are_dealt_to_fault_domains(tmp_path, fault_domains, dealt, next_one):
    record = prepared(tmp_path / "play", tservers=4, fault_domains=fault_domains)
    assert domains(record) == [f"playground-{n}" for n in dealt]
    assert record.next_fault_domain == f"playground-{next_one}"


def test_one_more_tablet_server_is_like_the_others(tmp_path):
    directory = tmp_path / "play"
    grown = playground.grown(directory, prepared(directory))

    assert domains(grown) == [f"playground-{n}" for n in "1234"]
    added = grown.tservers[3]
    assert (added.name, added.dir, added.pid) == ("tserver-4", str(directory / "tserver-4"), None)
    assert "--log_format=json" in added.argv
    assert sum(flag.startswith("--tserver_master_addrs=") for flag in added.argv) == 1
    addresses = [address for d in grown.daemons for address in (d.rpc_address, d.http_address)]
    assert len(set(addresses)) == 10, "also of those that do not run"


def test_one_more_tablet_server_may_fail_with_another(tmp_path):
    grown = playground.grown(tmp_path / "play", prepared(tmp_path / "play"), fault_domain="playground-1")
    assert domains(grown)[3] == "playground-1"


def test_a_playground_that_has_grown_is_started_as_it_is_unless_another_number_is_asked_for(tmp_path):
    directory = tmp_path / "play"
    grown = playground.grown(directory, playground.prepare(directory, master_count=1))
    playground.save(directory, grown)

    assert playground.prepare(directory, master_count=1) == grown
    with pytest.raises(KuduError, match="has 1 master and 4 tablet servers, not 1 and 3"):
        playground.prepare(directory, master_count=1, tserver_count=3)
