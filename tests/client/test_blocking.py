"""The blocking client: kudu-python's surface, called as its users call it."""

import datetime
import itertools
import subprocess
import sys

import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.client import Partitioning

_names = (f"blocking-{i}" for i in itertools.count())


def test_the_calls_of_kudu_pythons_users_work(masters):
    host, port = masters.split(":")
    client = kudu.connect(host=[host], port=[port])
    name = next(_names)

    builder = kudu.schema_builder()
    builder.add_column("id").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("seen", type_=kudu.unixtime_micros, nullable=False, compression="lz4")
    builder.add_column("note", kudu.string, default="none")
    layout = Partitioning().add_hash_partitions(column_names=["id"], num_buckets=3)
    if client.table_exists(name):
        client.delete_table(name)
    client.create_table(name, builder.build(), layout)
    table = client.table(name)

    session = client.new_session()
    session.apply(table.new_insert({"id": 1, "seen": datetime.datetime.now(datetime.UTC)}))
    session.apply(table.new_upsert({"id": 2, "seen": "2016-01-01T00:00:00.000000"}))
    session.apply(table.new_update({"id": 1, "seen": ("2017-01-01", "%Y-%m-%d")}))
    row = table.new_insert()
    row["id"] = 3
    row["seen"] = 1_000_000
    session.apply(row)
    session.apply(table.new_delete({"id": 2}))
    session.flush()
    assert session.get_pending_errors() == ([], False)

    scanner = table.scanner()
    scanner.add_predicate(table["seen"] == datetime.datetime(2017, 1, 1, tzinfo=datetime.UTC))
    new_year = datetime.datetime(2017, 1, 1, tzinfo=datetime.UTC)
    assert scanner.open().read_all_tuples() == [(1, new_year, "none")]
    assert sorted(row[0] for row in table.scanner().open().read_all_tuples()) == [1, 3]

    session.apply(table.new_insert({"id": 1, "seen": 0}))
    with pytest.raises(kudu.KuduBadStatus):
        session.flush()
    errors, overflowed = session.get_pending_errors()
    assert "key is there already" in str(errors[0])
    assert not overflowed

    client.delete_table(name)
    client.close()


@pytest.fixture
def table(masters):
    with kudu.connect(masters) as client:
        builder = kudu.schema_builder()
        builder.add_column("key", kudu.int64).primary_key()
        builder.add_column("value", kudu.double)
        made = client.create_table(next(_names), builder.build(), Partitioning().add_hash_partitions(["key"], 2))
        yield made
        made.drop()


def batch(count: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(count)), [float(i) for i in range(count)]], ["key", "value"])


def test_arrow_goes_in_and_comes_out(table):
    with table.client.new_session() as session:
        session.write(table, batch(1000))
    assert table.scanner().to_arrow().sort_by("key")["value"].to_pylist() == [float(i) for i in range(1000)]
    assert sum(each.num_rows for each in table.scanner().record_batches()) == 1000
    assert table.scanner().count() == 1000


def test_pandas_goes_in_and_comes_out(table):
    pandas = pytest.importorskip("pandas")
    with table.client.new_session() as session:
        session.write(table, pandas.DataFrame({"key": [1, 2], "value": [0.5, None]}))
    frame = table.scanner().to_pandas().sort_values("key")
    assert frame["key"].tolist() == [1, 2]
    assert frame["value"].isna().tolist() == [False, True]


def test_batches_can_be_taken_one_by_one(table):
    with table.client.new_session() as session:
        session.write(table, batch(10))
    scanner = table.scanner().open()
    keys = []
    while scanner.has_more_rows():
        keys += [row[0] for row in scanner.next_batch()]
    assert sorted(keys) == list(range(10))
    assert scanner.read_next_batch_tuples() == []
    assert sorted(row[0] for each in table.scanner().xbatches() for row in each.as_tuples()) == list(range(10))


def test_tokens_are_plain_bytes(table):
    with table.client.new_session() as session:
        session.write(table, batch(10))
    tokens = [token.serialize() for token in table.scan_token_builder().set_projected_column_names(["key"]).build()]
    assert all(type(token) is bytes for token in tokens)
    read = [table.client.deserialize_token_into_scanner(token).read_all_tuples() for token in tokens]
    assert sorted(itertools.chain(*read)) == [(i,) for i in range(10)]


def test_a_token_makes_its_scanner_by_itself(table):
    with table.client.new_session() as session:
        session.write(table, batch(10))
    tokens = table.scan_token_builder().set_projected_column_names(["key"]).build()
    read = [token.into_kudu_scanner().open().read_all_tuples() for token in tokens]
    assert sorted(itertools.chain(*read)) == [(i,) for i in range(10)]


def test_setters_answer_the_object_itself(table):
    for scan in (table.scanner(), table.scan_token_builder()):
        assert scan.set_projected_column_names(["key"]).set_limit(3).add_predicate(table["key"] == 1) is scan
        assert scan.get_projection_schema().names == ["key"]


def test_a_scan_that_began_takes_no_more_settings(table):
    scanner = table.scanner().open()
    for set_up in (
        lambda: scanner.add_predicate(table["key"] == 1),
        lambda: scanner.set_limit(1),
        lambda: scanner.set_read_mode("snapshot"),
    ):
        with pytest.raises(kudu.KuduBadStatus, match="the scan has begun"):
            set_up()


def test_a_client_knows_whether_it_was_made_with_several_masters(masters):
    with kudu.connect(masters) as one, kudu.connect([masters, "127.0.0.1:1"]) as two:
        assert (one.is_multimaster, two.is_multimaster) == (False, True)


def test_a_bad_row_is_refused_at_apply(table):
    session = table.client.new_session()
    for record, message in [
        ({"key": "x"}, "column 'key' of type INT64 cannot hold str 'x'"),
        ({"key": None}, "'key' cannot be null"),
        ({"value": 1.0}, "'key' is part of the primary key and must be set"),
    ]:
        with pytest.raises(kudu.KuduInvalidArgument, match=message):
            session.apply(table.new_insert(record))
    with pytest.raises(kudu.KuduNotFound, match="no column is named 'nope'"):
        table.new_insert({"nope": 1})
    session.flush()


def test_what_is_not_there_yet_says_so(table):
    client = table.client
    for attempt in (
        lambda: client.new_table_alterer(table),
        lambda: client.soft_delete_table("t"),
        lambda: client.recall_table("t"),
        lambda: kudu.connect("127.0.0.1:1", require_authentication=True),
    ):
        with pytest.raises(kudu.KuduNotSupported):
            attempt()


def test_names_are_loaded_when_first_used():
    assert kudu.aio.connect
    assert {"connect", "int64", "KuduBadStatus"} <= set(dir(kudu))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        kudu.nope  # noqa: B018 - the access is the test


FORKS = """
import os, sys
import kudu_py as kudu
try:
    kudu.connect("not an address")
except kudu.KuduBadStatus:
    pass
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    kudu.connect("127.0.0.1:1")
except kudu.KuduBadStatus as error:
    print(error, flush=True)
os._exit(0)
"""


def test_a_process_that_was_forked_behind_a_connect_is_told_that_it_cannot():
    done = subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=60, stdout=subprocess.PIPE, text=True)

    assert done.stdout.startswith("ILLEGAL_STATE: this process was forked from one that had connected, and gRPC")
