"""A TCP proxy that loses replies: the request arrives and is carried out, the answer never comes back.

Stands between a client and a server on loopback, in a thread with a loop of its own, so that blocking tests can use it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType

CHUNK_BYTES = 64 * 1024
START_TIMEOUT_S = 10.0


class TcpProxy:
    """Forwards connections to `target` ("host:port") until told otherwise; a context manager.

    Attributes:
        address: where it listens, "127.0.0.1:port", once entered.
        replies_lost: number of connections whose replies were swallowed and that were then cut.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._links: set[_Link] = set()
        self.address = ""
        self.replies_lost = 0

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise AssertionError("the proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(START_TIMEOUT_S)

    def lose_next_reply(self) -> None:
        """On every connection that is open now: swallow what the server says from here on, and cut at the first such
        byte.
        """
        self._loop.call_soon_threadsafe(self._each, _Link.lose)

    def cut(self) -> None:
        """Cuts every connection at once."""
        self._loop.call_soon_threadsafe(self._each, _Link.cut)

    def _each(self, hurt: Callable[[_Link], None]) -> None:
        for link in list(self._links):
            hurt(link)

    def _end(self) -> None:
        assert self._stop is not None
        self._stop.set()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for link in list(self._links):
            link.cut()
        # One turn for the connections' tasks to see that they were cut.
        await asyncio.gather(*[link.ended.wait() for link in list(self._links)])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        link = _Link(self, reader, writer, upstream_reader, upstream_writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.ended.set()


class _Link:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: TcpProxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = (client_reader, client_writer)
        self._server = (server_reader, server_writer)
        self._losing = False
        self.ended = asyncio.Event()

    def lose(self) -> None:
        self._losing = True

    def cut(self) -> None:
        for _, writer in (self._client, self._server):
            writer.close()

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self) -> None:
        while chunk := await self._client[0].read(CHUNK_BYTES):
            self._server[1].write(chunk)
            await self._server[1].drain()

    async def _replies(self) -> None:
        while chunk := await self._server[0].read(CHUNK_BYTES):
            if self._losing:
                self._proxy.replies_lost += 1
                return
            self._client[1].write(chunk)
            await self._client[1].drain()
