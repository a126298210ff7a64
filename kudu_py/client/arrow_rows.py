"""Arrow batches of a caller: made to fit the table's schema, split by tablet, cut to bounded pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.row_batch import RowBatch
from kudu_py.common.schema import ColumnSchema, Schema


def conform(schema: Schema, data: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    """The batch with the schema's Arrow types and column order, and the schema positions of its columns.

    Columns are found by name. Lossless casts are made (such as int64 values that fit int32); others are refused.

    Raises:
        KuduError: INVALID_ARGUMENT or COLUMN_NOT_FOUND that names the column.
    """
    names = data.schema.names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"column {twice!r} is twice in the batch")
    positions = tuple(sorted(schema.position(name) for name in names))
    for i in range(schema.key_count):
        if i >= len(positions) or positions[i] != i:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT,
                f"the batch lacks the key column {schema.columns[i].name!r}; it has {', '.join(names[:20])}",
            )
    columns = []
    for i in positions:
        column = schema.columns[i]
        cells = data.column(names.index(column.name))
        columns.append(cells if cells.type.equals(column.arrow_type) else _cast(column, cells))
    fields = [schema.columns[i].arrow_field.with_nullable(True) for i in positions]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), positions


def _cast(column: ColumnSchema, cells: pa.Array) -> pa.Array:
    given, wanted = cells.type, column.arrow_type
    try:
        if pa.types.is_dictionary(given):
            cells = cells.dictionary_decode()
            given = cells.type
        if pa.types.is_null(given):
            return pa.nulls(len(cells), wanted)
        if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted) and given.tz is None:
            # A time without a zone is taken for UTC, as single rows' datetimes are.
            cells = cells.cast(pa.timestamp(given.unit, tz="UTC"))
        family = _family(given)
        if family == _family(wanted) or (family == "integer" and _family(wanted) in ("floating", "decimal")):
            return cells.cast(wanted)
    except pa.ArrowException as error:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"column {column.name!r} of type {column.type.value} cannot hold these {given} values: {str(error)[:200]}",
        ) from error
    raise KuduError(
        ErrorCode.INVALID_ARGUMENT,
        f"column {column.name!r} is {column.type.value} ({wanted}) and cannot hold {given}: cast it before",
    )


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "floating"
    if types.is_decimal(kind):
        return "decimal"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_fixed_size_binary(kind):
        return "binary"
    if types.is_date(kind):
        return "date"
    return "timestamp" if types.is_timestamp(kind) else str(kind)


Part = tuple[int, RowBatch, npt.NDArray[np.int64] | None]
"""A partition, its rows, and where they stood (None: they are all rows)."""


def split(batch: RowBatch, partitions: npt.NDArray[np.int32], partition_count: int) -> list[Part]:
    """The rows by partition: number, rows, and where they stood in `batch` (None: all of it). Order is kept.

    Args:
        partitions: each row's partition, none negative.
    """
    counts = np.bincount(partitions, minlength=partition_count)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch, None)]
    # A stable sort of small integers is a radix sort: all rows are moved once, and each tablet's are then a slice.
    narrow = partitions.astype(np.uint8 if partition_count <= 256 else np.uint16)
    order = np.argsort(narrow, kind="stable")
    rows = batch.rows.take(pa.array(order))
    operations = batch.operations[order] if batch.single_operation is None else batch.operations
    unset = batch.unset[order] if batch.unset is not None else None
    result: list[Part] = []
    first = 0
    for partition in present.tolist():
        last = first + int(counts[partition])
        part = RowBatch(
            batch.schema,
            operations[first:last],
            rows.slice(first, last - first),
            batch.positions,
            unset[first:last] if unset is not None else None,
        )
        result.append((partition, part, order[first:last]))
        first = last
    return result


def slice_batch(batch: RowBatch, first: int, last: int) -> RowBatch:
    """Rows `first` to `last` (exclusive), without a copy."""
    return RowBatch(
        batch.schema,
        batch.operations[first:last],
        batch.rows.slice(first, last - first),
        batch.positions,
        batch.unset[first:last] if batch.unset is not None else None,
    )


def cut(batch: RowBatch, *, rows_max: int, bytes_max: int) -> list[tuple[int, RowBatch]]:
    """The batch in pieces of bounded size with their first rows; a single row above the bound stays."""
    size = batch.rows.nbytes
    if batch.row_count <= rows_max and size <= bytes_max:
        return [(0, batch)]
    step = max(1, min(rows_max, batch.row_count * bytes_max // max(size, 1)))
    result: list[tuple[int, RowBatch]] = []
    for first in range(0, batch.row_count, step):
        part = slice_batch(batch, first, min(first + step, batch.row_count))
        if part.rows.nbytes > 2 * bytes_max and part.row_count > 1:
            # Rows of very different sizes: halve until each piece fits.
            half = part.row_count // 2
            for offset, inner in ((0, slice_batch(part, 0, half)), (half, slice_batch(part, half, part.row_count))):
                result.extend(
                    (first + offset + at, piece) for at, piece in cut(inner, rows_max=rows_max, bytes_max=bytes_max)
                )
        else:
            result.append((first, part))
    return result


def take_row(batch: RowBatch, row: int) -> dict[str, object]:
    """One row as Python values, for an error's report."""
    values: dict[str, object] = batch.rows.slice(row, 1).to_pylist()[0]
    return values
