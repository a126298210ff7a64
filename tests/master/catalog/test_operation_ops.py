"""Long operations: what is refused, how far they are, when they end, what cancelling puts back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.master.catalog import operation_ops
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import (
    OperationId,
    OperationState,
    TableState,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.operation_ops import (
    plan_cancel,
    plan_change_mode,
    plan_change_voting_replica_count,
    plan_ends,
    plan_move_replica,
    plan_retire_tablet_server,
    progress_of,
    state_of,
)
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.report_ops import CopyProgress, PeerHealth, PeerStatus, ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers

NOW = 77


def operation_id(n: int = 1) -> OperationId:
    return OperationId(f"0f{n:030x}")


class Rig:
    """A table of two tablets on three of five servers, and what is planned on it."""

    def __init__(self, make) -> None:
        self.make = make
        state, change = make.created(CatalogState(), make.new_table(buckets=2), servers=3)
        running = tuple(t.moved_to(TabletState.RUNNING, "") for t in change.tablets)
        self.state = state.applying(CatalogChange(running))
        self.tablet_id = running[0].tablet_id
        self.table_id = change.tables[0].table_id
        self.servers = make.servers(5)
        self.begun = 0

    @property
    def tablet(self):
        return self.state.tablets[self.tablet_id]

    def apply(self, change: CatalogChange) -> CatalogChange:
        self.state = self.state.applying(change)
        return change

    def move(self, from_: int = 1, to: int = 4, **given) -> CatalogChange:
        arguments = {
            "tablet_id": self.tablet_id, "from_": self.make.server(from_), "to": self.make.server(to),
            "servers": self.servers, "by_admin": True, "now_micros": NOW,
        }  # fmt: skip
        return self.apply(plan_move_replica(self.state, self._next(), **{**arguments, **given}))

    def count(self, count: int, *, of_table: bool = False, **given) -> CatalogChange:
        arguments = {
            "tablet_id": None if of_table else self.tablet_id, "table_id": self.table_id if of_table else None,
            "count": count, "servers": self.servers, "options": CatalogOptions(), "now_micros": NOW,
        }  # fmt: skip
        return self.apply(plan_change_voting_replica_count(self.state, self._next(), **{**arguments, **given}))

    def retire(self, n: int, **given) -> CatalogChange:
        arguments = {"server": self.make.server(n), "servers": self.servers, "now_micros": NOW}
        return self.apply(plan_retire_tablet_server(self.state, self._next(), **{**arguments, **given}))

    def mode(self, n: int, mode: TabletServerMode) -> CatalogChange:
        return self.apply(plan_change_mode(self.state, self.make.server(n), mode, servers=self.servers, now_micros=NOW))

    def cancel(self) -> CatalogChange:
        return self.apply(plan_cancel(self.state, operation_id(self.begun), now_micros=NOW + 1))

    def ends(self, lost=lambda tablet, server: None) -> CatalogChange:
        return self.apply(plan_ends(self.state, lost=lost, now_micros=NOW + 2))

    def put(self, voters=(), joining=(), tablet_ids=None) -> None:
        """Gives tablets these members."""
        members = [Member(self.make.server(n), MemberType.VOTER) for n in voters]
        members += [Member(self.make.server(n), MemberType.PRE_VOTER, promote=True) for n in joining]
        config = RaftConfig(9, tuple(sorted(members, key=lambda m: m.uuid)))
        for tablet_id in tablet_ids or [self.tablet_id]:
            self.apply(CatalogChange((replace(self.state.tablets[tablet_id], config=config),)))

    @property
    def operation(self):
        return self.state.operations[operation_id(self.begun)]

    def progress(self, hosts=lambda tablet_id: {}):
        return progress_of(self.state, self.operation, hosts)

    def _next(self) -> OperationId:
        self.begun += 1
        return operation_id(self.begun)


@pytest.fixture
def rig(make) -> Rig:
    return Rig(make)


def refused(call, code: ErrorCode, *words: str) -> KuduError:
    with pytest.raises(KuduError) as caught:
        call()
    assert caught.value.code is code, caught.value
    for word in words:
        assert word in caught.value.message, caught.value
    return caught.value


# Moves.


def test_a_move_is_refused_exactly(rig):
    gone = rig.make.tablet_id(99)
    refused(lambda: rig.move(tablet_id=gone), ErrorCode.TABLET_NOT_FOUND, gone)
    refused(lambda: rig.move(1, 1), ErrorCode.INVALID_ARGUMENT, "to itself")
    refused(lambda: rig.move(4, 5), ErrorCode.NOT_FOUND, rig.make.server(4), "no replica")
    refused(lambda: rig.move(1, 2), ErrorCode.ALREADY_PRESENT, rig.make.server(2))
    refused(lambda: rig.move(1, 9), ErrorCode.TABLET_SERVER_NOT_FOUND, rig.make.server(9))
    assert not rig.state.operations


def test_a_move_to_a_dead_server_is_refused(rig, make):
    servers = replace(make.servers(3), known=make.servers(5).known)
    error = refused(lambda: rig.move(servers=servers), ErrorCode.ILLEGAL_STATE, "is dead", "start it")
    assert error.details == {"ts_uuid": make.server(4), "state": "DEAD"}


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (TabletServerMode.MAINTENANCE, "in maintenance"),
        (TabletServerMode.RETIRING, "being retired"),
        (TabletServerMode.RETIRED, "is retired"),
    ],
)
def test_a_move_to_a_server_that_takes_none_is_refused(rig, make, mode, word):
    rig.apply(CatalogChange(servers=(TabletServerEntry(make.server(4), mode),)))
    error = refused(rig.move, ErrorCode.ILLEGAL_STATE, word.removeprefix("is "))
    assert error.details["mode"] == mode.value


def test_a_second_move_of_a_tablet_is_refused_with_the_first_ones_id(rig):
    rig.move()
    error = refused(lambda: rig.move(2, 5), ErrorCode.ALREADY_IN_PROGRESS)
    assert error.details == {"operation_id": operation_id(1)}


def test_only_voters_move(rig):
    rig.put(voters=(1, 2), joining=(3,))
    refused(lambda: rig.move(3, 4), ErrorCode.ILLEGAL_STATE, "PRE_VOTER")


def test_a_move_leaves_the_wanted_number_of_voters_alone(rig):
    rig.move()
    assert rig.tablet.wanted_voters == 0
    assert rig.tablet.changed_by_admin_micros == NOW
    assert rig.state.wanted_voters(rig.tablet) == 3


def test_a_move_of_the_rebalancer_leaves_no_mark_of_an_administrator(rig):
    change = rig.move(by_admin=False)
    assert not change.tablets
    assert not rig.operation.by_admin


def test_a_move_goes_through_its_steps(rig):
    def step() -> tuple[int, OperationState]:
        progress = rig.progress()
        return progress.steps_done, state_of(rig.operation, progress)

    rig.move(1, 4)
    assert step() == (0, OperationState.PENDING)
    rig.put(voters=(1, 2, 3), joining=(4,))
    assert step() == (1, OperationState.RUNNING)
    rig.put(voters=(1, 2, 3, 4))
    assert step() == (2, OperationState.RUNNING)
    assert rig.ends().is_empty
    rig.put(voters=(2, 3, 4))
    assert rig.ends().operations[0].state is OperationState.DONE
    assert step() == (3, OperationState.DONE)
    assert rig.operation.ended_micros == NOW + 2


def test_a_move_shows_the_bytes_and_the_lag_of_its_copy(rig, make):
    rig.move(1, 4)
    rig.put(voters=(1, 2, 3), joining=(4,))
    new, leader = make.server(4), make.server(1)
    report = ReportedReplica(
        rig.tablet_id,
        ReplicaState.RUNNING,
        role=Role.LEADER,
        term=2,
        committed_config=rig.tablet.config,
        last_op_id=OpId(2, 100),
        peers=(PeerStatus(new, PeerHealth.NEEDS_COPY, 40), PeerStatus(make.server(2), PeerHealth.HEALTHY, 10)),
    )
    copying = ReportedReplica(rig.tablet_id, ReplicaState.COPYING, copy=CopyProgress(leader, 1000, 250, 50))
    progress = rig.progress(lambda tablet_id: {leader: report, new: copying})
    assert (progress.bytes_total, progress.bytes_done, progress.bytes_per_s) == (1000, 250, 50)
    assert progress.log_lag_entries == 60
    assert progress.text == f"copying to {new}"


def test_a_move_fails_if_its_target_is_lost_but_not_once_it_counts(rig):
    def lost(tablet, server):
        return "it burnt down"

    rig.move(1, 4)
    rig.put(voters=(1, 2, 3, 4))
    assert rig.ends(lost).is_empty
    rig.put(voters=(1, 2, 3), joining=(4,))
    assert rig.ends(lost).operations[0].error == "it burnt down"
    assert rig.operation.state is OperationState.FAILED


def test_a_move_fails_if_its_source_is_removed_before_its_target_was_added(rig, make):
    rig.move(1, 4)
    rig.put(voters=(2, 3))
    rig.ends()
    assert make.server(1) in rig.operation.error


def test_a_move_fails_if_somebody_made_its_target_one_that_is_not_promoted(rig, make):
    rig.move(1, 4)
    members = (*make.config((1, 2, 3)).members, Member(make.server(4), MemberType.PRE_VOTER))
    rig.apply(CatalogChange((replace(rig.tablet, config=RaftConfig(9, members)),)))
    rig.ends()
    assert rig.operation.state is OperationState.FAILED
    assert "not to be promoted" in rig.operation.error
    assert make.server(4) in rig.operation.error


def test_operations_on_a_deleted_table_fail(rig):
    rig.move()
    rig.count(1, of_table=True)
    table = rig.state.tables[rig.table_id].moved_to(TableState.REMOVED, "")
    tablets = tuple(t.moved_to(TabletState.DELETED, "dropped") for t in rig.state.tablets_of(rig.table_id))
    rig.apply(CatalogChange(tablets, (table,)))
    assert [o.state for o in rig.ends().operations] == [OperationState.FAILED] * 2
    assert not rig.state.open_operations


# Numbers of voters.


@pytest.mark.parametrize("of_table", [False, True])
def test_a_number_of_voters_is_refused_exactly(rig, of_table):
    refused(lambda: rig.count(2, of_table=of_table), ErrorCode.EVEN_REPLICATION_FACTOR, "odd", "2")
    refused(lambda: rig.count(0, of_table=of_table), ErrorCode.EVEN_REPLICATION_FACTOR)
    refused(lambda: rig.count(9, of_table=of_table), ErrorCode.ILLEGAL_REPLICATION_FACTOR, "1 to 7")
    refused(lambda: rig.count(7, of_table=of_table), ErrorCode.REPLICATION_FACTOR_TOO_HIGH, "there are 5")
    rig.count(5, of_table=of_table)
    refused(lambda: rig.count(1, of_table=of_table), ErrorCode.ALREADY_IN_PROGRESS, operation_id(5))


def test_the_number_of_a_tablet_is_changed_and_put_back(rig):
    rig.apply(CatalogChange((replace(rig.tablet, wanted_voters=4),)))
    rig.count(5)
    assert rig.state.wanted_voters(rig.tablet) == 5
    rig.cancel()
    assert rig.tablet.wanted_voters == 4


def test_the_number_of_a_table_holds_for_all_its_tablets_and_is_put_back(rig):
    rig.apply(CatalogChange((replace(rig.tablet, wanted_voters=2),)))
    rig.count(5, of_table=True)
    tablets = rig.state.tablets_of(rig.table_id)
    assert {rig.state.wanted_voters(tablet) for tablet in tablets} == {5}
    rig.cancel()
    assert sorted(rig.state.wanted_voters(tablet) for tablet in rig.state.tablets_of(rig.table_id)) == [2, 3]


def test_cancelling_leaves_a_number_alone_that_was_changed_since(rig):
    rig.count(5)
    rig.apply(CatalogChange((replace(rig.tablet, wanted_voters=4),)))
    rig.cancel()
    assert rig.tablet.wanted_voters == 4


def test_a_change_of_number_is_done_when_every_tablet_has_it(rig):
    first, second = (tablet.tablet_id for tablet in rig.state.tablets_of(rig.table_id))
    rig.count(5, of_table=True)
    rig.put(voters=(1, 2, 3, 4, 5), tablet_ids=[first])
    rig.put(voters=(1, 2, 3, 4), joining=(5,), tablet_ids=[second])
    assert rig.ends().is_empty
    progress = rig.progress()
    assert (progress.steps_total, progress.steps_done) == (10, 9)
    rig.put(voters=(1, 2, 3, 4, 5), tablet_ids=[second])
    assert rig.ends().operations[0].state is OperationState.DONE


@pytest.mark.parametrize("of_table", [True, False])
def test_a_number_that_was_changed_since_is_not_told_to_be_done(rig, of_table):
    rig.count(5, of_table=of_table)
    tablets = [tablet.tablet_id for tablet in rig.state.tablets_of(rig.table_id)]
    rig.put(voters=(1, 2, 3, 4, 5), tablet_ids=tablets)
    rig.put(voters=(1, 2, 3, 4))
    rig.apply(CatalogChange((replace(rig.tablet, wanted_voters=4),)))
    assert rig.ends().operations[0].state is OperationState.FAILED
    assert f"4 voters of tablet {rig.tablet_id}" in rig.operation.error
    assert rig.tablet.wanted_voters == 4


# Retirement and maintenance.


def test_a_retirement_is_refused_exactly(rig, make):
    refused(lambda: rig.retire(9), ErrorCode.TABLET_SERVER_NOT_FOUND, make.server(9))
    error = refused(
        lambda: rig.retire(1, servers=make.servers(3)), ErrorCode.REPLICATION_FACTOR_TOO_HIGH, "2 other tablet servers"
    )
    assert error.details == {"num_replicas": "3", "live_tablet_servers": "2"}
    rig.retire(1)
    refused(lambda: rig.retire(1), ErrorCode.ALREADY_IN_PROGRESS, operation_id(3))
    rig.apply(CatalogChange(servers=(TabletServerEntry(make.server(4), TabletServerMode.RETIRED),)))
    refused(lambda: rig.retire(4), ErrorCode.ILLEGAL_STATE, "retired already")


def test_a_server_that_another_retirement_needs_is_not_retired(rig, make):
    def servers(*live: int) -> Servers:
        return Servers(tuple(c for n, c in enumerate(make.candidates(4), 1) if n in live), make.servers(4).known)

    rig.retire(1, servers=servers(1, 2, 3, 4))
    error = refused(
        lambda: rig.retire(4, servers=servers(2, 3, 4)), ErrorCode.REPLICATION_FACTOR_TOO_HIGH, make.server(4)
    )
    assert error.details == {"num_replicas": "3", "live_tablet_servers": "2"}
    rig.put(voters=(2, 3, 4), tablet_ids=[tablet.tablet_id for tablet in rig.state.tablets_of(rig.table_id)])
    rig.ends()
    refused(lambda: rig.retire(4, servers=servers(2, 3, 4)), ErrorCode.REPLICATION_FACTOR_TOO_HIGH, "has replicas")


def test_an_empty_server_that_a_tablet_with_too_few_voters_needs_is_not_retired(rig, make):
    rig.put(voters=(1, 2), tablet_ids=[tablet.tablet_id for tablet in rig.state.tablets_of(rig.table_id)])
    refused(
        lambda: rig.retire(3, servers=make.servers(3)), ErrorCode.REPLICATION_FACTOR_TOO_HIGH, "2 other tablet servers"
    )
    rig.retire(3, servers=make.servers(4))


def test_a_server_is_retired_once_no_tablet_has_a_replica_there(rig, make):
    first, second = (tablet.tablet_id for tablet in rig.state.tablets_of(rig.table_id))
    rig.retire(1)
    assert rig.state.mode_of(make.server(1)) is TabletServerMode.RETIRING
    rig.put(voters=(2, 3, 4), tablet_ids=[first])
    assert rig.ends().is_empty
    progress = rig.progress()
    assert (progress.steps_total, progress.steps_done) == (2, 1)
    assert second in progress.text
    rig.put(voters=(2, 3, 4), tablet_ids=[second])
    rig.ends()
    assert rig.operation.state is OperationState.DONE
    assert rig.state.mode_of(make.server(1)) is TabletServerMode.RETIRED


def test_a_cancelled_retirement_gives_the_server_back(rig, make):
    rig.retire(1)
    rig.cancel()
    assert rig.state.mode_of(make.server(1)) is TabletServerMode.NORMAL
    assert rig.operation.state is OperationState.CANCELLED


def test_a_cancelled_retirement_leaves_a_server_in_the_maintenance_it_was_in(rig, make):
    rig.mode(1, TabletServerMode.MAINTENANCE)
    rig.retire(1)
    rig.cancel()
    assert rig.state.mode_of(make.server(1)) is TabletServerMode.MAINTENANCE


def test_modes_are_changed_and_refused_exactly(rig, make):
    refused(lambda: rig.mode(9, TabletServerMode.NORMAL), ErrorCode.TABLET_SERVER_NOT_FOUND)
    refused(lambda: rig.mode(1, TabletServerMode.RETIRED), ErrorCode.INVALID_ARGUMENT, "RetireTabletServer")
    rig.mode(1, TabletServerMode.MAINTENANCE)
    assert rig.mode(1, TabletServerMode.MAINTENANCE).is_empty, "it is in maintenance already"
    rig.mode(1, TabletServerMode.NORMAL)
    rig.retire(2)
    for mode in (TabletServerMode.NORMAL, TabletServerMode.MAINTENANCE):
        error = refused(lambda mode=mode: rig.mode(2, mode), ErrorCode.ILLEGAL_STATE, "cancel that first")
        assert error.details["operation_id"] == operation_id(1)


def test_a_retired_server_is_taken_back_but_not_into_maintenance(rig, make):
    rig.apply(CatalogChange(servers=(TabletServerEntry(make.server(1), TabletServerMode.RETIRED),)))
    refused(lambda: rig.mode(1, TabletServerMode.MAINTENANCE), ErrorCode.ILLEGAL_STATE, "NORMAL first")
    rig.mode(1, TabletServerMode.NORMAL)
    assert rig.state.mode_of(make.server(1)) is TabletServerMode.NORMAL


# All of them.


def test_an_unknown_operation_cannot_be_cancelled(rig):
    refused(lambda: plan_cancel(rig.state, operation_id(7), now_micros=1), ErrorCode.NOT_FOUND, operation_id(7))


def test_cancelling_what_has_ended_changes_nothing(rig):
    rig.move(1, 4)
    rig.cancel()
    before = rig.operation
    assert rig.cancel().is_empty
    assert rig.operation == before


def test_the_oldest_ended_operations_are_forgotten_and_open_ones_never(rig, monkeypatch):
    monkeypatch.setattr(operation_ops, "ENDED_OPERATIONS_KEPT", 2)
    rig.retire(5)
    for _ in range(4):
        rig.move(1, 4)
        rig.cancel()
    rig.move(1, 4)
    assert set(rig.state.operations) == {operation_id(1), operation_id(5), operation_id(6)}


def test_two_that_begin_at_once_may_forget_the_same_operation(rig, make, monkeypatch):
    monkeypatch.setattr(operation_ops, "ENDED_OPERATIONS_KEPT", 1)
    rig.move()
    rig.cancel()
    before = rig.state
    first = rig.move()
    rig.state = before
    second = rig.retire(5)
    rig.state = before
    assert first.forgotten == second.forgotten == (operation_id(1),)
    rig.apply(first)
    rig.apply(second)
    assert set(rig.state.operations) == {operation_id(2), operation_id(3)}
