"""Two of three servers are gone for good: one command brings the tablet back, and what it says of the loss is true."""

import json
import time

import pytest

from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, run_command, wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

# Servers are dead after seconds. Nobody is replaced while one replica is stopped to fall behind.
CONFIG = """
heartbeat_interval_ms = 200
follower_unavailable_considered_failed_sec = 15
[master]
tserver_unresponsive_timeout_ms = 2000
auto_rebalancing_enabled = false
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("loss") / "playground", tservers=5, config=CONFIG) as cluster:
        yield cluster


def recover(cluster, *flags):
    done = run_command("cluster", "recover_majority_loss", cluster.masters, "--format", "json", *flags, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_the_command_brings_back_what_is_left_and_tells_truly_what_may_be_lost(cluster, client):
    make_table(client, "lost", buckets=1)
    with AdminCalls(cluster) as admin:
        (tablet,) = [tablet.tablet_id for tablet in admin.locations("lost")]
        leader = admin.leader(tablet)
        survivor, other = sorted(admin.voters(tablet) - {leader})
        with WriteWorkload(cluster.masters, "lost") as workload:
            workload.wait_for_rounds(20)
            # The replica that will be left lacks what is acknowledged from here on.
            cluster.freeze(survivor)
            stopped_at, rounds_stopped_at = time.monotonic(), workload.rounds
            workload.wait_for_rounds(20)
        to_wall_s = time.time() - time.monotonic()
        dead = [cluster.kill(uuid) for uuid in (leader, other)]
        cluster.thaw(survivor)
        # Nothing is given up before the masters have given up the servers.
        wait_until(lambda: recover(cluster, "--dry-run")[0] == 0, "the servers to count as dead")
        _, report, _ = recover(cluster, "--dry-run")
        before = admin.consensus_state(survivor, tablet)
        assert {member.uuid for member in before.committed_config.members} == {survivor, leader, other}

        status, told, text = recover(cluster, "--yes")
        print(f"\n{text}")
        assert status == 0, text
        (loss,) = told["losses"]
        (planned,) = report["losses"]
        assert planned["outcome"] is None
        for field in ("tablet", "survivor", "complete_through_micros", "known_lost_entries"):
            assert loss[field] == planned[field], "the dry run said something else"
        assert (loss["tablet"], loss["table"], loss["survivor"]) == (tablet, "lost", survivor)
        assert {each["uuid"] for each in loss["lost"]} == {daemon.uuid for daemon in dead}
        (kept,) = loss["keep"]
        assert kept["last_op_id"] == f"{before.last_op_id.term}.{before.last_op_id.index}"
        assert loss["outcome"] == {"recovered": True, "voters": 3, "voters_wanted": 3, "error": ""}

        voters = admin.voters(tablet)
        assert survivor in voters
        assert voters <= {daemon.uuid for daemon in cluster.daemons if cluster.is_running(daemon.name)}
    rows = dict(client.table("lost").scanner().set_projected_column_names(["key", "value"]).read_all_tuples())
    # What was acknowledged up to the time that the report names is there, and nothing that was never written.
    complete_through_s = loss["complete_through_micros"] / 1e6
    assert complete_through_s <= stopped_at + to_wall_s + 1.0, "it cannot be complete up to a time when it stood still"
    safe_rounds = sum(at + to_wall_s <= complete_through_s for at, _ in workload.acknowledged_at)
    assert safe_rounds > 0
    assert {key for key, round_ in workload.inserted.items() if round_ < safe_rounds} <= rows.keys()
    assert rows.keys() <= workload.inserted.keys() | workload.upserted.keys()
    lost = [round_ for key, round_ in workload.inserted.items() if key not in rows]
    assert lost, "nothing was lost: this shows nothing"
    assert min(lost) >= safe_rounds
    print(
        f"rounds: {workload.rounds} acknowledged, {rounds_stopped_at} when the replica was stopped, {safe_rounds} up "
        f"to the time that the report names, {min(lost)} before the first lost row"
    )
    # It takes writes again, and all replicas agree.
    with WriteWorkload(cluster.masters, "lost", first_key=10**12) as again:
        again.wait_for_rounds(5)
    found = cluster.ksck(checksum=True)["checksums"]["replicas"]
    assert len({(each["checksum"], each["rows"]) for each in found}) == 1
    assert len(found) == 3
    # Run again, there is nothing to do.
    status, told, _ = recover(cluster, "--yes")
    assert (status, told["losses"]) == (0, [])
