"""Processes die, stop and come back while a client writes: nothing acknowledged is lost, nothing is there twice."""

import threading
import time

import grpc
import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.pb import tserver_pb2, tserver_pb2_grpc
from kudu_py.rpc.status import from_rpc_error
from kudu_py.testing.process_cluster import wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

FAILOVER_BOUND_S = 15.0
"""Generous: two busy cores. What was seen is printed."""


def check(cluster, workload, client, table):
    rows = workload.check(client)
    report = cluster.wait_healthy()
    tablets = {tablet["id"] for tablet in report["tablets"] if tablet["table"] == table}
    checksums = [c for c in report["checksums"]["replicas"] if c["tablet"] in tablets]
    assert len(checksums) == 3 * len(tablets)
    for tablet in tablets:
        assert len({(c["checksum"], c["rows"]) for c in checksums if c["tablet"] == tablet}) == 1
    assert sum(c["rows"] for c in checksums) == 3 * rows
    return rows


def test_no_acknowledged_write_is_lost_when_the_busiest_leader_is_killed_and_restarted(cluster, client):
    make_table(client, "leader_killed")
    with WriteWorkload(cluster.masters, "leader_killed") as workload:
        for _ in range(2):
            workload.wait_for_rounds(20)
            victim = cluster.kill(cluster.busiest_leader().name)
            workload.wait_for_rounds(20)
            cluster.restart(victim.name)
            workload.wait_for_rounds(20)
    rows = check(cluster, workload, client, "leader_killed")
    print(f"\n{rows} rows; the longest pause of a writer was {workload.longest_pause_s:.2f} s")
    assert workload.longest_pause_s < FAILOVER_BOUND_S


def test_writes_go_on_without_a_master_and_tables_can_be_made_when_it_is_back(cluster, client):
    make_table(client, "master_killed")
    with WriteWorkload(cluster.masters, "master_killed") as workload:
        workload.wait_for_rounds(10)
        cluster.kill("master-1")
        workload.wait_for_rounds(50)
        cluster.restart("master-1")
        make_table(client, "made_after")
        workload.wait_for_rounds(10)
    print(f"\nthe longest pause of a writer was {workload.longest_pause_s:.2f} s")
    check(cluster, workload, client, "master_killed")
    assert {"master_killed", "made_after"} <= set(client.list_tables())
    with kudu.connect(cluster.masters) as stranger:
        assert stranger.table("made_after").scanner().count() == 0


def test_a_master_killed_in_the_middle_of_create_table_leaves_it_made_or_not_at_all(cluster, client):
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int64, nullable=False).primary_key()
    schema, partitioning = builder.build(), kudu.Partitioning().add_hash_partitions(["key"], 6)
    outcome = []

    def create():
        try:
            outcome.append(client.create_table("half_made", schema, partitioning, timeout_s=40.0))
        except kudu.KuduException as error:
            outcome.append(error)

    creator = threading.Thread(target=create)
    creator.start()
    cluster.kill("master-1")
    cluster.restart("master-1")
    creator.join(60.0)
    assert outcome, "create_table hangs"
    if not client.table_exists("half_made"):
        client.create_table("half_made", schema, partitioning)
    table = client.table("half_made")
    with client.new_session() as session:
        for key in range(100):
            session.apply(table.new_insert({"key": key}))
    assert table.scanner().count() == 100
    cluster.wait_healthy()


def test_nothing_is_lost_when_all_processes_are_killed_at_once(cluster, client):
    make_table(client, "all_killed")
    with WriteWorkload(cluster.masters, "all_killed") as workload:
        for _ in range(3):
            workload.wait_for_rounds(20)
            cluster.kill_all()
            cluster.start()
        workload.wait_for_rounds(10)
    rows = check(cluster, workload, client, "all_killed")
    print(f"\n{rows} rows; the longest pause of a writer was {workload.longest_pause_s:.2f} s")


def test_a_leader_that_was_stopped_never_serves_a_stale_row(cluster, client):
    table = make_table(client, "stopped_leader", buckets=1)
    with client.new_session() as session:
        session.apply(table.new_insert({"key": 1, "value": 0}))
    for value in range(1, 4):
        (tablet,) = table.tablets()
        leader = wait_until(lambda: _leader(client, table), "a leader")
        address = next(replica.address for replica in tablet.replicas if replica.uuid == leader)
        # This client has read from the leader, so it remembers it.
        with kudu.connect(cluster.masters) as reader, grpc.insecure_channel(address) as channel:
            read_table = reader.table("stopped_leader")
            assert read_table.scanner().read_all_tuples()[0][1] == value - 1
            stub = tserver_pb2_grpc.TabletServerServiceStub(channel)
            request = tserver_pb2.ScanRequest(tablet_id=tablet.tablet_id, columns=["value"], batch_size_bytes=1 << 16)
            list(stub.Scan(request, timeout=10.0))
            cluster.freeze(leader)
            try:
                began = time.monotonic()
                with client.new_session() as session:
                    session.apply(table.new_upsert({"key": 1, "value": value}))
                print(f"\nfirst write after SIGSTOP of the leader: {time.monotonic() - began:.2f} s")
                assert time.monotonic() - began < FAILOVER_BOUND_S
                # These lie in the sockets of the stopped process, and are the first thing that it sees.
                waiting = [stub.Scan(request, timeout=20.0) for _ in range(5)]
                cached = []
                by_client = threading.Thread(
                    target=lambda t=read_table, c=cached: c.append(t.scanner().read_all_tuples()[0][1])
                )
                by_client.start()
            finally:
                cluster.thaw(leader)
            waiting += [stub.Scan(request, timeout=20.0) for _ in range(20)]
            by_client.join(30.0)
            assert cached == [value]
            for call in waiting:
                assert _values(call) in ([], [value]), "a stopped leader served a stale row"
    cluster.wait_healthy()


def _leader(client, table):
    """The uuid of the leader of a table's one tablet, by the master's word."""
    with kudu.connect(list(client.master_addresses)) as fresh:
        return fresh.table(table.name).tablets()[0].leader_uuid


def _values(call):
    """What a scan saw; nothing if it was refused by a replica that leads no more."""
    schema, seen = None, []
    try:
        for answer in call:
            if answer.arrow_schema:
                schema = pa.ipc.read_schema(pa.py_buffer(answer.arrow_schema))
            if answer.rows:
                seen += pa.ipc.read_record_batch(pa.py_buffer(answer.rows), schema).column(0).to_pylist()
    except grpc.RpcError as error:
        refused = from_rpc_error(error)
    else:
        return seen
    assert refused.code.value == "NOT_THE_LEADER", refused
    return []
