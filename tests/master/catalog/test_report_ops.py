"""What of a tablet report changes the records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import TabletState
from kudu_py.master.catalog.report_ops import (
    ReplicaState,
    ReportedReplica,
    changed_by_report,
    plan_report,
    unknown_tablets,
)
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import plan_delete_table


@pytest.fixture
def created(make):
    return make.created(CatalogState())


def report(make, tablet, server=1, *, leader=None, config=None, **fields) -> ReportedReplica:
    return ReportedReplica(
        tablet.tablet_id,
        fields.pop("state", ReplicaState.RUNNING),
        leader=None if leader is None else make.server(leader),
        committed_config=config or tablet.config,
        **fields,
    )


def test_a_leader_makes_a_creating_tablet_run(make, created):
    state, change = created
    tablet = change.tablets[0]
    (after,) = plan_report(state, make.server(1), [report(make, tablet, leader=2)]).tablets
    assert after.state is TabletState.RUNNING
    assert after.seen == (make.server(1),)


def test_without_a_leader_it_is_only_seen(make, created):
    state, change = created
    (after,) = plan_report(state, make.server(3), [report(make, change.tablets[0])]).tablets
    assert (after.state, after.seen) == (TabletState.CREATING, (make.server(3),))


@pytest.mark.parametrize("replica_state", [s for s in ReplicaState if s is not ReplicaState.RUNNING])
def test_a_replica_that_does_not_run_vouches_for_no_leader(make, created, replica_state):
    state, change = created
    (after,) = plan_report(
        state, make.server(1), [report(make, change.tablets[0], leader=2, state=replica_state)]
    ).tablets
    assert after.state is TabletState.CREATING


def test_a_leader_outside_the_config_does_not_count(make, created):
    state, change = created
    (after,) = plan_report(state, make.server(1), [report(make, change.tablets[0], leader=99)]).tablets
    assert after.state is TabletState.CREATING


def test_the_same_report_again_changes_nothing(make, created):
    state, change = created
    reports = [report(make, tablet, leader=1) for tablet in change.tablets]
    after = state.applying(plan_report(state, make.server(1), reports))
    assert plan_report(after, make.server(1), reports).is_empty
    assert changed_by_report(after, make.server(1), reports) == []


def test_all_tablets_of_a_report_are_one_change(make, created):
    state, change = created
    reports = [report(make, tablet, leader=1) for tablet in change.tablets]
    assert len(plan_report(state, make.server(1), reports).tablets) == 4
    assert changed_by_report(state, make.server(1), reports) == [tablet.tablet_id for tablet in change.tablets]


def test_volatile_news_is_not_worth_a_write(make, created):
    state, change = created
    reports = [report(make, change.tablets[0], leader=1)]
    state = state.applying(plan_report(state, make.server(1), reports))
    newer = replace(reports[0], leader=make.server(2), term=9, row_count=5, role=Role.LEADER, on_disk_bytes=7)
    assert plan_report(state, make.server(1), [newer]).is_empty


def test_a_newer_committed_config_is_taken(make, created):
    state, change = created
    newer = make.config([1, 2, 4], index=17)
    (after,) = plan_report(state, make.server(1), [report(make, change.tablets[0], config=newer)]).tablets
    assert after.config == newer
    assert state.applying(CatalogChange((after,))).replica_counts[make.server(4)] == 1


def test_an_older_committed_config_is_ignored(make, created):
    state, change = created
    tablet = replace(change.tablets[0], config=make.config([1, 2, 4], index=17), seen=(make.server(1),))
    state = state.applying(CatalogChange((tablet,)))
    stale = report(make, tablet, config=make.config([1, 2, 3], index=9))
    assert plan_report(state, make.server(1), [stale]).is_empty


def test_a_server_outside_the_config_is_not_counted_as_seen(make, created):
    state, change = created
    assert plan_report(state, make.server(8), [report(make, change.tablets[0])]).is_empty


def test_a_final_tablet_stays_as_it_is(make, created):
    state, change = created
    state = state.applying(plan_delete_table(state, change.tables[0].table_id, note=""))
    newer = report(make, change.tablets[0], leader=1, config=make.config([1, 2, 4], index=17))
    assert plan_report(state, make.server(1), [newer]).is_empty


def test_a_tablet_without_a_record_is_named_and_changes_nothing(make, created):
    state, _ = created
    stranger = ReportedReplica(make.tablet_id(99), ReplicaState.RUNNING, leader=make.server(1))
    assert unknown_tablets(state, [stranger]) == [make.tablet_id(99)]
    assert plan_report(state, make.server(1), [stranger]).is_empty


def test_a_replica_that_failed_to_open_is_seen(make, created):
    state, change = created
    failed = ReportedReplica(change.tablets[0].tablet_id, ReplicaState.FAILED, error="CORRUPTION: ...")
    (after,) = plan_report(state, make.server(1), [failed]).tablets
    assert after.seen == (make.server(1),)
