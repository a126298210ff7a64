"""Serving the long-lived bidirectional streams: items of many tablets in, answers out as they become ready.

No task is made for an item, nor for an answer: whoever takes one answers through a callback, maybe at once, and the
callback that makes a message complete writes it. Each task on the way would cost a turn of the loop and a switch.

1. Items are taken in the order of their arrival, which is what keeps one tablet's requests in order.
2. Nothing is read while `in_flight_max` items are unanswered, or answered and not sent; then gRPC's flow control holds
   the sender back.
3. Answers are given as they become ready, so that one tablet's sync never delays another's heartbeat for long; those
   ready at the same time share a message. The items of one message are answered in one if that is possible within
   `TOGETHER_S` of the first answer: a message costs far more than an item in it, and who sent them together has the
   next ones together then.
4. One write at a time (`StreamWriter`): concurrent writes break a gRPC stream. What is answered meanwhile is in the
   next one.
5. An error is its item's answer. The stream ends when the sender has no more and all is answered, or when it breaks.
   What was taken goes on then; its answer finds nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kudu_py.common.errors import KuduError
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.rpc.calls import CLIENT_LEFT, OK, ServedRequests, as_kudu_error
from kudu_py.rpc.status import error_detail
from kudu_py.rpc.stream_writer import Stream, StreamWriter

TOGETHER_S = 0.001

Item = TypeVar("Item", covariant=True)
TakenItem = TypeVar("TakenItem")
Tag = TypeVar("Tag")
Answer = TypeVar("Answer")


class ItemMessage(Protocol[Item]):
    """A message of such a stream, in either direction."""

    @property
    def items(self) -> Sequence[Item]: ...


Message = TypeVar("Message", bound=ItemMessage[object])


async def serve_stream(
    requests: AsyncIterator[ItemMessage[TakenItem]],
    context: Stream,
    *,
    take: Callable[[TakenItem, Callable[[Answer | KuduError], None]], None],
    tag_of: Callable[[TakenItem], Tag],
    message_type: Callable[[], Message],
    add: Callable[[Message, Tag, Answer | ErrorDetail], None],
    in_flight_max: int,
) -> None:
    """Serves a stream whose messages hold several items each; returns when it is over.

    Args:
        requests: what the servicer was given; the destination of each item is checked if the service asks for it.
        context: of the call; answers are written to it.
        take: takes an item; calls back exactly once, on the loop, maybe at once. Or raises instead: a KuduError is the
            answer, anything else becomes INTERNAL.
        tag_of: what of an item is needed to answer it; the item itself need not be kept.
        message_type: makes an empty message of answers.
        add: adds an item with an answer, or an error, to a message.
        in_flight_max: items of this stream under way at most, until their answers are sent.

    Raises:
        KuduError: the client sent what is no message of this stream. asyncio.CancelledError: it has left.
    """
    assert in_flight_max > 0, f"{in_flight_max=}"
    await _Stream(requests, context, take, tag_of, message_type, add, in_flight_max).serve()


@dataclass(slots=True)
class _Group:
    """The items that came in one message.

    Attributes:
        unanswered: how many have no answer yet.
        timer: runs out when those that have one are sent without the others; set by the first of them.
    """

    unanswered: int
    timer: asyncio.TimerHandle | None = None


class _Stream(Generic[TakenItem, Tag, Answer, Message]):
    """One stream being served."""

    def __init__(
        self,
        requests: AsyncIterator[ItemMessage[TakenItem]],
        context: Stream,
        take: Callable[[TakenItem, Callable[[Answer | KuduError], None]], None],
        tag_of: Callable[[TakenItem], Tag],
        message_type: Callable[[], Message],
        add: Callable[[Message, Tag, Answer | ErrorDetail], None],
        in_flight_max: int,
    ) -> None:
        self._requests = requests
        self._served = requests if isinstance(requests, ServedRequests) else None
        self._take_item, self._tag_of, self._message_type, self._add = take, tag_of, message_type, add
        self._in_flight_max = in_flight_max
        self._loop = asyncio.get_running_loop()
        self._writer = StreamWriter(context, self._write)
        self._message = message_type()
        self._is_due = False  # what the message holds is to leave
        self._under_way = 0
        self._is_closed = False
        self._room: asyncio.Future[None] | None = None
        self._all_sent: asyncio.Future[None] | None = None

    async def serve(self) -> None:
        """Takes items until there are no more, and answers all of them."""
        reader = asyncio.create_task(self._read(), name="stream-reader")
        broken = self._writer.broken
        try:
            await asyncio.wait([reader, broken], return_when=asyncio.FIRST_COMPLETED)
            if not broken.done():
                await reader  # raises what ended the reading, if it was not the sender's end
                self._all_sent = self._loop.create_future()
                self._release()
                await asyncio.wait([self._all_sent, broken], return_when=asyncio.FIRST_COMPLETED)
            if self._writer.error is not None:
                raise _why_broken(self._writer.error)
        finally:
            self._is_closed = True
            self._writer.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        """Hands items over until the sender has no more."""
        served = self._served
        if served is None:
            async for message in self._requests:
                await self._take_all(message)
            return
        async for raw in served.raw:
            await self._take_all(served.decode(raw))

    async def _take_all(self, message: ItemMessage[TakenItem]) -> None:
        group = _Group(len(message.items))
        for item in message.items:
            while self._under_way >= self._in_flight_max:
                self._room = self._loop.create_future()
                await self._room
            self._take(item, group)

    def _take(self, item: TakenItem, group: _Group) -> None:
        self._under_way += 1
        started, tag = self._loop.time(), self._tag_of(item)
        is_answered = False

        def respond(answer: Answer | KuduError) -> None:
            nonlocal is_answered
            assert not is_answered, f"a second answer to item {tag} of a stream"
            is_answered = True
            if not self._is_closed:
                self._add(self._message, tag, error_detail(answer) if isinstance(answer, KuduError) else answer)
                self._note_answered(group)
            if self._served is not None:
                self._served.observe(answer.code.value if isinstance(answer, KuduError) else OK, started)

        try:
            if self._served is not None:
                self._served.check_item(item)
            self._take_item(item, respond)
        except Exception as raised:
            # Whoever raises has not answered.
            respond(raised if isinstance(raised, KuduError) else as_kudu_error(raised, self._served))

    def _note_answered(self, group: _Group) -> None:
        group.unanswered -= 1
        if group.unanswered == 0:
            if group.timer is not None:
                group.timer.cancel()
            self._release()
        elif group.timer is None:
            group.timer = self._loop.call_later(TOGETHER_S, self._on_late, group)

    def _on_late(self, group: _Group) -> None:
        group.timer = None
        self._release()

    def _release(self) -> None:
        """What is answered is to leave, at once or when the stream is free."""
        self._is_due = True
        self._write()

    def _write(self) -> None:
        """Sends the answers that are due, if the stream is free."""
        if not self._is_due or not self._writer.is_free:
            return
        count = len(self._message.items)
        if count:
            message, self._message = self._message, self._message_type()
            self._is_due = self._all_sent is not None
            self._under_way -= count
            self._writer.write(message)
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
        elif self._all_sent is not None and not self._under_way and not self._all_sent.done():
            self._all_sent.set_result(None)


def _why_broken(error: BaseException) -> BaseException:
    """Of a write: a client that has left, in order or by dying, is no error; this call is about to be cancelled."""
    if isinstance(error, (*CLIENT_LEFT, asyncio.InvalidStateError)):
        return asyncio.CancelledError()
    return error
