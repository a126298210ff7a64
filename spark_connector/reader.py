"""Scan tokens to input partitions to Arrow batches; filter push-down.

All partitions read at one snapshot, chosen once while planning: it holds every write acknowledged before, and a retried
task reads the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_connector.cluster import plan_scan, scan_token
from spark_connector.options import KuduOptions

IN_VALUES_MAX = 65_536
"""A server takes no longer list; Spark filters by longer ones itself."""


class Condition(NamedTuple):
    """One condition that the servers apply exactly as Spark would.

    Attributes:
        operator: of ==, <, <=, >, >=, in, is null, is not null.
    """

    column: str
    operator: str
    value: object = None


class _PushDown:
    """`pushFilters` that works whether Spark's flag for it is on or off.

    With the flag off, Spark refuses readers that define the method; it decides by comparing `__func__` with the base
    class's.
    """

    def __init__(self, reader: KuduReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        return self._reader.take_filters(filters)


class KuduReader(DataSourceReader):
    """One batch read of a table."""

    def __init__(self, options: KuduOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []
        self.pushFilters = _PushDown(self)  # type: ignore[method-assign]

    def take_filters(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        """Keeps the filters that the servers apply exactly; yields the others, which stay with Spark."""
        for each in filters:
            conditions = to_conditions(each)
            if conditions:
                self._conditions += conditions
            else:
                yield each

    def partitions(self) -> list[InputPartition]:
        """One partition for each tablet that can hold a matching row. (Spark makes an empty list one partition whose
        value is None.)
        """
        return [InputPartition(token) for token in plan_scan(self._options, self._schema.names, self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, with exactly the schema Spark expects."""
        if partition.value is None:
            return
        expected = to_arrow_schema(self._schema, timezone="UTC")
        for batch in scan_token(self._options, partition.value):
            # Types are equal but for nullability, which Spark compares, too. A batch without columns has no arrays that
            # could tell the number of its rows.
            if expected.names:
                columns = [batch.column(name) for name in expected.names]
                yield pa.RecordBatch.from_arrays(columns, schema=expected)
            else:
                yield batch


def to_conditions(pushed: ds.Filter) -> list[Condition]:
    """Conditions that together give exactly the rows of a filter of Spark's; none if that cannot be.

    The servers order NaN, -0.0 and strings as Spark does. Not taken: negations (but of a boolean column), `<=>` with
    null, lists that hold a null (no row that is not in the list is "not in" it) or very many values, and text patterns
    but for a common beginning.
    """
    if isinstance(pushed, ds.Not) and isinstance(pushed.child, ds.EqualTo) and isinstance(pushed.child.value, bool):
        # What Spark makes of `flag = false`.
        pushed = ds.EqualTo(pushed.child.attribute, not pushed.child.value)
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return []
    column = attribute[0]
    if isinstance(pushed, ds.IsNull):
        return [Condition(column, "is null")]
    if isinstance(pushed, ds.IsNotNull):
        return [Condition(column, "is not null")]
    if isinstance(pushed, ds.In):
        values = list(pushed.value)
        taken = len(values) <= IN_VALUES_MAX and not any(value is None for value in values)
        return [Condition(column, "in", values)] if taken else []
    if isinstance(pushed, ds.StringStartsWith):
        return _beginning(column, pushed.value)
    operator = {
        ds.EqualTo: "==",
        ds.EqualNullSafe: "==",
        ds.LessThan: "<",
        ds.LessThanOrEqual: "<=",
        ds.GreaterThan: ">",
        ds.GreaterThanOrEqual: ">=",
    }.get(type(pushed))
    if operator is None:
        return []
    value = pushed.value  # type: ignore[attr-defined]
    return [] if value is None else [Condition(column, operator, value)]


def _beginning(column: str, prefix: str) -> list[Condition]:
    """The range of texts that begin with `prefix`: UTF-8 bytes are in the order of code points."""
    conditions = [Condition(column, ">=", prefix)]
    for i in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[i]) + 1
        if following == 0xD800:
            following = 0xE000  # no text has surrogates
        if following <= 0x10FFFF:
            conditions.append(Condition(column, "<", prefix[:i] + chr(following)))
            break
    return conditions
