"""Ksck's judgement, which is a pure function of what was gathered."""

from __future__ import annotations

import pytest

from kudu_py.cli.ksck import ClusterSeen, MasterSeen, ReplicaChecksum, ServerSeen, TableSeen, assess
from kudu_py.pb import consensus_pb2, master_pb2, tserver_pb2

TABLET = "a" * 32
SERVERS = ("1" * 32, "2" * 32, "3" * 32)


def replica_status(uuid, *, leader=SERVERS[0], term=3, config_index=0, state=tserver_pb2.RUNNING):
    return tserver_pb2.TabletStatus(
        tablet_id=TABLET,
        state=state,
        row_count=10,
        consensus_state=consensus_pb2.ConsensusState(
            term=term,
            leader_uuid=leader,
            role=consensus_pb2.LEADER if uuid == leader else consensus_pb2.FOLLOWER,
            committed_config=consensus_pb2.RaftConfig(config_index=config_index),
        ),
    )


@pytest.fixture
def seen():
    """A healthy cluster: one table of one tablet on three servers."""
    locations = master_pb2.TabletLocations(tablet_id=TABLET)
    for uuid in SERVERS:
        locations.replicas.add(ts_uuid=uuid, member_type=consensus_pb2.VOTER)
    return ClusterSeen(
        cluster_id="c" * 32,
        masters=[MasterSeen("127.0.0.1:7051", "m" * 32, "LEADER")],
        servers=[
            ServerSeen(uuid, "127.0.0.1:1", "LIVE", is_serving=True, replicas={TABLET: replica_status(uuid)})
            for uuid in SERVERS
        ],
        tables=[TableSeen("t" * 32, "metrics", 3, [locations])],
    )


def test_a_cluster_whose_parts_agree_is_healthy(seen):
    report = assess(seen)

    assert report.is_healthy
    assert report.tablets[0].verdict == "HEALTHY"
    assert report.tablets[0].leader == SERVERS[0]
    assert report.tablets[0].row_count == 10


def test_a_silent_server_degrades_its_tablets(seen):
    seen.servers[2].error = "connection refused"

    report = assess(seen)

    assert not report.is_healthy
    assert report.tablets[0].verdict == "DEGRADED"
    assert any(SERVERS[2] in problem for problem in report.problems)


def test_a_tablet_without_a_majority_is_unavailable(seen):
    for server in seen.servers[1:]:
        server.error = "connection refused"

    assert assess(seen).tablets[0].verdict == "UNAVAILABLE"


def test_a_tablet_without_a_leader_is_not_healthy(seen):
    for server in seen.servers:
        server.replicas[TABLET] = replica_status(server.uuid, leader="")

    assert "no leader" in assess(seen).tablets[0].problems[0]


def test_a_deposed_leader_of_an_older_term_does_not_count(seen):
    seen.servers[2].replicas[TABLET] = replica_status(SERVERS[2], leader=SERVERS[2], term=2)

    report = assess(seen)

    assert report.tablets[0].leader == SERVERS[0]
    assert any("takes" in problem for problem in report.tablets[0].problems)


def test_a_failed_replica_is_named_with_its_reason(seen):
    failed = replica_status(SERVERS[1], state=tserver_pb2.FAILED)
    failed.error = "CORRUPTION: segment 3"
    seen.servers[1].replicas[TABLET] = failed

    assert "CORRUPTION: segment 3" in assess(seen).tablets[0].problems[0]


def test_a_config_the_master_does_not_know_is_a_problem(seen):
    for server in seen.servers:
        server.replicas[TABLET] = replica_status(server.uuid, config_index=9)

    assert any("master knows config 0" in problem for problem in assess(seen).problems)


def test_replicas_with_different_rows_are_a_problem(seen):
    seen.checksums = [ReplicaChecksum(TABLET, uuid, checksum=7, row_count=10) for uuid in SERVERS]
    assert assess(seen).is_healthy

    seen.checksums[1].checksum = 8
    assert any("different rows" in problem for problem in assess(seen).problems)


def test_a_replica_without_a_checksum_is_a_problem(seen):
    seen.checksums = [ReplicaChecksum(TABLET, SERVERS[0], error="TABLET_NOT_RUNNING")]

    assert not assess(seen).is_healthy


def test_too_few_voters_is_under_replication(seen):
    del seen.tables[0].tablets[0].replicas[2]

    assert any("under-replicated" in problem for problem in assess(seen).problems)


def test_what_masters_and_servers_say_is_wrong_with_them_is_a_problem(seen):
    seen.masters[0].problems = ["the disk of /m is full"]
    seen.servers[1].problems = ["the disk of /t is full"]

    report = assess(seen)

    assert not report.is_healthy
    assert report.problems == [
        "master 127.0.0.1:7051: the disk of /m is full",
        f"tablet server {SERVERS[1]} at 127.0.0.1:1: the disk of /t is full",
    ]
