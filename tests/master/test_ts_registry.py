"""Soft state from heartbeats."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica
from kudu_py.master.ts_registry import Heartbeat, Registration, Report, TsRegistry

A, B = ServerId("a" * 32), ServerId("b" * 32)
T1, T2 = TabletId("1" * 32), TabletId("2" * 32)


@pytest.fixture
def registry() -> TsRegistry:
    return TsRegistry(started_s=100.0, unresponsive_timeout_s=60.0, settle_s=2.0)


def registered(registry, uuid=A, instance=1, now_s=100.0):
    return registry.take_heartbeat(Heartbeat(uuid, instance, Registration("host:7050")), now_s)


def full(sequence, *replicas):
    return Report(False, sequence, replicas)


def change(sequence, *replicas, removed=()):
    return Report(True, sequence, replicas, removed)


def running(tablet_id, **fields):
    return ReportedReplica(tablet_id, ReplicaState.RUNNING, **fields)


def test_an_unknown_server_must_register(registry):
    assert registry.take_heartbeat(Heartbeat(A, 1), 100.0) is None
    assert registry.servers == []
    assert registered(registry).uuid == A


def test_a_new_process_must_register_again(registry):
    registered(registry, instance=1)
    assert registry.take_heartbeat(Heartbeat(A, 2), 101.0) is None
    assert registered(registry, instance=2).instance_sequence == 2


def test_an_older_process_is_refused(registry):
    registered(registry, instance=5)
    with pytest.raises(KuduError, match="started again since"):
        registered(registry, instance=4)


def test_what_an_older_process_reported_is_forgotten(registry):
    server = registered(registry, instance=1)
    registry.take_report(server, full(1, running(T1)))
    registered(registry, instance=2)
    assert registry.hosts(T1) == {}
    assert not registry.accepts(server, change(2))


def test_a_silent_server_dies_and_a_heartbeat_revives_it(registry):
    registered(registry, now_s=100.0)
    assert registry.is_live(A, 160.0)
    assert not registry.is_live(A, 160.1)
    registry.take_heartbeat(Heartbeat(A, 1), 161.0)
    assert registry.is_live(A, 161.0)


def test_a_new_master_settles_after_a_while(registry):
    assert registry.is_settling(101.9)
    assert not registry.is_settling(102.0)


def test_the_first_report_must_be_full(registry):
    server = registered(registry)
    assert not registry.accepts(server, change(1))
    assert registry.accepts(server, full(7))


def test_an_incremental_report_may_repeat_but_not_skip(registry):
    server = registered(registry)
    registry.take_report(server, full(7))
    accepted = [sequence for sequence in range(5, 11) if registry.accepts(server, change(sequence))]
    assert accepted == [7, 8]


def test_a_full_report_that_was_overtaken_is_not_accepted(registry):
    server = registered(registry)
    registry.take_report(server, full(7))
    assert not registry.accepts(server, full(6))


def test_a_full_report_replaces_what_was_known(registry):
    server = registered(registry)
    registry.take_report(server, full(1, running(T1)))
    assert registry.take_report(server, full(2, running(T2))) == {T1, T2}
    assert registry.hosts(T1) == {}
    assert list(registry.hosts(T2)) == [A]


def test_an_incremental_report_adds_and_removes(registry):
    server = registered(registry)
    registry.take_report(server, full(1, running(T1)))
    registry.take_report(server, change(2, running(T2), removed=(T1,)))
    assert registry.hosts(T1) == {}
    assert list(registry.hosts(T2)) == [A]


def test_a_new_reign_asks_every_server_for_a_full_report(registry):
    server = registered(registry)
    registry.take_report(server, full(1, running(T1)))
    registry.forget_reports()
    assert registry.hosts(T1) == {}
    assert not registry.accepts(server, change(2))
    assert registry.is_live(A, 100.0), "liveness is kept"


def test_the_leader_is_that_of_the_highest_term(registry):
    a, b = registered(registry, A), registered(registry, B)
    registry.take_report(a, full(1, running(T1, role=Role.LEADER, term=4, leader=A)))
    assert registry.leader_of(T1) == A
    registry.take_report(b, full(1, running(T1, role=Role.LEADER, term=5, leader=B)))
    assert registry.leader_of(T1) == B


def test_a_follower_may_name_the_leader(registry):
    registry.take_report(registered(registry, A), full(1, running(T1, term=5, leader=B)))
    assert registry.leader_of(T1) == B
    assert registry.leader_of(T2) is None
