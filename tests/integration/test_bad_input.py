"""Bad input of every kind gets an error that names the thing, and changes nothing: the checksum of all rows is the same
before and after."""

import json
import random
import socket

import grpc
import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.pb import (
    common_pb2,
    consensus_pb2,
    consensus_pb2_grpc,
    master_pb2,
    master_pb2_grpc,
    tserver_admin_pb2,
    tserver_admin_pb2_grpc,
    tserver_pb2,
    tserver_pb2_grpc,
)
from kudu_py.rpc.status import from_rpc_error
from kudu_py.testing.process_cluster import run_command
from kudu_py.testing.workload import make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROWS = 200
BAD_IDS = ["../../etc/passwd", "a/../b", "/tmp/x", "..", "", "A" * 32, "0" * 31, "0" * 33, "\x00" * 32, "é" * 16]


@pytest.fixture(scope="module")
def client(cluster):
    with kudu.connect(cluster.masters) as client:
        yield client


@pytest.fixture(scope="module")
def table(client):
    """One tablet, 200 rows."""
    table = make_table(client, "precious", buckets=1)
    with client.new_session() as session:
        for key in range(ROWS):
            session.apply(table.new_insert({"key": key, "value": key, "text": f"row {key}"}))
    return table


@pytest.fixture(autouse=True)
def nothing_changes(cluster, client, table):
    before = (_rows(table), client.list_tables())
    yield
    assert (_rows(table), client.list_tables()) == before
    assert all(cluster.is_running(daemon.name) for daemon in cluster.daemons)


def _rows(table):
    return table.scanner().to_arrow().sort_by("key")


@pytest.fixture(scope="module")
def leader_address(client, table):
    (tablet,) = client.table(table.name).tablets()
    return next(replica.address for replica in tablet.replicas if replica.uuid == tablet.leader_uuid)


@pytest.fixture
def tablet_id(table):
    return table.tablets()[0].tablet_id


@pytest.fixture
def tserver(leader_address):
    with grpc.insecure_channel(leader_address) as channel:
        yield tserver_pb2_grpc.TabletServerServiceStub(channel)


# -- the client ------------------------------------------------------------------------------------------------------


def test_an_unknown_table_is_named(client):
    for call in (client.table, client.delete_table):
        with pytest.raises(kudu.KuduNotFound, match="no_such_table"):
            call("no_such_table")
    assert not client.table_exists("no_such_table")


def test_an_unknown_column_is_named(client, table):
    for call in (
        lambda: table.new_insert({"key": 1, "colour": 3}),
        lambda: table["colour"],
        lambda: table.scanner().set_projected_column_names(["key", "colour"]),
    ):
        with pytest.raises(kudu.KuduNotFound, match="colour"):
            call()
    with pytest.raises(kudu.KuduException, match="colour"):
        client.new_session().write(table, pa.table({"key": [1], "value": [1], "colour": [1]}))


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"key": "five", "value": 1}, "key"),
        ({"key": 1000, "value": "one"}, "value"),
        ({"key": 1000, "value": 1.5}, "value"),
        ({"key": 1000, "value": 1, "text": 7}, "text"),
        ({"key": 2**63, "value": 1}, "key"),
        ({"key": 1000, "value": None}, "value"),
        ({"key": None, "value": 1}, "key"),
        ({"value": 1}, "key"),
        ({"key": 1000}, "value"),
    ],
)
def test_a_row_that_cannot_be_is_refused_by_the_column(client, table, row, named):
    session = client.new_session("sync")
    with pytest.raises(kudu.KuduInvalidArgument, match=f"'{named}'|{named}"):
        session.apply(table.new_insert(row))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"key": pa.array(["x"]), "value": pa.array([1])}, "key"),
        ({"key": pa.array([1000]), "value": pa.array([None], pa.int64())}, "value"),
        ({"key": pa.array([1000]), "value": pa.array(["no number"])}, "value"),
        ({"value": pa.array([1])}, "key"),
        ({"key": pa.array([1000])}, "value"),
    ],
)
def test_arrow_data_that_does_not_fit_is_refused_by_the_column(client, table, columns, named):
    session = client.new_session("sync")
    with pytest.raises(kudu.KuduInvalidArgument, match=named):
        session.write(table, pa.table(columns), "insert")


def test_a_row_above_the_limit_is_refused(client, table):
    session = client.new_session("sync")
    with pytest.raises(kudu.KuduException, match=r"limit|at most|larger|too large"):
        session.apply(table.new_upsert({"key": 1, "value": 1, "text": "x" * (9 << 20)}))
    with pytest.raises(kudu.KuduException, match=r"limit|at most|larger|too large"):
        session.apply(table.new_upsert({"key": 1, "value": 1, "text": "x" * (70 << 20)}))


def test_a_key_that_exists_is_a_row_error_that_names_it(client, table):
    session = client.new_session("sync")
    with pytest.raises(kudu.KuduAlreadyPresent, match="7"):
        session.apply(table.new_insert({"key": 7, "value": 0}))
    with pytest.raises(kudu.KuduNotFound, match="12345"):
        session.apply(table.new_delete({"key": 12345}))


def test_a_table_that_exists_is_named(client, table):
    with pytest.raises(kudu.KuduAlreadyPresent, match="precious"):
        make_table(client, "precious")


def test_more_replicas_than_live_servers_are_refused_with_both_numbers(client):
    with pytest.raises(kudu.KuduException, match=r"5.*3|3.*5") as refused:
        make_table(client, "five", replicas=5)
    assert refused.value.code.value == "REPLICATION_FACTOR_TOO_HIGH"
    with pytest.raises(kudu.KuduInvalidArgument, match="2"):
        make_table(client, "two", replicas=2)


def test_schemas_that_cannot_be_are_refused_by_the_column(client):
    def build(*columns, keys):
        builder = kudu.schema_builder()
        for name, kind in columns:
            builder.add_column(name, kind)
        return builder.set_primary_keys(keys).build()

    with pytest.raises(kudu.KuduInvalidArgument, match="nokey"):
        build(("a", "int64"), keys=["nokey"])
    with pytest.raises(kudu.KuduInvalidArgument, match="a"):
        build(("a", "int64"), ("a", "int32"), keys=["a"])
    with pytest.raises(kudu.KuduInvalidArgument, match=r"'a'|twice"):
        build(("a", "int64"), keys=["a", "a"])
    with pytest.raises(kudu.KuduException):
        build(("a", "int64"), keys=[])
    with pytest.raises(kudu.KuduInvalidArgument, match="int65"):
        build(("a", "int65"), keys=["a"])
    schema = build(("a", "int64"), keys=["a"])
    with pytest.raises(kudu.KuduException, match="nothing"):
        client.create_table("x", schema, kudu.Partitioning().add_hash_partitions(["nothing"], 3))
    with pytest.raises(kudu.KuduException, match="1"):
        client.create_table("x", schema, kudu.Partitioning().add_hash_partitions(["a"], 1))


# -- straight to the services ----------------------------------------------------------------------------------------


def good_rows():
    batch = pa.record_batch(
        {
            "__op": pa.array([5, 5], pa.uint8()),
            "key": pa.array([1, 2], pa.int64()),
            "value": pa.array([-1, -1], pa.int64()),
            "text": pa.array(["changed", "changed"]),
        }
    )
    return batch


def refused_write(tserver, tablet_id, rows, **fields):
    request = tserver_pb2.WriteRequest(tablet_id=tablet_id, rows=rows, **fields)
    with pytest.raises(grpc.RpcError) as raised:
        tserver.Write(request, timeout=20.0)
    error = from_rpc_error(raised.value)
    assert raised.value.details().startswith(f"{error.code.value}: ")
    return raised.value.code(), error


def message(*columns, names=("__op", "key", "value", "text")):
    return pa.record_batch(list(columns), names=list(names)).serialize().to_pybytes()


OP = pa.array([5], pa.uint8())


def patched(old, new):
    """A row with the text "ab", and some bytes of its message replaced."""
    before, found, after = message(OP, pa.array([1]), pa.array([1]), pa.array(["ab"])).rpartition(old)
    assert found
    return before + new + after


def compressed(batch):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


MALFORMED = {
    "empty": b"",
    "text": b"this is no Arrow message at all",
    "zeros": b"\0" * 400,
    "ones": b"\xff" * 400,
    "huge metadata length": b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 64,
    "negative metadata length": b"\xff\xff\xff\xff\x01\x00\x00\x80" + b"x" * 64,
    "a stream": pa.schema([("key", pa.int64())]).serialize().to_pybytes() + good_rows().serialize().to_pybytes(),
    "a schema message": good_rows().schema.serialize().to_pybytes(),
    "no operation column": message(pa.array([1]), pa.array([1]), pa.array(["a"]), names=("key", "value", "text")),
    "no rows": good_rows().slice(0, 0).serialize().to_pybytes(),
    "unknown operation": message(pa.array([77], pa.uint8()), pa.array([1]), pa.array([1]), pa.array(["a"])),
    "operation 0": message(pa.array([0], pa.uint8()), pa.array([1]), pa.array([1]), pa.array(["a"])),
    "null operation": message(pa.array([None], pa.uint8()), pa.array([1]), pa.array([1]), pa.array(["a"])),
    "null key": message(OP, pa.array([None], pa.int64()), pa.array([1]), pa.array(["a"])),
    "null value": message(OP, pa.array([1]), pa.array([None], pa.int64()), pa.array(["a"])),
    "narrow key": message(OP, pa.array([1], pa.int8()), pa.array([1]), pa.array(["a"])),
    "text for a number": message(OP, pa.array([1]), pa.array(["1"]), pa.array(["a"])),
    "bytes that are no text": message(
        OP, pa.array([1]), pa.array([1]), pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\x02\0\0\0"), pa.py_buffer(b"\xc3\x28")]
        ),
    ),
    "offsets beyond the data": patched(b"\0\0\0\0\x02\0\0\0", b"\0\0\0\0\xff\xff\xff\x7f"),
    "negative offsets": patched(b"\0\0\0\0\x02\0\0\0", b"\xf0\xff\xff\xff\x02\0\0\0"),
    "offsets that fall": patched(b"\0\0\0\0\x02\0\0\0", b"\x02\0\0\0\0\0\0\0"),
    "too few columns": message(OP, pa.array([1]), names=("__op", "key")),
    "too many columns": message(
        OP, pa.array([1]), pa.array([1]), pa.array(["a"]), pa.array([1]), names=("__op", "key", "value", "text", "more")
    ),
    "dictionary": message(OP, pa.array([1]), pa.array([1]), pa.array(["a"]).dictionary_encode()),
    "compressed": compressed(good_rows()),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(MALFORMED))
def test_malformed_rows_are_refused(tserver, tablet_id, what):
    code, error = refused_write(tserver, tablet_id, MALFORMED[what])
    assert code is grpc.StatusCode.INVALID_ARGUMENT, error
    assert error.verdict is error.verdict.FAILED
    assert error.code.value in ("INVALID_ROW_BLOCK", "INVALID_MUTATION", "INVALID_ARGUMENT"), error


def test_every_truncation_and_thousands_of_flipped_bits_are_refused_or_mean_the_same(tserver, client, table, tablet_id):
    """Bits in values are values; everything else must be refused, and nothing may end the server."""
    scratch = make_table(client, "scratch", buckets=1)
    (tablet,) = scratch.tablets()
    address = next(r.address for r in tablet.replicas if r.uuid == client.table("scratch").tablets()[0].leader_uuid)
    whole = good_rows().serialize().to_pybytes()
    rng = random.Random(5)
    mutants = [whole[:size] for size in range(0, len(whole) - 8, 7)]
    for _ in range(1500):
        flipped = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        mutants.append(bytes(flipped))
    taken = 0
    try:
        with grpc.insecure_channel(address) as channel:
            stub = tserver_pb2_grpc.TabletServerServiceStub(channel)
            calls = []
            for mutant in mutants:
                request = tserver_pb2.WriteRequest(tablet_id=tablet.tablet_id, rows=mutant)
                calls.append(stub.Write.future(request, timeout=60.0))
                if len(calls) < 64:
                    continue
                taken += _judge(calls)
                calls = []
            taken += _judge(calls)
        print(f"\n{len(mutants)} mutants, {taken} of them were rows all the same")
        scratch.scanner().to_arrow().validate(full=True)
    finally:
        client.delete_table("scratch")


def _judge(calls):
    taken = 0
    for call in calls:
        error = call.exception()
        if error is None:
            taken += 1
        else:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    return taken


def test_replicas_agree_after_malformed_rows(cluster):
    cluster.wait_healthy()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"schema_version": 9}, "MISMATCHED_SCHEMA"),
        ({"column_ids": [77]}, "INVALID_ARGUMENT|MISMATCHED_SCHEMA|INVALID_ROW_BLOCK|COLUMN_NOT_FOUND"),
        ({"client_id": "me", "sequence": 1, "first_attempt_time": 1}, "INVALID_ARGUMENT"),
        ({"client_id": "0" * 32, "sequence": 1, "first_attempt_time": 1}, "REQUEST_STALE"),
        ({"client_id": "0" * 32, "sequence": 1, "first_attempt_time": 2**63}, "INVALID_ARGUMENT"),
    ],
)
def test_a_write_that_contradicts_itself_is_refused(tserver, tablet_id, fields, reason):
    _, error = refused_write(tserver, tablet_id, good_rows().serialize().to_pybytes(), **fields)
    assert error.code.value in reason.split("|"), error


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_tablet_id_that_is_none_is_refused_by_every_service(cluster, leader_address, client, bad):
    uuid = next(d.uuid for d in cluster.daemons if d.rpc_address == leader_address)
    op_id = common_pb2.OpId(term=99, index=1)
    config = consensus_pb2.RaftConfig(
        members=[consensus_pb2.Member(uuid=uuid, member_type=consensus_pb2.VOTER, address=leader_address)]
    )
    with grpc.insecure_channel(leader_address) as channel:
        rows = tserver_pb2_grpc.TabletServerServiceStub(channel)
        admin = tserver_admin_pb2_grpc.TabletServerAdminServiceStub(channel)
        consensus = consensus_pb2_grpc.ConsensusServiceStub(channel)
        calls = [
            lambda: rows.Write(tserver_pb2.WriteRequest(tablet_id=bad, rows=b"x"), timeout=10),
            lambda: list(rows.Scan(tserver_pb2.ScanRequest(tablet_id=bad), timeout=10)),
            lambda: rows.Checksum(tserver_pb2.ChecksumRequest(tablet_id=bad), timeout=10),
            lambda: admin.CreateTablet(
                tserver_admin_pb2.CreateTabletRequest(dest_uuid=uuid, tablet_id=bad, config=config),
                timeout=10,
            ),
            lambda: admin.DeleteTablet(
                tserver_admin_pb2.DeleteTabletRequest(
                    dest_uuid=uuid, tablet_id=bad, delete_type=tserver_admin_pb2.TOMBSTONED
                ),
                timeout=10,
            ),
            lambda: consensus.UpdateConsensus(
                consensus_pb2.UpdateConsensusRequest(
                    dest_uuid=uuid, tablet_id=bad, caller_uuid="0" * 32, caller_term=99, preceding_op_id=op_id
                ),
                timeout=10,
            ),
            lambda: consensus.RequestVote(
                consensus_pb2.RequestVoteRequest(
                    dest_uuid=uuid, tablet_id=bad, candidate_uuid="0" * 32, candidate_term=99, last_op_id=op_id
                ),
                timeout=10,
            ),
            lambda: consensus.LeaderStepDown(
                consensus_pb2.LeaderStepDownRequest(dest_uuid=uuid, tablet_id=bad), timeout=10
            ),
            lambda: consensus.RunLeaderElection(
                consensus_pb2.RunLeaderElectionRequest(dest_uuid=uuid, tablet_id=bad), timeout=10
            ),
            lambda: consensus.GetLastOpId(consensus_pb2.GetLastOpIdRequest(dest_uuid=uuid, tablet_id=bad), timeout=10),
            lambda: consensus.GetConsensusState(
                consensus_pb2.GetConsensusStateRequest(dest_uuid=uuid, tablet_ids=[bad]), timeout=10
            ),
        ]
        for i, call in enumerate(calls):
            with pytest.raises(grpc.RpcError) as raised:
                call()
            error = from_rpc_error(raised.value)
            allowed = ("INVALID_ARGUMENT", "TABLET_NOT_FOUND", "INVALID_SCHEMA", "INVALID_CONFIG")
            assert error.code.value in allowed, (i, error)
    with grpc.insecure_channel(cluster.masters) as channel:
        master = master_pb2_grpc.MasterServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            master.GetTabletLocations(master_pb2.GetTabletLocationsRequest(tablet_ids=[bad]), timeout=10)
        assert from_rpc_error(raised.value).code.value in ("INVALID_ARGUMENT", "TABLET_NOT_FOUND")


def test_the_catalog_cannot_be_written_from_outside(cluster):
    """The sys catalog is a tablet like any other, but masters offer no Write."""
    with grpc.insecure_channel(cluster.masters) as channel:
        stub = tserver_pb2_grpc.TabletServerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Write(tserver_pb2.WriteRequest(tablet_id="0" * 32, rows=b"x"), timeout=10)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_scan_that_cannot_be_is_refused(tserver, tablet_id):
    predicate = common_pb2.ColumnPredicate
    for fields, reason in (
        ({"columns": ["colour"]}, "COLUMN_NOT_FOUND"),
        ({"columns": ["key", "key"]}, "INVALID_SCAN_SPEC"),
        ({"read_mode": tserver_pb2.READ_AT_SNAPSHOT}, "INVALID_SNAPSHOT"),
        ({"read_mode": tserver_pb2.READ_AT_SNAPSHOT, "snapshot_timestamp": 2**62}, "INVALID_SNAPSHOT"),
        ({"read_mode": tserver_pb2.READ_AT_SNAPSHOT, "snapshot_timestamp": 1}, "INVALID_SNAPSHOT"),
        ({"batch_size_bytes": 1 << 30}, "INVALID_SCAN_SPEC"),
        ({"start_after_key": b"x"}, "INVALID_SCAN_SPEC"),
        ({"predicates": [predicate(column="colour", operator=common_pb2.EQUAL)]}, "COLUMN_NOT_FOUND"),
        ({"predicates": [predicate(column="key")]}, "INVALID_SCAN_SPEC"),
        ({"predicates": [predicate(column="key", operator=common_pb2.EQUAL)]}, "INVALID_SCAN_SPEC"),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            print(fields, list(tserver.Scan(tserver_pb2.ScanRequest(tablet_id=tablet_id, **fields), timeout=10)))
        assert from_rpc_error(raised.value).code.value == reason, (fields, raised.value)


# -- addresses -------------------------------------------------------------------------------------------------------


def test_no_reachable_master_is_told_by_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = kudu.ClientOptions(connect_timeout_s=1.0)
    with pytest.raises(kudu.KuduUnavailable, match=address):
        kudu.connect(address, options=options)
    for command in (("table", "list"), ("cluster", "ksck"), ("tserver", "list"), ("table", "scan")):
        extra = ("t",) if command[1] == "scan" else ()
        done = run_command(*command, f"{address},127.0.0.1:1", *extra, check=False)
        assert done.returncode == 3, (command, done.stderr)
        assert address in done.stderr
        assert "127.0.0.1:1 " in done.stderr or "127.0.0.1:1)" in done.stderr or "127.0.0.1:1," in done.stderr
        assert "Traceback" not in done.stderr


def test_a_tablet_server_taken_for_a_master_is_told(leader_address):
    with pytest.raises(kudu.KuduException, match=leader_address):
        kudu.connect(leader_address, options=kudu.ClientOptions(connect_timeout_s=2.0))
    done = run_command("table", "list", leader_address, check=False)
    assert done.returncode != 0
    assert leader_address in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_speaks_no_grpc_is_told(cluster):
    http = cluster.daemon("master-1").http_address
    with pytest.raises(kudu.KuduException, match=http):
        kudu.connect(http, options=kudu.ClientOptions(connect_timeout_s=2.0))
    done = run_command("table", "list", http, check=False)
    assert done.returncode == 3
    assert http in done.stderr


def test_commands_refuse_what_cannot_be_by_name(cluster):
    masters = cluster.masters
    good = {
        "table_name": "x",
        "schema": {
            "columns": [{"column_name": "k", "column_type": "INT64"}, {"column_name": "v", "column_type": "STRING"}],
            "key_column_names": ["k"],
        },
        "partition": {"hash_partitions": [{"columns": ["k"], "num_buckets": 2}]},
    }

    def create(**changes):
        return run_command("table", "create", masters, json.dumps({**good, **changes}), check=False)

    def scan(*options):
        return run_command("table", "scan", masters, "precious", *options, check=False)

    for done, status, named in (
        (create(num_replicas=5), 1, "5"),
        (create(table_name="precious"), 1, "precious"),
        (create(colour="red"), 2, "colour"),
        (run_command("table", "create", masters, "{", check=False), 2, "JSON"),
        (run_command("table", "describe", masters, "nobody", check=False), 1, "nobody"),
        (run_command("table", "delete", masters, "nobody", check=False), 1, "nobody"),
        (run_command("table", "scan", masters, "nobody", check=False), 1, "nobody"),
        (scan("--columns", "colour"), 1, "colour"),
        (
            run_command("table", "scan", masters, "precious", "--predicates", '["<", "colour", 1]', check=False),
            1,
            "colour",
        ),
        (run_command("table", "scan", masters, "precious", "--predicates", '["<", "key", "x"]', check=False), 2, "key"),
        (run_command("table", "list", "localhost", check=False), 2, "localhost"),
        (run_command("table", "list", "host:port", check=False), 2, "port"),
    ):
        assert done.returncode in (status, 2), (done.args, done.returncode, done.stderr)
        assert named in done.stderr, (done.args, done.stderr)
        assert "Traceback" not in done.stderr
