"""`SmallBatch`: a wire batch of a few rows, opened and checked without Arrow and NumPy.

For a few rows the libraries cost more than the rows: hundreds of functions and objects that are not in any cache when
the next write comes. So a batch of a form that is known (`message_form`) is checked with `struct` and a few loops, its
keys become plain values, and its other cells stay in the bytes it came in until `join` makes arrays of many such
batches at once.

It takes only what `decode` and `validate` take, and refuses nothing: what is unusual in any way, or wrong, is left to
them, whose answer is then the only one (`SmallBatchReader.open`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.message_form import MessageForm, known_forms, learn
from kudu_py.common.row_batch import (
    MAX_DATE_DAYS,
    MIN_DATE_DAYS,
    RowBatch,
    RowOperation,
    arrow_schemas,
    decode,
)
from kudu_py.common.schema import MAX_CELL_BYTES, MAX_ENCODED_KEY_BYTES, DataType, Schema

SMALL_ROWS_MAX = 64
"""Above it arrays are no slower."""
SMALL_BYTES_MAX = MAX_CELL_BYTES
"""Of a whole message; so no cell of it is above the limit."""
_KINDS_MAX = 64
"""Kinds of batches kept for one schema; clients that set some columns only make one each, and may name any."""
_KIND_NUMBERS_MAX = 4096
"""Kinds known in a process; plans of further ones are made for each batch."""
_PLANS_MAX = 1024
"""Plans kept in a process, half a kilobyte each; all are forgotten when there would be more."""

Key = tuple[int | bytes, ...]
"""A key as `KeyBatch.scalars` gives it."""

_INSERTS = bytes((RowOperation.INSERT, RowOperation.UPSERT, RowOperation.INSERT_IGNORE, RowOperation.UPSERT_IGNORE))
_DELETES = bytes((RowOperation.DELETE, RowOperation.DELETE_IGNORE))
_OPERATIONS = bytes(RowOperation)
_WORDS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_UNPACK = {
    (code, count): struct.Struct(f"<{count}{code}").unpack_from
    for code in ("B", "H", "I", "Q", "i")
    for count in range(2 * SMALL_ROWS_MAX + 1)
}


class Column(NamedTuple):
    """A column of the wire form, as far as reading it goes.

    Attributes:
        width: bytes of a cell; 0: byte strings; -1: bits.
        type: what it is in the schema; None for the operations and the mask of what is not set.
        is_nullable: whether any cell may be null, and not only one that is of no importance.
        length: most characters of a VARCHAR; else 0.
        limit: a DECIMAL's absolute value is below this; else 0.
        carried: place among the carried columns; -1 for operations and mask.
    """

    width: int
    type: DataType | None
    is_nullable: bool
    length: int
    limit: int
    carried: int


class Place(NamedTuple):
    """Where a column of one batch is in its message.

    Attributes:
        column: which.
        nulls: how many cells are null; if none, there is no bitmap.
        validity, values, data: offsets in the message: of the bitmap, of the cells or string offsets, of the strings.
        data_bytes: of the strings.
    """

    column: Column
    nulls: int
    validity: int
    values: int
    data: int
    data_bytes: int


class Plan(NamedTuple):
    """What the head of a message says, found in order: it depends on the head alone, so it is found once for each.

    Attributes:
        rows: how many.
        size: bytes of the whole message.
        places: of all columns.
        keys: those of the key.
        checked: those whose cells must be looked at; a column of integers without nulls need not be.
    """

    rows: int
    size: int
    places: tuple[Place, ...]
    keys: tuple[Place, ...]
    checked: tuple[Place, ...]


_plans: dict[tuple[int, bytes], Plan] = {}
_kind_numbers: dict[tuple[tuple[Column, ...], int], int] = {}


class BatchKind:
    """Batches of one schema that carry the same columns.

    Attributes:
        schema, positions, has_unset: as `RowBatch` has them.
        columns: of the wire form.
        flips: per word of a key what makes its unsigned order the key's; None if there is a byte string in the key.
    """

    def __init__(self, schema: Schema, positions: tuple[int, ...], has_unset: bool) -> None:
        self.schema = schema
        self.positions = positions
        self.has_unset = has_unset
        columns = [Column(1, None, False, 0, 0, -1)]
        self.mask_width = (len(positions) + 7) // 8
        if has_unset:
            columns.append(Column(self.mask_width, None, False, 0, 0, -1))
        columns.extend(_column_of(schema, position, k) for k, position in enumerate(positions))
        self.columns = tuple(columns)
        # Plans are shared by all tablets whose batches have the same columns and key.
        layout = self.columns, schema.key_count
        known = len(_kind_numbers) < _KIND_NUMBERS_MAX or layout in _kind_numbers
        self.number = _kind_numbers.setdefault(layout, len(_kind_numbers)) if known else -1
        self.buffers = sum(2 + (column.width == 0) for column in columns)
        needed = [
            i
            for i, column in enumerate(schema.columns)
            if i >= schema.key_count and not column.nullable and column.default is None
        ]
        self.key_mask = (1 << schema.key_count) - 1
        self.needed_mask = sum(1 << positions.index(i) for i in needed if i in positions)
        self.may_insert = all(i in positions for i in needed)
        self.flips = _flips(schema)

    def open(self, payload: bytes) -> SmallBatch | None:
        """The batch; None if it is unusual or wrong in any way."""
        plan = None
        for form in known_forms(len(self.columns), self.buffers):
            key = (self.number, payload[: form.size])
            plan = _plans.get(key)
            if plan is not None:
                break
            fields = form.fields(payload)
            if fields is not None:
                plan = self._plan(form, fields)
                if plan is not None and self.number >= 0:
                    if len(_plans) >= _PLANS_MAX:
                        _plans.clear()
                    _plans[key] = plan
                break
        if plan is None or plan.size != len(payload):
            return None
        n = plan.rows
        at = plan.places[0].values
        operations = payload[at : at + n]
        if operations.translate(None, _OPERATIONS):
            return None
        if not self.may_insert and _has_inserts(operations):
            return None
        if self.has_unset and not self._may_leave_unset(plan, payload, operations):
            return None
        for place in plan.checked:
            if not self._is_sound(place, n, plan, payload, operations):
                return None
        keys = _keys(plan.keys, n, payload)
        return None if keys is None else SmallBatch(self, plan, payload, operations, keys)

    def _plan(self, form: MessageForm, fields: tuple[int, ...]) -> Plan | None:
        """Checks what the head of a message says."""
        n, body = fields[form.length], fields[form.body_length]
        columns, base = self.columns, form.size
        if not 1 <= n <= SMALL_ROWS_MAX or not 0 <= body <= SMALL_BYTES_MAX:
            return None
        buffer, node = form.buffers, form.nodes
        bitmap = (n + 7) >> 3
        places = []
        for column in columns:
            length, nulls = fields[node : node + 2]
            node += 2
            validity, validity_bytes, values, values_bytes = fields[buffer : buffer + 4]
            buffer += 4
            data = data_bytes = 0
            width = column.width
            if width > 0:
                needed = n * width
            elif width < 0:
                needed = bitmap
            else:
                needed = 4 * (n + 1)
                data, data_bytes = fields[buffer : buffer + 2]
                buffer += 2
            if length != n or not 0 <= nulls <= n or values_bytes < needed or (nulls and validity_bytes < bitmap):
                return None
            # Negative if any of them is.
            if validity | validity_bytes | values | values_bytes | data | data_bytes < 0:
                return None
            if (validity | values | data) & 7:
                return None
            if validity + validity_bytes > body or values + values_bytes > body or data + data_bytes > body:
                return None
            places.append(Place(column, nulls, base + validity, base + values, base + data, data_bytes))
        first = len(columns) - len(self.positions)
        keys = tuple(places[first : first + self.schema.key_count])
        if any(place.nulls for place in (*places[:first], *keys)):
            return None
        if sum(place.data_bytes for place in keys) > MAX_ENCODED_KEY_BYTES:
            return None
        checked = tuple(place for place in places[first:] if place.nulls or _is_checked(place.column))
        return Plan(n, form.size + body, tuple(places), keys, checked)

    def _may_leave_unset(self, plan: Plan, payload: bytes, operations: bytes) -> bool:
        """Whether no row leaves a key column unset, and no inserted one a column that must be given."""
        for mask, operation in zip(self.masks(plan, payload), operations, strict=True):
            if mask & self.key_mask or (mask & self.needed_mask and operation in _INSERTS):
                return False
        return True

    def masks(self, plan: Plan, payload: bytes) -> list[int]:
        """Of each row the bits of the columns that it does not set."""
        at, width = plan.places[1].values, self.mask_width
        return [
            int.from_bytes(payload[first : first + width], "little")
            for first in range(at, at + width * plan.rows, width)
        ]

    def _is_sound(self, place: Place, n: int, plan: Plan, payload: bytes, operations: bytes) -> bool:
        """Whether the cells of a column are what they should be."""
        column = place.column
        if place.nulls and not self._may_have_nulls(place, plan, payload, operations):
            return False
        if column.width == 0:
            return _are_strings(place, n, payload)
        if column.type is DataType.DATE:
            days = _UNPACK["i", n](payload, place.values)
            return bool(min(days) >= MIN_DATE_DAYS and max(days) <= MAX_DATE_DAYS)
        if column.type is DataType.DECIMAL:
            return all(
                abs(int.from_bytes(payload[at : at + 16], "little", signed=True)) < column.limit
                for at in range(place.values, place.values + 16 * n, 16)
            )
        return True

    def _may_have_nulls(self, place: Place, plan: Plan, payload: bytes, operations: bytes) -> bool:
        """Whether there are as many nulls as the head says, in rows that may have one there."""
        nulls = ~_bits(payload, place.validity, plan.rows) & ((1 << plan.rows) - 1)
        if nulls.bit_count() != place.nulls:
            return False
        if place.column.is_nullable:
            return True
        masks = self.masks(plan, payload) if self.has_unset else (0,) * plan.rows
        return all(
            operation in _DELETES or mask >> place.column.carried & 1
            for row, (operation, mask) in enumerate(zip(operations, masks, strict=True))
            if nulls >> row & 1
        )


class SmallBatch:
    """A valid batch of 1 to `SMALL_ROWS_MAX` rows.

    Attributes:
        kind: its schema and columns.
        plan: where everything is in `payload`.
        payload: the message.
        operations: codes of `RowOperation`, one a row.
        keys: one a row, as `KeyBatch.scalars` gives them.
    """

    __slots__ = ("keys", "kind", "operations", "payload", "plan")

    def __init__(self, kind: BatchKind, plan: Plan, payload: bytes, operations: bytes, keys: list[Key]) -> None:
        self.kind = kind
        self.plan = plan
        self.payload = payload
        self.operations = operations
        self.keys = keys


class SmallBatchReader:
    """Opens the batches of one schema: small ones the short way, all others by `decode`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._kinds: dict[tuple[tuple[int, ...], bool], BatchKind] = {}

    def open(self, payload: bytes, column_ids: tuple[int, ...], *, has_unset: bool) -> SmallBatch | RowBatch:
        """The rows; a `SmallBatch` is valid, a `RowBatch` is yet to be validated. Raises as `decode`."""
        if len(payload) > SMALL_BYTES_MAX:
            return decode(self.schema, payload, column_ids, has_unset=has_unset)
        kind = self._kinds.get((column_ids, has_unset))
        if kind is not None:
            small = kind.open(payload)
            if small is not None:
                return small
        batch = decode(self.schema, payload, column_ids, has_unset=has_unset)
        if kind is None and len(self._kinds) < _KINDS_MAX:
            kind = self._kinds[column_ids, has_unset] = BatchKind(self.schema, batch.positions, has_unset)
        if kind is not None:
            learn(payload, len(kind.columns), kind.buffers)
        return batch


def join(batches: Sequence[SmallBatch]) -> RowBatch:
    """The rows of batches of one kind, in order, as one batch of arrays."""
    kind = batches[0].kind
    first = len(kind.columns) - len(kind.positions)
    n = sum(batch.plan.rows for batch in batches)
    _, rows_schema = arrow_schemas(kind.schema, kind.positions, kind.has_unset)
    arrays = [_array(batches, i, n, field.type) for i, field in enumerate(rows_schema, start=first)]
    unset: npt.NDArray[np.bool_] | None = None
    if kind.has_unset:
        raw = np.frombuffer(_cells(batches, 1, kind.mask_width), np.uint8).reshape(-1, kind.mask_width)
        unset = np.unpackbits(raw, axis=1, count=len(kind.positions), bitorder="little").view(np.bool_)
    operations = np.frombuffer(b"".join([batch.operations for batch in batches]), np.uint8)
    rows = pa.RecordBatch.from_arrays(arrays, schema=rows_schema)
    return RowBatch(kind.schema, operations, rows, kind.positions, unset)


def _array(batches: Sequence[SmallBatch], i: int, n: int, kind: pa.DataType) -> pa.Array:
    width = batches[0].plan.places[i].column.width
    nulls = sum(batch.plan.places[i].nulls for batch in batches)
    buffers: list[pa.Buffer | None] = [None]
    if nulls:
        buffers[0] = _joined_bits(
            [
                (_bits(batch.payload, place.validity, batch.plan.rows) if place.nulls else -1, batch.plan.rows)
                for batch in batches
                for place in batch.plan.places[i : i + 1]
            ],
            n,
        )
    if width > 0:
        buffers.append(pa.py_buffer(_cells(batches, i, width)))
    elif width < 0:
        values = [
            (_bits(batch.payload, batch.plan.places[i].values, batch.plan.rows), batch.plan.rows) for batch in batches
        ]
        buffers.append(_joined_bits(values, n))
    else:
        buffers.extend(_joined_strings(batches, i, n))
    return pa.Array.from_buffers(kind, n, buffers, nulls)


def _cells(batches: Sequence[SmallBatch], i: int, width: int) -> bytes:
    parts = []
    for batch in batches:
        at = batch.plan.places[i].values
        parts.append(batch.payload[at : at + width * batch.plan.rows])
    return b"".join(parts)


def _joined_bits(parts: Sequence[tuple[int, int]], n: int) -> pa.Buffer:
    bits = at = 0
    for part, rows in parts:
        bits |= (part & ((1 << rows) - 1)) << at
        at += rows
    return pa.py_buffer(bits.to_bytes((n + 7) >> 3, "little"))


def _joined_strings(batches: Sequence[SmallBatch], i: int, n: int) -> tuple[pa.Buffer, pa.Buffer]:
    firsts, lasts, parts = [], [], []
    for batch in batches:
        place, payload, rows = batch.plan.places[i], batch.payload, batch.plan.rows
        at, end = place.values, place.values + 4 * rows
        firsts.append(payload[at:end])
        lasts.append(payload[at + 4 : end + 4])
        first = int.from_bytes(payload[at : at + 4], "little")
        last = int.from_bytes(payload[end : end + 4], "little")
        parts.append(payload[place.data + first : place.data + last])
    joined = np.zeros(n + 1, np.int32)
    lengths = np.frombuffer(b"".join(lasts), np.int32) - np.frombuffer(b"".join(firsts), np.int32)
    np.cumsum(lengths, out=joined[1:])
    return pa.py_buffer(joined), pa.py_buffer(b"".join(parts))


def _bits(payload: bytes, at: int, n: int) -> int:
    return int.from_bytes(payload[at : at + ((n + 7) >> 3)], "little")


def _has_inserts(operations: bytes) -> bool:
    return any(operation in _INSERTS for operation in operations)


def _are_strings(place: Place, n: int, payload: bytes) -> bool:
    offsets = _UNPACK["i", n + 1](payload, place.values)
    if offsets[0] < 0 or offsets[n] > place.data_bytes:
        return False
    if (n > 1 and sorted(offsets) != list(offsets)) or offsets[0] > offsets[n]:
        return False
    column = place.column
    if column.type is DataType.BINARY:
        return True
    data = payload[place.data : place.data + place.data_bytes]
    most = column.length or SMALL_BYTES_MAX
    if data.isascii():
        return len(data) <= most or max(last - first for first, last in pairwise(offsets)) <= most
    try:
        return all(len(data[first:last].decode()) <= most for first, last in pairwise(offsets))
    except UnicodeDecodeError:
        return False


def _keys(places: tuple[Place, ...], n: int, payload: bytes) -> list[Key] | None:
    parts: list[Sequence[int | bytes]] = []
    for place in places:
        width = place.column.width
        if width == 0:
            offsets = _UNPACK["i", n + 1](payload, place.values)
            at = place.data
            parts.append([payload[at + first : at + last] for first, last in pairwise(offsets)])
        elif width == 16:
            words = _UNPACK["Q", 2 * n](payload, place.values)
            parts.extend((words[1::2], words[::2]))
        else:
            parts.append(_UNPACK[_WORDS[width], n](payload, place.values))
    return list(zip(*parts, strict=True))


def _is_checked(column: Column) -> bool:
    return column.width == 0 or column.type in (DataType.DATE, DataType.DECIMAL)


def _column_of(schema: Schema, position: int, carried: int) -> Column:
    column = schema.columns[position]
    kind = column.arrow_type
    limit = 10**column.precision if column.type is DataType.DECIMAL else 0
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width = 0
    elif column.type is DataType.BOOL:
        width = -1
    else:
        width = kind.bit_width // 8
    return Column(width, column.type, column.nullable, column.length, limit, carried)


def _flips(schema: Schema) -> tuple[int, ...] | None:
    flips: list[int] = []
    for position in range(schema.key_count):
        column = _column_of(schema, position, position)
        if column.width == 0:
            return None
        flips.extend((1 << 63, 0) if column.width == 16 else (1 << (8 * column.width - 1),))
    return tuple(flips)
