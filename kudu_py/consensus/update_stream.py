"""Serving UpdateConsensusStream: requests of many tablets in, answers out as they become ready."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from kudu_py.consensus.peer_links import Answer
from kudu_py.pb import consensus_pb2
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.rpc.serve_stream import serve_stream
from kudu_py.rpc.stream_writer import Stream

UNANSWERED_MAX = 16384
"""Of one stream; above the window of a link, so that only a caller without one is held back."""

Receive = Callable[[consensus_pb2.UpdateConsensusRequest, Callable[[Answer], None]], None]
"""Takes a request; calls back once with the answer, maybe at once. May raise KuduError instead."""


def serve_updates(
    requests: AsyncIterator[consensus_pb2.UpdateConsensusStreamRequest],
    context: Stream,
    receive: Receive,
    *,
    in_flight_max: int = UNANSWERED_MAX,
) -> Coroutine[Any, Any, None]:
    """Serves one stream; ends when the caller has no more requests and all are answered.

    What replicas promised to the disk they keep, also if the stream breaks before they answer.
    """
    return serve_stream(
        requests,
        context,
        take=lambda item, respond: receive(item.request, respond),
        tag_of=lambda item: (item.sequence, item.request.tablet_id),
        message_type=consensus_pb2.UpdateConsensusStreamResponse,
        add=_add,
        in_flight_max=in_flight_max,
    )


def _add(
    message: consensus_pb2.UpdateConsensusStreamResponse,
    tag: tuple[int, str],
    answer: consensus_pb2.UpdateConsensusResponse | ErrorDetail,
) -> None:
    sequence, tablet_id = tag
    if isinstance(answer, ErrorDetail):
        message.items.add(sequence=sequence, tablet_id=tablet_id, error=answer)
    else:
        message.items.add(sequence=sequence, tablet_id=tablet_id, response=answer)
