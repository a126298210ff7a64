"""A replica is added, promoted, removed, moved, retired and built again elsewhere while a client writes: every
acknowledged write is there in the end, all replicas agree, and the writing hardly slows down."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kudu_py.pb import master_pb2
from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
GRPCURL = ROOT / "build" / "bin" / "grpcurl"
SCRIPT = ROOT / "deploy" / "examples" / "replica_life.sh"

# A lost server is given up after seconds; nothing is moved for the sake of balance, so that what moves was asked for.
CONFIG = """
heartbeat_interval_ms = 200
follower_unavailable_considered_failed_sec = 3
[master]
tserver_unresponsive_timeout_ms = 2000
auto_rebalancing_enabled = false
"""
WINDOW_S = 10.0
BASELINE_S = 6.0
BASELINE_WINDOW_S = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("life") / "playground", tservers=4, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster):
    with AdminCalls(cluster) as calls:
        yield calls


def uuids(cluster):
    return {daemon.uuid for daemon in cluster.daemons if daemon.name.startswith("tserver")}


def check(cluster, workload, client, table):
    """What was acknowledged is there, and all replicas of each tablet say the same at one snapshot."""
    rows = workload.check(client)
    tablets = {tablet["id"] for tablet in cluster.ksck()["tablets"] if tablet["table"] == table}
    found = [c for c in cluster.ksck(checksum=True)["checksums"]["replicas"] if c["tablet"] in tablets]
    assert len(found) == 3 * len(tablets)
    assert not [c for c in found if c["error"]]
    for tablet in tablets:
        assert len({(c["checksum"], c["rows"]) for c in found if c["tablet"] == tablet}) == 1
    assert sum(c["rows"] for c in found) == 3 * rows
    return rows


@pytest.mark.skipif(not GRPCURL.exists(), reason="build/bin/grpcurl is missing: there was no Go to build it with")
def test_the_example_script_leads_a_replica_through_its_life_while_rows_are_written(cluster, client):
    make_table(client, "life", buckets=1)
    environment = {"GRPCURL": str(GRPCURL), "PYTHON": sys.executable}
    # With a pause between rounds: the windows are to show writes that stand still, and not what part of two busy cores
    # the script's own processes take.
    with WriteWorkload(cluster.masters, "life", pause_s=0.02) as workload:
        workload.wait_for_rounds(10)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > BASELINE_S, "the throughput before", 2 * BASELINE_S)
        script_began = time.monotonic()
        life = subprocess.run(
            [str(SCRIPT), str(cluster.directory), "life"],
            capture_output=True, text=True, timeout=180, env={**os.environ, **environment},
        )  # fmt: skip
        ended = time.monotonic()
        print(f"\n{life.stdout}")
        assert life.returncode == 0, life.stderr
        workload.wait_for_rounds(10)
    dead = next(daemon.name for daemon in cluster.daemons if not cluster.is_running(daemon.name))
    before = statistics.median(workload.rows_per_s(began, script_began, BASELINE_WINDOW_S))
    windows = workload.rows_per_s(script_began, max(ended, script_began + WINDOW_S), WINDOW_S)
    rows = check(cluster, workload, client, "life")
    print(
        f"{rows} rows; {before:.0f} rows/s before, then in windows of {WINDOW_S:.0f} s: "
        f"{[f'{each:.0f}' for each in windows]}; the longest pause was {workload.longest_pause_s:.2f} s"
    )
    assert min(windows) >= before / 2
    # What comes back after it was replaced disturbs nobody, and its replicas go.
    leader = cluster.ksck()["tablets"][0]["leader"]
    cluster.revive(dead)
    cluster.wait_serving(dead)
    cluster.wait_healthy()
    assert cluster.ksck()["tablets"][0]["leader"] == leader


def test_tablets_of_a_server_that_is_gone_are_built_again_and_it_returns_empty_and_useful(cluster, client, admin):
    make_table(client, "many", buckets=4)
    with WriteWorkload(cluster.masters, "many", pause_s=0.02) as workload:
        workload.wait_for_rounds(20)
        victim = cluster.kill(cluster.busiest_leader().name)
        located = {each.tablet_id: {replica.ts_uuid for replica in each.replicas} for each in admin.locations("many")}
        tablets = [tablet for tablet, members in located.items() if victim.uuid in members]
        for tablet in tablets:
            admin.wait_for_voters(tablet, uuids(cluster) - {victim.uuid})
        workload.wait_for_rounds(10)
        since = cluster.log_end(victim.name)
        cluster.revive(victim.name)
        cluster.wait_serving(victim.name)
        # Its replicas were replaced: the masters have them deleted,
        for tablet in tablets:
            cluster.wait_for_event(victim.name, "replica_deleted", since=since, tablet=tablet)
        # and it takes others, over its tombstones.
        source = next(uuid for uuid in sorted(admin.voters(tablets[0])) if uuid != admin.leader(tablets[0]))
        move = master_pb2.MoveReplicaRequest(tablet_id=tablets[0], from_ts_uuid=source, to_ts_uuid=victim.uuid)
        operation = admin.wait_for_operation(admin.master().MoveReplica(move, timeout=10.0).operation_id)
        assert operation.state == master_pb2.Operation.DONE, operation
        assert admin.members(tablets[0]) == uuids(cluster) - {source}
        workload.wait_for_rounds(10)
    check(cluster, workload, client, "many")
    print(f"\nthe longest pause was {workload.longest_pause_s:.2f} s")
