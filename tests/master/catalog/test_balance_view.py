"""What the planners of balance may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.master.catalog.balance_view import BalanceView, ServerSeen, TabletSeen, trouble_of, view_of
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState

NOW = 10_000_000_000
COOLDOWN = 300_000_000


@pytest.fixture
def state(make) -> CatalogState:
    """A table of two tablets on servers 1, 2 and 3, both running."""
    created, change = make.created(CatalogState(), make.new_table(buckets=2))
    running = tuple(tablet.moved_to(TabletState.RUNNING, "") for tablet in change.tablets)
    return created.applying(CatalogChange(tablets=running))


def ids(state: CatalogState) -> list[TabletId]:
    (tablets,) = state.tablets_by_table.values()
    return list(tablets)


def hosts_of(entry: TabletEntry) -> dict[ServerId, ReportedReplica]:
    return {
        member.uuid: ReportedReplica(entry.tablet_id, ReplicaState.RUNNING, committed_config=entry.config)
        for member in entry.config.members
    }


Look = Callable[..., BalanceView]


@pytest.fixture
def look(make) -> Look:
    """A view over four servers that all run, and of which member 1 leads everything, but for what is given."""

    def run(
        state: CatalogState,
        *,
        servers: Iterable[ServerSeen] | None = None,
        hosts: Mapping[TabletId, Mapping[ServerId, ReportedReplica]] | None = None,
        is_settling: bool = False,
    ) -> BalanceView:
        def reports(tablet_id: TabletId) -> TabletSeen:
            return TabletSeen((hosts or {}).get(tablet_id, hosts_of(state.tablets[tablet_id])), make.server(1))

        seen = [ServerSeen(candidate) for candidate in make.candidates(4)] if servers is None else list(servers)
        return view_of(state, seen, reports, now_micros=NOW, cooldown_micros=COOLDOWN, is_settling=is_settling)

    return run


def test_a_quiet_cluster_is_seen_as_it_is(make, state, look):
    view = look(state)
    assert view.holds == ()
    assert [server.takes_part for server in view.servers] == [True] * 4
    assert [tablet.tablet_id for tablet in view.tablets] == ids(state)
    assert all(set(tablet.members) == {make.server(n) for n in (1, 2, 3)} for tablet in view.tablets)
    assert all(tablet.leader == make.server(1) and not tablet.is_held for tablet in view.tablets)


def test_a_move_under_way_is_seen_at_its_end_and_its_tablet_is_held(make, state, look):
    moving, resting = ids(state)
    move = OperationEntry(
        OperationId("1" * 32), OperationKind.MOVE_REPLICA, tablet_id=moving, from_=make.server(1), to=make.server(4)
    )
    entry = state.tablets[moving]
    joining = Member(make.server(4), MemberType.PRE_VOTER, promote=True)
    between = replace(entry, config=RaftConfig(7, (*entry.config.members, joining)))

    for at in (entry, between):
        view = look(state.applying(CatalogChange(operations=(move,), tablets=(at,))))

        assert view.holds == ()
        seen = {tablet.tablet_id: tablet for tablet in view.tablets}
        assert set(seen[moving].members) == {make.server(n) for n in (2, 3, 4)}
        assert seen[moving].is_held
        assert seen[moving].leader is None, "its leader's replica goes"
        assert not seen[resting].is_held
        assert view.under_way == {make.server(1): 1, make.server(4): 1}


@pytest.mark.parametrize(("age_s", "is_held"), [(1, True), (299, True), (301, False)])
def test_a_tablet_rests_for_the_cooldown_after_an_administrators_change(state, look, age_s, is_held):
    changed = replace(state.tablets[ids(state)[0]], changed_by_admin_micros=NOW - age_s * 1_000_000)
    assert look(state.applying(CatalogChange(tablets=(changed,)))).tablets[0].is_held is is_held


@pytest.mark.parametrize(
    ("end", "by_admin", "age_s", "is_held"),
    [
        (OperationState.FAILED, False, 1, True),
        (OperationState.CANCELLED, False, 1, True),
        (OperationState.DONE, False, 1, False),
        (OperationState.DONE, True, 1, True),
        (OperationState.FAILED, False, 301, False),
        (OperationState.DONE, True, 301, False),
    ],
)
def test_a_tablet_rests_after_an_administrators_move_and_after_one_that_did_not_end_well(
    make, state, look, end, by_admin, age_s, is_held
):
    move = OperationEntry(
        OperationId("1" * 32), OperationKind.MOVE_REPLICA, tablet_id=ids(state)[0], from_=make.server(1),
        to=make.server(4), by_admin=by_admin,
    ).ended(end, now_micros=NOW - age_s * 1_000_000)  # fmt: skip
    assert look(state.applying(CatalogChange(operations=(move,)))).tablets[0].is_held is is_held


def test_a_learner_that_an_administrator_wants_holds_its_tablet_and_no_other(make, state, look):
    entry = state.tablets[ids(state)[0]]
    learner = Member(make.server(4), MemberType.PRE_VOTER)
    with_learner = replace(entry, config=RaftConfig(7, (*entry.config.members, learner)))

    view = look(state.applying(CatalogChange(tablets=(with_learner,))))

    assert view.holds == ()
    assert [tablet.is_held for tablet in view.tablets] == [True, False]


@pytest.mark.parametrize("mode", [TabletServerMode.MAINTENANCE, TabletServerMode.RETIRING, TabletServerMode.RETIRED])
def test_servers_that_are_not_normal_take_no_part(make, state, look, mode):
    view = look(state.applying(CatalogChange(servers=(TabletServerEntry(make.server(4), mode),))))
    assert view.holds == ()
    assert [server.takes_part for server in view.servers] == [True, True, True, False]


def test_the_order_of_reasons_is_servers_then_operations_then_tablets(make, state, look):
    silent = [ServerSeen(c, is_live=c.uuid != make.server(1)) for c in make.candidates(4)]
    retiring = OperationEntry(OperationId("1" * 32), OperationKind.RETIRE_TABLET_SERVER, server=make.server(2))

    holds = look(state.applying(CatalogChange(operations=(retiring,))), servers=silent, is_settling=True).holds

    assert [hold.split()[0] for hold in holds] == ["this", "tablet", "operation", "2"]


def test_a_server_that_lives_must_have_reported(make, state, look):
    servers = [ServerSeen(c, has_reported=c.uuid != make.server(4)) for c in make.candidates(4)]
    assert look(state, servers=servers).holds == (f"tablet server {make.server(4)} has not reported its replicas yet",)


def test_a_dead_server_without_replicas_is_nobodys_concern(make, state, look):
    view = look(state, servers=[ServerSeen(c, is_live=c.uuid != make.server(4)) for c in make.candidates(4)])
    assert view.holds == ()
    assert not view.servers[3].takes_part


class TestTrouble:
    def trouble(self, make, entry, *, live=(1, 2, 3), wanted=3, leader=1, **reported):
        hosts = hosts_of(entry)
        if reported:
            hosts[make.server(2)] = replace(hosts[make.server(2)], **reported)
        seen = TabletSeen(hosts, None if leader is None else make.server(leader))
        return trouble_of(entry, wanted, seen, {make.server(n) for n in live})

    def test_none(self, make):
        assert self.trouble(make, make.tablet()) == ""

    def test_it_is_being_created(self, make):
        assert "created" in self.trouble(make, make.tablet(state=TabletState.CREATING))

    @pytest.mark.parametrize("wanted", [1, 5])
    def test_another_number_of_voters_is_wanted(self, make, wanted):
        assert f"is meant to have {wanted}" in self.trouble(make, make.tablet(), wanted=wanted)

    def test_a_server_is_silent(self, make):
        assert "silent" in self.trouble(make, make.tablet(), live=(1, 3))

    @pytest.mark.parametrize("state", [s for s in ReplicaState if s is not ReplicaState.RUNNING])
    def test_a_replica_does_not_run(self, make, state):
        assert f"is {state.value}" in self.trouble(make, make.tablet(), state=state)

    def test_a_replica_was_never_reported(self, make):
        seen = TabletSeen({}, make.server(1))
        assert "missing" in trouble_of(make.tablet(), 3, seen, {make.server(n) for n in (1, 2, 3)})

    def test_its_members_are_being_changed(self, make):
        assert "being changed" in self.trouble(make, make.tablet(), pending_config=make.config((1, 2, 3, 4), 8))

    @pytest.mark.parametrize(("mark", "what"), [({"promote": True}, "promoted"), ({"replace": True}, "replaced")])
    def test_a_member_is_marked(self, make, mark, what):
        entry = make.tablet()
        members = tuple(replace(m, **mark) if m.uuid == make.server(3) else m for m in entry.config.members)
        assert what in self.trouble(make, replace(entry, config=RaftConfig(0, members)))

    @pytest.mark.parametrize("leader", [None, 9])
    def test_nobody_is_known_to_lead(self, make, leader):
        assert "no leader" in self.trouble(make, make.tablet(), leader=leader)
