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


def test_what_the_masters_wait_for_is_noted(seen):
    seen.tables[0].tablets[0].waits_for = "no replica can be added anywhere"

    report = assess(seen)

    assert report.is_healthy
    assert any("the masters wait: no replica can be added anywhere" in note for note in report.notes)


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


FOURTH = "4" * 32


def add_fourth(seen, member_type, *, status=None, mode="NORMAL"):
    """A fourth server whose replica is a member, too."""
    seen.tables[0].tablets[0].replicas.add(ts_uuid=FOURTH, member_type=member_type)
    replicas = {TABLET: status} if status is not None else {}
    seen.servers.append(ServerSeen(FOURTH, "127.0.0.1:4", "LIVE", mode, is_serving=True, replicas=replicas))


def copying(uuid):
    status = replica_status(uuid, state=tserver_pb2.NOT_STARTED)
    status.data_state = tserver_pb2.COPYING
    return status


class TestChangesUnderWay:
    @pytest.mark.parametrize("status", [None, copying(FOURTH), replica_status(FOURTH)])
    def test_a_replica_that_joins_is_a_note(self, seen, status):
        add_fourth(seen, consensus_pb2.PRE_VOTER, status=status)

        report = assess(seen)

        assert report.is_healthy
        assert report.tablets[0].verdict == "HEALTHY"
        assert any(f"replica {FOURTH} is joining" in note for note in report.notes)

    def test_a_voter_too_many_is_a_note(self, seen):
        add_fourth(seen, consensus_pb2.VOTER, status=replica_status(FOURTH))

        report = assess(seen)

        assert report.is_healthy
        assert any("4 voters and is meant to have 3" in note for note in report.notes)

    def test_a_tablet_recovers_while_the_missing_voter_joins(self, seen):
        del seen.tables[0].tablets[0].replicas[2]
        add_fourth(seen, consensus_pb2.PRE_VOTER, status=copying(FOURTH))

        report = assess(seen)

        assert not report.is_healthy
        assert report.tablets[0].verdict == "RECOVERING"
        assert "2 of 3 voters, 1 joining: under-replicated" in report.problems[0]

    def test_a_voter_that_is_copied_again_is_a_problem_that_passes(self, seen):
        seen.servers[2].replicas[TABLET] = copying(SERVERS[2])

        report = assess(seen)

        assert report.tablets[0].verdict == "RECOVERING"
        assert any("is being copied" in problem for problem in report.problems)

    def test_a_voter_of_which_a_tombstone_is_left_is_a_problem(self, seen):
        seen.servers[2].tombstones[TABLET] = seen.servers[2].replicas.pop(TABLET)

        assert any("only a tombstone is left" in problem for problem in assess(seen).problems)

    def test_as_many_voters_as_an_administrator_wants_are_enough(self, seen):
        del seen.tables[0].tablets[0].replicas[2]
        seen.tables[0].tablets[0].wanted_voters = 2

        assert assess(seen).is_healthy

    def test_what_only_disagrees_is_to_be_looked_at_again(self, seen):
        assert not assess(seen).tablets[0].disagrees
        seen.servers[1].replicas[TABLET] = replica_status(SERVERS[1], config_index=9)
        assert assess(seen).tablets[0].disagrees

    def test_a_tablet_without_a_majority_is_not_looked_at_again(self, seen):
        for server in seen.servers[:2]:
            server.error = "connection refused"
        assert not assess(seen).tablets[0].disagrees


class TestModes:
    def test_a_server_in_maintenance_may_be_away_but_its_tablets_are_told(self, seen):
        seen.servers[2].mode, seen.servers[2].error = "MAINTENANCE", "connection refused"

        report = assess(seen)

        assert any("is in maintenance and does not answer" in note for note in report.notes)
        assert report.tablets[0].verdict == "DEGRADED", "another server must not be taken down now"
        assert len(report.problems) == 1

    def test_a_server_in_maintenance_that_answers_is_a_note(self, seen):
        seen.servers[2].mode = "MAINTENANCE"

        report = assess(seen)

        assert report.is_healthy
        assert any(note.endswith("is in maintenance") for note in report.notes)

    def test_a_retiring_server_tells_how_many_replicas_are_left(self, seen):
        seen.servers[0].mode = "RETIRING"

        report = assess(seen)

        assert report.is_healthy
        assert any("is being retired: 1 replica is left on it" in note for note in report.notes)

    def test_a_retiring_server_must_not_be_away(self, seen):
        seen.servers[0].mode, seen.servers[0].state = "RETIRING", "DEAD"

        assert any("is DEAD for the masters" in problem for problem in assess(seen).problems)

    @pytest.mark.parametrize(("state", "told"), [("LIVE", "it can be stopped"), ("DEAD", "is DEAD for the masters")])
    def test_a_retired_server_is_a_note_wherever_it_is(self, seen, state, told):
        seen.servers.append(ServerSeen(FOURTH, "127.0.0.1:4", state, "RETIRED", is_serving=True))

        report = assess(seen)

        assert report.is_healthy
        assert any("is retired" in note and told in note for note in report.notes)


class TestFaultDomains:
    def spread(self, seen, *domains):
        for server, domain in zip(seen.servers, domains, strict=True):
            server.fault_domain = domain

    def test_servers_of_three_domains_are_worth_no_note(self, seen):
        self.spread(seen, "a", "b", "c")
        assert assess(seen).notes == []

    def test_a_shared_domain_is_a_note(self, seen):
        self.spread(seen, "a", "b", "a")

        report = assess(seen)

        assert report.is_healthy
        (note,) = report.notes
        assert "has 2 replicas in fault domain a" in note
        assert "servers are in 2 domains" in note

    def test_the_host_is_the_domain_of_servers_without_one(self, seen):
        (note,) = assess(seen).notes
        assert "has 3 replicas in fault domain 127.0.0.1" in note

    def test_a_replica_that_is_about_to_go_shares_nothing(self, seen):
        self.spread(seen, "a", "b", "c")
        add_fourth(seen, consensus_pb2.VOTER, status=replica_status(FOURTH))
        seen.servers[3].fault_domain = "a"

        assert not any("fault domain" in note for note in assess(seen).notes)
