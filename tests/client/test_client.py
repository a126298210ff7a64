"""The asyncio client against a real cluster: tables, rows, scans, and what is refused by name."""

import asyncio
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.client.client import KuduClient, master_addresses
from kudu_py.env.clock import SystemClock
from kudu_py.rpc.dialer import GrpcDialer

_names = (f"table-{i}" for i in itertools.count())


def schema() -> kudu.Schema:
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int64).primary_key()
    builder.add_column("number", kudu.int32, nullable=False)
    builder.add_column("text", kudu.string)
    return builder.build()


def hashed(buckets: int = 3) -> kudu.Partitioning:
    return kudu.Partitioning().add_hash_partitions(["key"], buckets)


def rows(first: int, last: int) -> pa.RecordBatch:
    keys = np.arange(first, last)
    columns = [pa.array(keys), pa.array(keys.astype(np.int32) % 1000), pa.array([f"text {key}" for key in keys])]
    return pa.record_batch(columns, ["key", "number", "text"])


@pytest.fixture
async def client(masters):
    async with await kudu.aio.connect(masters) as client:
        yield client


@pytest.fixture
async def table(client):
    made = await client.create_table(next(_names), schema(), hashed())
    yield made
    await made.drop()


@pytest.fixture(scope="module")
def untouched(masters) -> str:
    """The name of a table that stays empty."""
    with kudu.connect(masters) as client:
        name = next(_names)
        client.create_table(name, schema(), hashed())
        yield name
        client.delete_table(name)


async def test_tables_are_created_listed_opened_and_deleted(client):
    name = next(_names)
    assert not await client.table_exists(name)
    made = await client.create_table(name, schema(), hashed(), n_replicas=3, comment="for a test")
    assert await client.table_exists(name)
    assert name in await client.list_tables()
    assert await client.list_tables(name[1:]) == [name]
    opened = await client.table(name)
    assert (opened.id, opened.schema, opened.num_replicas, opened.comment) == (made.id, made.schema, 3, "for a test")
    assert len(await opened.tablets()) == 3
    await client.delete_table(name)
    assert not await client.table_exists(name)


async def test_servers_are_listed(client, local_cluster):
    servers = await client.list_tablet_servers()
    assert sorted(server.rpc_address for server in servers) == sorted(local_cluster.tserver_addresses)
    assert all(server.state == "LIVE" and server.port() for server in servers)
    assert [master.role for master in await client.list_masters()] == ["LEADER"]


async def test_arrow_rows_come_back_as_they_went(client, table):
    session = client.new_session("background")
    await session.write(table, rows(0, 5000))
    await session.write(table, pa.Table.from_batches([rows(5000, 6000), rows(6000, 7000)]), "insert")
    await session.flush()
    read = await table.scanner().to_arrow()
    assert read.sort_by("key").equals(pa.Table.from_batches([rows(0, 7000)]).cast(read.schema))
    assert await table.scanner().count() == 7000


async def test_columns_are_found_by_name_and_those_left_out_are_not_set(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 10))
        await session.write(table, pa.record_batch([[5, 6], pa.array([1, 2], pa.int64())], ["number", "key"]), "update")
    scanner = table.scanner()
    scanner.add_predicate(table["key"].in_list([1, 2, 3]))
    assert sorted(await scanner.read_all_tuples()) == [(1, 5, "text 1"), (2, 6, "text 2"), (3, 3, "text 3")]


async def test_rows_of_one_key_take_effect_in_order(client, table):
    session = client.new_session("background")
    for i in range(200):
        await session.apply(table.new_upsert((7, i, str(i))))
    await session.apply(table.new_delete((7,)))
    await session.apply(table.new_insert({"key": 7, "number": -1}))
    await session.flush()
    assert await table.scanner().read_all_tuples() == [(7, -1, None)]


async def test_callers_that_wait_share_a_message(client, table):
    session = client.new_session("sync")
    await session.apply(table.new_upsert((0, 0)))
    before = sum(writer._sequence for writer in client._writers.values())
    await asyncio.gather(*(session.apply(table.new_insert((key, 1))) for key in range(1, 301)))
    messages = sum(writer._sequence for writer in client._writers.values()) - before
    assert messages <= 9, "at most a few messages for each of three tablets"
    assert await table.scanner().count() == 301


async def test_sync_apply_raises_what_the_row_met_and_others_go_on(client, table):
    session = client.new_session("sync")
    await session.apply(table.new_insert((1, 1)))
    outcomes = await asyncio.gather(
        *(session.apply(table.new_insert((key, 1))) for key in (1, 2)),
        *(session.apply(table.new_delete((key,))) for key in (3,)),
        session.apply(table.new_insert({"key": 4, "number": None})),
        return_exceptions=True,
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [kudu.KuduAlreadyPresent, type(None), kudu.KuduNotFound, kudu.KuduInvalidArgument]
    assert "key=1" in str(outcomes[0])
    assert await table.scanner().count() == 2


async def test_flush_tells_of_errors_and_keeps_them(client, table):
    session = client.new_session()
    await session.apply(table.new_insert((1, 1)))
    await session.flush()
    await session.apply(table.new_insert((1, 2)))
    await session.apply(table.new_insert((2, 2)))
    with pytest.raises(kudu.KuduAlreadyPresent, match="1 row was not applied"):
        await session.flush()
    errors, overflowed = session.get_pending_errors()
    assert [(error.row, error.operation, error.was_possibly_successful()) for error in errors] == [
        ({"key": 1, "number": 2}, kudu.RowOperation.INSERT, False)
    ]
    assert not overflowed
    assert session.get_pending_errors() == ([], False)
    await session.flush()


async def test_errors_of_arrow_rows_name_their_place(client, table):
    session = client.new_session("background")
    await session.write(table, rows(100, 110), "insert")
    await session.flush()
    await session.write(table, rows(105, 115), "insert")
    with pytest.raises(kudu.KuduAlreadyPresent):
        await session.flush()
    errors, _ = session.get_pending_errors()
    assert sorted((error.row_index, error.row["key"]) for error in errors) == [(i, 105 + i) for i in range(5)]


async def test_each_ignoring_row_call_passes_over_what_does_not_fit(client, table):
    session = client.new_session("sync")
    for operation in (
        table.new_insert_ignore((1, 1)),
        table.new_insert_ignore((1, 2)),
        table.new_update_ignore((1, 3)),
        table.new_update_ignore((2, 4)),
        table.new_upsert_ignore((5, 5)),
        table.new_delete_ignore((6,)),
        table.new_delete_ignore((5,)),
    ):
        await session.apply(operation)
    assert await table.scanner().read_all_tuples() == [(1, 3, None)]


async def test_columns_can_be_projected_by_position(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 3))
    scanner = table.scanner().set_projected_column_indexes([2, 0]).set_query_id("by position").set_cache_blocks(False)
    assert sorted(await scanner.read_all_tuples()) == [("text 0", 0), ("text 1", 1), ("text 2", 2)]
    with pytest.raises(kudu.KuduInvalidArgument, match="has columns 0 to 2, not 3"):
        table.scanner().set_projected_column_indexes([3])


async def test_ignore_operations_tell_no_errors(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 10), "insert_ignore")
        await session.write(table, rows(5, 15), "insert_ignore")
        await session.write(table, pa.record_batch([[1000]], ["key"]), "delete_ignore")
    assert await table.scanner().count() == 15


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pa.record_batch([[1]], ["number"]), "lacks the key column 'key'"),
        (pa.record_batch([[1], [1], [1]], ["key", "number", "nope"]), "no column is named 'nope'"),
        (pa.record_batch([["a"], [1]], ["key", "number"]), "'key' is INT64 .* cannot hold string"),
        (pa.record_batch([[1], [1 << 40]], ["key", "number"]), "'number' of type INT32 cannot hold"),
        (pa.record_batch([pa.array([1, None]), [1, 2]], ["key", "number"]), "row 1: key column 'key' is null"),
        (pa.record_batch([[1, 2], pa.array([1, None])], ["key", "number"]), "row 1: column 'number' is not nullable"),
        (pa.record_batch([[1]], ["key"]), "'number' is not nullable, has no default and is not set"),
        (pa.record_batch([[1], [1], ["x" * 65_537]], ["key", "number", "text"]), "row 0: column 'text' has a cell of"),
        ({"key": 1}, "RecordBatch, a Table or other Arrow data, not dict"),
        ([(1, 2)], "for rows such as tuple use apply"),
    ],
)
async def test_arrow_rows_that_cannot_be_are_refused_before_any_is_sent(client, untouched, data, message):
    table = await client.table(untouched)
    session = client.new_session("background")
    with pytest.raises(kudu.KuduBadStatus, match=message):
        await session.write(table, data)
    await session.flush()
    assert await table.scanner().count() == 0


async def test_a_delete_takes_keys_alone(client, untouched):
    table = await client.table(untouched)
    session = client.new_session("background")
    with pytest.raises(kudu.KuduInvalidArgument, match="leave out 'number'"):
        await session.write(table, rows(0, 2), "delete")
    with pytest.raises(kudu.KuduInvalidArgument, match="'number' is not part of the primary key"):
        await session.apply(table.new_delete((1, 2)))


async def test_what_is_buffered_is_bounded_and_rows_wait_for_room(masters):
    options = kudu.ClientOptions(buffered_bytes_max=20_000, group_bytes_max=4_000)
    async with await kudu.aio.connect(masters, options=options) as client:
        table = await client.create_table(next(_names), schema(), hashed())
        session = client.new_session("background")
        for first in range(0, 10_000, 500):
            await session.write(table, rows(first, first + 500))
            assert client.budget.taken <= 20_000
        await session.flush()
        assert client.budget.taken == 0
        assert await table.scanner().count() == 10_000
        await table.drop()


async def test_unary_writes_do_the_same(masters):
    async with await kudu.aio.connect(masters, options=kudu.ClientOptions(stream_writes=False)) as client:
        table = await client.create_table(next(_names), schema(), hashed())
        async with client.new_session() as session:
            await session.write(table, rows(0, 1000))
        assert await table.scanner().count() == 1000
        await table.drop()


async def test_scans_project_filter_and_limit(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 3000))
    scanner = table.scanner()
    scanner.set_projected_column_names(["text", "key"])
    scanner.add_predicates([table["key"] >= 10, table["key"] < 13, table["text"].is_not_null()])
    assert sorted(await scanner.read_all_tuples()) == [(f"text {key}", key) for key in (10, 11, 12)]
    limited = table.scanner()
    limited.set_limit(1234)
    assert (await limited.to_arrow()).num_rows == 1234
    none = table.scanner()
    none.add_predicate(table["key"].in_list([]))
    assert await none.read_all_tuples() == []


async def test_an_empty_scan_still_has_its_columns(client, untouched):
    table = await client.table(untouched)
    scanner = table.scanner()
    scanner.set_projected_column_names(["text"])
    read = await scanner.to_arrow()
    assert read.num_rows == 0
    assert read.schema.names == ["text"]


async def test_all_tablets_are_read_at_one_snapshot(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 1000))
    before = table.scanner()
    batches = before.record_batches()
    first = await anext(batches)
    async with client.new_session() as session:
        await session.write(table, rows(1000, 2000))
    rest = sum([batch.num_rows async for batch in batches])
    assert first.num_rows + rest == 1000
    again = table.scanner()
    again.set_snapshot_hybrid_time(before.snapshot_timestamp)
    assert await again.count() == 1000
    assert await table.scanner().count() == 2000


async def test_what_was_acknowledged_is_seen_by_the_next_scan_of_any_client(client, masters, table):
    session = client.new_session("sync")
    async with await kudu.aio.connect(masters) as other:
        same = await other.table(table.name)
        for key in range(20):
            await session.apply(table.new_insert((key, 0)))
            assert await same.scanner().count() == key + 1


async def test_ordered_scans_give_each_tablet_in_key_order(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 2000))
    scanner = table.scanner()
    scanner.set_fault_tolerant().set_batch_size_bytes(4096)
    keys = (await scanner.to_arrow())["key"].to_pylist()
    assert sorted(keys) == list(range(2000))
    assert sum(a > b for a, b in itertools.pairwise(keys)) <= 2, "rises but where a tablet begins"


async def test_any_replica_may_answer_at_a_snapshot(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 500))
    scanner = table.scanner()
    scanner.set_selection("closest")
    assert await scanner.count() == 500


async def test_tokens_carry_a_scan_to_another_client(client, masters, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 900))
    builder = table.scan_token_builder()
    builder.set_projected_column_names(["key"]).add_predicate(table["number"] < 600)
    tokens = [token.serialize() for token in await builder.build()]
    async with client.new_session() as session:
        await session.write(table, rows(900, 1000))
    assert len(tokens) == 3
    async with await kudu.aio.connect(masters) as other:
        keys = []
        for token in tokens:
            keys += [row[0] for row in await other.deserialize_token_into_scanner(token).read_all_tuples()]
    assert sorted(keys) == list(range(600))
    with pytest.raises(kudu.KuduInvalidArgument, match="no scan token"):
        client.deserialize_token_into_scanner(b"nonsense")


async def test_predicates_on_the_key_leave_tablets_out(client, untouched):
    table = await client.table(untouched)
    builder = table.scan_token_builder()
    builder.add_predicate(table["key"] == 5)
    tokens = await builder.build()
    assert len(tokens) == 1
    assert tokens[0].snapshot_timestamp > 0


async def test_ranges_send_rows_where_they_belong(client):
    builder = kudu.schema_builder()
    builder.add_column("day", kudu.date).primary_key()
    builder.add_column("id", kudu.int32).primary_key()
    builder.add_column("price", kudu.decimal, precision=8, scale=2)
    layout = kudu.Partitioning().set_range_partition_columns(["day"])
    layout.add_range_partition({"day": "2013-01-01"}, {"day": "2013-02-01"})
    layout.add_range_partition({"day": "2013-02-01"}, {"day": "2013-03-01"})
    layout.add_hash_partitions(["id"], 2)
    table = await client.create_table(next(_names), builder.build(), layout)
    assert len(await table.tablets()) == 4
    session = client.new_session("sync")
    await session.apply(table.new_insert({"day": "2013-01-31", "id": 1, "price": "1.50"}))
    await session.apply(table.new_insert({"day": "2013-02-01", "id": 1}))
    with pytest.raises(kudu.KuduNotFound, match="no range partition for day="):
        await session.apply(table.new_insert({"day": "2013-03-01", "id": 1}))
    scanner = table.scanner()
    scanner.add_predicate(table["day"] >= "2013-02-01")
    assert len(await scanner.read_all_tuples()) == 1
    assert len(await _tokens(table, table["day"] >= "2013-02-01")) == 2
    await table.drop()


async def _tokens(table, predicate):
    builder = table.scan_token_builder()
    builder.add_predicate(predicate)
    return await builder.build()


# -- refused by name ---------------------------------------------------------------------------------------------------


async def test_a_table_that_is_not_there_is_named(client):
    for attempt in (client.table("nope"), client.delete_table("nope")):
        with pytest.raises(kudu.KuduNotFound, match="nope"):
            await attempt


async def test_a_table_that_is_there_is_not_created_again(client, untouched):
    with pytest.raises(kudu.KuduAlreadyPresent, match=untouched):
        await client.create_table(untouched, schema(), hashed())


async def test_more_replicas_than_servers_are_refused(client):
    with pytest.raises(kudu.KuduBadStatus, match="5"):
        await client.create_table(next(_names), schema(), hashed(), n_replicas=5)


async def test_a_partitioning_must_be_given(client):
    with pytest.raises(kudu.KuduInvalidArgument, match="needs a partitioning"):
        await client.create_table(next(_names), schema())


async def test_no_master_is_told_with_the_address():
    options = kudu.ClientOptions(connect_timeout_s=0.2)
    with pytest.raises(kudu.KuduUnavailable, match=r"no master reachable at 127\.0\.0\.1:1\b.*Is a master running"):
        await kudu.aio.connect("127.0.0.1:1", options=options)


async def test_a_tablet_servers_port_is_told_from_a_masters(local_cluster):
    address = local_cluster.tserver_addresses[0]
    with pytest.raises(kudu.KuduNotSupported, match=f"{address} answers, but is no master"):
        await kudu.aio.connect(address)


async def test_several_addresses_are_tried_for_the_leader(masters):
    async with await kudu.aio.connect(["127.0.0.1:1", masters]) as client:
        assert isinstance(await client.list_tables(), list)


async def test_writes_to_a_table_that_was_deleted_say_so(client):
    table = await client.create_table(next(_names), schema(), hashed())
    session = client.new_session("sync", timeout_ms=15_000)
    await session.apply(table.new_insert((-1, 1)))
    await table.drop()

    async def write_on() -> None:
        # The replicas go one after the other, a moment after the table.
        for key in itertools.count():
            await session.apply(table.new_insert((key, 1)))

    with pytest.raises(kudu.KuduNotFound, match="deleted"):
        await write_on()


@pytest.mark.parametrize(
    ("host", "port", "addresses"),
    [
        ("a", None, ["a:7051"]),
        ("a:1,b", 7, ["a:1", "b:7"]),
        (["a", "b"], ["1", "2"], ["a:1", "b:2"]),
        (["localhost"], ["7051"], ["localhost:7051"]),
        ("[::1]:5", None, ["[::1]:5"]),
        (["a,b", "a"], 3, ["a:3", "b:3"]),
    ],
)
def test_addresses_are_taken_as_kudu_python_does(host, port, addresses):
    assert master_addresses(host, port) == addresses


@pytest.mark.parametrize(("host", "port"), [("", None), ("a:b:c", None), (["a", "b"], [1, 2, 3]), ("a", "x")])
def test_what_is_no_address_is_named(host, port):
    with pytest.raises(kudu.KuduInvalidArgument):
        master_addresses(host, port)


async def test_a_client_whose_clock_is_far_behind_can_write(masters):
    class SlowClock(SystemClock):
        def wall_micros(self) -> int:
            return super().wall_micros() - 86_400_000_000

    client = KuduClient(
        [masters], options=kudu.ClientOptions(), dialer=GrpcDialer(), clock=SlowClock(), rng=random.Random(1)
    )
    async with client:
        table = await client.create_table(next(_names), schema(), hashed())
        session = client.new_session("sync")
        await session.apply(table.new_insert((1, 1)))
        with pytest.raises(kudu.KuduAlreadyPresent):
            await session.apply(table.new_insert((1, 1)))
        await session.apply(table.new_insert((2, 1)))
        await table.drop()


async def test_handles_of_one_table_share_messages(client, table):
    again = await client.table(table.name)
    assert again.schema is table.schema


async def test_nulls_can_leave_columns_as_they_are(client, table):
    async with client.new_session() as session:
        await session.write(table, rows(0, 3))
        some = pa.record_batch(
            [[0, 1, 9], pa.array([7, None, 9]), pa.array([None, "new", None])], rows(0, 1).schema.names
        )
        await session.write(table, some.slice(0, 2), "update", nulls_are_unset=True)
        await session.write(table, some.slice(2), nulls_are_unset=True)
    read = sorted(await table.scanner().read_all_tuples())
    assert read == [(0, 7, "text 0"), (1, 1, "new"), (2, 2, "text 2"), (9, 9, None)]
