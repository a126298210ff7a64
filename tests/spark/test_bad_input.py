"""What cannot be is refused by name, before a task starts where it can be known then, and changes nothing."""

from __future__ import annotations

import socket

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration]

COLUMNS = "key long not null, v string, w int not null"


@pytest.fixture
def orders(table):
    return table.create(COLUMNS, ["key"])


def refused(action, *said):
    with pytest.raises(Exception, match=r".") as caught:
        action()
    told = str(caught.value)
    for text in said:
        assert text in told, told
    return told


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("key long, v string, w int, x int", "column 'x' that table"),
        ("key long, v int, w int", "column 'v' is int in the frame and string in table"),
        ("key int, v string, w int", "column 'key' is int in the frame and bigint in table"),
        ("key long, v array<string>, w int", "column 'v' is array<string> in the frame and string in table"),
        ("v string, w int", "lacks the key column key"),
        ("key long, v string", "lacks w"),
    ],
)
def test_a_frame_whose_columns_do_not_fit_is_refused_before_a_task_starts(spark, orders, columns, said):
    frame = spark.createDataFrame([], columns)

    told = refused(lambda: orders.write(frame), said, orders.name)

    assert "PYTHON_DATA_SOURCE_ERROR" in told
    assert orders.rows() == []


def test_a_delete_takes_the_key_alone(spark, orders):
    frame = spark.createDataFrame([], "key long, v string")

    refused(lambda: orders.write(frame, "delete"), "the key columns alone; leave out v")


def test_a_mode_other_than_append_is_refused(spark, orders):
    frame = spark.createDataFrame([(1, "a", 1)], "key long, v string, w int")
    writer = frame.write.format("kudu").options(**orders._options({}))

    refused(lambda: writer.mode("overwrite").save(), 'mode("append")')


def test_a_null_where_none_may_be_is_refused_with_its_key(spark, orders):
    frame = spark.createDataFrame([(6, "a", 1), (7, "b", None)], "key long, v string, w int").coalesce(1)

    refused(lambda: orders.write(frame), "column 'w'", "not nullable", "key=7")

    assert orders.rows() == []


def test_a_null_key_is_refused(spark, orders):
    frame = spark.createDataFrame([(None, "a", 1)], "key long, v string, w int")

    refused(lambda: orders.write(frame), "column 'key'", "null")


def test_a_cell_above_the_size_limit_is_refused_with_its_key(spark, orders):
    frame = spark.createDataFrame([(5, "x" * 100_000, 1)], "key long, v string, w int")

    refused(lambda: orders.write(frame), "column 'v'", "100000 bytes", "65536", "key=5")

    assert orders.rows() == []


@pytest.mark.parametrize(
    ("operation", "said"),
    [("insert", "insert_ignore"), ("update", "update_ignore"), ("delete", "delete_ignore")],
)
def test_refused_rows_are_named_with_operation_code_and_a_way_out(spark, orders, operation, said):
    orders.write(spark.createDataFrame([(1, "a", 1)], "key long, v string, w int"))
    key = 1 if operation == "insert" else 2
    columns = "key long" if operation == "delete" else "key long, v string, w int"
    row = (key,) if operation == "delete" else (key, "b", 2)

    code = "ALREADY_PRESENT" if operation == "insert" else "NOT_FOUND"
    refused(
        lambda: orders.write(spark.createDataFrame([row], columns), operation),
        f"{operation} into table {orders.name} was refused",
        code,
        f"key={key}",
        said,
    )

    assert orders.rows() == [(1, "a", 1)]


def test_an_unknown_table_is_named(spark, table):
    frame = spark.createDataFrame([(1,)], "key long")

    refused(table.read, table.name, "TABLE_NOT_FOUND")
    refused(lambda: table.write(frame), table.name, "TABLE_NOT_FOUND")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "key,nothing"}, "no column 'nothing'; it has key, v, w"),
        ({"columns": "key,key"}, "a column twice"),
        ({"tabel": "x"}, "option kudu.tabel is not known"),
        ({"snapshotTimestampMs": "soon"}, "kudu.snapshotTimestampMs"),
    ],
)
def test_a_wrong_read_option_is_named(orders, options, said):
    refused(lambda: orders.read(**options), said)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("key long, nothing int", "no column 'nothing'; it has key, v, w"),
        ("key int", "column 'key' of table"),
        ("v string not null", "'v'"),
    ],
)
def test_a_schema_that_the_table_does_not_fit_is_refused(spark, orders, schema, said):
    from pyspark.sql.types import StructType

    refused(lambda: orders.read(StructType.fromDDL(schema)).collect(), said)


def test_no_master_is_named_with_its_address(table):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"

        refused(lambda: table.read(master=address, timeoutMs=1000), address)


def test_the_address_of_a_server_that_is_no_master_is_named(cluster, table):
    address = cluster.daemon("tserver-1").rpc_address

    refused(lambda: table.read(master=address, timeoutMs=2000), address, "master")


def test_a_table_that_exists_is_not_created_again(orders):
    refused(lambda: orders.create(COLUMNS, ["key"]), orders.name, "ALREADY_PRESENT")


def test_a_key_that_the_frame_lacks_is_named(table):
    refused(lambda: table.create(COLUMNS, ["order"]), "the key 'order' is no column of the frame; it has key, v, w")


def test_more_replicas_than_servers_are_refused(spark, context, table):
    from pyspark.sql.types import StructType

    refused(
        lambda: context.createTable(table.name, StructType.fromDDL(COLUMNS), ["key"], num_replicas=5),
        "5",
        "REPLICATION_FACTOR_TOO_HIGH",
    )
    assert not context.tableExists(table.name)
