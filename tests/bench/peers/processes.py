"""Processes of the peers: servers that run while they are measured, programs that are run to their end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.peers.fetch import DIRECTORY, SASL_PATH

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
RUN_TIMEOUT_S = 900


def empty_directory(name: str) -> Path:
    """For a system's data and logs; what an earlier run left there is gone."""
    directory = DIRECTORY / "run" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Servers:
    """Processes that are stopped together. Each is a session of its own, so that Ctrl-C reaches only the one who
    stops them.
    """

    def __init__(self) -> None:
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, command: Sequence[str | Path], log: Path) -> int:
        """Its pid."""
        with log.open("wb") as output:
            environment = {**os.environ, "SASL_PATH": SASL_PATH}
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)
        self._started.append((process, log))
        return process.pid

    def await_ready(self, is_ready: Callable[[], bool]) -> None:
        """Raises AssertionError with the end of its log if one of them ends, or if it takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            for process, log in self._started:
                if process.poll() is not None:
                    said = log.read_text(errors="replace").strip()[-300:]
                    raise AssertionError(f"{process.args[0]} ended with status {process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready after {START_TIMEOUT_S} s, see {self._started[0][1]}")
            time.sleep(0.2)

    def stop(self) -> None:
        for process, _ in self._started:
            process.terminate()
        for process, _ in self._started:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def servers() -> Iterator[Servers]:
    started = Servers()
    try:
        yield started
    finally:
        started.stop()


def run(
    command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, timeout_s: float = RUN_TIMEOUT_S
) -> str:
    """What it printed; AssertionError with the errors' beginning, where the cause stands, if it fails.

    Whatever ends the wait, the program and what it started (Spark's Java) are gone on return.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=dict(os.environ if environment is None else environment),
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command[0]} took more than {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        said = errors.strip() or output.strip()
        raise AssertionError(f"{command[0]} ended with status {process.returncode}: {said[:400]} ... {said[-400:]}")
    return output
