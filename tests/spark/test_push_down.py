"""Filters that go to the servers give exactly the rows that Spark's own filters give."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration]

COLUMNS = (
    "key int not null, flag boolean, tiny tinyint, n int, big bigint, f float, d double, s string, b binary, "
    "t timestamp, day date, price decimal(10,2), wide decimal(38,6)"
)


def _rows():
    nan, inf = math.nan, math.inf
    day = datetime.date
    texts = ["", "a", "ab", "abc", "b", "z", "zz", "ä", "é", "東京", "🚲", "a%b", "A", None]
    floats = [0.0, -0.0, 0.5, -1.5, nan, inf, -inf, 1e30, None]
    for i in range(126):
        yield (
            i,
            (True, False, None)[i % 3],
            None if i % 7 == 0 else i - 63,
            None if i % 5 == 0 else i % 11,
            (1 << 40) * (i - 60),
            floats[i % 9],
            floats[(i + 3) % 9],
            texts[i % 14],
            None if i % 6 == 0 else bytes([i, 255 - i]),
            None if i % 8 == 0 else datetime.datetime(2013, 1, 1 + i % 28, i % 24, 0, 0, i, datetime.UTC),
            None if i % 9 == 0 else day(1970, 1, 1) + datetime.timedelta(days=i * 37 - 900),
            None if i % 4 == 0 else Decimal(i * 31 - 1500) / 100,
            None if i % 10 == 0 else Decimal(i) * Decimal("1000000000000000000000.000001"),
        )


PUSHED = [
    "flag",
    "flag = false",
    "tiny > 3Y",
    "tiny <= -60Y",
    "n = 4",
    "n >= 4 AND n < 9",
    "n BETWEEN 2 AND 3",
    "n <=> 4",
    "n IN (1, 5, 99)",
    "n IS NULL",
    "n IS NOT NULL",
    "big < -1099511627776",
    "key > 10 AND key < 20 AND flag",
    "f = 0.0F",
    "f = -0.0F",
    "f > 0.0F",
    "f <= 0.0F",
    "d = double('NaN')",
    "d >= double('NaN')",
    "d < double('NaN')",
    "d > 1.0D",
    "d <= double('-Infinity')",
    "d = double('Infinity')",
    "d IN (0.5D, double('NaN'), 0.0D)",
    "s = ''",
    "s = 'a%b'",
    "s >= 'z'",
    "s < 'ä'",
    "s > 'é'",
    "s IN ('東京', '🚲', 'nowhere')",
    "s LIKE 'a%'",
    "s LIKE '東%'",
    "b = X'08F7'",
    "b >= X'7081'",
    "t = timestamp'2013-01-02 01:00:00.000001 UTC'",
    "t > timestamp'2013-01-15 00:00:00 Europe/Zurich'",
    "t <= timestamp'2013-01-03 12:00:00'",
    "day = date'1970-12-25'",
    "day < date'1970-01-01'",
    "day IN (date'1970-12-25', date'1977-09-01', date'1999-01-01')",
    "price = 0.50",
    "price > -1.00",
    "price <= 12.34",
    "price IN (0.50, 0.81, 100.00)",
    "wide > 3000000000000000000000.000003",
    "wide = 7000000000000000000000.000007",
]
LEFT_TO_SPARK = [
    "n <> 4",
    "n NOT IN (1, 2)",
    "n IN (1, NULL)",
    "n <=> NULL",
    "n = 4 OR s = 'a'",
    "n + 1 = 5",
    "n = tiny",
    "s LIKE '%b'",
    "s LIKE '%b%'",
    "NOT s LIKE 'a%'",
]


@pytest.fixture(scope="module")
def filled(spark, cluster):
    from pyspark.sql.types import StructType

    from spark_connector import KuduContext

    schema = StructType.fromDDL(COLUMNS)
    context = KuduContext(cluster.masters, spark)
    context.createTable("filled", schema, ["key"], hash_partitions={"columns": ["key"], "buckets": 2})
    rows = [
        tuple(cell.astimezone().replace(tzinfo=None) if isinstance(cell, datetime.datetime) else cell for cell in row)
        for row in _rows()
    ]
    context.upsertRows(spark.createDataFrame(rows, schema), "filled")
    return context


@pytest.fixture(scope="module")
def spark_says(spark, filled):
    """The keys for which each predicate holds, evaluated by Spark on rows that were read without any."""
    from pyspark.sql import functions as F

    predicates = PUSHED + LEFT_TO_SPARK
    frame = filled.kuduRDD("filled")
    columns = [F.expr(predicate).alias(f"p{i}") for i, predicate in enumerate(predicates)]
    rows = frame.select("key", *columns).collect()
    assert len(rows) == 126
    return {predicate: sorted(r["key"] for r in rows if r[f"p{i}"]) for i, predicate in enumerate(predicates)}


@pytest.mark.parametrize("predicate", PUSHED)
def test_a_filter_that_is_pushed_gives_the_rows_that_spark_gives(push_down, filled, spark_says, predicate):
    frame = filled.kuduRDD("filled").where(predicate)

    assert sorted(row["key"] for row in frame.collect()) == spark_says[predicate]
    assert spark_says[predicate], "the case says nothing: no row matches"
    assert " Filter " not in _plan(frame), "Spark filters again: it was not pushed"


@pytest.mark.parametrize("predicate", LEFT_TO_SPARK)
def test_a_filter_that_cannot_be_exact_stays_with_spark(push_down, filled, spark_says, predicate):
    frame = filled.kuduRDD("filled").where(predicate)

    assert sorted(row["key"] for row in frame.collect()) == spark_says[predicate]


def test_with_the_flag_off_spark_filters(filled, spark, spark_says):
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    frame = filled.kuduRDD("filled").where("n = 4")

    assert sorted(row["key"] for row in frame.collect()) == spark_says["n = 4"]
    assert " Filter " in _plan(frame)


def test_a_filter_on_the_key_leaves_out_tablets(push_down, filled):
    assert filled.kuduRDD("filled").where("key = 7").rdd.getNumPartitions() == 1
    assert filled.kuduRDD("filled").where("n = 4").rdd.getNumPartitions() == 2


def _plan(frame):
    return frame._jdf.queryExecution().executedPlan().toString()
