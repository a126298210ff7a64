"""Source, target and master are killed at each stage of a copy and of a deletion, at the event in their log that ends
the stage: the end is right, and no copy begins from nothing that could go on."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from kudu_py.pb import master_pb2
from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

# Nothing moves but what is asked for. Rows are flushed early, so that there are several files to fetch, and fetched
# slowly, so that a copy is still under way when its source dies. No compaction replaces files while no session keeps
# them: the next session would name others, and what was fetched would rightly be of no use.
CONFIG = """
heartbeat_interval_ms = 200
log_level = "debug"
flush_threshold_mb = 1
log_segment_size_mb = 1
log_retain_mb = 1
[master]
auto_rebalancing_enabled = false
[tserver]
tablet_copy_bytes_per_s = 8000000
enable_rowset_compaction = false
"""
ROWS = 40_000
ROWS_OF_A_LONG_COPY = 160_000
"""More than what lies between source and target, which a slow target still gets when the source is dead."""
BATCH_ROWS = 8_000

TARGET_STAGES = (
    "copy_marked",
    "copy_begun",
    "copy_file_fetched",
    "copy_file_fetched",
    "copy_fetched",
    "copy_metadata_merged",
    "copy_moved",
    "copy_moved:2",
    "copy_ready",
)
DELETION_STAGES = (
    "deletion_quarantine_made",
    "deletion_marked",
    "deletion_metadata_saved",
    "deletion_log_moved",
    "deletion_rows_moved",
)
MASTER_STAGES = ("operation_begun", "replica_added", "replica_evicted", "operation_ended")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("kills") / "playground", tservers=4, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster):
    with AdminCalls(cluster) as calls:
        yield calls


def make_large_table(cluster, client, admin, name, *, replicas=3, rows=ROWS):
    """The id of a table's one tablet: some megabytes, most of them in files of rows, which stay as they are."""
    table = make_table(client, name, buckets=1, replicas=replicas)
    session = client.new_session()
    for first in range(0, rows, BATCH_ROWS):
        keys = np.arange(first, first + BATCH_ROWS, dtype=np.int64)
        # What does not compress, so that files are as large as the rows.
        text = np.random.default_rng(first).bytes(BATCH_ROWS * 60).hex()
        batch = {"key": keys, "value": -keys, "text": [text[i * 120 : i * 120 + 120] for i in range(BATCH_ROWS)]}
        session.write(table, pa.table(batch), "insert")
        session.flush()
    tablet = admin.locations(name)[0].tablet_id
    leader = servers(cluster)[admin.leader(tablet)]
    last = admin.consensus_state(leader, tablet).last_op_id.index

    def is_flushed():
        flushed = cluster.events(leader, "tablet_flushed", tablet=tablet)[-1:]
        return flushed and int(flushed[0]["op_id"].partition(".")[2]) >= last - 2

    wait_until(is_flushed, "the rows to be flushed")
    return tablet


def drop(cluster, client, admin, name):
    """Deletes a table and waits for its replicas to go, so that later deletions are those that a test wants."""
    (tablet,) = admin.locations(name)
    holders = [servers(cluster)[replica.ts_uuid] for replica in tablet.replicas]
    since = {holder: cluster.log_end(holder) for holder in holders}
    client.delete_table(name)
    for holder in holders:
        cluster.wait_for_event(holder, "replica_deleted", since=since[holder], tablet=tablet.tablet_id)


def servers(cluster):
    return {daemon.uuid: daemon.name for daemon in cluster.daemons if daemon.name.startswith("tserver")}


def outside(cluster, admin, tablet):
    """The name of a server that is no member."""
    return next(name for uuid, name in servers(cluster).items() if uuid not in admin.members(tablet))


def kill_at(cluster, name, stage):
    """The daemon runs again, and will end itself at this event; at none if it is empty."""
    since = cluster.log_end(name)
    cluster.revive(name, f"--fault_kill_on_event={stage}")
    return since


def kill_at_each(cluster, name, stages, since):
    """A daemon that is to end itself at the first stage does, runs again, and ends itself at the next, to the last.

    `since` is where the log of its first run begins.
    """
    for stage, following in pairwise([*stages, ""]):
        cluster.wait_ended(name)
        event, _, count = stage.partition(":")
        assert len(cluster.events(name, event, since=since)) == int(count or 1), f"{name} ended, but not at {stage}"
        since = kill_at(cluster, name, following)
    cluster.wait_serving(name)


def require_nothing_fetched_twice(cluster, name, tablet):
    """What a copy to this server has fetched whole, the next one from the same source begins with."""
    sizes = {}
    for each in cluster.events(name, "copy_file_fetched", tablet=tablet):
        file = (each["source"], each["file"])
        assert each["resumed_bytes"] >= sizes.get(file, 0), f"{file} was fetched again"
        sizes[file] = each["size_bytes"]


def check(cluster, workload, client, table, *, replicas=3, loaded=ROWS):
    assert not workload.errors
    report = cluster.wait_healthy()
    (tablet,) = [each["id"] for each in report["tablets"] if each["table"] == table]
    found = [each for each in report["checksums"]["replicas"] if each["tablet"] == tablet]
    assert len(found) == replicas
    rows = client.table(table).scanner().to_arrow().sort_by("key")
    assert {each["rows"] for each in found} == {rows.num_rows}
    written = {**workload.inserted, **workload.upserted}
    keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
    assert dict(zip(keys, values, strict=True)) == {key: -key for key in range(loaded)} | written


def test_a_copy_whose_target_is_killed_at_each_stage_goes_on_where_it_was(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "target_killed")
    name = outside(cluster, admin, tablet)
    uuid = cluster.kill(name).uuid
    since = kill_at(cluster, name, TARGET_STAGES[0])
    cluster.wait_serving(name)
    voters = admin.voters(tablet) | {uuid}
    with WriteWorkload(cluster.masters, "target_killed", pause_s=0.1) as workload:
        admin.add_replica(tablet, name)
        kill_at_each(cluster, name, TARGET_STAGES, since)
        admin.wait_for_voters(tablet, voters)
        workload.wait_for_rounds(5)
    require_nothing_fetched_twice(cluster, name, tablet)
    check(cluster, workload, client, "target_killed", replicas=4)
    drop(cluster, client, admin, "target_killed")


def test_a_copy_whose_only_source_is_killed_goes_on_when_it_is_back(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "source_killed", replicas=1, rows=ROWS_OF_A_LONG_COPY)
    source, target = servers(cluster)[admin.leader(tablet)], outside(cluster, admin, tablet)
    voters = {cluster.daemon(source).uuid, cluster.daemon(target).uuid}
    cluster.kill(source)
    kill_at(cluster, source, "copy_session_opened")
    cluster.wait_serving(source)
    with WriteWorkload(cluster.masters, "source_killed", pause_s=0.1) as workload:
        workload.wait_for_rounds(1)
        admin.add_replica(tablet, target)
        cluster.wait_ended(source)
        since = cluster.log_end(target)
        kill_at(cluster, source, "")
        cluster.wait_for_event(target, "copy_file_fetched", since=since, tablet=tablet)
        cluster.kill(source)
        since = cluster.log_end(target)
        kill_at(cluster, source, "copy_session_closed")
        cluster.wait_ended(source)
        kill_at(cluster, source, "")
        admin.wait_for_voters(tablet, voters)
        workload.wait_for_rounds(5)
    (fetched,) = cluster.events(target, "copy_fetched", since=since, tablet=tablet)
    assert fetched["resumed_bytes"] > 0
    require_nothing_fetched_twice(cluster, target, tablet)
    check(cluster, workload, client, "source_killed", replicas=2, loaded=ROWS_OF_A_LONG_COPY)
    drop(cluster, client, admin, "source_killed")


def test_a_copy_whose_source_is_killed_is_made_from_the_next_leader(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "leader_killed")
    target, source = outside(cluster, admin, tablet), admin.leader(tablet)
    voters = admin.voters(tablet) | {cluster.daemon(target).uuid}
    with WriteWorkload(cluster.masters, "leader_killed", pause_s=0.1) as workload:
        workload.wait_for_rounds(1)
        since = cluster.log_end(target)
        admin.add_replica(tablet, target)
        begun = cluster.wait_for_event(target, "copy_begun", since=since, tablet=tablet)
        assert begun["source"] == source
        cluster.kill(source)
        admin.wait_for_voters(tablet, voters)
        cluster.revive(servers(cluster)[source])
        workload.wait_for_rounds(5)
    cluster.wait_serving()
    check(cluster, workload, client, "leader_killed", replicas=4)
    drop(cluster, client, admin, "leader_killed")


def test_a_move_goes_on_over_kills_of_the_master_at_each_of_its_steps(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "moved")
    source = next(uuid for uuid in sorted(admin.voters(tablet)) if uuid != admin.leader(tablet))
    target = cluster.daemon(outside(cluster, admin, tablet)).uuid
    voters = admin.voters(tablet) - {source} | {target}
    cluster.kill("master-1")
    since = kill_at(cluster, "master-1", MASTER_STAGES[0])
    admin.wait_for_master(len(servers(cluster)))
    wait_until(lambda: admin.leader(tablet), "the master to hear of a leader")
    with WriteWorkload(cluster.masters, "moved", pause_s=0.1) as workload:
        move = master_pb2.MoveReplicaRequest(tablet_id=tablet, from_ts_uuid=source, to_ts_uuid=target)
        asked = admin.master().MoveReplica.future(move, timeout=20.0)
        kill_at_each(cluster, "master-1", MASTER_STAGES, since)
        assert asked.exception() is not None  # the first master died before it answered
        admin.wait_for_master(len(servers(cluster)))
        listed = master_pb2.ListOperationsRequest(include_ended=True)
        (operation,) = admin.master().ListOperations(listed, timeout=10.0).operations
        ended = admin.wait_for_operation(operation.operation_id)
        assert ended.state == master_pb2.Operation.DONE, ended
        admin.wait_for_voters(tablet, voters)
        workload.wait_for_rounds(5)
    check(cluster, workload, client, "moved")
    drop(cluster, client, admin, "moved")


def test_a_deletion_is_finished_after_kills_at_each_of_its_steps(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "deleted")
    follower = next(uuid for uuid in sorted(admin.voters(tablet)) if uuid != admin.leader(tablet))
    name = servers(cluster)[follower]
    cluster.kill(name)
    since = kill_at(cluster, name, DELETION_STAGES[0])
    cluster.wait_serving(name)
    with WriteWorkload(cluster.masters, "deleted", pause_s=0.1) as workload:
        admin.remove_replica(tablet, name)
        kill_at_each(cluster, name, DELETION_STAGES, since)
        # A tombstone is all that is left, and a replica can be made of it again.
        assert cluster.daemon(name).uuid not in admin.members(tablet)
        admin.add_replica(tablet, name)
        admin.wait_for_voters(tablet, admin.members(tablet))
        workload.wait_for_rounds(5)
    assert follower in admin.voters(tablet)
    check(cluster, workload, client, "deleted")
    drop(cluster, client, admin, "deleted")


def test_a_move_that_is_cancelled_is_put_back_and_what_it_fetched_is_used_by_the_next(cluster, client, admin):
    tablet = make_large_table(cluster, client, admin, "cancelled", rows=ROWS_OF_A_LONG_COPY)
    before = admin.voters(tablet)
    source = next(uuid for uuid in sorted(before) if uuid != admin.leader(tablet))
    name = outside(cluster, admin, tablet)
    move = master_pb2.MoveReplicaRequest(tablet_id=tablet, from_ts_uuid=source, to_ts_uuid=cluster.daemon(name).uuid)
    cluster.kill(name)
    since = cluster.log_end(name)
    cluster.revive(name, "--tablet_copy_bytes_per_s=750000")
    cluster.wait_serving(name)
    with WriteWorkload(cluster.masters, "cancelled", pause_s=0.1) as workload:
        operation_id = admin.master().MoveReplica(move, timeout=10.0).operation_id
        # A tenth of it is here; the rest takes several times as long as the masters wait before they ask for an end.
        cluster.wait_for_event(name, "copy_file_fetched", since=since, tablet=tablet)
        cancel = master_pb2.CancelOperationRequest(operation_id=operation_id)
        state = admin.master().CancelOperation(cancel, timeout=20.0).operation.state
        assert state == master_pb2.Operation.CANCELLED
        admin.wait_for_voters(tablet, before)
        cluster.wait_for_event(name, "copy_failed", since=since, tablet=tablet)
        assert not cluster.events(name, "copy_fetched", since=since), "it was too fast to be cancelled"
        cluster.kill(name)
        since = cluster.log_end(name)
        cluster.revive(name, "--tablet_copy_bytes_per_s=0")
        again = admin.master().MoveReplica(move, timeout=10.0).operation_id
        assert admin.wait_for_operation(again).state == master_pb2.Operation.DONE
        workload.wait_for_rounds(5)
    fetched = cluster.wait_for_event(name, "copy_fetched", since=since, tablet=tablet)
    assert fetched["resumed_bytes"] > 0
    require_nothing_fetched_twice(cluster, name, tablet)
    check(cluster, workload, client, "cancelled", loaded=ROWS_OF_A_LONG_COPY)
