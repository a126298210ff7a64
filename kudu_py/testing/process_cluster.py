"""A cluster of real processes for tests: a playground, and the ways to hurt it.

Wraps the `kudu-py playground` command as a user would call it, so that the command is tested along. Signals go to
processes by the pids of `playground.json` and to no others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

T = TypeVar("T")

COMMAND = (sys.executable, "-m", "kudu_py.cli.main")
POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process: the fields of `playground.json`, and its name."""

    name: str
    uuid: str
    rpc_address: str
    http_address: str
    pid: int
    dir: str
    argv: tuple[str, ...]


def run_command(
    *arguments: str, timeout_s: float = 120.0, check: bool = True, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """`kudu-py` with these arguments; raises with both outputs if it fails and `check` is set."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"kudu-py {' '.join(arguments)} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done


def wait_until(condition: Callable[[], T | None], what: str, timeout_s: float = 30.0) -> T:
    """Polls until `condition` gives something true and returns it; AssertionError that says `what` after the
    deadline.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(POLL_INTERVAL_S)


class ProcessCluster:
    """One master and some tablet servers under `directory`; a context manager that starts and stops them."""

    def __init__(self, directory: Path, *, tservers: int = 3, flags: Sequence[str] = (), config: str = "") -> None:
        """A cluster that is not started.

        Args:
            flags: of every daemon.
            config: a TOML file for every daemon, with tables `[master]` and `[tserver]` for what only one of them has.
        """
        self.directory = directory
        self._tservers = tservers
        self._flags = tuple(flags)
        if config:
            path = directory.with_suffix(".toml")
            path.write_text(config)
            self._flags += (f"--config={path}",)
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ProcessCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A stopped process would not hear SIGTERM.
        for daemon in self.daemons:
            self._signal(daemon, signal.SIGCONT)
        self.stop()
        for child in self._children:
            child.wait(30.0)

    def start(self) -> None:
        """Starts all; returns when they serve."""
        flags = [f"--flag={flag}" for flag in self._flags]
        run_command(
            *("playground", "start", "--masters", "1", "--tservers", str(self._tservers)),
            *("--dir", str(self.directory), "--detach", *flags),
        )

    def stop(self) -> None:
        """Stops all cleanly."""
        run_command("playground", "stop", "--dir", str(self.directory))

    def restart(self, name: str, *flags: str) -> None:
        """Starts a daemon again, after ending it if it runs; returns when it serves. Flags are added for good, where a
        last one counts.
        """
        if flags:
            # A running process is known by its argv, so it has to be gone before that changes.
            self.terminate(name)
            self._change(name, argv=[*self.daemon(name).argv, *flags])
        run_command("playground", "restart", name, "--dir", str(self.directory))

    def revive(self, name: str, *flags: str) -> Daemon:
        """Runs the argv of a daemon that has ended, as a supervisor would; returns at once. Flags as of `restart`.

        Much quicker than `restart`, which is a command of its own.
        """
        daemon = self.daemon(name)
        assert not _is_alive(daemon.pid), f"{name} runs"
        argv = [*daemon.argv, *flags]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._children.append(process)
        self._change(name, argv=argv, pid=process.pid)
        return self.daemon(name)

    def wait_serving(self, *names: str, timeout_s: float = 60.0) -> None:
        """Returns when these daemons (all if none is named) answer that they serve."""
        for daemon in [self.daemon(name) for name in names] or self.daemons:
            with grpc.insecure_channel(daemon.rpc_address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)

                def serves(stub: health_pb2_grpc.HealthStub = stub, daemon: Daemon = daemon) -> bool:
                    assert self.is_running(daemon.name), f"{daemon.name} has ended: {self.log(daemon.name)[-2000:]}"
                    try:
                        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
                    except grpc.RpcError:
                        return False
                    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

                wait_until(serves, f"{daemon.name} to serve", timeout_s)

    def _change(self, name: str, **fields: object) -> None:
        """Changes what `playground.json` says of a daemon that does not run."""
        path = self.directory / "playground.json"
        content = json.loads(path.read_text())
        role, _, number = name.partition("-")
        content[f"{role}s"][int(number) - 1] |= fields
        path.write_text(json.dumps(content))

    @property
    def daemons(self) -> list[Daemon]:
        """As `playground.json` has them now, masters first."""
        content = json.loads((self.directory / "playground.json").read_text())
        return [
            Daemon(
                name=f"{role}-{i}",
                uuid=entry["uuid"],
                rpc_address=entry["rpc_address"],
                http_address=entry["http_address"],
                pid=entry["pid"] or 0,
                dir=entry["dir"],
                argv=tuple(entry["argv"]),
            )
            for role in ("master", "tserver")
            for i, entry in enumerate(content[f"{role}s"], 1)
        ]

    @property
    def masters(self) -> str:
        """Comma-separated master addresses."""
        return ",".join(daemon.rpc_address for daemon in self.daemons if daemon.name.startswith("master"))

    def daemon(self, name_or_uuid: str) -> Daemon:
        """The daemon of this name or uuid."""
        return next(daemon for daemon in self.daemons if name_or_uuid in (daemon.name, daemon.uuid))

    def kill(self, name_or_uuid: str) -> Daemon:
        """`kill -9`; returns when the process is gone."""
        daemon = self.daemon(name_or_uuid)
        self._signal(daemon, signal.SIGKILL)
        _wait_gone(daemon.pid, f"{daemon.name} to be gone")
        return daemon

    def kill_all(self) -> None:
        """`kill -9` of every process at once."""
        daemons = self.daemons
        for daemon in daemons:
            self._signal(daemon, signal.SIGKILL)
        for daemon in daemons:
            _wait_gone(daemon.pid, f"{daemon.name} to be gone")

    def freeze(self, name_or_uuid: str) -> None:
        """SIGSTOP: the process knows nothing of it."""
        self._signal(self.daemon(name_or_uuid), signal.SIGSTOP)

    def thaw(self, name_or_uuid: str) -> None:
        """SIGCONT."""
        self._signal(self.daemon(name_or_uuid), signal.SIGCONT)

    def terminate(self, name_or_uuid: str, timeout_s: float = 15.0) -> Daemon:
        """SIGTERM; returns when the process is gone."""
        daemon = self.daemon(name_or_uuid)
        self._signal(daemon, signal.SIGTERM)
        _wait_gone(daemon.pid, f"{daemon.name} to end after SIGTERM", timeout_s)
        return daemon

    def is_running(self, name_or_uuid: str) -> bool:
        """Whether the process is there."""
        return _is_alive(self.daemon(name_or_uuid).pid)

    def ksck(self, *, checksum: bool = False) -> dict[str, Any]:
        """The report of `cluster ksck`; `exit` is its exit status."""
        flags = ["--checksum-scan"] if checksum else []
        done = run_command("cluster", "ksck", self.masters, "--format", "json", *flags, check=False)
        if done.returncode not in (0, 1):
            return {"exit": done.returncode, "problems": [done.stderr.strip()]}
        return {**json.loads(done.stdout), "exit": done.returncode}

    def wait_healthy(self, timeout_s: float = 40.0) -> dict[str, Any]:
        """Waits until ksck, checksums of all replicas included, finds nothing wrong; its report."""
        report: dict[str, Any] = {}

        def is_healthy() -> bool:
            report.clear()
            report.update(self.ksck(checksum=True))
            return bool(report["exit"] == 0)

        try:
            wait_until(is_healthy, "a healthy cluster", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; ksck says: {report.get('problems')}") from error
        return report

    def busiest_leader(self) -> Daemon:
        """The tablet server that leads most tablets."""
        leaders = [tablet["leader"] for tablet in self.ksck()["tablets"] if tablet["leader"]]
        return self.daemon(max(set(leaders), key=leaders.count))

    def log(self, name: str) -> str:
        """What a daemon has printed so far."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def log_end(self, name: str) -> int:
        """Where the daemon's next line will begin, for `events`."""
        path = self.directory / f"{name}.log"
        return path.stat().st_size if path.exists() else 0

    def events(self, name: str, event: str, *, since: int = 0, **fields: object) -> list[dict[str, Any]]:
        """The lines of this event, with these fields, that a daemon has logged from `since` (see `log_end`) on."""
        with (self.directory / f"{name}.log").open("rb") as log:
            log.seek(since)
            lines = [line for line in log.read().splitlines() if f'"event": "{event}"'.encode() in line]
        found = [json.loads(line) for line in lines]
        return [each for each in found if all(each.get(key) == value for key, value in fields.items())]

    def wait_for_event(
        self, name: str, event: str, *, since: int = 0, timeout_s: float = 40.0, **fields: object
    ) -> dict[str, Any]:
        """The first such line, once it is there."""
        return wait_until(
            lambda: self.events(name, event, since=since, **fields), f"{name} to log {event} {fields or ''}", timeout_s
        )[0]

    def wait_ended(self, name: str, timeout_s: float = 40.0) -> None:
        """Returns when a daemon has ended by itself, as at a `--fault_kill_on_event`."""
        _wait_gone(self.daemon(name).pid, f"{name} to end by itself", timeout_s)

    @staticmethod
    def _signal(daemon: Daemon, number: signal.Signals) -> None:
        if daemon.pid and _is_alive(daemon.pid):
            os.kill(daemon.pid, number)


def _wait_gone(pid: int, what: str, timeout_s: float = 30.0) -> None:
    wait_until(lambda: not _is_alive(pid), what, timeout_s)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
