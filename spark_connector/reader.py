"""Scan tokens to input partitions to Arrow batches; filter push-down.

All partitions read at one snapshot, chosen once while planning: it holds every write acknowledged before, and a
    retried task reads the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_connector.cluster import plan_scan, scan_token
from spark_connector.options import KuduOptions


@dataclass
class KuduPartition(InputPartition):
    """One tablet's part of a scan: a token of the client, plain bytes."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that the servers apply exactly as Spark would: operator is of `==, <, <=, >, >=, in, is null, is
    not null`.
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
        self.pushFilters = _PushDown(self)  # type: ignore[assignment,method-assign]

    def take_filters(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        """Keeps the filters that the servers apply exactly; yields the others, which stay with Spark."""
        for each in filters:
            condition = to_condition(each)
            if condition is None:
                yield each
            else:
                self._conditions.append(condition)

    def partitions(self) -> list[InputPartition]:
        """One partition for each tablet that can hold a matching row."""
        # An empty list would become one partition without a token.
        tokens = plan_scan(self._options, tuple(self._schema.names), tuple(self._conditions))
        return [KuduPartition(0, token) for token in tokens] or [KuduPartition(0, b"")]  # type: ignore[call-arg]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, with exactly the schema Spark expects."""
        assert isinstance(partition, KuduPartition)
        if not partition.token:
            return
        expected = to_arrow_schema(self._schema, timezone="UTC")
        for batch in scan_token(self._options, partition.token):
            if batch.num_rows:
                columns = [batch.column(name) for name in expected.names]
                yield pa.RecordBatch.from_arrays(columns, schema=expected) if columns else batch


def to_condition(pushed: ds.Filter) -> Condition | None:
    """The condition equal to a filter of Spark's, or None if there is none that gives exactly the same rows.

    The servers order NaN as Spark does. Not taken: lists that hold a null, `<=>` with null, and text patterns.
    """
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(pushed, ds.IsNull):
        return Condition(column, "is null")
    if isinstance(pushed, ds.IsNotNull):
        return Condition(column, "is not null")
    if isinstance(pushed, ds.In):
        values = list(pushed.value)
        if any(value is None for value in values):
            return None
        return Condition(column, "in", values)
    operator = {
        ds.EqualTo: "==",
        ds.EqualNullSafe: "==",
        ds.LessThan: "<",
        ds.LessThanOrEqual: "<=",
        ds.GreaterThan: ">",
        ds.GreaterThanOrEqual: ">=",
    }.get(type(pushed))
    if operator is None:
        return None
    value = pushed.value  # type: ignore[attr-defined]
    return None if value is None else Condition(column, operator, value)
