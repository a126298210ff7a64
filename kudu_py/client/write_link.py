"""`WriteLinks`: how Writes travel to tablet servers.

One link per server, shared by all tablets that the client writes to there: a long-lived stream, or unary calls where
the server does not offer the stream. A link sends and tells the answer; it never sends anything again
(`tablet_writer.py` does).

1. One write at a time (`stream_writer.py`) and one reader task for the life of a stream: concurrent writes break
   grpcio's streams, and a read that is cancelled cancels the whole call.
2. A window of its own: a stream that nobody reads accepts thousands of messages without a word.
3. After a break the reader knows why; the writer is only told that there was one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.pb import tserver_pb2
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.status import from_error_detail, from_rpc_error
from kudu_py.rpc.stream_writer import StreamWriter

if TYPE_CHECKING:
    import grpc.aio

    Stream = grpc.aio.StreamStreamCall[tserver_pb2.WriteStreamRequest, tserver_pb2.WriteStreamResponse]

Answer = tserver_pb2.WriteResponse | KuduError
MESSAGE_BYTES = 1 << 20
"""A message is full with so many bytes of rows; the last Write that fits may go beyond."""

OnAnswer = Callable[[Answer], None]
"""Called exactly once, unless the sending was cancelled; never from within `send`."""


class WriteLinks:
    """All links of a client, by address. Bound to one event loop."""

    def __init__(self, *, dialer: Dialer, streams: bool, window: int, timeout_s: float) -> None:
        """
        Args:
            streams: whether to try streams at all.
            window: Writes on one stream without an answer; more wait in order.
            timeout_s: of a unary Write.
        """
        self._dialer = dialer
        self._streams = streams
        self._window = window
        self._timeout_s = timeout_s
        self._links: dict[str, WriteLink] = {}

    def link(self, address: str) -> WriteLink:
        """The link to the server at `address`."""
        link = self._links.get(address)
        if link is None:
            link = WriteLink(
                self._dialer, address, streams=self._streams, window=self._window, timeout_s=self._timeout_s
            )
            self._links[address] = link
        return link

    def flush(self) -> None:
        """Begins to send what was given to any link, as far as there is room."""
        for link in self._links.values():
            link.flush()

    async def close(self) -> None:
        """Ends all links; what is on its way is answered with an error."""
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            await link.close()


class WriteLink:
    """The way of Writes to one server."""

    def __init__(self, dialer: Dialer, address: str, *, streams: bool, window: int, timeout_s: float) -> None:
        self.address = address
        self._dialer = dialer
        self._stub = TabletServerServiceStub(dialer.channel(address))
        self._streams = streams
        self._window = window
        self._timeout_s = timeout_s
        self._next_id = 0
        # Writes that wait for the stream, and those without an answer; a waiting one is in both.
        self._waiting: deque[int] = deque()
        self._unanswered: dict[int, tuple[tserver_pb2.WriteRequest, OnAnswer]] = {}
        self._on_stream = 0
        self._writer: StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._unary: dict[int, asyncio.Task[None]] = {}
        self._heard_at = 0.0
        self._closed = False

    def send(self, request: tserver_pb2.WriteRequest, on_answer: OnAnswer) -> int:
        """Takes a Write, which leaves at the next `flush`; answers the number to `cancel` it by."""
        assert not self._closed, f"the link to {self.address} is closed"
        self._next_id += 1
        number = self._next_id
        self._unanswered[number] = (request, on_answer)
        if not self._streams:
            self._unary[number] = asyncio.create_task(self._call(number, request), name=f"write {self.address}")
            return number
        self._waiting.append(number)
        return number

    def flush(self) -> None:
        """Begins to send what waits, in one message if the stream is free, else when it is."""
        if not self._waiting:
            return
        if self._task is None:
            self._heard_at = asyncio.get_running_loop().time()
            self._task = asyncio.create_task(self._run(), name=f"write stream to {self.address}")
        else:
            self._write()

    def cancel(self, number: int) -> None:
        """Forgets a Write: its answer is not wanted any more. The server may carry it out all the same."""
        self._unanswered.pop(number, None)
        task = self._unary.pop(number, None)
        if task is not None:
            task.cancel()

    def reset_if_silent(self, silence_s: float) -> None:
        """Gives up the stream if nothing was heard on it for so long: the server may have been stopped.

        What is on its way is answered with an error.
        """
        if self._task is not None and asyncio.get_running_loop().time() - self._heard_at >= silence_s:
            self._task.cancel()

    async def close(self) -> None:
        """Ends the stream and the calls."""
        self._closed = True
        tasks = [*self._unary.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_all(_lost(self.address, "the client was closed"))

    async def _call(self, number: int, request: tserver_pb2.WriteRequest) -> None:
        answer: Answer
        try:
            async with self._dialer.permit(self.address):
                answer = await call(
                    self._stub.Write(request, timeout=self._timeout_s), address=self.address, wrote=True
                )
        except KuduError as error:
            answer = error
        self._unary.pop(number, None)
        self._answer(number, answer)

    async def _run(self) -> None:
        """The life of one stream."""
        why = _lost(self.address, "the stream ended")
        stream = self._stub.WriteStream()
        writer = self._writer = StreamWriter(stream, self._write)
        reader = asyncio.create_task(self._read(stream), name=f"read {self.address}")
        try:
            self._write()
            await asyncio.wait([reader, writer.broken], return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                await asyncio.wait([reader], timeout=0.2)
            if reader.done() and not reader.cancelled():
                error = reader.exception()
                if error is not None:
                    why = _why(error, self.address)
        finally:
            reader.cancel()
            stream.cancel()
            writer.close()
            await asyncio.gather(reader, return_exceptions=True)
            self._task = None
            self._writer = None
            self._on_stream = 0
            if why.code is ErrorCode.NOT_SUPPORTED and not self._closed:
                self._use_unary_calls()
            else:
                self._fail_all(why)

    def _write(self) -> None:
        """Begins the next message if there is one and the stream is free."""
        writer = self._writer
        if writer is None or not writer.is_free:
            return
        message = self._next_message()
        if message.items:
            writer.write(message)

    def _next_message(self) -> tserver_pb2.WriteStreamRequest:
        """Everything that waits, as far as window and size allow: a message costs far more than an item in it."""
        message = tserver_pb2.WriteStreamRequest()
        size = 0
        while self._waiting and self._on_stream < self._window and size < MESSAGE_BYTES:
            number = self._waiting.popleft()
            sending = self._unanswered.get(number)
            if sending is not None:
                self._on_stream += 1
                size += len(sending[0].rows)
                message.items.add(id=number, request=sending[0])
        return message

    async def _read(self, stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        async for message in stream:
            self._heard_at = loop.time()
            items = message.items
            self._on_stream -= len(items)
            for item in items:
                known = self._unanswered.pop(item.id, None)
                if known is not None:
                    known[1](from_error_detail(item.error) if item.HasField("error") else item.response)
            if self._waiting:
                self._write()

    def _use_unary_calls(self) -> None:
        self._streams = False
        self._waiting.clear()
        for number, (request, _) in self._unanswered.items():
            self._unary[number] = asyncio.create_task(self._call(number, request), name=f"write {self.address}")

    def _answer(self, number: int, answer: Answer) -> None:
        known = self._unanswered.pop(number, None)
        if known is not None:
            known[1](answer)

    def _fail_all(self, why: KuduError) -> None:
        self._waiting.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for _, on_answer in unanswered.values():
            on_answer(why)


def _why(error: BaseException, address: str) -> KuduError:
    """A stream's end as an error of each Write that was on it: what became of those is not known."""
    if hasattr(error, "code"):
        return from_rpc_error(error, wrote=True, address=address)  # type: ignore[arg-type]  # AioRpcError has a code
    return _lost(address, f"{type(error).__name__}: {error}")


def _lost(address: str, why: str) -> KuduError:
    return KuduError(ErrorCode.UNAVAILABLE, f"{address}: {why}", verdict=Verdict.UNKNOWN)
