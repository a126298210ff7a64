"""What servers must be asked to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.entries import TabletState
from kudu_py.master.catalog.nudge_ops import CreateReplica, DeleteReplica, nudges_for
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica


def hosted(make, tablet, *servers, state=ReplicaState.RUNNING, config=None, **fields):
    replica = ReportedReplica(tablet.tablet_id, state, committed_config=config or tablet.config, **fields)
    return {make.server(n): replica for n in servers}


def test_a_new_tablet_is_created_on_every_member(make):
    tablet = make.tablet(state=TabletState.CREATING)
    assert nudges_for(tablet, {}) == [CreateReplica(make.server(n), tablet.tablet_id) for n in (1, 2, 3)]


def test_a_member_that_reported_its_replica_is_left_alone(make):
    tablet = make.tablet(state=TabletState.CREATING)
    assert nudges_for(tablet, hosted(make, tablet, 1, 3)) == [CreateReplica(make.server(2), tablet.tablet_id)]


def test_a_late_member_of_a_running_tablet_is_still_created(make):
    tablet = replace(make.tablet(), seen=(make.server(1), make.server(2)))
    assert nudges_for(tablet, hosted(make, tablet, 1, 2)) == [CreateReplica(make.server(3), tablet.tablet_id)]


def test_a_replica_that_was_seen_once_is_never_created_again(make):
    """It may have voted: an empty one in its place would have forgotten that."""
    tablet = replace(make.tablet(), seen=tuple(make.server(n) for n in (1, 2, 3)))
    assert nudges_for(tablet, hosted(make, tablet, 1)) == []


def test_members_added_later_get_their_replica_from_the_leader(make):
    tablet = make.tablet(members=(1, 2, 4), index=12)
    assert nudges_for(tablet, hosted(make, tablet, 1, 2)) == []


@pytest.mark.parametrize("state", [TabletState.DELETED, TabletState.REPLACED])
def test_replicas_of_a_final_tablet_are_deleted_unconditionally(make, state):
    tablet = make.tablet(state=state)
    nudges = nudges_for(tablet, hosted(make, tablet, 2, 9))
    assert [(n.server, n.expected_config_index_max) for n in nudges] == [(make.server(2), None), (make.server(9), None)]


def test_a_tombstone_is_as_good_as_gone(make):
    tablet = make.tablet(state=TabletState.DELETED)
    assert nudges_for(tablet, hosted(make, tablet, 2, state=ReplicaState.TOMBSTONE)) == []


def test_a_final_tablet_is_not_created_where_it_never_was(make):
    assert nudges_for(make.tablet(state=TabletState.REPLACED), {}) == []


def test_a_replica_outside_the_committed_config_is_deleted_by_compare_and_set(make):
    tablet = make.tablet(members=(1, 2, 4), index=12)
    hosts = {**hosted(make, tablet, 1, 2, 4), **hosted(make, tablet, 3, config=make.config((1, 2, 3), 0))}
    (nudge,) = nudges_for(tablet, hosts)
    assert isinstance(nudge, DeleteReplica)
    assert (nudge.server, nudge.expected_config_index_max) == (make.server(3), 12)


def test_a_replica_with_a_newer_config_than_the_record_is_left_alone(make):
    tablet = make.tablet(members=(1, 2, 4), index=12)
    hosts = {**hosted(make, tablet, 1, 2, 4), **hosted(make, tablet, 3, config=make.config((1, 2, 3, 4), 20))}
    assert nudges_for(tablet, hosts) == []


def test_a_member_that_is_being_added_is_left_alone(make):
    tablet = make.tablet(members=(1, 2, 4), index=12)
    leader = hosted(make, tablet, 1, role=Role.LEADER, term=5, pending_config=make.config((1, 2, 3, 4), 20))
    hosts = {**hosted(make, tablet, 2, 4, term=5), **leader, **hosted(make, tablet, 3, term=4)}
    assert nudges_for(tablet, hosts) == []


def test_a_tablet_without_a_record_is_never_deleted(make):
    assert nudges_for(None, hosted(make, make.tablet(), 1, 2, 3)) == []
