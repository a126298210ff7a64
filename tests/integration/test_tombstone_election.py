"""A deleted replica votes: a tablet whose only remaining electors include a tombstone elects a leader."""

import pytest

from kudu_py.pb import consensus_pb2, tserver_admin_pb2
from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SLOW_ELECTIONS = "raft_heartbeat_interval_ms = 600"
"""Time enough to delete a replica before anybody misses the leader."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tombstone") / "playground"
    with ProcessCluster(directory, config=SLOW_ELECTIONS) as cluster:
        yield cluster


def test_a_tombstone_elects_the_leader_when_the_third_server_is_dead(cluster, client):
    make_table(client, "voted", buckets=1)
    with AdminCalls(cluster) as admin, WriteWorkload(cluster.masters, "voted") as workload:
        workload.wait_for_rounds(20)
        (tablet,) = [tablet.tablet_id for tablet in admin.locations("voted")]
        leader = admin.leader(tablet)
        cluster.freeze(leader)
        # The last entries may have reached one of the others only, which then gives its vote to nobody that lacks them.
        ends = {uuid: admin.consensus_state(uuid, tablet) for uuid in admin.voters(tablet) - {leader}}
        tombstone, elected = sorted(ends, key=lambda uuid: ends[uuid].last_op_id.index)
        term = ends[elected].term
        request = tserver_admin_pb2.DeleteTabletRequest(
            dest_uuid=tombstone,
            tablet_id=tablet,
            reason="to see it vote",
            delete_type=tserver_admin_pb2.TOMBSTONED,
        )
        admin.replicas(tombstone).DeleteTablet(request, timeout=20.0)
        dead = cluster.kill(leader)

        def leads():
            state = admin.consensus_state(elected, tablet)
            return state is not None and state.role == consensus_pb2.LEADER and state.term > term

        wait_until(leads, "the last replica to be elected")
        names = {uuid: cluster.daemon(uuid).name for uuid in (tombstone, elected)}
        deleted = cluster.wait_for_event(names[tombstone], "replica_deleted", tablet=tablet)
        won = [each for each in cluster.events(names[elected], "role_changed", role="LEADER") if each["term"] > term]
        assert deleted["time"] < won[0]["time"], "it was elected before there was a tombstone: this shows nothing"
        # The tombstone has become a replica again, by a copy from the leader that it elected, and makes a majority.
        workload.wait_for_rounds(10)
        cluster.revive(dead.name)
        cluster.wait_serving(dead.name)
        workload.wait_for_rounds(10)
    rows = workload.check(client)
    report = cluster.wait_healthy()
    assert [each["rows"] for each in report["checksums"]["replicas"]] == [rows] * 3
    print(f"\n{rows} rows; the longest pause was {workload.longest_pause_s:.2f} s")
