"""The commands of a replica's life, as an administrator types them, on a real cluster."""

import json

import pytest

from kudu_py.testing.process_cluster import ProcessCluster, run_command, wait_until
from kudu_py.testing.workload import make_table

pytestmark = pytest.mark.integration

# What the masters do by themselves must not come between.
CONFIG = """
[master]
auto_rebalancing_enabled = false
"""
ROWS = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("admin") / "playground"
    with ProcessCluster(directory, tservers=4, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def tablet(cluster, client, request):
    """A tablet with rows on three of the four servers, of a table that is the test's own."""
    make_table(client, request.node.name, buckets=1)
    table = client.table(request.node.name)
    session = client.new_session()
    for key in range(ROWS):
        session.apply(table.new_insert({"key": key, "value": key, "text": f"row {key}"}))
    session.flush()
    return describe(cluster, request.node.name)


def describe(cluster, table):
    """The one tablet of a table: id, config index, addresses of its replicas, its leader and who has none."""
    described = json.loads(run_command("table", "describe", cluster.masters, table, "--format", "json").stdout)
    (found,) = described["tablets"]
    servers = {daemon.rpc_address for daemon in cluster.daemons if daemon.name.startswith("tserver")}
    addresses = {replica["address"] for replica in found["replicas"]}
    (leader,) = [replica["address"] for replica in found["replicas"] if replica["role"] == "LEADER"]
    return {**found, "addresses": addresses, "leader": leader, "others": servers - addresses, "table": table}


def kudu(*arguments, status=0):
    done = run_command(*arguments, check=False)
    assert done.returncode == status, (arguments, done.stdout, done.stderr)
    return done


def test_a_replica_is_added_removed_and_moved_by_commands(cluster, tablet):
    masters, (free,) = cluster.masters, tablet["others"]
    added = kudu("tablet", "add_replica", masters, tablet["id"], free, "--wait", "--format", "json")
    members = json.loads(added.stdout)["members"]
    assert [member["type"] for member in members] == ["VOTER"] * 4

    again = kudu("tablet", "add_replica", masters, tablet["id"], free, status=1)
    assert "already" in again.stderr
    kudu("tablet", "add_replica", masters, tablet["id"], free, "--wait")

    stale = kudu("tablet", "remove_replica", masters, tablet["id"], free, "--expected-config-index", "0", status=1)
    assert "has index" in stale.stderr
    removed = kudu("tablet", "remove_replica", masters, tablet["id"], tablet["leader"])
    assert tablet["leader"] not in describe(cluster, tablet["table"])["addresses"]
    assert removed.stdout.startswith(f"tablet {tablet['id']}: config ")

    moved = kudu("tablet", "move_replica", masters, tablet["id"], free, tablet["leader"], "--wait")
    assert moved.stdout.startswith("DONE after ")
    assert "of 3: " in moved.stderr
    assert describe(cluster, tablet["table"])["addresses"] == tablet["addresses"]
    cluster.wait_healthy()


def test_an_operation_is_begun_watched_and_cancelled(cluster, tablet):
    masters, (free,) = cluster.masters, tablet["others"]
    begun = kudu("tablet", "move_replica", masters, tablet["id"], tablet["leader"], free)
    operation = begun.stdout.strip()
    assert f"op watch {masters} {operation}" in begun.stderr
    watched = kudu("op", "watch", masters, operation[:8], "--format", "json")
    assert json.loads(watched.stdout)["state"] == "DONE"
    assert "had ended before: DONE" in kudu("op", "cancel", masters, operation[:8], status=1).stdout
    (listed,) = [
        op
        for op in json.loads(kudu("op", "list", masters, "--all", "--format", "json").stdout)
        if op["id"] == operation
    ]
    assert listed["tablet"] == tablet["id"]
    assert "no operation" in kudu("op", "watch", masters, "ffff", status=1).stderr


def test_a_leader_hands_over_to_whom_it_is_told(cluster, tablet):
    successor = min(tablet["addresses"] - {tablet["leader"]})
    done = kudu("tablet", "leader_step_down", cluster.masters, tablet["id"], "--new-leader", successor)

    uuid = next(daemon.uuid for daemon in cluster.daemons if daemon.rpc_address == successor)
    assert f"{uuid} leads in term" in done.stdout


def test_servers_go_to_maintenance_and_come_back(cluster):
    masters, server = cluster.masters, cluster.daemon("tserver-4")
    kudu("tserver", "enter_maintenance", masters, server.rpc_address)
    modes = {
        each["uuid"]: each["mode"] for each in json.loads(kudu("tserver", "list", masters, "--format", "json").stdout)
    }
    assert modes[server.uuid] == "MAINTENANCE"
    kudu("tserver", "exit_maintenance", masters, server.uuid[:8])
    assert "MAINTENANCE" not in kudu("tserver", "list", masters).stdout


def test_replicas_are_copied_and_deleted_on_one_server_past_the_masters(cluster, tablet):
    (free,) = tablet["others"]
    source = tablet["leader"]
    copied = kudu("remote_replica", "copy", tablet["id"], source, free)
    assert "is copied to" in copied.stdout
    sessions = json.loads(
        kudu("tablet", "copy_sessions", cluster.masters, tablet["id"], "--all", "--format", "json").stdout
    )
    assert [session["state"] for session in sessions["sessions"]] == ["SUCCEEDED"]

    # The masters know that it is no member, and delete it; then nobody needs to.
    def state():
        listed = json.loads(kudu("remote_replica", "list", free, "--format", "json").stdout)
        return next(each for each in listed if each["tablet"] == tablet["id"])["data_state"]

    wait_until(lambda: state() == "DELETED", "the stray copy to be deleted")
    kudu("remote_replica", "delete", free, tablet["id"], "already gone", "--yes")


def test_the_files_of_a_stopped_server_are_looked_at_and_changed(cluster, tablet):
    stopped = next(daemon for daemon in cluster.daemons if daemon.rpc_address == tablet["leader"])
    running = kudu("local_replica", "list", "--fs_wal_dir", stopped.dir, status=2)
    assert "in use by another process" in running.stderr
    cluster.terminate(stopped.name)
    at = ("--fs_wal_dir", stopped.dir)
    listed = json.loads(kudu("local_replica", "list", *at, "--format", "json").stdout)
    own = next(each for each in listed["replicas"] if each["tablet"] == tablet["id"])
    assert own["data_state"] == "READY"
    printed = kudu("local_replica", "cmeta", "print", tablet["id"], *at).stdout
    assert printed.count("VOTER") == 3
    deleted = kudu("local_replica", "delete", tablet["id"], *at, "--yes").stdout
    assert f"its log ended at {own['last_op_id']}" in deleted
    purged = json.loads(kudu("local_replica", "purge_quarantine", *at, "--format", "json").stdout)
    assert tablet["id"] in {entry["tablet"] for entry in purged}
    source = min(tablet["addresses"] - {tablet["leader"]})
    assert "is copied from" in kudu("local_replica", "copy_from_remote", tablet["id"], source, *at).stdout
    cluster.restart(stopped.name)
    cluster.wait_healthy()


def test_nothing_is_recovered_where_nothing_is_lost(cluster, tablet):
    done = kudu("cluster", "recover_majority_loss", cluster.masters, "--table", tablet["table"], "--format", "json")
    assert json.loads(done.stdout) == {"tablets_checked": 1, "losses": []}
    give_up = ("tablet", "unsafe_replace_config", cluster.masters, tablet["id"], tablet["leader"], "--yes")
    assert "has a majority" in kudu(*give_up, status=1).stderr
    assert describe(cluster, tablet["table"])["config_index"] == tablet["config_index"]


def test_balance_is_reported(cluster):
    shown = json.loads(kudu("cluster", "rebalance", cluster.masters, "--report-only", "--format", "json").stdout)
    assert shown["enabled"] is False
    assert len(shown["tservers"]) == 4
