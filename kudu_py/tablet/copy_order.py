"""`CopyOrder`: StartTabletCopy as a value, and whether this server may obey it (seed 002, "Auto-vivifying Tablet Copy
protocol").

A copy replaces what the server has of the tablet, so each check comes before the first change, and the whole is
idempotent: the leader repeats it until the follower answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.common.wire import op_id_from_pb
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.metadata import DataState

_ADDRESS_LENGTH_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOrder:
    """Who wants which replica copied from where, and what it believes of the target.

    Attributes:
        caller, caller_term: a leader, or an administrator's tool with the term of one.
        expected_state: "DOES_NOT_EXIST" or a `DataState`'s name; None: any but COPYING.
        last_op_id: where the target's log has to end; None: anywhere.
        committed_op_id: the source must have applied this; None: what the target itself knows to be committed.
        source, source_address: where to fetch from.
    """

    tablet_id: TabletId
    caller: ServerId
    caller_term: int
    expected_state: str | None
    last_op_id: OpId | None
    committed_op_id: OpId | None
    source: ServerId
    source_address: str

    @staticmethod
    def from_pb(request: consensus_pb2.StartTabletCopyRequest) -> CopyOrder:
        """From the call.

        Raises:
            KuduError: INVALID_ARGUMENT that names the field.
        """
        expected = request.expected_state
        if expected not in consensus_pb2.CopyTargetState.values():
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"expected_state {expected} is not known")
        if not 0 < len(request.source_address) <= _ADDRESS_LENGTH_MAX:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, "source_address must be host:port of the server to copy from")
        is_named = expected != consensus_pb2.UNKNOWN_COPY_TARGET_STATE
        return CopyOrder(
            tablet_id=TabletId(require_id(request.tablet_id, "tablet_id")),
            caller=ServerId(require_id(request.caller_uuid, "caller_uuid")),
            caller_term=request.caller_term,
            expected_state=consensus_pb2.CopyTargetState.Name(expected) if is_named else None,
            last_op_id=op_id_from_pb(request.last_op_id) if request.HasField("last_op_id") else None,
            committed_op_id=op_id_from_pb(request.committed_op_id) if request.HasField("committed_op_id") else None,
            source=ServerId(require_id(request.source_uuid, "source_uuid")),
            source_address=request.source_address,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReplica:
    """What this server has of a tablet before a copy.

    Attributes:
        data_state: None: it has never hosted it.
        term: the latest it knows; 0 if it never hosted it.
        last_op_id: the end of its log; None if that is not known, because the log cannot be read.
        committed_op_id: what it knows to be committed; MIN_OP_ID if it does not run.
        is_running: whether it takes part in its group; a FAILED one does not.
        is_leader: whether it leads.
    """

    data_state: DataState | None = None
    term: int = 0
    last_op_id: OpId | None = MIN_OP_ID
    committed_op_id: OpId = MIN_OP_ID
    is_running: bool = False
    is_leader: bool = False

    @property
    def caller_term_min(self) -> int:
        """A caller of an older term is a leader of old.

        A replica that runs measures by its own term, and tells it to whoever calls. One that does not cannot: if it
        only voted in a later term, in an election that came to nothing, its leader would be refused for ever. It takes
        a copy from whoever may know all that it acknowledged, keeps its term, and then answers with it (Kudu's
        `TestTabletCopyFollowerWithHigherTerm`).
        """
        if self.is_running or self.last_op_id is None:
            return self.term
        return self.last_op_id.term

    @property
    def state_name(self) -> str:
        """As `CopyOrder.expected_state`."""
        return "DOES_NOT_EXIST" if self.data_state is None else self.data_state.value


def require_foreign_source(order: CopyOrder, uuid: ServerId) -> None:
    """Refuses to copy from oneself.

    Raises:
        KuduError: INVALID_ARGUMENT.
    """
    if order.source == uuid:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"tablet {order.tablet_id} cannot be copied from this server to itself ({uuid})"
        )


def require_obedience(order: CopyOrder, local: LocalReplica) -> None:
    """Whether what is here may be replaced as ordered.

    1. In a state that the caller does not expect, somebody else was faster.
    2. A caller of an older term is a leader of old; what it leads may lack what is here (Kudu's
       `TestRejectRogueLeader`). See `LocalReplica.caller_term_min`.
    3. A log that ends elsewhere than the caller believes has moved on since.
    4. The leader itself is not replaced, whatever term a caller names: its log is what the others are measured by, and
       one that does not know yet that it was deposed learns that from who leads, not from an order.
    5. If the own log cannot be read, nobody can tell here whether a source holds all that was acknowledged. The leader
       of a term at or above the own does; another replica might not.

    Raises:
        KuduError: ILLEGAL_STATE; INVALID_TERM with the own `term`.
    """
    tablet_id = order.tablet_id
    if order.expected_state is not None and order.expected_state != local.state_name:
        raise _illegal_state(
            f"the replica of tablet {tablet_id} is {local.state_name} here, not {order.expected_state}", local
        )
    if order.caller_term < local.caller_term_min:
        raise KuduError(
            ErrorCode.INVALID_TERM,
            f"a copy of tablet {tablet_id} was asked for in term {order.caller_term}, and this server knows term "
            f"{local.caller_term_min}",
            details={"term": str(local.term)},
        )
    if order.last_op_id is not None and order.last_op_id != local.last_op_id:
        raise _illegal_state(
            f"the log of tablet {tablet_id} ends at {local.last_op_id or 'an unknown entry'} here, not at "
            f"{order.last_op_id}",
            local,
        )
    if local.is_leader:
        raise _illegal_state(
            f"this server leads tablet {tablet_id} in term {local.term}; make it step down before its replica is "
            "replaced",
            local,
        )
    if local.last_op_id is None and order.source != order.caller:
        raise _illegal_state(
            f"the log of tablet {tablet_id} cannot be read here, so only its leader may be copied from, and only at "
            f"its own call; the source is {order.source} and the caller {order.caller}",
            local,
        )


def require_nothing_forgotten(own_last: OpId | None, fetched_last: OpId, source: ServerId) -> None:
    """Refuses a source whose log is behind the own: entries that this server acknowledged may be missing in it.

    A log that ends in a later term, or in the same at the same index or further, holds every entry that was committed
    with this server's help (the rule by which votes are given, and for the same reason).

    Args:
        own_last: where the own log ended; None if nobody knows, and then the source is the leader.

    Raises:
        KuduError: ILLEGAL_STATE.
    """
    if own_last is not None and fetched_last < own_last:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the log of {source} ends at {fetched_last}, and this server had acknowledged entries up to "
            f"{own_last}; copy from the leader",
            details={"last_op_id": str(own_last)},
        )


def already_in_progress(tablet_id: TabletId) -> KuduError:
    """The refusal while another copy is under way."""
    return KuduError(
        ErrorCode.ALREADY_IN_PROGRESS,
        f"tablet {tablet_id} is being copied to this server already",
        verdict=Verdict.TRY_LATER,
        details={"data_state": "COPYING"},
    )


def _illegal_state(why: str, local: LocalReplica) -> KuduError:
    return KuduError(ErrorCode.ILLEGAL_STATE, why, details={"data_state": local.state_name})
