"""`format("kudu")` on a real cluster: what is written comes back, whole or in part."""

from __future__ import annotations

import datetime
import math
import re
import time
from decimal import Decimal

import pytest
from pyspark.sql import types as T

pytestmark = [pytest.mark.spark, pytest.mark.integration]

UTC = datetime.UTC

ALL_TYPES = T.StructType(
    [
        T.StructField("key", T.StringType(), False),
        T.StructField("number", T.LongType(), False),
        T.StructField("a_bool", T.BooleanType()),
        T.StructField("an_int8", T.ByteType()),
        T.StructField("an_int16", T.ShortType()),
        T.StructField("an_int32", T.IntegerType()),
        T.StructField("an_int64", T.LongType()),
        T.StructField("a_float", T.FloatType()),
        T.StructField("a_double", T.DoubleType()),
        T.StructField("a_string", T.StringType()),
        T.StructField("a_binary", T.BinaryType()),
        T.StructField("a_timestamp", T.TimestampType()),
        T.StructField("a_date", T.DateType()),
        T.StructField("a_small_decimal", T.DecimalType(9, 2)),
        T.StructField("a_large_decimal", T.DecimalType(38, 10)),
    ]
)

ROWS = [
    (
        "greatest",
        2**63 - 1,
        True,
        2**7 - 1,
        2**15 - 1,
        2**31 - 1,
        2**63 - 1,
        math.inf,
        1.7976931348623157e308,
        "Zürich 東京 🚲",
        bytes(range(256)),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime.date(9999, 12, 31),
        Decimal("9999999.99"),
        Decimal("9999999999999999999999999999.9999999999"),
    ),
    (
        "least",
        -(2**63),
        False,
        -(2**7),
        -(2**15),
        -(2**31),
        -(2**63),
        -math.inf,
        5e-324,
        "",
        b"",
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.date(1, 1, 1),
        Decimal("-9999999.99"),
        Decimal("-0.0000000001"),
    ),
    (
        "usual",
        0,
        True,
        1,
        2,
        3,
        4,
        0.5,
        -0.25,
        "text",
        b"\0\xff",
        datetime.datetime(2013, 1, 1, 5, 0, 0, 1, UTC),
        datetime.date(1969, 12, 31),
        Decimal("0.01"),
        Decimal("1.5"),
    ),
    ("without", 1, *[None] * 13),
]


def comparable(rows):
    return sorted(tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in rows)


def test_every_type_comes_back_as_it_was_written(spark, table):
    table.create(ALL_TYPES, ["key", "number"])
    frame = spark.createDataFrame([tuple(_naive(cell) for cell in row) for row in ROWS], ALL_TYPES)

    table.write(frame)

    assert comparable(table.read().collect()) == comparable(frame.collect())
    assert table.read().schema.simpleString() == ALL_TYPES.simpleString()


def _naive(cell):
    # createDataFrame takes naive times for the machine's own zone, which the session's is not.
    if isinstance(cell, datetime.datetime) and cell.year in (1, 9999):
        return cell.replace(year=2000 if cell.year == 1 else 2100).astimezone().replace(tzinfo=None)
    return cell.astimezone().replace(tzinfo=None) if isinstance(cell, datetime.datetime) else cell


def test_key_columns_are_marked_and_cannot_be_null(table):
    schema = table.create("b string, a long, v double", ["a", "b"]).read().schema

    assert [(field.name, field.nullable, field.metadata) for field in schema.fields] == [
        ("a", False, {"kudu.key": True}),
        ("b", False, {"kudu.key": True}),
        ("v", True, {}),
    ]


def test_columns_may_be_chosen_by_option_or_by_schema_in_any_order(spark, table):
    table.create("key long, v string, w int", ["key"])
    table.write(spark.createDataFrame([(1, "one", 10), (2, None, 20)], "key long, v string, w int"))

    assert table.rows(columns="w, key") == [(10, 1), (20, 2)]
    assert sorted(map(tuple, table.read("w int, v string").collect())) == [(10, "one"), (20, None)]
    assert table.read(columns="key").count() == 2


def test_an_empty_table_has_no_rows_and_all_columns(table):
    frame = table.create("key long, v string", ["key"]).read()

    assert frame.count() == 0
    assert frame.collect() == []
    assert frame.columns == ["key", "v"]


def test_columns_that_the_frame_leaves_out_keep_their_values(spark, table):
    table.create("key long, v string, w int", ["key"])
    table.write(spark.createDataFrame([(1, "one", 10)], "key long, v string, w int"))

    table.write(spark.createDataFrame([(1, 11), (2, 22)], "key long, w int"))

    assert table.rows() == [(1, "one", 11), (2, None, 22)]


def test_a_null_is_written_unless_nulls_are_ignored(spark, table):
    table.create("key long, v string, w int", ["key"])
    table.write(spark.createDataFrame([(1, "one", 10), (2, "two", 20)], "key long, v string, w int"))
    changes = spark.createDataFrame([(1, None, 11), (2, "zwei", None), (3, None, 30)], "key long, v string, w int")

    table.write(changes, ignoreNull="true")
    assert table.rows() == [(1, "one", 11), (2, "zwei", 20), (3, None, 30)]

    table.write(changes)
    assert sorted(map(tuple, table.read().collect())) == [(1, None, 11), (2, "zwei", None), (3, None, 30)]


def test_each_operation_does_what_its_name_says(spark, context, table):
    table.create("key long, v string", ["key"])
    context.insertRows(spark.createDataFrame([(1, "a"), (2, "b")], "key long, v string"), table.name)
    context.insertIgnoreRows(spark.createDataFrame([(2, "x"), (3, "c")], "key long, v string"), table.name)
    assert table.rows() == [(1, "a"), (2, "b"), (3, "c")]

    context.updateRows(spark.createDataFrame([(1, "A")], "key long, v string"), table.name)
    table.write(spark.createDataFrame([(2, "B"), (9, "no")], "key long, v string"), "update_ignore")
    context.upsertRows(spark.createDataFrame([(3, "C"), (4, "D")], "key long, v string"), table.name)
    assert table.rows() == [(1, "A"), (2, "B"), (3, "C"), (4, "D")]

    context.deleteRows(spark.createDataFrame([(1,)], "key long"), table.name)
    context.deleteIgnoreRows(spark.createDataFrame([(2,), (9,)], "key long"), table.name)
    assert table.rows() == [(3, "C"), (4, "D")]


def test_a_table_can_be_read_and_written_in_sql(spark, context, table):
    table.create("key long, v string", ["key"])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW in_sql USING kudu "
        f"OPTIONS (`kudu.master` '{context.masters}', `kudu.table` '{table.name}')"
    )

    spark.sql("INSERT INTO in_sql VALUES (1, 'one'), (2, 'two')")

    assert table.rows() == [(1, "one"), (2, "two")]
    spark.catalog.dropTempView("in_sql")


def test_a_read_can_be_as_of_an_earlier_time(spark, table):
    table.create("key long, v string", ["key"])
    table.write(spark.createDataFrame([(1, "before")], "key long, v string"))
    between_ms = _next_millisecond()
    table.write(spark.createDataFrame([(1, "after"), (2, "new")], "key long, v string"))

    assert table.rows(snapshotTimestampMs=between_ms) == [(1, "before")]
    assert table.rows() == [(1, "after"), (2, "new")]


def _next_millisecond():
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= now:
        pass
    return now + 1


def test_rows_of_an_ordered_scan_and_of_followers_are_the_same(spark, table):
    table.create("key long, v string", ["key"])
    table.write(spark.range(1000).selectExpr("id as key", "string(id) as v"))

    assert table.rows(faultTolerantScan="true") == table.rows(scanLocality="closest_replica") == table.rows()
    assert len(table.rows(batchSize=4096)) == 1000


def test_a_context_creates_finds_and_deletes_tables(context, table):
    assert not context.tableExists(table.name)
    table.create("key long", ["key"])
    assert context.tableExists(table.name)
    assert context.kuduRDD(table.name, ["key"]).count() == 0
    context.deleteTable(table.name)
    assert not context.tableExists(table.name)


def test_a_schema_is_made_of_a_frames_and_a_table_of_it(spark, context, table):
    schema = context.createSchema(T.StructType.fromDDL("price decimal(9, 2), key long, v string"), ["key"])

    context.create_table(table.name, schema, hash_partitions={"columns": ["key"], "buckets": 2})

    assert [(column.name, column.nullable) for column in schema.columns] == [
        ("key", False),
        ("price", True),
        ("v", True),
    ]
    assert table.read().schema.simpleString() == "struct<key:bigint,price:decimal(9,2),v:string>"
    with pytest.raises(ValueError, match="has its keys already"):
        context.create_table("another", schema, ["key"])


def test_every_upstream_name_of_a_context_has_a_python_twin():
    from spark_connector import KuduContext

    names = [name for name in vars(KuduContext) if any(letter.isupper() for letter in name)]
    twins = [re.sub(r"(?<=[a-z])([A-Z]+)", r"_\1", name).lower() for name in names]

    assert "createTable" in names
    assert "kudu_rdd" in twins
    assert [getattr(KuduContext, twin) for twin in twins] == [getattr(KuduContext, name) for name in names]
    assert KuduContext.supports_ignore_operations
