"""A daemon with nothing to do, for the tests of how a process lives: run as a program by `test_process.py`.

Beyond the usual flags, the environment variable LITTLE_DAEMON says what is to go wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kudu_py.daemon import grpc_environment

grpc_environment.apply()

from kudu_py.daemon.layout import open_or_create  # noqa: E402
from kudu_py.daemon.options import Loaded, TabletServerOptions  # noqa: E402
from kudu_py.daemon.process import Process, Ready, run_daemon  # noqa: E402
from kudu_py.env.posix_disk import PosixDisk  # noqa: E402
from kudu_py.rpc.server import RpcServer  # noqa: E402
from kudu_py.webui.app import make_app  # noqa: E402
from kudu_py.webui.page import Health  # noqa: E402
from kudu_py.webui.server import WebServer  # noqa: E402

MODE = os.environ.get("LITTLE_DAEMON", "")


def say(text: str) -> None:
    print(text, flush=True)


@asynccontextmanager
async def serve(process: Process, loaded: Loaded[TabletServerOptions]) -> AsyncIterator[Ready]:
    options = loaded.options
    assert options is not None
    layout = open_or_create(
        PosixDisk(), options.fs_wal_dir, role=options.role, rng=process.rng, wall_micros=process.clock.wall_micros()
    )
    rpc = RpcServer(uuid=layout.uuid, registry=process.registry)
    try:
        address = await rpc.start(options.rpc_bind_address)
        web = WebServer(
            make_app(
                title=f"tserver {layout.uuid}", registry=process.registry, health=lambda: Health(True, "SERVING", {}),
                facts=list, settings=loaded.values, pages=[],
            )
        )  # fmt: skip
        host, port = options.webserver_bind_address
        http = await web.start(host, port)
        if MODE == "slow start":
            say("starting")
            await asyncio.Event().wait()

        async def drain() -> None:
            rpc.set_serving(False)
            say(f"draining on {type(asyncio.get_running_loop()).__module__}")
            if MODE == "slow drain":
                await asyncio.Event().wait()

        async def failing_drain() -> None:
            raise ValueError("a hook that fails")

        process.on_drain("health", drain)
        process.on_drain("failing", failing_drain)
        rpc.set_serving(True)
        loop = asyncio.get_running_loop()
        if MODE == "dying task":
            process.tasks.run(die(), name="writer")
        if MODE == "failed assertion":
            loop.call_later(0.05, lambda: check())
        try:
            yield Ready(uuid=layout.uuid, rpc_address=address, http_address=http)
        finally:
            say("closing")
            await web.stop()
    finally:
        await rpc.stop(options.shutdown_grace_ms / 1000)
        layout.close()
        say("closed")


async def die() -> None:
    await asyncio.sleep(0.05)
    raise OSError(5, "Input/output error", "/wal/segment-1")


def check() -> None:
    raise AssertionError("durable 7 is above accepted 6")


if __name__ == "__main__":
    sys.exit(run_daemon(TabletServerOptions, serve, sys.argv[1:], program="little", about="Little.", version="9.9"))
