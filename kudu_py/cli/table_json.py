"""Upstream's JSON for tables and predicates, read into requests; pure.

Every refusal names the place in the JSON (`schema.columns[2].column_type`), since such files are written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeGuard

from kudu_py.common import wire
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical
from kudu_py.pb import common_pb2, master_pb2

Json = Mapping[str, object]

_OPERATORS = {
    "=": common_pb2.EQUAL,
    "<": common_pb2.LESS,
    "<=": common_pb2.LESS_OR_EQUAL,
    ">": common_pb2.GREATER,
    ">=": common_pb2.GREATER_OR_EQUAL,
    "IN": common_pb2.IN_LIST,
    "NULL": common_pb2.IS_NULL,
    "NOTNULL": common_pb2.IS_NOT_NULL,
}
_TABLE_FIELDS = ("table_name", "schema", "partition", "num_replicas", "owner", "comment", "extra_configs")
_COLUMN_FIELDS = (
    "column_name",
    "column_type",
    "is_nullable",
    "default_value",
    "encoding",
    "compression",
    "cfile_block_size",
    "comment",
    "type_attributes",
)


def parse_table(text: str) -> master_pb2.CreateTableRequest:
    """The request to create the table that upstream's `kudu table create` JSON describes.

    Raises:
        KuduError: INVALID_ARGUMENT that names the place.
    """
    table = _object(_load(text), "the table", _TABLE_FIELDS)
    schema = _schema(_object(table.get("schema"), "schema", ("columns", "key_column_names")))
    partition = _object(
        table.get("partition", {}), "partition", ("hash_partitions", "range_partition", "dimension_label")
    )
    request = master_pb2.CreateTableRequest(
        name=_text(table.get("table_name"), "table_name"),
        schema=wire.schema_to_pb(schema),
        num_replicas=_whole(table.get("num_replicas", 0), "num_replicas"),
        owner=_text(table.get("owner", ""), "owner"),
        comment=_text(table.get("comment", ""), "comment"),
    )
    for i, item in enumerate(_list(partition.get("hash_partitions", []), "partition.hash_partitions")):
        where = f"partition.hash_partitions[{i}]"
        level = _object(item, where, ("columns", "num_buckets", "seed"))
        request.partition_schema.hash_levels.add(
            columns=_texts(level.get("columns"), f"{where}.columns"),
            bucket_count=_whole(level.get("num_buckets"), f"{where}.num_buckets"),
            seed=_whole(level.get("seed", 0), f"{where}.seed"),
        )
    if "range_partition" in partition:
        _range_partition(partition["range_partition"], schema, request)
    return request


def _schema(described: Json) -> Schema:
    columns = []
    for i, item in enumerate(_list(described.get("columns"), "schema.columns")):
        columns.append(_column(item, f"schema.columns[{i}]"))
    by_name: dict[str, ColumnSchema] = {}
    for i, column in enumerate(columns):
        if by_name.setdefault(column.name, column) is not column:
            raise _refused(f"schema.columns[{i}].column_name", f"{column.name!r} is declared twice")
    keys = _texts(described.get("key_column_names"), "schema.key_column_names")
    for i, key in enumerate(keys):
        if key not in by_name:
            raise _refused("schema.key_column_names", f"{key!r} is no column of the table")
        if key in keys[:i]:
            raise _refused("schema.key_column_names", f"{key!r} is listed twice")
    ordered = [by_name[key] for key in keys] + [column for column in columns if column.name not in keys]
    schema = Schema(tuple(ordered), len(keys))
    schema.validate()
    return schema


def _column(item: object, where: str) -> ColumnSchema:
    described = _object(item, where, _COLUMN_FIELDS)
    attributes = _object(
        described.get("type_attributes", {}), f"{where}.type_attributes", ("precision", "scale", "length")
    )
    type_name = _text(described.get("column_type"), f"{where}.column_type").upper()
    if type_name not in DataType.__members__:
        known = ", ".join(DataType.__members__)
        raise _refused(f"{where}.column_type", f"{type_name!r} is no type; it may be {known}")
    column = ColumnSchema(
        name=_text(described.get("column_name"), f"{where}.column_name"),
        type=DataType[type_name],
        nullable=_boolean(described.get("is_nullable", False), f"{where}.is_nullable"),
        precision=_whole(attributes.get("precision", 0), f"{where}.type_attributes.precision"),
        scale=_whole(attributes.get("scale", 0), f"{where}.type_attributes.scale"),
        length=_whole(attributes.get("length", 0), f"{where}.type_attributes.length"),
        comment=_text(described.get("comment", ""), f"{where}.comment"),
        encoding=_text(described.get("encoding", ""), f"{where}.encoding"),
        compression=_text(described.get("compression", ""), f"{where}.compression"),
    )
    default = described.get("default_value")
    if default is None:
        return column
    return ColumnSchema(
        **{field: getattr(column, field) for field in ColumnSchema.__dataclass_fields__ if field != "default"},
        default=_value(column, default, f"{where}.default_value"),
    )


def _range_partition(item: object, schema: Schema, request: master_pb2.CreateTableRequest) -> None:
    where = "partition.range_partition"
    described = _object(item, where, ("columns", "range_bounds"))
    names = _texts(described.get("columns"), f"{where}.columns")
    columns = [schema.column(name) for name in names]
    request.partition_schema.range_columns.extend(names)
    for i, bounds_item in enumerate(_list(described.get("range_bounds", []), f"{where}.range_bounds")):
        here = f"{where}.range_bounds[{i}]"
        bounds = _object(bounds_item, here, ("lower_bound", "upper_bound"))
        made = request.range_partitions.add()
        for side in ("lower", "upper"):
            if f"{side}_bound" not in bounds:
                continue
            bound = _object(bounds[f"{side}_bound"], f"{here}.{side}_bound", ("bound_type", "bound_values"))
            kind = _text(
                bound.get("bound_type", "inclusive" if side == "lower" else "exclusive"),
                f"{here}.{side}_bound.bound_type",
            ).lower()
            if kind not in ("inclusive", "exclusive"):
                raise _refused(f"{here}.{side}_bound.bound_type", f"{kind!r}; it may be inclusive or exclusive")
            values = _list(bound.get("bound_values"), f"{here}.{side}_bound.bound_values")
            if len(values) > len(columns):
                raise _refused(
                    f"{here}.{side}_bound.bound_values",
                    f"{counted(len(values), 'value')} for {counted(len(columns), 'column')}",
                )
            target = made.lower if side == "lower" else made.upper
            target.SetInParent()
            for column, value in zip(columns, values, strict=False):
                place = f"{here}.{side}_bound.bound_values"
                target.values.append(wire.value_to_pb(column, _value(column, value, place)))
            if side == "lower":
                made.lower_exclusive = kind == "exclusive"
            else:
                made.upper_inclusive = kind == "inclusive"


def parse_predicates(text: str, schema: Schema) -> list[common_pb2.ColumnPredicate]:
    """Conditions in upstream's form: `["AND", [">=", "c", 5], ["IN", "d", ["x", "y"]], ["NOTNULL", "e"]]`, or one of
    the inner lists.

    Raises:
        KuduError: INVALID_ARGUMENT that names the operator, or COLUMN_NOT_FOUND.
    """
    parsed = _list(_load(text), "predicates")
    if parsed and parsed[0] == "AND":
        return [_predicate(_list(item, "predicates"), schema) for item in parsed[1:]]
    return [_predicate(parsed, schema)] if parsed else []


def _predicate(item: list[object], schema: Schema) -> common_pb2.ColumnPredicate:
    if len(item) < 2 or not isinstance(item[0], str) or not isinstance(item[1], str):
        raise _refused("predicates", f'{json.dumps(item)[:100]} is no condition, such as [">=", "column", 5]')
    operator = _OPERATORS.get(item[0].upper())
    if operator is None:
        raise _refused("predicates", f"{item[0]!r} is no operator; it may be {', '.join(_OPERATORS)}, or AND outermost")
    column = schema.column(item[1])
    if operator in (common_pb2.IS_NULL, common_pb2.IS_NOT_NULL):
        values: list[object] = []
    elif len(item) != 3:
        raise _refused("predicates", f"{item[0]!r} on {item[1]!r} takes one {'list' if item[0] == 'IN' else 'value'}")
    else:
        values = _list(item[2], "predicates") if operator == common_pb2.IN_LIST else [item[2]]
    return common_pb2.ColumnPredicate(
        column=column.name,
        operator=operator,
        values=[wire.value_to_pb(column, _value(column, value, "predicates")) for value in values],
    )


def _value(column: ColumnSchema, value: object, where: str) -> object:
    """A value as people write it in JSON: upstream quotes numbers in bounds and defaults."""
    if isinstance(value, str) and column.type not in (DataType.STRING, DataType.VARCHAR, DataType.BINARY):
        try:
            if column.type is DataType.BOOL:
                return {"true": True, "false": False}[value.lower()]
            if column.type in (DataType.FLOAT, DataType.DOUBLE):
                return float(value)
            if column.type in (DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64):
                return canonical(column, int(value))
            if column.type in (DataType.UNIXTIME_MICROS, DataType.DATE) and value.lstrip("-").isdecimal():
                return canonical(column, int(value))
        except (ValueError, KeyError):
            raise _refused(where, f"{value!r} is no {column.type.value} of column {column.name!r}") from None
    try:
        return canonical(column, value)
    except KuduError as error:
        raise _refused(where, error.message) from error


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"this is no JSON: {error}") from error


def _object(value: object, where: str, fields: tuple[str, ...]) -> Json:
    if not isinstance(value, dict):
        raise _refused(where, "a JSON object is needed here")
    for name in value:
        if name not in fields:
            raise _refused(where, f"unknown field {name!r}; known are {', '.join(fields)}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise _refused(where, "a JSON list is needed here")
    return value


def _texts(value: object, where: str) -> list[str]:
    return [_text(item, where) for item in _list(value, where)]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _refused(where, "a text is needed here")
    return value


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refused(where, "true or false is needed here")
    return value


def _whole(value: object, where: str) -> int:
    if not _is_whole(value) or value < 0:
        raise _refused(where, "a whole number, 0 or more, is needed here")
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(where: str, why: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, f"{where}: {why}")
