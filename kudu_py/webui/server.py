"""`WebServer`: the application behind uvicorn, as a task on the daemon's loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from kudu_py.common.errors import ErrorCode, KuduError

CONNECTIONS_MAX = 128
STOP_GRACE_S = 1

_log = structlog.get_logger("webui")


class WebServer:
    """Serves an ASGI application at one address: `start`, `stop`."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_GRACE_S,
            server_header=False,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> str:
        """Listens and returns the bound "host:port"; port 0 takes a free one.

        Raises:
            KuduError: CONFIGURATION_ERROR that names the address, if it is taken or not of this machine.
        """
        assert self._task is None, "started once"
        listener = _listen(host, port)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="webserver")
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done():
            await self._task
        bound_port: int = listener.getsockname()[1]
        self._task.add_done_callback(_report_end)
        return f"[{host}]:{bound_port}" if ":" in host else f"{host}:{bound_port}"

    async def stop(self) -> None:
        """Closes the port and, after a short grace, what is under way. Idempotent."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait({self._task})


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has them."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _report_end(task: asyncio.Task[None]) -> None:
    """The pages are not worth a process, so that their end is only logged."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("webserver_failed", exc_info=task.exception())


def _listen(host: str, port: int) -> socket.socket:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise KuduError(
            ErrorCode.CONFIGURATION_ERROR,
            f"cannot serve HTTP at {shown}: {error.strerror or error}; stop what listens there or choose another "
            "address with --webserver_interface and --webserver_port",
            details={"address": shown},
        ) from error
    return listener
