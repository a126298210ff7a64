"""Values and their protobuf forms: nothing is lost, and what does not fit is refused by name."""

import datetime
import decimal

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.common.partition import HashLevel, Partition, PartitionSchema, RangePartition
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.wire import (
    op_id_from_pb,
    op_id_to_pb,
    partition_from_pb,
    partition_schema_from_pb,
    partition_schema_to_pb,
    partition_to_pb,
    predicate_from_pb,
    predicate_to_pb,
    range_partition_from_pb,
    range_partition_to_pb,
    schema_from_pb,
    schema_to_pb,
    value_from_pb,
    value_to_pb,
)
from kudu_py.pb import common_pb2

UTC = datetime.UTC

VALUES = [
    (ColumnSchema("c", DataType.BOOL), True),
    (ColumnSchema("c", DataType.INT8), -128),
    (ColumnSchema("c", DataType.INT16), 32767),
    (ColumnSchema("c", DataType.INT32), -(1 << 31)),
    (ColumnSchema("c", DataType.INT64), (1 << 63) - 1),
    (ColumnSchema("c", DataType.FLOAT), 1.5),
    (ColumnSchema("c", DataType.DOUBLE), -0.1),
    (ColumnSchema("c", DataType.STRING), "Zürich\0"),
    (ColumnSchema("c", DataType.VARCHAR, length=9), ""),
    (ColumnSchema("c", DataType.BINARY), b"\xff\0"),
    (ColumnSchema("c", DataType.UNIXTIME_MICROS), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    (ColumnSchema("c", DataType.DATE), datetime.date(1, 1, 1)),
    (
        ColumnSchema("c", DataType.DECIMAL, precision=38, scale=20),
        decimal.Decimal("-123456789012345678.00000000000000000001"),
    ),
]


@pytest.mark.parametrize(("column", "value"), VALUES, ids=[column.type.value for column, _ in VALUES])
def test_values_come_back_as_they_were(column, value):
    back = value_from_pb(column, value_to_pb(column, value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("column", "value"), VALUES, ids=[column.type.value for column, _ in VALUES])
def test_schemas_come_back_with_defaults_and_ids(column, value):
    key = ColumnSchema("key", DataType.INT64, column_id=0)
    given = ColumnSchema(
        "c",
        column.type,
        nullable=True,
        default=value,
        precision=column.precision,
        scale=column.scale,
        length=column.length,
        comment="how it looks",
        encoding="PLAIN_ENCODING",
        compression="LZ4",
        column_id=17,
    )
    schema = Schema((key, given), 1, 5)
    back = schema_from_pb(common_pb2.Schema.FromString(schema_to_pb(schema).SerializeToString()))
    assert back == schema
    back.validate()


def test_a_column_without_an_id_has_none_after():
    schema = Schema((ColumnSchema("key", DataType.INT64),), 1)
    assert schema_from_pb(schema_to_pb(schema)).columns[0].column_id == -1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (ColumnSchema("c", DataType.INT8), 128),
        (ColumnSchema("c", DataType.INT64), 1.5),
        (ColumnSchema("c", DataType.INT64), True),
        (ColumnSchema("c", DataType.STRING), b"x"),
        (ColumnSchema("c", DataType.STRING), "\ud800"),
        (ColumnSchema("c", DataType.BOOL), 1),
        (ColumnSchema("c", DataType.DOUBLE), "1"),
        (ColumnSchema("c", DataType.DATE), datetime.datetime(2013, 1, 1, tzinfo=UTC)),
        (ColumnSchema("c", DataType.DATE), "2013-13-01"),
        (ColumnSchema("c", DataType.DECIMAL, precision=4, scale=2), "100.00"),
        (ColumnSchema("c", DataType.DECIMAL, precision=4, scale=2), "1.005"),
        (ColumnSchema("c", DataType.DECIMAL, precision=4, scale=2), "NaN"),
        (ColumnSchema("c", DataType.INT32), None),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(column, value):
    with pytest.raises(KuduError, match="column 'c'") as caught:
        value_to_pb(column, value)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_naive_times_are_taken_for_utc_and_others_converted():
    column = ColumnSchema("c", DataType.UNIXTIME_MICROS)
    naive = datetime.datetime(2013, 1, 1, 5)
    ahead = datetime.datetime(2013, 1, 1, 7, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert value_to_pb(column, naive) == value_to_pb(column, ahead) == value_to_pb(column, 1_357_016_400_000_000)


@pytest.mark.parametrize(
    "pb",
    [
        common_pb2.Value(),
        common_pb2.Value(string_value="5"),
        common_pb2.Value(int_value=1 << 40),
    ],
)
def test_a_value_in_the_wrong_field_is_refused(pb):
    with pytest.raises(KuduError, match="'c'"):
        value_from_pb(ColumnSchema("c", DataType.INT32), pb)


def test_a_time_no_datetime_can_hold_is_refused():
    with pytest.raises(KuduError, match="years 1 to 9999"):
        value_from_pb(ColumnSchema("c", DataType.UNIXTIME_MICROS), common_pb2.Value(int_value=1 << 62))


def test_unknown_types_are_refused_with_the_known_ones():
    pb = common_pb2.Schema(columns=[common_pb2.ColumnSchema(name="c")], key_count=1)
    with pytest.raises(KuduError, match="'c' has no known type; types are BOOL, INT8"):
        schema_from_pb(pb)
    pb.columns[0].type = 13
    with pytest.raises(KuduError, match="precision of 1 to 38, not 0"):
        schema_from_pb(pb)


SCHEMA = Schema((ColumnSchema("day", DataType.DATE), ColumnSchema("k", DataType.STRING)), 2)
LAYOUT = PartitionSchema((HashLevel(("k",), 3, 42),), ("day", "k"))


def test_partition_schemas_and_partitions_come_back():
    assert partition_schema_from_pb(partition_schema_to_pb(LAYOUT)) == LAYOUT
    partition = Partition((2,), b"a", b"b")
    assert partition_from_pb(partition_to_pb(partition)) == partition
    assert (
        partition_to_pb(Partition((2,)), SCHEMA, LAYOUT).description
        == "HASH (k) PARTITION 2, RANGE (day, k) PARTITION UNBOUNDED"
    )


@pytest.mark.parametrize(
    "item",
    [
        RangePartition(),
        RangePartition((datetime.date(2013, 1, 1),), None, False, True),
        RangePartition(None, (datetime.date(2013, 1, 1), "x")),
        RangePartition((datetime.date(2013, 1, 1), ""), (datetime.date(2014, 1, 1), ""), True, False),
    ],
)
def test_ranges_come_back(item):
    assert range_partition_from_pb(SCHEMA, LAYOUT, range_partition_to_pb(SCHEMA, LAYOUT, item)) == item


def test_a_bound_with_too_many_values_is_refused():
    with pytest.raises(KuduError, match="3 values for 2 range columns"):
        range_partition_to_pb(SCHEMA, LAYOUT, RangePartition((datetime.date(2013, 1, 1), "", "")))


@pytest.mark.parametrize("op", list(PredicateOp))
def test_predicates_come_back(op):
    values = {PredicateOp.IN: ("a", "b"), PredicateOp.IS_NULL: (), PredicateOp.IS_NOT_NULL: ()}.get(op, ("a",))
    predicate = Predicate("k", op, values)
    assert predicate_from_pb(SCHEMA, predicate_to_pb(SCHEMA, predicate)) == predicate


def test_predicates_on_unknown_columns_or_operators_are_refused():
    with pytest.raises(KuduError, match="no column is named 'nope'"):
        predicate_from_pb(SCHEMA, common_pb2.ColumnPredicate(column="nope", operator="EQUAL"))
    with pytest.raises(KuduError, match="operators are EQUAL, LESS"):
        predicate_from_pb(SCHEMA, common_pb2.ColumnPredicate(column="k"))


def test_op_ids_come_back():
    assert op_id_from_pb(op_id_to_pb(OpId(3, 9))) == OpId(3, 9)
