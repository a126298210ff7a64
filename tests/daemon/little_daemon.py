"""A daemon with nothing to do, for the tests of how a process lives: run as a program by `test_process.py`.

Beyond the usual flags, the environment variable LITTLE_DAEMON says what is to go wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kudu_py.rpc import grpc_environment

grpc_environment.silence()

from kudu_py.common.ids import require_id  # noqa: E402
from kudu_py.daemon import composition_root  # noqa: E402
from kudu_py.daemon.options import Loaded, TabletServerOptions  # noqa: E402
from kudu_py.daemon.process import Process, Ready, run_daemon  # noqa: E402
from kudu_py.daemon.surroundings import ServiceRegistry, Surroundings  # noqa: E402
from kudu_py.webui.page import Health  # noqa: E402

MODE = os.environ.get("LITTLE_DAEMON", "")


def say(text: str) -> None:
    print(text, flush=True)


class LittleServer:
    """Serves nothing, and says what is asked of it."""

    def __init__(self, process: Process, surroundings: Surroundings) -> None:
        self.http_address = ""
        self._process = process
        self._threads = surroundings.threads

    def add_services(self, server: ServiceRegistry) -> None:
        pass

    async def start(self) -> None:
        if MODE == "slow start":
            say("starting")
            await asyncio.Event().wait()
        if MODE == "dying task":
            self._process.tasks.run(die(), name="writer")
        if MODE == "failed assertion":
            asyncio.get_running_loop().call_later(0.05, lambda: check())
        if MODE == "failed callback":
            # Of a disk job: told on the loop, where nobody awaits it.
            self._threads.submit(lambda: "no id", lambda result: require_id(str(result), "what was written"))

    async def drain(self) -> None:
        say(f"draining on {type(asyncio.get_running_loop()).__module__}")
        if MODE == "slow drain":
            await asyncio.Event().wait()

    async def stop(self) -> None:
        say("closing")


class LittlePages:
    """None."""

    def health(self) -> Health:
        return Health(True, "SERVING", {})

    def facts(self) -> list:
        return []

    def pages(self) -> list:
        return []


@asynccontextmanager
async def serve(process: Process, loaded: Loaded[TabletServerOptions]) -> AsyncIterator[Ready]:
    def build(options: TabletServerOptions, surroundings: Surroundings) -> tuple[LittleServer, LittlePages]:
        return LittleServer(process, surroundings), LittlePages()

    async def failing_drain() -> None:
        raise ValueError("a hook that fails")

    try:
        async with composition_root.serve(process, loaded, build) as ready:
            process.on_drain("failing", failing_drain)
            yield ready
    finally:
        say("closed")


async def die() -> None:
    await asyncio.sleep(0.05)
    raise OSError(5, "Input/output error", "/wal/segment-1")


def check() -> None:
    raise AssertionError("durable 7 is above accepted 6")


if __name__ == "__main__":
    sys.exit(run_daemon(TabletServerOptions, serve, sys.argv[1:], program="little", about="Little.", version="9.9"))
