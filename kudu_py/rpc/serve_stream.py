"""Serving the long-lived bidirectional streams: items answered concurrently, one writer, errors as answers.

1. One reader takes messages and starts a task per item, in order: the part of `handle` before its first wait runs in
   the order of arrival, which is what keeps one tablet's requests in order.
2. It stops reading while `in_flight_max` items are unanswered; then gRPC's flow control holds the sender back.
3. Answers are given as they become ready, so that one tablet's sync never delays another's heartbeat; those ready at
   the same time share a message.
4. Only the caller that iterates the answers writes: concurrent writes break a gRPC stream.
5. An error is its item's answer. The stream ends when the sender has no more and all is answered, or when it breaks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from kudu_py.common.errors import KuduError
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.rpc.calls import OK, ServedRequests, as_kudu_error
from kudu_py.rpc.status import error_detail

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def serve_stream(
    requests: AsyncIterator[Req],
    items_of: Callable[[Req], Sequence[Item]],
    handle: Callable[[Item], Awaitable[Answer]],
    on_error: Callable[[Item, ErrorDetail], Answer],
    pack: Callable[[Sequence[Answer]], Resp],
    *,
    in_flight_max: int,
) -> AsyncIterator[Resp]:
    """The answers of a stream whose messages hold several items each. For `RpcServer`, which closes it when the stream
    ends.

    When the stream breaks, unanswered `handle` calls are cancelled. What must go on (a round in the log) is awaited
    under `asyncio.shield`, as in unary calls: awaiting a bare future would cancel the future itself.

    Args:
        requests: what the servicer was given; the destination of each item is checked if the service asks for it.
        items_of: the items of a message.
        handle: answers one item; KuduError and unexpected exceptions become `on_error`'s answer.
        on_error: the answer that carries the error of an item.
        pack: makes one message of the answers that are ready.
        in_flight_max: items of this stream under way at most.
    """
    return _answers(requests, items_of, handle, on_error, pack, in_flight_max)


async def _answers(
    requests: AsyncIterator[Req],
    items_of: Callable[[Req], Sequence[Item]],
    handle: Callable[[Item], Awaitable[Answer]],
    on_error: Callable[[Item, ErrorDetail], Answer],
    pack: Callable[[Sequence[Answer]], Resp],
    in_flight_max: int,
) -> AsyncIterator[Resp]:
    assert in_flight_max > 0, f"{in_flight_max=}"
    served = _Stream(requests, handle, on_error, in_flight_max)
    reader = asyncio.create_task(served.read(items_of), name="stream-reader")
    try:
        while await served.answers_ready():
            ready = list(served.ready)
            served.ready.clear()
            yield pack(ready)
        await reader  # raises what ended the reading, if it was not the sender's end
    finally:
        reader.cancel()
        for task in served.tasks:
            task.cancel()
        # Nothing of this stream runs on after it; what the tasks raise while ending was meant for a caller that has
        # gone.
        await asyncio.gather(reader, *served.tasks, return_exceptions=True)


class _Stream(Generic[Item, Answer]):
    """One stream being served.

    Attributes:
        ready: answers not yet taken by the writer; never more than `in_flight_max` together with the tasks.
        tasks: items under way, each until its answer is in `ready`.
    """

    def __init__(
        self,
        requests: AsyncIterator[Req],
        handle: Callable[[Item], Awaitable[Answer]],
        on_error: Callable[[Item, ErrorDetail], Answer],
        in_flight_max: int,
    ) -> None:
        self._served = requests if isinstance(requests, ServedRequests) else None
        self._requests = self._served.unchecked() if self._served is not None else requests
        self._handle = handle
        self._on_error = on_error
        self._in_flight_max = in_flight_max
        self._reading = True
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self.ready: deque[Answer] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    async def read(self, items_of: Callable[[Req], Iterable[Item]]) -> None:
        """Starts an item's task for each item, until the sender has no more."""
        create_task = asyncio.get_running_loop().create_task
        try:
            async for message in self._requests:
                for item in items_of(message):  # type: ignore[arg-type]  # the caller's messages and its items
                    while len(self.tasks) + len(self.ready) >= self._in_flight_max:
                        self._room.clear()
                        await self._room.wait()
                    self.tasks.add(create_task(self._answer(item)))
        finally:
            self._reading = False
            self._changed.set()

    async def answers_ready(self) -> bool:
        """Waits for an answer; False if none will come any more."""
        self._room.set()  # the writer has taken what was ready
        while not self.ready:
            if not self._reading and not self.tasks:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _answer(self, item: Item) -> None:
        started = asyncio.get_running_loop().time() if self._served is not None else 0.0
        code = OK
        try:
            if self._served is not None:
                self._served.check_item(item)
            answer = await self._handle(item)
        except Exception as raised:
            error = raised if isinstance(raised, KuduError) else as_kudu_error(raised, self._served)
            code = error.code.value
            answer = self._on_error(item, error_detail(error))
        finally:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.discard(task)
            self._changed.set()
        if self._served is not None:
            self._served.observe(code, started)
        self.ready.append(answer)
