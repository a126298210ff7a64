"""Planners of long operations: how they begin, how far they are, when they have ended, what cancelling puts back.

An operation is an intent in the catalog and nothing else. What has to be done for it follows from the intent, from
the modes of servers and from the wanted numbers of voters, by `replica_ops`, one ChangeConfig at a time; how far it is,
is read from reports. So it goes on over restarts of masters, and a cancelled one needs no undoing of its own: once the
intent is gone, the replica that was being added is one too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.consensus.core.model import Member, MemberType
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TableEntry,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.replica_ops import joining_voters, leader_report
from kudu_py.master.catalog.report_ops import ReportedReplica
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers

Hosts = Callable[[TabletId], Mapping[ServerId, ReportedReplica]]
"""The last reports of a tablet's replicas, by server."""

ENDED_OPERATIONS_KEPT = 1000
"""Older ones are forgotten when another begins."""

_MOVE_STEPS = 3
_STUCK_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is.

    Attributes:
        steps_total, steps_done: of a move 3 (added, promoted, the old one removed), of the others one a replica.
        text: for people: what it is doing now.
        bytes_total, bytes_done, bytes_per_s: of the copies under way.
        log_lag_entries: what the new replica of a move still lacks, or the most that any lacks.
    """

    steps_total: int = 0
    steps_done: int = 0
    text: str = ""
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_per_s: int = 0
    log_lag_entries: int = 0


# How they begin.


def plan_move_replica(
    state: CatalogState,
    operation_id: OperationId,
    *,
    tablet_id: TabletId,
    from_: ServerId,
    to: ServerId,
    servers: Servers,
    by_admin: bool,
    now_micros: int,
) -> CatalogChange:
    """A MOVE_REPLICA. The wanted number of voters stays what it is.

    Raises:
        KuduError: TABLET_NOT_FOUND, TABLET_SERVER_NOT_FOUND; NOT_FOUND if `from_` has no replica; ALREADY_PRESENT if
            `to` has one; ILLEGAL_STATE if `to` may take none, or the replica is no voter; ALREADY_IN_PROGRESS.
    """
    tablet = state.tablet(tablet_id)
    if from_ == to:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"a replica cannot move from tablet server {from_} to itself")
    require_running(tablet)
    require_no_move(state, tablet)
    member = require_member(tablet, from_)
    if member.member_type is not MemberType.VOTER:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the replica of tablet {tablet_id} at {from_} is a {member.member_type.value}, and only a VOTER moves;"
            " remove it and add another",
        )
    require_no_member(tablet, to)
    require_placeable(state, servers, to)
    operation = OperationEntry(
        operation_id,
        OperationKind.MOVE_REPLICA,
        tablet_id=tablet_id,
        from_=from_,
        to=to,
        by_admin=by_admin,
        created_micros=now_micros,
    )
    stamped = replace(tablet, changed_by_admin_micros=now_micros) if by_admin else tablet
    return _beginning(state, operation, tablets=() if stamped == tablet else (stamped,))


def plan_change_voting_replica_count(
    state: CatalogState,
    operation_id: OperationId,
    *,
    tablet_id: TabletId | None,
    table_id: TableId | None,
    count: int,
    servers: Servers,
    options: CatalogOptions,
    now_micros: int,
) -> CatalogChange:
    """A CHANGE_VOTING_REPLICA_COUNT of one tablet, or of all tablets of a table, present and future.

    Raises:
        KuduError: TABLET_NOT_FOUND, TABLE_NOT_FOUND, EVEN_REPLICATION_FACTOR, ILLEGAL_REPLICATION_FACTOR,
            REPLICATION_FACTOR_TOO_HIGH, ALREADY_IN_PROGRESS.
    """
    assert (tablet_id is None) != (table_id is None), (tablet_id, table_id)
    if tablet_id is not None:
        tablets: Sequence[TabletEntry] = [state.tablet(tablet_id)]
        what = f"tablet {tablet_id}"
    else:
        assert table_id is not None
        table = state.table_by_id(table_id)
        tablets = state.tablets_of(table.table_id)
        what = f"table {table.name!r}"
    _require_count(what, count, state, servers, options)
    for operation in state.open_operations:
        if operation.kind is OperationKind.CHANGE_VOTING_REPLICA_COUNT and (
            operation.tablet_id in {tablet.tablet_id for tablet in tablets}
            or operation.table_id in {tablet.table_id for tablet in tablets}
        ):
            raise _in_progress(operation, f"the number of voters of {what} is being changed")
    operation = OperationEntry(
        operation_id,
        OperationKind.CHANGE_VOTING_REPLICA_COUNT,
        tablet_id=tablet_id,
        table_id=table_id,
        count=count,
        created_micros=now_micros,
        previous_wanted_voters={t.tablet_id: t.wanted_voters for t in tablets if t.wanted_voters or tablet_id},
        previous_num_replicas=state.tables[table_id].num_replicas if table_id is not None else 0,
    )
    changed = tuple(
        replace(tablet, wanted_voters=count if tablet_id else 0, changed_by_admin_micros=now_micros)
        for tablet in tablets
    )
    tables = (replace(state.tables[table_id], num_replicas=count),) if table_id is not None else ()
    return replace(_beginning(state, operation, tablets=changed), tables=tables)


def plan_retire_tablet_server(
    state: CatalogState, operation_id: OperationId, *, server: ServerId, servers: Servers, now_micros: int
) -> CatalogChange:
    """A RETIRE_TABLET_SERVER: the server gets no new replicas from now on, and those it has move away.

    Raises:
        KuduError: TABLET_SERVER_NOT_FOUND; ALREADY_IN_PROGRESS; ILLEGAL_STATE if it is retired already;
            REPLICATION_FACTOR_TOO_HIGH if there are too few others for its replicas, or for those that look for another
            place already.
    """
    require_known(state, servers, server)
    for operation in state.open_operations:
        if operation.server == server:
            raise _in_progress(operation, f"tablet server {server} is being retired")
    if state.mode_of(server) is TabletServerMode.RETIRED:
        raise KuduError(ErrorCode.ILLEGAL_STATE, f"tablet server {server} is retired already")
    tablets = _hosted(state, server)
    others = [candidate for candidate in servers.live if candidate.uuid != server]
    most = max((state.wanted_voters(tablet) for tablet in tablets), default=0)
    if most > len(others):
        raise _too_few_others(f"tablet server {server} has replicas of tablets with", most, len(others))
    # An empty server may be the one that another retirement, or a tablet that lacks a voter, counts on.
    most = max((state.wanted_voters(tablet) for tablet in _looking_for_a_place(state)), default=0)
    if most > len(others):
        raise _too_few_others(
            f"without tablet server {server} there is no place for replicas that others are to have, of tablets with",
            most,
            len(others),
        )
    operation = OperationEntry(
        operation_id,
        OperationKind.RETIRE_TABLET_SERVER,
        server=server,
        count=len(tablets),
        created_micros=now_micros,
        previous_mode=state.mode_of(server),
    )
    mode = TabletServerEntry(server, TabletServerMode.RETIRING, now_micros)
    return replace(_beginning(state, operation), servers=(mode,))


def plan_change_mode(
    state: CatalogState, server: ServerId, mode: TabletServerMode, *, servers: Servers, now_micros: int
) -> CatalogChange:
    """The begin or end of maintenance, or a retired server taken back.

    Raises:
        KuduError: TABLET_SERVER_NOT_FOUND; INVALID_ARGUMENT for another mode; ILLEGAL_STATE while it is being retired.
    """
    if mode not in (TabletServerMode.NORMAL, TabletServerMode.MAINTENANCE):
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"a tablet server is put into mode NORMAL or MAINTENANCE, not {mode.value}; RetireTabletServer retires it",
        )
    require_known(state, servers, server)
    present = state.mode_of(server)
    for operation in state.open_operations:
        if operation.server == server:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"tablet server {server} is being retired by operation {operation.operation_id}; cancel that first",
                details={"operation_id": operation.operation_id, "mode": present.value},
            )
    if present is TabletServerMode.RETIRED and mode is TabletServerMode.MAINTENANCE:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"tablet server {server} is retired; take it back with mode NORMAL first",
            details={"mode": present.value},
        )
    if present is mode:
        return CatalogChange()
    return CatalogChange(servers=(TabletServerEntry(server, mode, now_micros),))


# How they end.


def plan_cancel(state: CatalogState, operation_id: OperationId, *, now_micros: int) -> CatalogChange:
    """The operation CANCELLED and what it changed in the records put back; nothing if it has ended already.

    Raises:
        KuduError: NOT_FOUND.
    """
    operation = state.operations.get(operation_id)
    if operation is None:
        raise unknown_operation(operation_id)
    if not operation.is_open:
        return CatalogChange()
    ended = operation.ended(OperationState.CANCELLED, now_micros=now_micros)
    if operation.kind is OperationKind.RETIRE_TABLET_SERVER:
        assert operation.server is not None
        mode = TabletServerEntry(operation.server, operation.previous_mode, now_micros)
        return CatalogChange(operations=(ended,), servers=(mode,))
    if operation.kind is OperationKind.MOVE_REPLICA:
        return CatalogChange(operations=(ended,))
    tablets = tuple(
        replace(tablet, wanted_voters=operation.previous_wanted_voters.get(tablet.tablet_id, 0))
        for tablet in covered(state, operation)
        # Another call may have changed the number since: that one stands.
        if tablet.wanted_voters == (operation.count if operation.tablet_id is not None else 0)
    )
    tables: tuple[TableEntry, ...] = ()
    if operation.table_id is not None:
        table = state.tables[operation.table_id]
        if table.is_live and table.num_replicas == operation.count:
            tables = (replace(table, num_replicas=operation.previous_num_replicas),)
    return CatalogChange(tablets, tables, operations=(ended,))


def plan_ends(
    state: CatalogState, *, lost: Callable[[TabletId, ServerId], str | None], now_micros: int
) -> CatalogChange:
    """All open operations that have come to an end.

    Args:
        state: the records.
        lost: why a server cannot take the replica that moves to it, if so.
        now_micros: wall time.
    """
    operations: list[OperationEntry] = []
    servers: list[TabletServerEntry] = []
    for operation in state.open_operations:
        error = _failure(state, operation, lost)
        is_done = error is None and _is_done(state, operation)
        if is_done:
            error = _overridden(state, operation)
        if error is not None:
            operations.append(operation.ended(OperationState.FAILED, now_micros=now_micros, error=error))
            if operation.server is not None:
                servers.append(TabletServerEntry(operation.server, TabletServerMode.NORMAL, now_micros))
        elif is_done:
            operations.append(operation.ended(OperationState.DONE, now_micros=now_micros))
            if operation.server is not None:
                servers.append(TabletServerEntry(operation.server, TabletServerMode.RETIRED, now_micros))
    return CatalogChange(servers=tuple(servers), operations=tuple(operations))


def _failure(
    state: CatalogState, operation: OperationEntry, lost: Callable[[TabletId, ServerId], str | None]
) -> str | None:
    if operation.kind is OperationKind.RETIRE_TABLET_SERVER:
        return None
    if operation.table_id is not None:
        return None if state.tables[operation.table_id].is_live else "the table was deleted"
    assert operation.tablet_id is not None
    tablet = state.tablets[operation.tablet_id]
    if not tablet.is_live:
        return f"the tablet is {tablet.state.value}: {tablet.note}"
    if operation.kind is not OperationKind.MOVE_REPLICA:
        return None
    assert operation.from_ is not None
    assert operation.to is not None
    to = tablet.config.member(operation.to)
    if to is not None and to.member_type is MemberType.VOTER:
        return None
    if to is not None and not to.promote:
        return (
            f"the replica at {operation.to} was made a {to.member_type.value} that is not to be promoted, and stays;"
            " remove it, then move again"
        )
    if to is None and tablet.config.member(operation.from_) is None:
        return f"the replica at {operation.from_} was removed before another was added at {operation.to}"
    return lost(operation.tablet_id, operation.to)


def _is_done(state: CatalogState, operation: OperationEntry) -> bool:
    if operation.kind is OperationKind.RETIRE_TABLET_SERVER:
        assert operation.server is not None
        return not _hosted(state, operation.server)
    tablets = covered(state, operation)
    if operation.kind is OperationKind.CHANGE_VOTING_REPLICA_COUNT:
        return all(_has_wanted_voters(state, tablet) for tablet in tablets)
    (tablet,) = tablets
    assert operation.from_ is not None
    assert operation.to is not None
    return operation.to in tablet.config.voters and tablet.config.member(operation.from_) is None


def _overridden(state: CatalogState, operation: OperationEntry) -> str | None:
    """Why a number of voters did not come about, although every tablet has as many as it is meant to have."""
    if operation.kind is not OperationKind.CHANGE_VOTING_REPLICA_COUNT:
        return None
    others = [tablet for tablet in covered(state, operation) if state.wanted_voters(tablet) != operation.count]
    if not others:
        return None
    number = counted(state.wanted_voters(others[0]), "voter")
    return f"another call has asked for {number} of tablet {others[0].tablet_id} meanwhile, and that stands"


def _has_wanted_voters(state: CatalogState, tablet: TabletEntry) -> bool:
    return len(tablet.config.voters) == state.wanted_voters(tablet) and not joining_voters(tablet.config)


# How far they are.


def progress_of(state: CatalogState, operation: OperationEntry, hosts: Hosts) -> Progress:
    """How far an operation is, by records and reports."""
    if operation.kind is OperationKind.MOVE_REPLICA:
        return _progress_of_move(state, operation, hosts)
    if operation.kind is OperationKind.RETIRE_TABLET_SERVER:
        return _progress_of_retirement(state, operation, hosts)
    return _progress_of_count(state, operation, hosts)


def state_of(operation: OperationEntry, progress: Progress) -> OperationState:
    """PENDING until something of it is to be seen, then RUNNING; an ended one as it ended."""
    if operation.is_open and progress.steps_done + progress.bytes_total > 0:
        return OperationState.RUNNING
    return operation.state


def covered(state: CatalogState, operation: OperationEntry) -> list[TabletEntry]:
    """The live tablets that an operation is about."""
    if operation.tablet_id is not None:
        tablet = state.tablets[operation.tablet_id]
        return [tablet] if tablet.is_live else []
    if operation.table_id is not None:
        return state.tablets_of(operation.table_id)
    assert operation.server is not None
    return _hosted(state, operation.server)


def _progress_of_move(state: CatalogState, operation: OperationEntry, hosts: Hosts) -> Progress:
    if not operation.is_open:
        done = _MOVE_STEPS if operation.state is OperationState.DONE else 0
        return Progress(_MOVE_STEPS, done, operation.error)
    assert operation.tablet_id is not None
    assert operation.from_ is not None
    assert operation.to is not None
    config = state.tablets[operation.tablet_id].config
    to = config.member(operation.to)
    is_gone = config.member(operation.from_) is None
    if to is None:
        return Progress(_MOVE_STEPS, int(is_gone), f"adding a replica at {operation.to}")
    if to.member_type is MemberType.VOTER:
        return Progress(_MOVE_STEPS, 2 + is_gone, f"removing the replica at {operation.from_}")
    copies = _copies([operation.tablet_id], hosts, to=operation.to)
    if copies.bytes_total:
        text = f"copying to {operation.to}"
    elif copies.log_lag_entries:
        text = f"the replica at {operation.to} catches up with the log"
    else:
        text = f"the replica at {operation.to} is to be promoted"
    return replace(copies, steps_total=_MOVE_STEPS, steps_done=1 + is_gone, text=text)


def _progress_of_retirement(state: CatalogState, operation: OperationEntry, hosts: Hosts) -> Progress:
    total = operation.count
    if not operation.is_open:
        return Progress(total, total if operation.state is OperationState.DONE else 0, operation.error)
    assert operation.server is not None
    left = _hosted(state, operation.server)
    copies = _copies((tablet.tablet_id for tablet in left), hosts)
    text = f"{counted(len(left), 'replica')} left at {operation.server}"
    if left:
        named = ", ".join(tablet.tablet_id for tablet in left[:_STUCK_NAMED_MAX])
        text += f": tablets {named}" + (" and others" if len(left) > _STUCK_NAMED_MAX else "")
    total = max(total, len(left))
    return replace(copies, steps_total=total, steps_done=total - len(left), text=text)


def _progress_of_count(state: CatalogState, operation: OperationEntry, hosts: Hosts) -> Progress:
    tablets = covered(state, operation)
    total = operation.count * len(tablets)
    if not operation.is_open:
        return Progress(total, total if operation.state is OperationState.DONE else 0, operation.error)
    off = 0
    for tablet in tablets:
        missing = abs(state.wanted_voters(tablet) - len(tablet.config.voters))
        off += max(missing, len(joining_voters(tablet.config)))
    copies = _copies((tablet.tablet_id for tablet in tablets), hosts)
    text = f"{counted(off, 'replica')} to be added or removed" if off else "done"
    return replace(copies, steps_total=total, steps_done=max(0, total - off), text=text)


def _copies(tablet_ids: Iterable[TabletId], hosts: Hosts, *, to: ServerId | None = None) -> Progress:
    """The copies under way of these tablets, summed, and the longest lag of a member that is to be promoted."""
    total = done = rate = lag = 0
    for tablet_id in tablet_ids:
        replicas = hosts(tablet_id)
        for server, replica in replicas.items():
            if replica.copy is not None and to in (None, server):
                total += replica.copy.bytes_total
                done += replica.copy.bytes_done
                rate += replica.copy.bytes_per_s
        report = leader_report(replicas)
        if report is not None and report.replica.committed_config is not None:
            joining = {member.uuid for member in joining_voters(report.replica.committed_config)}
            for peer in report.replica.peers:
                if peer.uuid in joining and to in (None, peer.uuid):
                    lag = max(lag, report.replica.last_op_id.index - peer.match_index)
    return Progress(bytes_total=total, bytes_done=done, bytes_per_s=rate, log_lag_entries=lag)


# What is refused.


def unknown_operation(operation_id: str) -> KuduError:
    """The refusal of an operation id that is not known."""
    return KuduError(
        ErrorCode.NOT_FOUND,
        f"there is no operation {operation_id[:64]!r}; `kudu-py op list --all` shows those there are",
        details={"operation_id": operation_id[:64]},
    )


def require_known(state: CatalogState, servers: Servers, server: ServerId) -> None:
    """Refuses a server that no master has heard of.

    Raises:
        KuduError: TABLET_SERVER_NOT_FOUND.
    """
    if server in servers.known or server in state.servers or server in state.replica_counts:
        return
    raise KuduError(
        ErrorCode.TABLET_SERVER_NOT_FOUND,
        f"there is no tablet server {server}; `kudu-py tserver list` shows those there are",
        details={"ts_uuid": server},
    )


def require_placeable(state: CatalogState, servers: Servers, server: ServerId) -> str:
    """The address of a server that may take a replica.

    Raises:
        KuduError: TABLET_SERVER_NOT_FOUND; ILLEGAL_STATE if it is dead, in maintenance, being retired or retired.
    """
    require_known(state, servers, server)
    mode = state.mode_of(server)
    if mode is not TabletServerMode.NORMAL:
        why = {
            TabletServerMode.MAINTENANCE: "in maintenance; end that first",
            TabletServerMode.RETIRING: "being retired",
            TabletServerMode.RETIRED: "retired; take it back with mode NORMAL first",
        }[mode]
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"tablet server {server} gets no replicas: it is {why}",
            details={"ts_uuid": server, "mode": mode.value},
        )
    address = next((candidate.address for candidate in servers.live if candidate.uuid == server), None)
    if address is None:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"tablet server {server} is dead: it has not been heard of lately; start it, or choose another",
            details={"ts_uuid": server, "state": "DEAD"},
        )
    return address


def require_running(tablet: TabletEntry) -> None:
    """Refuses a tablet that has never had a leader: it may yet be replaced by another.

    Raises:
        KuduError: TABLET_NOT_RUNNING (try later).
    """
    if tablet.state is not TabletState.RUNNING:
        raise KuduError(
            ErrorCode.TABLET_NOT_RUNNING,
            f"tablet {tablet.tablet_id} is being created; ask again when it runs",
            verdict=Verdict.TRY_LATER,
            details={"tablet_id": tablet.tablet_id},
        )


def require_member(tablet: TabletEntry, server: ServerId) -> Member:
    """The member at a server.

    Raises:
        KuduError: NOT_FOUND.
    """
    member = tablet.config.member(server)
    if member is None:
        members = ", ".join(each.uuid for each in tablet.config.members)
        raise KuduError(
            ErrorCode.NOT_FOUND,
            f"tablet {tablet.tablet_id} has no replica at tablet server {server}; it has them at {members}",
            details={"tablet_id": tablet.tablet_id, "ts_uuid": server},
        )
    return member


def require_no_member(tablet: TabletEntry, server: ServerId) -> None:
    """Refuses a server that has a replica already.

    Raises:
        KuduError: ALREADY_PRESENT.
    """
    member = tablet.config.member(server)
    if member is not None:
        raise KuduError(
            ErrorCode.ALREADY_PRESENT,
            f"tablet {tablet.tablet_id} has a replica at tablet server {server} already, a {member.member_type.value}",
            details={
                "tablet_id": tablet.tablet_id,
                "ts_uuid": server,
                "member_type": member.member_type.value,
                "config_index": str(tablet.config.config_index),
            },
        )


def require_no_move(state: CatalogState, tablet: TabletEntry) -> None:
    """Refuses a second move of a tablet.

    Raises:
        KuduError: ALREADY_IN_PROGRESS with the operation's id.
    """
    move = state.move_of(tablet.tablet_id)
    if move is not None:
        raise _in_progress(move, f"a replica of tablet {tablet.tablet_id} moves from {move.from_} to {move.to}")


def _in_progress(operation: OperationEntry, what: str) -> KuduError:
    return KuduError(
        ErrorCode.ALREADY_IN_PROGRESS,
        f"{what} by operation {operation.operation_id}; wait for its end, or cancel it",
        details={"operation_id": operation.operation_id},
    )


def _require_count(what: str, count: int, state: CatalogState, servers: Servers, options: CatalogOptions) -> None:
    if count % 2 == 0:
        raise KuduError(
            ErrorCode.EVEN_REPLICATION_FACTOR,
            f"the number of voters of {what} must be odd, not {count}; an even one needs one more server and survives"
            " no more failures",
        )
    if not 1 <= count <= options.max_num_replicas:
        raise KuduError(
            ErrorCode.ILLEGAL_REPLICATION_FACTOR,
            f"the number of voters of {what} is 1 to {options.max_num_replicas}, not {count}",
        )
    if count > len(servers.live):
        raise KuduError(
            ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
            f"{counted(count, 'voter')} of {what} need as many tablet servers that can take replicas, and there"
            f" {'is' if len(servers.live) == 1 else 'are'} {len(servers.live)}; start more or ask for fewer",
            details={"num_replicas": str(count), "live_tablet_servers": str(len(servers.live))},
        )


def _beginning(
    state: CatalogState, operation: OperationEntry, *, tablets: tuple[TabletEntry, ...] = ()
) -> CatalogChange:
    ended = sorted(
        (each for each in state.operations.values() if not each.is_open),
        key=lambda each: (each.ended_micros, each.operation_id),
    )
    too_many = max(0, len(ended) + 1 - ENDED_OPERATIONS_KEPT)
    return CatalogChange(
        tablets, operations=(operation,), forgotten=tuple(each.operation_id for each in ended[:too_many])
    )


def _too_few_others(what: str, voters: int, others: int) -> KuduError:
    return KuduError(
        ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
        f"{what} {counted(voters, 'voter')}, and {counted(others, 'other tablet server')} can take replicas; start more"
        " first, or lower the number of voters",
        details={"num_replicas": str(voters), "live_tablet_servers": str(others)},
    )


def _looking_for_a_place(state: CatalogState) -> list[TabletEntry]:
    """Live tablets that need another server: one of theirs is being retired, or they have too few voters."""
    retiring = {
        operation.server for operation in state.open_operations if operation.kind is OperationKind.RETIRE_TABLET_SERVER
    }
    return [
        tablet
        for tablet in state.tablets.values()
        if tablet.is_live
        and (
            len(tablet.config.voters) < state.wanted_voters(tablet)
            or any(member.uuid in retiring for member in tablet.config.members)
        )
    ]


def _hosted(state: CatalogState, server: ServerId) -> list[TabletEntry]:
    """Live tablets with a member at a server."""
    if server not in state.replica_counts:
        return []
    return [tablet for tablet in state.tablets.values() if tablet.is_live and tablet.config.member(server) is not None]
