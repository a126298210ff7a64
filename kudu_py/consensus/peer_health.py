"""How a leader finds its members to be, for those who decide whether to replace them."""

from __future__ import annotations

from kudu_py.consensus.core.progress import Progress
from kudu_py.pb import consensus_pb2


def peer_status(row: Progress, now: float, *, failed_after_s: float) -> consensus_pb2.PeerStatus:
    """A member as its leader sees it at `now`.

    Whatever a server says counts as a sign of life, also that it has no replica. A member that has been silent for less
    than `failed_after_s` is neither healthy nor lost.
    """
    silent_s = now - row.contacted_at
    if silent_s >= failed_after_s:
        health = consensus_pb2.UNREACHABLE
    elif row.needs_copy:
        health = consensus_pb2.NEEDS_COPY
    elif row.has_answered and not row.is_paused:
        health = consensus_pb2.HEALTHY
    else:
        health = consensus_pb2.UNKNOWN_PEER_HEALTH
    return consensus_pb2.PeerStatus(
        uuid=row.uuid,
        health=health,
        millis_since_answer=int(max(0.0, silent_s) * 1000),
        match_index=row.match_index,
    )
