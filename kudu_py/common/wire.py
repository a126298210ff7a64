"""Conversions between the values of `common` and their protobuf forms.

What comes from outside is checked here for form (known enum numbers, values that fit their column) and by the values'
own `validate` for sense. `…_to_pb` never fails for a valid value; `…_from_pb` raises KuduError INVALID_ARGUMENT.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Sequence

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.common.partition import HashLevel, Partition, PartitionSchema, RangePartition, describe_partition
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical, date_of_days, datetime_of_micros, days_since_epoch, micros_since_epoch
from kudu_py.pb import common_pb2, master_pb2

_TYPE_TO_PB = {kind: common_pb2.DataType.Value(kind.value) for kind in DataType}
_TYPE_FROM_PB = {number: kind for kind, number in _TYPE_TO_PB.items()}

_OP_TO_PB = {
    PredicateOp.EQ: common_pb2.PredicateOperator.EQUAL,
    PredicateOp.LT: common_pb2.PredicateOperator.LESS,
    PredicateOp.LE: common_pb2.PredicateOperator.LESS_OR_EQUAL,
    PredicateOp.GT: common_pb2.PredicateOperator.GREATER,
    PredicateOp.GE: common_pb2.PredicateOperator.GREATER_OR_EQUAL,
    PredicateOp.IN: common_pb2.PredicateOperator.IN_LIST,
    PredicateOp.IS_NULL: common_pb2.PredicateOperator.IS_NULL,
    PredicateOp.IS_NOT_NULL: common_pb2.PredicateOperator.IS_NOT_NULL,
}
_OP_FROM_PB = {number: op for op, number in _OP_TO_PB.items()}

_VALUE_FIELDS = {
    DataType.BOOL: "bool_value",
    DataType.INT8: "int_value",
    DataType.INT16: "int_value",
    DataType.INT32: "int_value",
    DataType.INT64: "int_value",
    DataType.UNIXTIME_MICROS: "int_value",
    DataType.DATE: "int_value",
    DataType.FLOAT: "double_value",
    DataType.DOUBLE: "double_value",
    DataType.STRING: "string_value",
    DataType.VARCHAR: "string_value",
    DataType.DECIMAL: "string_value",
    DataType.BINARY: "binary_value",
}


def op_id_to_pb(op_id: OpId) -> common_pb2.OpId:
    """Term and index."""
    return common_pb2.OpId(term=op_id.term, index=op_id.index)


def op_id_from_pb(pb: common_pb2.OpId) -> OpId:
    """Term and index; both 0 if the message is absent."""
    return OpId(pb.term, pb.index)


def value_to_pb(column: ColumnSchema, value: object) -> common_pb2.Value:
    """A value of `column` (anything that `canonical` takes).

    Raises:
        KuduError: INVALID_ARGUMENT if the column cannot hold it.
    """
    plain = canonical(column, value)
    if isinstance(plain, datetime.datetime):
        return common_pb2.Value(int_value=micros_since_epoch(plain))
    if isinstance(plain, datetime.date):
        return common_pb2.Value(int_value=days_since_epoch(plain))
    if isinstance(plain, decimal.Decimal):
        return common_pb2.Value(string_value=f"{plain:f}")
    if isinstance(plain, bool):
        return common_pb2.Value(bool_value=plain)
    if isinstance(plain, int):
        return common_pb2.Value(int_value=plain)
    if isinstance(plain, float):
        return common_pb2.Value(double_value=plain)
    if isinstance(plain, str):
        return common_pb2.Value(string_value=plain)
    assert isinstance(plain, bytes), plain
    return common_pb2.Value(binary_value=plain)


def value_from_pb(column: ColumnSchema, pb: common_pb2.Value) -> object:
    """The canonical Python value.

    Raises:
        KuduError: INVALID_ARGUMENT if another field than the column's is set, or the value does not fit.
    """
    wanted = _VALUE_FIELDS[column.type]
    given = pb.WhichOneof("kind")
    if given != wanted:
        shown = given or "nothing"
        raise _invalid(f"a value of column {column.name!r} ({column.type.value}) goes into {wanted}, not {shown}")
    raw = getattr(pb, wanted)
    try:
        if column.type is DataType.UNIXTIME_MICROS:
            return datetime_of_micros(raw)
        if column.type is DataType.DATE:
            return date_of_days(raw)
    except OverflowError as error:
        raise _invalid(f"column {column.name!r}: {raw} is outside of the years 1 to 9999") from error
    return canonical(column, raw)


def column_to_pb(column: ColumnSchema) -> common_pb2.ColumnSchema:
    """One column; its id only if it has one."""
    pb = common_pb2.ColumnSchema(
        name=column.name,
        type=_TYPE_TO_PB[column.type],
        nullable=column.nullable,
        precision=column.precision,
        scale=column.scale,
        length=column.length,
        comment=column.comment,
        encoding=column.encoding,
        compression=column.compression,
    )
    if column.default is not None:
        pb.default_value.CopyFrom(value_to_pb(column, column.default))
    if column.column_id >= 0:
        pb.column_id = column.column_id
    return pb


def column_from_pb(pb: common_pb2.ColumnSchema) -> ColumnSchema:
    """One column.

    Raises:
        KuduError: INVALID_ARGUMENT for an unknown type or a default that does not fit.
    """
    kind = _TYPE_FROM_PB.get(pb.type)
    if kind is None:
        known = ", ".join(kind.value for kind in DataType)
        raise _invalid(f"column {pb.name[:64]!r} has no known type; types are {known}")
    column = ColumnSchema(
        name=pb.name,
        type=kind,
        nullable=pb.nullable,
        precision=pb.precision,
        scale=pb.scale,
        length=pb.length,
        comment=pb.comment,
        encoding=pb.encoding,
        compression=pb.compression,
        column_id=pb.column_id if pb.HasField("column_id") else -1,
    )
    if not pb.HasField("default_value"):
        return column
    # A DECIMAL is checked against precision and scale, which must make sense before.
    if kind is DataType.DECIMAL and not (1 <= pb.precision <= 38 and pb.scale <= pb.precision):
        raise _invalid(f"column {pb.name[:64]!r}: a DECIMAL has a precision of 1 to 38, a scale of 0 to its precision")
    return ColumnSchema(
        column.name,
        kind,
        column.nullable,
        value_from_pb(column, pb.default_value),
        column.precision,
        column.scale,
        column.length,
        column.comment,
        column.encoding,
        column.compression,
        column.column_id,
    )


def schema_to_pb(schema: Schema) -> common_pb2.Schema:
    """All columns, the key's length, the version."""
    return common_pb2.Schema(
        columns=[column_to_pb(column) for column in schema.columns], key_count=schema.key_count, version=schema.version
    )


def schema_from_pb(pb: common_pb2.Schema) -> Schema:
    """The schema, not validated as a whole: call `Schema.validate` on what a user sent.

    Raises:
        KuduError: INVALID_ARGUMENT as `column_from_pb`; INVALID_SCHEMA for a DECIMAL that Arrow cannot express.
    """
    for column in pb.columns:
        if _TYPE_FROM_PB.get(column.type) is DataType.DECIMAL and not 1 <= column.precision <= 38:
            raise KuduError(
                ErrorCode.INVALID_SCHEMA,
                f"column {column.name[:64]!r}: a DECIMAL has a precision of 1 to 38, not {column.precision}",
            )
    return Schema(tuple(column_from_pb(column) for column in pb.columns), pb.key_count, pb.version)


def partition_schema_to_pb(partition_schema: PartitionSchema) -> common_pb2.PartitionSchema:
    """Hash levels and range columns."""
    return common_pb2.PartitionSchema(
        hash_levels=[
            common_pb2.PartitionSchema.HashLevel(
                columns=level.columns, bucket_count=level.bucket_count, seed=level.seed
            )
            for level in partition_schema.hash_levels
        ],
        range_columns=partition_schema.range_columns,
    )


def partition_schema_from_pb(pb: common_pb2.PartitionSchema) -> PartitionSchema:
    """Hash levels and range columns, not validated: call `PartitionSchema.validate` on what a user sent."""
    return PartitionSchema(
        tuple(HashLevel(tuple(level.columns), level.bucket_count, level.seed) for level in pb.hash_levels),
        tuple(pb.range_columns),
    )


def partition_to_pb(
    partition: Partition, schema: Schema | None = None, partition_schema: PartitionSchema | None = None
) -> common_pb2.Partition:
    """A tablet's part; with both schemas also its description for people."""
    pb = common_pb2.Partition(
        hash_buckets=partition.hash_buckets, range_lower=partition.range_lower, range_upper=partition.range_upper
    )
    if schema is not None and partition_schema is not None:
        pb.description = describe_partition(schema, partition_schema, partition)
    return pb


def partition_from_pb(pb: common_pb2.Partition) -> Partition:
    """A tablet's part."""
    return Partition(tuple(pb.hash_buckets), pb.range_lower, pb.range_upper)


def range_partition_to_pb(
    schema: Schema, partition_schema: PartitionSchema, item: RangePartition
) -> master_pb2.RangePartition:
    """A range to create; raises as `value_to_pb`, and for more values than range columns."""
    pb = master_pb2.RangePartition(lower_exclusive=not item.lower_inclusive, upper_inclusive=item.upper_inclusive)
    if item.lower is not None:
        pb.lower.values.extend(_bound_values_to_pb(schema, partition_schema, item.lower))
        pb.lower.SetInParent()
    if item.upper is not None:
        pb.upper.values.extend(_bound_values_to_pb(schema, partition_schema, item.upper))
        pb.upper.SetInParent()
    return pb


def range_partition_from_pb(
    schema: Schema, partition_schema: PartitionSchema, pb: master_pb2.RangePartition
) -> RangePartition:
    """A range to create; raises as `value_from_pb`, and for more values than range columns."""
    lower = _bound_values_from_pb(schema, partition_schema, pb.lower) if pb.HasField("lower") else None
    upper = _bound_values_from_pb(schema, partition_schema, pb.upper) if pb.HasField("upper") else None
    return RangePartition(lower, upper, not pb.lower_exclusive, pb.upper_inclusive)


def predicate_to_pb(schema: Schema, predicate: Predicate) -> common_pb2.ColumnPredicate:
    """A condition on a column of `schema`; raises as `Schema.column` and `value_to_pb`."""
    column = schema.column(predicate.column)
    return common_pb2.ColumnPredicate(
        column=predicate.column,
        operator=_OP_TO_PB[predicate.op],
        values=[value_to_pb(column, value) for value in predicate.values],
    )


def predicate_from_pb(schema: Schema, pb: common_pb2.ColumnPredicate) -> Predicate:
    """A condition on a column of `schema`.

    Raises:
        KuduError: INVALID_ARGUMENT for an unknown operator or a value that does not fit; COLUMN_NOT_FOUND.
    """
    op = _OP_FROM_PB.get(pb.operator)
    if op is None:
        known = ", ".join(common_pb2.PredicateOperator.keys()[1:])
        raise _invalid(f"the predicate on {pb.column[:64]!r} has no known operator; operators are {known}")
    column = schema.column(pb.column)
    return Predicate(pb.column, op, tuple(value_from_pb(column, value) for value in pb.values))


def predicates_from_pb(schema: Schema, pbs: Iterable[common_pb2.ColumnPredicate]) -> tuple[Predicate, ...]:
    """Conditions that all must hold."""
    return tuple(predicate_from_pb(schema, pb) for pb in pbs)


def _bound_values_to_pb(
    schema: Schema, partition_schema: PartitionSchema, values: Sequence[object]
) -> list[common_pb2.Value]:
    columns = _range_columns(schema, partition_schema, len(values))
    return [value_to_pb(column, value) for column, value in zip(columns, values, strict=False)]


def _bound_values_from_pb(
    schema: Schema, partition_schema: PartitionSchema, pb: master_pb2.RangeBound
) -> tuple[object, ...]:
    columns = _range_columns(schema, partition_schema, len(pb.values))
    return tuple(value_from_pb(column, value) for column, value in zip(columns, pb.values, strict=False))


def _range_columns(schema: Schema, partition_schema: PartitionSchema, count: int) -> list[ColumnSchema]:
    names = partition_schema.range_columns
    if count > len(names):
        shown = ", ".join(names) or "none"
        raise _invalid(
            f"a range bound has {counted(count, 'value')} for {counted(len(names), 'range column')} ({shown})"
        )
    return [schema.column(name) for name in names]


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, message)
