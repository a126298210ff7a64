"""`PeerLinks`: how UpdateConsensus travels from this server to others.

A *link* leads to one server and is shared by all tablets that the two servers have in common. There are two kinds,
which differ in nothing but speed: a long-lived stream, where all requests that wait when the stream is free share one
message, and unary calls.

What grpcio's streams ask for, and why the stream link is built as it is:
1. One write at a time (`StreamWriter`), and one reader task for the life of a stream: concurrent writes break it, and
   a read that is cancelled cancels the whole call.
2. An own window: a stream that nobody reads accepts thousands of messages without a word.
3. Own time limits: a stopped server is not noticed by the transport. A request that is not answered in time fails by
   itself; the stream stays, for other tablets may be answered.
4. Nothing is sent again by a link. The machine decides what the follower needs by the time there is a stream again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Protocol

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.clock import Clock
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call as rpc_call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.status import from_error_detail
from kudu_py.rpc.stream_writer import StreamWriter

if TYPE_CHECKING:
    from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceAsyncStub  # exists for type checkers only

_STATUS_WAIT_S = 0.2

Answer = consensus_pb2.UpdateConsensusResponse | KuduError


class UpdateCall(Protocol):
    """One UpdateConsensus on its way."""

    @property
    def size_bytes(self) -> int:
        """About what it adds to a message."""

    def build(self, request: consensus_pb2.UpdateConsensusRequest) -> None:
        """Fills the request, in place inside the message that carries it: entries are copied once less."""

    def answered(self, answer: Answer) -> None:
        """The answer, or why there is none. Called exactly once, maybe from within `send`."""


class PeerLink(Protocol):
    """The way to one server."""

    def send(self, update: UpdateCall) -> None:
        """Sends the call, or fails it at once if the server cannot be reached or too much is on its way. Does not
        wait."""

    async def close(self) -> None:
        """Fails what is on its way."""


@unique
class Transport(Enum):
    """How UpdateConsensus travels."""

    STREAM = "stream"
    UNARY = "unary"


@dataclass(frozen=True, slots=True)
class PeerLinkOptions:
    """Bounds of the links between servers.

    Attributes:
        transport: the kind of link.
        request_timeout_s: an UpdateConsensus without an answer for this long has failed.
        requests_in_flight_max: per link; more fail at once.
        message_bytes_max: requests are added to a message up to this size (one always fits).
        reconnect_min_s, reconnect_max_s: the pause after a stream broke, doubled with each failure in a row; calls fail
            at once meanwhile.
    """

    transport: Transport = Transport.STREAM
    request_timeout_s: float = 3.0
    requests_in_flight_max: int = 8192
    message_bytes_max: int = 4 << 20
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 1.0


class PeerLinks:
    """All links of a server, one per address of another."""

    def __init__(self, *, dialer: Dialer, clock: Clock, options: PeerLinkOptions) -> None:
        self._dialer, self._clock, self._options = dialer, clock, options
        self._links: dict[str, PeerLink] = {}

    def link(self, address: str) -> PeerLink:
        """The link to the server at `address`; made when first asked for. One that fails every call if the address
        cannot be dialled: a config may hold anything, and a group must survive what it committed.
        """
        link = self._links.get(address)
        if link is None:
            try:
                stub = self.stub(address)
            except KuduError as error:
                return NoLink(error)
            if self._options.transport is Transport.STREAM:
                link = StreamLink(stub, address, self._clock, self._options)
            else:
                link = UnaryLink(stub, address, self._options)
            self._links[address] = link
        return link

    def stub(self, address: str) -> ConsensusServiceAsyncStub:
        """For the rare calls: votes, elections.

        Raises:
            KuduError: the address cannot be dialled.
        """
        return ConsensusServiceStub(self._dialer.channel(address))

    async def close(self) -> None:
        """Closes all links; the replicas that use them have stopped."""
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()


class _Stream(Protocol):
    """The client's end of UpdateConsensusStream."""

    async def write(self, request: consensus_pb2.UpdateConsensusStreamRequest) -> None: ...

    def __aiter__(self) -> AsyncIterator[consensus_pb2.UpdateConsensusStreamResponse]: ...

    def cancel(self) -> bool: ...


class NoLink:
    """The way to an address that cannot be dialled."""

    def __init__(self, error: KuduError) -> None:
        self._error = error

    def send(self, update: UpdateCall) -> None:
        update.answered(self._error)

    async def close(self) -> None:
        return


class UnaryLink:
    """Each call on its own."""

    def __init__(self, stub: ConsensusServiceAsyncStub, address: str, options: PeerLinkOptions) -> None:
        self._stub, self._address, self._options = stub, address, options
        self._tasks: set[asyncio.Task[Answer]] = set()

    def send(self, update: UpdateCall) -> None:
        if len(self._tasks) >= self._options.requests_in_flight_max:
            update.answered(_window_is_full(self._address, len(self._tasks)))
            return
        task = asyncio.create_task(self._call(update), name=f"update {self._address}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(update, task))

    async def _call(self, update: UpdateCall) -> Answer:
        request = consensus_pb2.UpdateConsensusRequest()
        update.build(request)
        try:
            pending = self._stub.UpdateConsensus(request, timeout=self._options.request_timeout_s)
            return await rpc_call(pending, address=self._address)
        except KuduError as error:
            return error

    def _ended(self, update: UpdateCall, task: asyncio.Task[Answer]) -> None:
        """Also where the task was cancelled before it began."""
        self._tasks.discard(task)
        update.answered(_closed(self._address) if task.cancelled() else task.result())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StreamLink:
    """All calls on one stream, which is opened when there is something to send and reopened after it broke."""

    def __init__(self, stub: ConsensusServiceAsyncStub, address: str, clock: Clock, options: PeerLinkOptions) -> None:
        self._stub, self._address, self._clock, self._options = stub, address, clock, options
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        # Calls not sent yet, as sequence numbers; and all calls without an answer with their time limits, in the order
        # of both, since all limits are alike.
        self._queue: deque[int] = deque()
        self._unanswered: dict[int, tuple[float, UpdateCall]] = {}
        self._limit_timer: asyncio.TimerHandle | None = None
        self._writer: StreamWriter | None = None
        self._is_write_due = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failures = 0
        self._reopen_at = 0.0

    def send(self, update: UpdateCall) -> None:
        if self._closed:
            update.answered(_closed(self._address))
            return
        if len(self._unanswered) >= self._options.requests_in_flight_max:
            update.answered(_window_is_full(self._address, len(self._unanswered)))
            return
        now = self._clock.monotonic()
        if self._task is None:
            if now < self._reopen_at:
                update.answered(_unavailable(self._address, "the stream broke a moment ago"))
                return
            self._task = self._loop.create_task(self._run(), name=f"consensus stream to {self._address}")
        self._sequence += 1
        limit = now + self._options.request_timeout_s
        self._unanswered[self._sequence] = (limit, update)
        self._queue.append(self._sequence)
        if self._limit_timer is None:
            self._limit_timer = self._loop.call_at(limit, self._on_limit)
        if not self._is_write_due:
            # In the next turn, so that what other tablets have to say in this one shares the message.
            self._is_write_due = True
            self._loop.call_soon(self._write_due)

    async def close(self) -> None:
        self._closed = True
        if self._limit_timer is not None:
            self._limit_timer.cancel()
            self._limit_timer = None
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._fail_all(_closed(self._address))

    async def _run(self) -> None:
        """The life of one stream."""
        stream: _Stream = self._stub.UpdateConsensusStream()
        reader = self._loop.create_task(
            rpc_call(self._read(stream), address=self._address), name=f"read from {self._address}"
        )
        writer = self._writer = StreamWriter(stream, self._write)
        why = _unavailable(self._address, "the stream ended")
        try:
            self._write()
            await asyncio.wait([reader, writer.broken], return_when=asyncio.FIRST_COMPLETED)
            # The reader learns the status; a writer is only told that the stream is no more.
            await asyncio.wait([reader], timeout=_STATUS_WAIT_S)
            if reader.done() and not reader.cancelled() and isinstance(error := reader.exception(), KuduError):
                why = error
        finally:
            reader.cancel()
            stream.cancel()
            writer.close()
            await asyncio.gather(reader, return_exceptions=True)
            self._task = self._writer = None
            pause = min(self._options.reconnect_min_s * 2**self._failures, self._options.reconnect_max_s)
            self._failures = min(self._failures + 1, 16)
            self._reopen_at = self._clock.monotonic() + pause
            self._fail_all(why)

    def _write_due(self) -> None:
        self._is_write_due = False
        self._write()

    def _write(self) -> None:
        """Begins the next message if there is one and the stream is free."""
        writer = self._writer
        if writer is not None and writer.is_free and (message := self._take()) is not None:
            writer.write(message)

    async def _read(self, stream: _Stream) -> None:
        async for message in stream:
            self._failures = 0
            for item in message.items:
                known = self._unanswered.pop(item.sequence, None)
                if known is None:
                    continue  # it came after its time limit
                if item.HasField("error"):
                    known[1].answered(from_error_detail(item.error))
                else:
                    known[1].answered(item.response)

    def _take(self) -> consensus_pb2.UpdateConsensusStreamRequest | None:
        """The next message, from all calls that wait and fit; None if they have all passed their limits."""
        message = consensus_pb2.UpdateConsensusStreamRequest()
        size = 0
        queue, unanswered, items = self._queue, self._unanswered, message.items
        while queue:
            known = unanswered.get(queue[0])
            if known is None:
                queue.popleft()
                continue
            update = known[1]
            size += update.size_bytes
            if size > self._options.message_bytes_max and items:
                break
            item = items.add()
            item.sequence = queue.popleft()
            update.build(item.request)
        return message if items else None

    def _on_limit(self) -> None:
        """The oldest call has reached its time limit, or has been answered since."""
        self._limit_timer = None
        now = self._clock.monotonic()
        while self._unanswered:
            sequence, (limit, update) = next(iter(self._unanswered.items()))
            if limit > now:
                self._limit_timer = self._loop.call_at(limit, self._on_limit)
                return
            del self._unanswered[sequence]
            update.answered(
                KuduError(
                    ErrorCode.TIMED_OUT,
                    f"{self._address} did not answer within {self._options.request_timeout_s:g} s",
                    verdict=Verdict.UNKNOWN,
                )
            )

    def _fail_all(self, why: KuduError) -> None:
        self._queue.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for _, update in unanswered.values():
            update.answered(why)


def _unavailable(address: str, why: str) -> KuduError:
    return KuduError(ErrorCode.UNAVAILABLE, f"{address}: {why}", verdict=Verdict.UNKNOWN)


def _closed(address: str) -> KuduError:
    return KuduError(ErrorCode.SHUTTING_DOWN, f"the link to {address} is closed", verdict=Verdict.UNKNOWN)


def _window_is_full(address: str, count: int) -> KuduError:
    return KuduError(
        ErrorCode.SERVER_TOO_BUSY, f"{count} requests to {address} wait for an answer", verdict=Verdict.TRY_LATER
    )
