"""A tablet's members as commands show them, and the wait until one of them counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kudu_py.cli.copies import copies_of, under_way
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.masters import Masters
from kudu_py.cli.progress import Progress, ProgressLine
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc
from kudu_py.pb.consensus_pb2 import ConsensusState, MemberType, RaftConfig
from kudu_py.pb.tablet_copy_pb2 import CopySession
from kudu_py.rpc.call import call

POLL_INTERVAL_S: Final = 0.5
CAUGHT_UP_ENTRIES: Final = 1_000
"""A PRE_VOTER that lacks fewer entries than this while writes go on has caught up, as far as a person is concerned."""


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """How a member of a tablet stands.

    Attributes:
        state: what the tablet's leader knows; None if no leader answers.
        copy: the copy to the member that goes on, if one does.
    """

    state: ConsensusState | None
    copy: CopySession | None = None


def progress_of(seen: MemberSeen, uuid: str, wanted: MemberType.ValueType) -> Progress | None:
    """How far the member is on its way to `wanted` (VOTER, or a PRE_VOTER that has caught up); None: it is there."""
    if seen.state is None:
        return Progress("the tablet has no leader at the moment")
    state = seen.state
    lag = _lag_entries(state, uuid)
    if seen.copy is not None:
        doing = "waiting for its turn to copy" if not seen.copy.bytes_total else "copying"
        return Progress(
            doing,
            bytes_done=seen.copy.bytes_done,
            bytes_total=seen.copy.bytes_total,
            bytes_per_s=seen.copy.bytes_per_s,
            log_lag_entries=lag,
        )
    member = next((member for member in state.committed_config.members if member.uuid == uuid), None)
    if member is None:
        return Progress("waiting for it to become a member")
    if member.member_type == wanted == consensus_pb2.VOTER:
        return None
    health = _health(state, uuid)
    if health == consensus_pb2.UNREACHABLE:
        return Progress("the leader does not reach it", log_lag_entries=lag)
    if health == consensus_pb2.NEEDS_COPY:
        return Progress("waiting for the copy to begin")
    if wanted == consensus_pb2.PRE_VOTER and health == consensus_pb2.HEALTHY and lag <= CAUGHT_UP_ENTRIES:
        return None
    return Progress("catching up with the log", log_lag_entries=lag)


def _lag_entries(state: ConsensusState, uuid: str) -> int:
    peer = next((peer for peer in state.peers if peer.uuid == uuid), None)
    return max(state.last_op_id.index - peer.match_index, 0) if peer is not None else 0


def _health(state: ConsensusState, uuid: str) -> consensus_pb2.PeerHealth.ValueType:
    peer = next((peer for peer in state.peers if peer.uuid == uuid), None)
    return peer.health if peer is not None else consensus_pb2.UNKNOWN_PEER_HEALTH


def obstacle(
    state: ConsensusState, uuid: str, wanted: MemberType.ValueType, *, joined_index: int | None
) -> KuduError | None:
    """Why the member will not become what is wanted however long it is waited for; None: it may.

    Args:
        state: what the tablet's leader knows.
        joined_index: of a committed config in which it was a member; None: it is not known to have been one.
    """
    if state.pending_config.members:
        return None  # The next look shows what has become of that.
    config = state.committed_config
    member = next((member for member in config.members if member.uuid == uuid), None)
    if member is None and joined_index is not None and config.config_index > joined_index:
        return KuduError(
            ErrorCode.OPERATION_ABORTED,
            f"the replica at {uuid} was removed before it counted, by another call or for want of a copy; "
            f"the tablet has {config_text(config)}",
        )
    if member is not None and wanted == consensus_pb2.VOTER != member.member_type and not member.promote:
        return KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the replica at {uuid} is a {MemberType.Name(member.member_type)} that is not to be promoted; "
            "`tablet change_replica_type` makes it a VOTER",
        )
    return None


async def wait_for_member(
    masters: Masters,
    tablet_id: str,
    uuid: str,
    address: str,
    wanted: MemberType.ValueType,
    *,
    joined_index: int | None,
) -> RaftConfig:
    """Shows progress until the member is what is wanted; the committed config then. Until cancelled, if need be.

    Args:
        address: of the member's server.
        joined_index: as of `obstacle`.

    Raises:
        KuduError: OPERATION_ABORTED if it was removed; ILLEGAL_STATE if nobody is to promote it.
    """
    loop = asyncio.get_running_loop()
    with ProgressLine() as line:
        while True:
            seen = await _look(masters, tablet_id, uuid, address)
            if seen.state is not None:
                error = obstacle(seen.state, uuid, wanted, joined_index=joined_index)
                if error is not None:
                    raise error
                if any(member.uuid == uuid for member in seen.state.committed_config.members):
                    joined_index = max(joined_index or 0, seen.state.committed_config.config_index)
            progress = progress_of(seen, uuid, wanted)
            if progress is None:
                assert seen.state is not None
                return seen.state.committed_config
            line.show(progress, loop.time())
            await asyncio.sleep(POLL_INTERVAL_S)


async def _look(masters: Masters, tablet_id: str, uuid: str, address: str) -> MemberSeen:
    state = await leader_state(masters, tablet_id)
    try:
        sessions: Sequence[CopySession] = await copies_of(masters.dialer, uuid, address)
    except KuduError:
        sessions = ()  # then the leader says that it does not reach the member
    return MemberSeen(state, under_way(sessions, tablet_id, uuid))


async def leader_state(masters: Masters, tablet_id: str) -> ConsensusState | None:
    """What the tablet's leader knows of its group; None if there is none that answers.

    Raises:
        KuduError: the masters do not know the tablet.
    """
    for replica in (await masters.locations(tablet_id)).replicas:
        if replica.role != consensus_pb2.LEADER:
            continue
        stub = consensus_pb2_grpc.ConsensusServiceStub(masters.dialer.channel(replica.rpc_address))
        request = consensus_pb2.GetConsensusStateRequest(dest_uuid=replica.ts_uuid, tablet_ids=[tablet_id])
        try:
            answer = await call(stub.GetConsensusState(request, timeout=CALL_TIMEOUT_S), address=replica.rpc_address)
        except KuduError:
            return None  # it dies, or has just handed over: the masters will know the next
        state = answer.tablets[0].state
        return state if state.role == consensus_pb2.LEADER else None
    return None


def config_text(config: RaftConfig) -> str:
    """`config 57: voters a, b, c; pre-voter d`, with the marks that members carry."""
    groups = [
        f"{noun}{'s' if len(shown) > 1 else ''} {', '.join(shown)}"
        for noun, kind in (("voter", consensus_pb2.VOTER), ("pre-voter", consensus_pb2.PRE_VOTER))
        if (shown := [_member_text(member) for member in config.members if member.member_type == kind])
    ]
    return f"config {config.config_index}: {'; '.join(groups)}"


def _member_text(member: consensus_pb2.Member) -> str:
    return f"{member.uuid} (to be replaced)" if member.replace else member.uuid


def config_json(config: RaftConfig) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "config_index": config.config_index,
        "members": [
            {
                "uuid": member.uuid,
                "type": MemberType.Name(member.member_type),
                "address": member.address,
                "promote": member.promote,
                "replace": member.replace,
            }
            for member in config.members
        ],
    }
