"""`RowBatch`: row operations as one Arrow record batch; validate, encode, decode.

The wire form is one encapsulated Arrow IPC message (a record batch without its schema, which the schema version names):
first the operation column `__op` (uint8, the codes of `RowOperation`), then, only if the request says so, the column
`__unset` (fixed-size binary: a little-endian bitmap over the carried columns, bit set = the row does not set the
column), then the carried columns in the order of their ids in the request, or all columns in schema order if it lists
none. The same bytes are the payload of the RPC, of the log entry and of the message to followers (architecture, "A
write").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import KeyBatch
from kudu_py.common.schema import MAX_CELL_BYTES, MAX_ENCODED_KEY_BYTES, DataType, Schema

OPERATION_COLUMN = "__op"
UNSET_COLUMN = "__unset"
_ROW_SCHEMAS_MAX = 256
"""Arrow schemas kept for one schema: clients that set some columns only need one each, and may name any."""

MAX_ROWS_PER_BATCH = 1 << 20
MIN_DATE_DAYS = -719_162
MAX_DATE_DAYS = 2_932_896


@unique
class RowOperation(IntEnum):
    """What to do with a row; upstream's wire ids."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    UPSERT = 5
    INSERT_IGNORE = 10
    UPDATE_IGNORE = 11
    DELETE_IGNORE = 12
    UPSERT_IGNORE = 13


_VALID_OPERATION = np.zeros(256, np.bool_)
_VALID_OPERATION[[op.value for op in RowOperation]] = True
_DELETES = np.zeros(256, np.bool_)
_DELETES[[RowOperation.DELETE, RowOperation.DELETE_IGNORE]] = True
_INSERTS = np.zeros(256, np.bool_)
_INSERTS[[RowOperation.INSERT, RowOperation.INSERT_IGNORE, RowOperation.UPSERT, RowOperation.UPSERT_IGNORE]] = True


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Row operations for one tablet, in order.

    Attributes:
        schema: the table's schema.
        operations: uint8[n], codes of `RowOperation`.
        rows: n rows; columns are a subset of the schema's, in the order of `positions`, with the schema's Arrow types.
        positions: int[k], the schema position of each carried column; the first `schema.key_count` are the key's.
        unset: bool[n, k] or None; True where a row does not set a carried column. Columns that are not carried are
            unset for all rows. Never true for key columns.
    """

    schema: Schema
    operations: npt.NDArray[np.uint8]
    rows: pa.RecordBatch
    positions: tuple[int, ...]
    unset: npt.NDArray[np.bool_] | None = None

    @property
    def row_count(self) -> int:
        """Number of row operations."""
        return len(self.operations)

    @cached_property
    def keys(self) -> KeyBatch:
        """The rows' keys in the form that apply works with, made once. `validate` makes them: what cannot be read as
        keys must fail before it is in a log, because at apply it would fail on every replica."""
        return KeyBatch.of(self.schema, self.rows.columns)

    @cached_property
    def single_operation(self) -> RowOperation | None:
        """The operation of all rows, if they share one (the usual case, worth a faster way)."""
        first = self.operations[0]
        return RowOperation(int(first)) if (self.operations == first).all() else None

    def encode(self) -> bytes:
        """The wire form."""
        arrays: list[pa.Array] = [pa.array(self.operations)]
        names = [OPERATION_COLUMN]
        if self.unset is not None:
            packed = np.packbits(self.unset, axis=1, bitorder="little")
            kind = pa.binary(packed.shape[1])
            arrays.append(pa.Array.from_buffers(kind, len(packed), [None, pa.py_buffer(np.ascontiguousarray(packed))]))
            names.append(UNSET_COLUMN)
        arrays.extend(self.rows.columns)
        names.extend(self.rows.schema.names)
        encoded: bytes = pa.RecordBatch.from_arrays(arrays, names=names).serialize().to_pybytes()
        return encoded

    @property
    def column_ids(self) -> tuple[int, ...]:
        """Ids of the carried columns for the request; empty if all are carried in schema order."""
        if self.positions == tuple(range(len(self.schema.columns))):
            return ()
        return tuple(self.schema.columns[i].column_id for i in self.positions)


def decode(schema: Schema, payload: bytes, column_ids: tuple[int, ...] = (), *, has_unset: bool = False) -> RowBatch:
    """Opens a wire form against the *catalog's* schema; never trusts a schema from the stream. Does not validate rows.

    Raises:
        KuduError: INVALID_ROW_BLOCK if the bytes are no such message; MISMATCHED_SCHEMA if a column id is unknown,
            repeated, or a key column is missing.
    """
    positions = positions_of(schema, column_ids) if column_ids else schema.all_positions
    wire_schema, rows_schema = arrow_schemas(schema, positions, has_unset)
    try:
        reader = pa.BufferReader(payload)
        message = pa.ipc.read_message(reader)
        if message.type != "record batch":
            raise KuduError(
                ErrorCode.INVALID_ROW_BLOCK,
                f"rows must be one Arrow IPC record batch message without its schema, not a {message.type} message",
            )
        if reader.tell() != len(payload):
            raise KuduError(ErrorCode.INVALID_ROW_BLOCK, "rows must be one Arrow message and nothing behind it")
        columns, is_compressed = _facts(message.metadata)
        if is_compressed:
            # A small message could ask for any amount of memory; and the log keeps what is sent.
            raise KuduError(ErrorCode.INVALID_ROW_BLOCK, "rows must be an Arrow record batch without body compression")
        if columns != len(wire_schema):
            # pyarrow would leave surplus columns out without a word.
            raise KuduError(
                ErrorCode.INVALID_ROW_BLOCK,
                f"rows have {columns} columns; this table and request need {len(wire_schema)}",
            )
        batch = pa.ipc.read_record_batch(message, wire_schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise KuduError(
            ErrorCode.INVALID_ROW_BLOCK, f"rows are no Arrow record batch of this schema: {str(error)[:200]}"
        ) from error
    operations_column = batch.column(0)
    if operations_column.null_count:
        raise KuduError(ErrorCode.INVALID_ROW_BLOCK, f"column {OPERATION_COLUMN} has a null")
    operations = operations_column.to_numpy(zero_copy_only=False)
    unset: npt.NDArray[np.bool_] | None = None
    first = 1
    if has_unset:
        first = 2
        width = (len(positions) + 7) // 8
        column = batch.column(1)
        if column.null_count:
            raise KuduError(ErrorCode.INVALID_ROW_BLOCK, f"column {UNSET_COLUMN} has a null")
        raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
        unset = np.unpackbits(raw.reshape(-1, width), axis=1, count=len(positions), bitorder="little").view(np.bool_)
    rows = pa.RecordBatch.from_arrays(batch.columns[first:], schema=rows_schema)
    return RowBatch(schema, operations, rows, positions, unset)


def _facts(metadata: pa.Buffer) -> tuple[int, bool]:
    """Of a record batch message: its number of columns (`RecordBatch.nodes`, a node each since no type here is nested)
    and whether it names a body compression; fields 1 and 3 of field 2 of `Message`.

    pyarrow shows no such thing. The metadata is a flatbuffer that pyarrow has verified: a table begins with the
    distance back to its vtable, which holds 16-bit offsets of its fields, 0 for those that are absent.
    """
    content = metadata.to_pybytes()

    def number(at: int) -> int:
        return int.from_bytes(content[at : at + 4], "little")

    def field(table: int, index: int) -> int:
        vtable = table - int.from_bytes(content[table : table + 4], "little", signed=True)
        size = int.from_bytes(content[vtable : vtable + 2], "little")
        at = 4 + 2 * index
        offset = int.from_bytes(content[vtable + at : vtable + at + 2], "little") if at < size else 0
        return table + offset if offset else 0

    header = field(number(0), 2)
    if not header:
        return 0, False
    batch = header + number(header)
    nodes = field(batch, 1)
    return number(nodes + number(nodes)) if nodes else 0, field(batch, 3) != 0


def arrow_schemas(schema: Schema, positions: tuple[int, ...], has_unset: bool) -> tuple[pa.Schema, pa.Schema]:
    """The Arrow schemas of the wire form and of its rows alone; made once, as a small batch costs less than they."""
    known = schema.row_schemas.get((positions, has_unset))
    if known is None:
        fields = [schema.columns[i].arrow_field.with_nullable(True) for i in positions]
        wire = [pa.field(OPERATION_COLUMN, pa.uint8(), nullable=False)]
        if has_unset:
            wire.append(pa.field(UNSET_COLUMN, pa.binary((len(positions) + 7) // 8), nullable=False))
        known = pa.schema([*wire, *fields]), pa.schema(fields)
        if len(schema.row_schemas) < _ROW_SCHEMAS_MAX:
            schema.row_schemas[positions, has_unset] = known
    return known


def positions_of(schema: Schema, column_ids: tuple[int, ...]) -> tuple[int, ...]:
    by_id = {column.column_id: i for i, column in enumerate(schema.columns)}
    positions = []
    for column_id in column_ids:
        position = by_id.pop(column_id, None)
        if position is None:
            raise KuduError(ErrorCode.MISMATCHED_SCHEMA, f"column id {column_id} is unknown or listed twice")
        positions.append(position)
    for i in range(schema.key_count):
        if i >= len(positions) or positions[i] != i:
            raise KuduError(
                ErrorCode.MISMATCHED_SCHEMA,
                f"the primary key comes first and whole: column {schema.columns[i].name!r} is missing or out of place",
            )
    return tuple(positions)


def validate(batch: RowBatch) -> None:
    """Refuses a batch that may not enter a log, naming column and row; the whole batch, since nothing is half done.

    Raises:
        KuduError: INVALID_ROW_BLOCK for an empty or oversized batch, an unknown operation or a null in a key column;
            INVALID_MUTATION for a null in a column that is not nullable, a missing column without a default, or a cell
            or key above its size limit.
    """
    n = batch.row_count
    if not 1 <= n <= MAX_ROWS_PER_BATCH:
        raise KuduError(ErrorCode.INVALID_ROW_BLOCK, f"a write carries 1 to {MAX_ROWS_PER_BATCH} rows, not {n}")
    known = _VALID_OPERATION[batch.operations]
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise _refused(ErrorCode.INVALID_ROW_BLOCK, row, f"unknown operation code {batch.operations[row]}")
    needs_value = ~_DELETES[batch.operations]
    _validate_keys(batch)
    for k in range(batch.schema.key_count, len(batch.positions)):
        column = batch.schema.columns[batch.positions[k]]
        cells = batch.rows.column(k)
        _validate_cells(column.name, column.type, cells, column.length)
        if cells.null_count and not column.nullable:
            offending = needs_value & cells.is_null().to_numpy(zero_copy_only=False)
            if batch.unset is not None:
                offending &= ~batch.unset[:, k]
            if offending.any():
                row = int(np.flatnonzero(offending)[0])
                raise _refused(ErrorCode.INVALID_MUTATION, row, f"column {column.name!r} is not nullable but is null")
    _validate_missing(batch)
    assert batch.keys.rows == n, (batch.keys.rows, n)


def _validate_keys(batch: RowBatch) -> None:
    key_bytes: npt.NDArray[np.int64] | None = None
    for k in range(batch.schema.key_count):
        column = batch.schema.columns[k]
        cells = batch.rows.column(k)
        if cells.null_count:
            row = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
            raise _refused(ErrorCode.INVALID_ROW_BLOCK, row, f"key column {column.name!r} is null")
        if batch.unset is not None and batch.unset[:, k].any():
            row = int(np.flatnonzero(batch.unset[:, k])[0])
            raise _refused(ErrorCode.INVALID_ROW_BLOCK, row, f"key column {column.name!r} is not set")
        _validate_cells(column.name, column.type, cells, column.length)
        if pa.types.is_string(cells.type) or pa.types.is_binary(cells.type):
            lengths = pc.binary_length(cells).to_numpy(zero_copy_only=False).astype(np.int64)
            key_bytes = lengths if key_bytes is None else key_bytes + lengths
    if key_bytes is not None and len(key_bytes) and int(key_bytes.max()) > MAX_ENCODED_KEY_BYTES:
        row = int(key_bytes.argmax())
        raise _refused(
            ErrorCode.INVALID_MUTATION,
            row,
            f"the primary key has {int(key_bytes[row])} bytes; the limit is {MAX_ENCODED_KEY_BYTES}",
        )


def _validate_cells(name: str, kind: DataType, cells: pa.Array, max_characters: int) -> None:
    if not len(cells):
        return
    if kind is DataType.DATE:
        _validate_dates(name, cells)
    if kind not in (DataType.STRING, DataType.VARCHAR, DataType.BINARY):
        return
    # The sum of all cells bounds each of them: most batches are cleared without looking at any length.
    if cells.nbytes > MAX_CELL_BYTES:
        longest = pc.max(pc.binary_length(cells)).as_py() or 0
        if longest > MAX_CELL_BYTES:
            row = int(pc.index(pc.greater(pc.binary_length(cells), MAX_CELL_BYTES), True).as_py())
            raise _refused(
                ErrorCode.INVALID_MUTATION,
                row,
                f"column {name!r} has a cell of {longest} bytes; the limit is {MAX_CELL_BYTES}",
            )
    if kind is DataType.VARCHAR:
        over = pc.greater(pc.utf8_length(cells), max_characters)
        row = int(pc.index(over, True).as_py())
        if row >= 0:
            raise _refused(
                ErrorCode.INVALID_MUTATION, row, f"column {name!r} is longer than {max_characters} characters"
            )


def _validate_dates(name: str, cells: pa.Array) -> None:
    days = cells.cast(pa.int32())
    outside = pc.or_(pc.less(days, MIN_DATE_DAYS), pc.greater(days, MAX_DATE_DAYS))
    row = int(pc.index(outside, True).as_py())
    if row >= 0:
        raise _refused(ErrorCode.INVALID_MUTATION, row, f"column {name!r} has a date outside the years 0001 to 9999")


def _validate_missing(batch: RowBatch) -> None:
    inserts = _INSERTS[batch.operations]
    if not inserts.any():
        return
    carried = {position: k for k, position in enumerate(batch.positions)}
    for i, column in enumerate(batch.schema.columns):
        if column.nullable or column.default is not None or i < batch.schema.key_count:
            continue
        k = carried.get(i)
        if k is None:
            missing = inserts
        elif batch.unset is not None:
            missing = inserts & batch.unset[:, k]
        else:
            continue
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            raise _refused(
                ErrorCode.INVALID_MUTATION,
                row,
                f"column {column.name!r} is not nullable, has no default and is not set",
            )


def _refused(code: ErrorCode, row: int, why: str) -> KuduError:
    """The refusal of a batch for one of its rows; `details` says which for programs."""
    return KuduError(code, f"row {row}: {why}", details={"row": str(row)})
