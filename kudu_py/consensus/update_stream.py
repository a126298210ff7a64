"""Serving UpdateConsensusStream: requests of many tablets in, answers out as they become ready.

Unlike `rpc.serve_stream` it makes no task per request: a replica takes a request synchronously and answers through a
callback, which is what keeps a follower's part of a write below the cost of two loop turns. The rules are the same:
requests are taken in order, one writer, an error is its item's answer, reading stops while too much is unanswered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import ServerId
from kudu_py.consensus.peer_links import Answer
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.calls import OK, ServedRequests, as_kudu_error
from kudu_py.rpc.dest_uuid import require_dest
from kudu_py.rpc.status import error_detail

Receive = Callable[[consensus_pb2.UpdateConsensusRequest, Callable[[Answer], None]], None]
"""Takes a request; calls back once with the answer, maybe at once. May raise KuduError instead."""


async def serve_updates(
    requests: AsyncIterator[consensus_pb2.UpdateConsensusStreamRequest],
    *,
    uuid: ServerId,
    receive: Receive,
    in_flight_max: int,
) -> AsyncIterator[consensus_pb2.UpdateConsensusStreamResponse]:
    """The answers of one stream; ends when the caller has no more requests and all are answered."""
    stream = _UpdateStream(requests, uuid, receive, in_flight_max)
    reader = asyncio.create_task(stream.read(), name="update-stream-reader")
    try:
        while (message := await stream.answers()) is not None:
            yield message
        await reader  # raises what ended the reading, if it was not the caller's end
    finally:
        # Replicas that still owe an answer find nobody to give it to; what they promised to the disk they keep.
        stream.is_closed = True
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


class _UpdateStream:
    """One stream being served.

    Attributes:
        is_closed: nobody takes answers any more.
    """

    def __init__(
        self,
        requests: AsyncIterator[consensus_pb2.UpdateConsensusStreamRequest],
        uuid: ServerId,
        receive: Receive,
        in_flight_max: int,
    ) -> None:
        self._served = requests if isinstance(requests, ServedRequests) else None
        self._requests = self._served.unchecked() if self._served is not None else requests
        self._uuid, self._receive, self._in_flight_max = uuid, receive, in_flight_max
        self._loop = asyncio.get_running_loop()
        self._message = consensus_pb2.UpdateConsensusStreamResponse()
        self._unanswered = 0
        self._has_ended = False
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    async def read(self) -> None:
        """Hands requests to replicas until the caller has no more."""
        try:
            async for message in self._requests:
                for item in message.items:
                    while self._unanswered >= self._in_flight_max:
                        self._room = self._loop.create_future()
                        await self._room
                    self._take(item)
        finally:
            self._has_ended = True
            self._rouse()

    async def answers(self) -> consensus_pb2.UpdateConsensusStreamResponse | None:
        """Waits for answers; all that are ready. None if there will be no more."""
        while not self._message.items:
            if self._has_ended and not self._unanswered:
                return None
            self._wake = self._loop.create_future()
            await self._wake
        message, self._message = self._message, consensus_pb2.UpdateConsensusStreamResponse()
        return message

    def _take(self, item: consensus_pb2.UpdateConsensusStreamRequest.Item) -> None:
        self._unanswered += 1
        started = self._loop.time()
        sequence, tablet_id = item.sequence, item.request.tablet_id

        def respond(answer: Answer) -> None:
            self._unanswered -= 1
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            code = OK
            if not self.is_closed:
                out = self._message.items.add()
                out.sequence, out.tablet_id = sequence, tablet_id
                if isinstance(answer, KuduError):
                    code = answer.code.value
                    out.error.CopyFrom(error_detail(answer))
                else:
                    out.response.CopyFrom(answer)
                self._rouse()
            if self._served is not None:
                self._served.observe(code, started)

        try:
            require_dest(item.request.dest_uuid, self._uuid)
            self._receive(item.request, respond)
        except Exception as raised:
            # Whoever raises has not answered.
            respond(raised if isinstance(raised, KuduError) else as_kudu_error(raised, self._served))

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
