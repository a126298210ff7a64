"""A real cluster in this process: one master and three tablet servers on a loop of their own, over loopback."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from kudu_py.daemon.metrics import new_registry
from kudu_py.daemon.options import MasterOptions, TabletServerOptions, load_options
from kudu_py.daemon.process import Process
from kudu_py.master.serve import serve as serve_master
from kudu_py.tserver.serve import serve as serve_tablet_server

START_TIMEOUT_S = 30.0


class LocalCluster:
    """The daemons, on a thread of their own so that blocking clients can be tested too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self.tserver_addresses: list[str] = []

    def start(self) -> str:
        """Starts all; the master's address, once the tablet servers serve."""
        self._thread.start()
        return self._ready.result(START_TIMEOUT_S)

    def stop(self) -> None:
        """Stops all."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._life())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _life(self) -> None:
        def failed(status: int) -> None:
            raise AssertionError(f"a daemon ended with status {status}")

        async with contextlib.AsyncExitStack() as stack:

            async def daemon(kind, serve, name, *flags):
                argv = [
                    f"--fs_wal_dir={self._directory / name}",
                    "--rpc_bind_addresses=127.0.0.1:0",
                    "--shutdown_grace_ms=100",
                    *flags,
                ]
                loaded = load_options(kind, [*argv, "--webserver_enabled=false"], environ={})
                process = Process(
                    registry=new_registry(role=kind.role, version="test"), version="test", exit_now=failed
                )
                await stack.enter_async_context(process.tasks)
                return await stack.enter_async_context(serve(process, loaded))

            master = await daemon(MasterOptions, serve_master, "master")
            for i in range(3):
                flag = f"--tserver_master_addrs={master.rpc_address}"
                ready = await daemon(TabletServerOptions, serve_tablet_server, f"tserver-{i}", flag)
                self.tserver_addresses.append(ready.rpc_address)
            self._ready.set_result(master.rpc_address)
            await self._stop.wait()


@pytest.fixture(scope="session")
def local_cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    cluster.master = cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def masters(local_cluster) -> str:
    """The address of the master."""
    return local_cluster.master
