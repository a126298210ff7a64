"""What the planners of balance may see: from records and reports to servers, tablets and reasons to do nothing.

Evenness can wait, so anything else goes first. Nothing at all is moved while a server with replicas is silent, a tablet
is not what its record says, an administrator's operation goes over many tablets, or not every server has reported yet.
A single tablet is left alone (but counts) while a move of it is under way, for a while after an administrator changed
or moved its members or a move of it did not end well, and while it has a learner that an administrator wants there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kudu_py.common.counted import counted
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import MemberType
from kudu_py.master.catalog.balance import BalanceServer, BalanceStep, BalanceTablet, after
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationKind,
    OperationState,
    TabletEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.placement import Candidate
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A tablet server that has registered.

    Attributes:
        is_live: heard of lately.
        has_reported: this reign has a full report of its replicas.
        refuses_copies: copies to it came to nothing lately.
    """

    candidate: Candidate
    is_live: bool = True
    has_reported: bool = True
    refuses_copies: bool = False


@dataclass(frozen=True, slots=True)
class TabletSeen:
    """What was reported on one tablet.

    Attributes:
        hosts: the last report of each server that has, or had, a replica.
        leader: of the highest term that any reported.
    """

    hosts: Mapping[ServerId, ReportedReplica]
    leader: ServerId | None


@dataclass(frozen=True, slots=True)
class BalanceView:
    """What the planners may see.

    Attributes:
        tablets: as they will be once the moves under way have ended.
        holds: why nothing may be moved now; for people. Empty: steps may be taken.
        under_way: by server, moves of replicas that have not ended.
    """

    servers: tuple[BalanceServer, ...]
    tablets: tuple[BalanceTablet, ...]
    holds: tuple[str, ...]
    under_way: Mapping[ServerId, int]


def view_of(
    state: CatalogState,
    servers: Sequence[ServerSeen],
    reports: Callable[[TabletId], TabletSeen],
    *,
    now_micros: int,
    cooldown_micros: int,
    is_settling: bool = False,
) -> BalanceView:
    """The view of this moment."""
    live = {server.candidate.uuid for server in servers if server.is_live}
    moves: dict[TabletId, OperationEntry] = {}
    others: list[OperationEntry] = []
    for operation in state.open_operations:
        if operation.kind is OperationKind.MOVE_REPLICA and operation.tablet_id is not None:
            moves[operation.tablet_id] = operation
        else:
            others.append(operation)
    since_micros = max(0, now_micros - cooldown_micros)
    resting = _resting(state.operations.values(), since_micros)
    tablets: list[BalanceTablet] = []
    troubles: list[tuple[TabletId, str]] = []
    for table_id in sorted(state.tablets_by_table):
        for entry in state.tablets_of(table_id):
            move = moves.get(entry.tablet_id)
            seen = reports(entry.tablet_id)
            if move is None and (trouble := trouble_of(entry, state.wanted_voters(entry), seen, live)):
                troubles.append((entry.tablet_id, trouble))
            is_held = (
                move is not None
                or entry.tablet_id in resting
                or entry.changed_by_admin_micros > since_micros
                or any(member.member_type is not MemberType.VOTER for member in entry.config.members)
            )
            tablets.append(_tablet(entry, seen.leader, is_held, move))
    holds = _server_holds(state, servers, is_settling) + _operation_holds(others) + _tablet_holds(troubles)
    under_way = Counter(uuid for move in moves.values() for uuid in (move.from_, move.to) if uuid is not None)
    balanced = tuple(
        BalanceServer(
            server.candidate,
            server.is_live and not server.refuses_copies and state.mode_of(server.candidate.uuid) is _NORMAL,
        )
        for server in servers
    )
    return BalanceView(balanced, tuple(tablets), holds, under_way)


def trouble_of(entry: TabletEntry, wanted_voters: int, seen: TabletSeen, live: set[ServerId]) -> str:
    """Why a tablet is not what its record says it should be; empty if it is."""
    config = entry.config
    if entry.state is not TabletState.RUNNING:
        return "it is being created"
    voters = [member for member in config.members if member.member_type is MemberType.VOTER]
    if len(voters) != wanted_voters:
        return f"it has {counted(len(voters), 'voter')} and is meant to have {wanted_voters}"
    for member in config.members:
        replica = seen.hosts.get(member.uuid)
        if member.promote or member.replace:
            return f"replica {member.uuid} is to be {'promoted' if member.promote else 'replaced'}"
        if member.uuid not in live:
            return f"the server of replica {member.uuid} is silent"
        if replica is None or replica.state is not ReplicaState.RUNNING:
            return f"replica {member.uuid} is {'missing' if replica is None else replica.state.value}"
        if replica.pending_config is not None:
            return "its members are being changed"
    if seen.leader is None or config.member(seen.leader) is None:
        return "no leader of it is known"
    return ""


_NORMAL = TabletServerMode.NORMAL


def _tablet(entry: TabletEntry, leader: ServerId | None, is_held: bool, move: OperationEntry | None) -> BalanceTablet:
    members = tuple(member.uuid for member in entry.config.members)
    tablet = BalanceTablet(entry.tablet_id, entry.table_id, members, leader, is_held)
    if move is None or move.from_ is None or move.to is None:
        return tablet
    # The new member may be there already, and the old one gone.
    kept = BalanceTablet(tablet.tablet_id, tablet.table_id, tuple(m for m in members if m != move.to), leader, True)
    (moved,) = after(
        [kept], [BalanceStep(entry.tablet_id, entry.table_id, move.from_, move.to, leadership_only=False, reason="")]
    )
    return moved


def _resting(operations: Iterable[OperationEntry], since_micros: int) -> set[TabletId]:
    """Tablets of moves that ended lately and were an administrator's, or did not end well: the same would be tried
    again.
    """
    return {
        operation.tablet_id
        for operation in operations
        if operation.kind is OperationKind.MOVE_REPLICA
        and operation.tablet_id is not None
        and (operation.by_admin or operation.state in (OperationState.FAILED, OperationState.CANCELLED))
        and operation.ended_micros > since_micros
    }


def _server_holds(state: CatalogState, servers: Sequence[ServerSeen], is_settling: bool) -> tuple[str, ...]:
    holds = ["this master has just started"] if is_settling else []
    known = {server.candidate.uuid: server for server in servers}
    for uuid in sorted(known.keys() | state.replica_counts.keys()):
        server = known.get(uuid)
        replicas = counted(state.replica_counts.get(uuid, 0), "replica")
        # One that is gone and has lost all its replicas to others is nobody's concern.
        if uuid in state.replica_counts and (server is None or not server.is_live):
            holds.append(f"tablet server {uuid} with {replicas} is silent")
        elif server is not None and server.is_live and not server.has_reported:
            holds.append(f"tablet server {uuid} has not reported its replicas yet")
    return tuple(holds)


def _operation_holds(operations: Iterable[OperationEntry]) -> tuple[str, ...]:
    return tuple(
        f"operation {operation.operation_id} ({operation.kind.value}) is under way" for operation in operations
    )


def _tablet_holds(troubles: Sequence[tuple[TabletId, str]]) -> tuple[str, ...]:
    if not troubles:
        return ()
    tablet_id, trouble = troubles[0]
    if len(troubles) == 1:
        return (f"tablet {tablet_id} is not healthy: {trouble}",)
    return (f"{counted(len(troubles), 'tablet')} are not healthy, such as {tablet_id}: {trouble}",)
