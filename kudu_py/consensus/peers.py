"""`Peer`: another replica of the same tablet, as its leader reaches it.

The machine allows one append with entries in flight per follower, and coalesces everything pending into the next; the
peer fills the range that the machine named with records from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.codec import op_id_from_pb
from kudu_py.consensus.core.events import (
    AppendAnswered,
    Event,
    FollowerBehindLog,
    FollowerLacksTablet,
    RequestFailed,
)
from kudu_py.consensus.core.output import SendAppend
from kudu_py.consensus.peer_links import Answer, PeerLink
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.pb import consensus_pb2
from kudu_py.wal.format import Record
from kudu_py.wal.log import Log

_MESSAGE_OVERHEAD_BYTES = 256
DIVERGED = "diverged_at"
"""Among the details of TABLET_FAILED: the replica had committed otherwise than the leader that called it."""
_LACKING = (ErrorCode.TABLET_NOT_FOUND, ErrorCode.TABLET_FAILED)
_COPY_TARGET_STATES = {
    "DOES_NOT_EXIST": consensus_pb2.DOES_NOT_EXIST,
    "DELETED": consensus_pb2.DELETED,
    "READY": consensus_pb2.READY,
}


@dataclass(frozen=True, slots=True)
class PeerContext:
    """What the peers of a replica share.

    Attributes:
        tablet_id, uuid, address: of the leader's replica.
        log: where entries come from.
        time: learns which timestamps were answered.
        append_bytes_max: a message holds records up to this size, and at least one.
        post: takes facts.
        leads: whether the replica still leads a term.
        spawn: owns the tasks that read from the log.
    """

    tablet_id: TabletId
    uuid: ServerId
    address: str
    log: Log
    time: TimeManager
    append_bytes_max: int
    post: Callable[[Event], None]
    leads: Callable[[int], bool]
    spawn: Callable[[Coroutine[object, object, None], str], None]


class Peer:
    """A member of the group that this replica leads.

    Attributes:
        copy_target_state: what its files amount to, by its last answer.
    """

    def __init__(self, context: PeerContext, uuid: ServerId, address: str, link: PeerLink) -> None:
        self.context, self.uuid, self.address, self._link = context, uuid, address, link
        self.copy_target_state: consensus_pb2.CopyTargetState.ValueType = consensus_pb2.UNKNOWN_COPY_TARGET_STATE
        self._is_reading = False

    def send(self, message: SendAppend, *, safe_timestamp: HybridTime, timestamp: HybridTime) -> None:
        """Sends what the machine asked for, now if the entries are in memory, else once they are read."""
        records: Sequence[Record] = ()
        if message.last_index > message.preceding.index:
            context = self.context
            cached = context.log.cached(message.preceding.index + 1, message.last_index, context.append_bytes_max)
            if cached is None:
                self._send_after_read(message, safe_timestamp, timestamp)
                return
            records = cached
        self._link.send(Append(self, message, records, safe_timestamp, timestamp))

    def _send_after_read(self, message: SendAppend, safe_timestamp: HybridTime, timestamp: HybridTime) -> None:
        if self._is_reading:
            # The machine gave up on the append that this read is for; one disk queue per follower is enough.
            self.context.post(RequestFailed(self.uuid, message.request))
            return
        self._is_reading = True
        self.context.spawn(self._read_and_send(message, safe_timestamp, timestamp), f"read log for {self.uuid}")

    async def _read_and_send(self, message: SendAppend, safe_timestamp: HybridTime, timestamp: HybridTime) -> None:
        context = self.context
        try:
            records = await context.log.read(message.preceding.index + 1, message.last_index, context.append_bytes_max)
        except KuduError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            context.post(FollowerBehindLog(self.uuid, message.request))
            return
        finally:
            self._is_reading = False
        # A leader does not cut its log: if the term is still led, it was all along, and the records are those that were
        # meant.
        if context.leads(message.term):
            self._link.send(Append(self, message, records, safe_timestamp, timestamp))


class Append:
    """One UpdateConsensus of a peer."""

    __slots__ = ("message", "peer", "records", "safe_timestamp", "size_bytes", "timestamp")

    def __init__(
        self,
        peer: Peer,
        message: SendAppend,
        records: Sequence[Record],
        safe_timestamp: HybridTime,
        timestamp: HybridTime,
    ) -> None:
        self.peer, self.message, self.records = peer, message, records
        self.safe_timestamp, self.timestamp = safe_timestamp, timestamp
        self.size_bytes = _MESSAGE_OVERHEAD_BYTES + sum([len(record.payload) for record in records])

    def build(self, request: consensus_pb2.UpdateConsensusRequest) -> None:
        """Fills the request."""
        message, context = self.message, self.peer.context
        request.dest_uuid = self.peer.uuid
        request.tablet_id = context.tablet_id
        request.caller_uuid = context.uuid
        request.caller_term = message.term
        request.preceding_op_id.term, request.preceding_op_id.index = message.preceding
        request.committed_index = message.commit_index
        request.safe_timestamp = self.safe_timestamp
        request.caller_address = context.address
        request.caller_timestamp = self.timestamp
        entries = request.entries
        for record in self.records:
            entries.add().MergeFromString(record.payload)

    def answered(self, answer: Answer) -> None:
        """Tells the machine."""
        peer, message = self.peer, self.message
        context, request = peer.context, message.request
        if isinstance(answer, KuduError):
            if answer.code in _LACKING and DIVERGED not in answer.details:
                state = answer.details.get("data_state", "")
                peer.copy_target_state = _COPY_TARGET_STATES.get(state, consensus_pb2.UNKNOWN_COPY_TARGET_STATE)
                context.post(FollowerLacksTablet(peer.uuid, request))
            else:
                is_alive = answer.code in (ErrorCode.TABLET_NOT_RUNNING, ErrorCode.TABLET_FAILED)
                context.post(RequestFailed(peer.uuid, request, is_alive))
        elif answer.responder_uuid != peer.uuid:
            context.post(RequestFailed(peer.uuid, request))
        else:
            peer.copy_target_state = consensus_pb2.READY
            if answer.responder_term == message.term:
                context.time.note_answered(peer.uuid, self.timestamp)
            context.post(
                AppendAnswered(
                    peer.uuid,
                    request,
                    answer.responder_term,
                    answer.accepted,
                    op_id_from_pb(answer.last_received),
                    answer.last_committed_index,
                )
            )
