"""`RowEncoder`: a few single rows to the wire form of a Write, without Arrow and NumPy.

For a handful of rows the libraries cost more than the rows: hundreds of functions and objects that are in no cache when
the next row comes. So the message is put together here, byte for byte what Arrow makes of the same rows
(`tests/client/test_row_encoder.py`): the metadata, a flatbuffer of which only numbers change, and the columns' buffers.
Above `SMALL_ROWS_MAX` rows Arrow is faster (`pieces.py`).

Source: Arrow's `Message.fbs`, "Encapsulated message format", and FlatBuffers' internals.
"""

from __future__ import annotations

import decimal
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kudu_py.client.row_checker import UNSET
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import EPOCH, days_since_epoch, micros_since_epoch

SMALL_ROWS_MAX = 128
"""Rows of one message up to which plain Python is faster than Arrow, on cold caches by far."""

_ROOT = bytes.fromhex("1400000000000000 0c00 1600 0600 0500 0800 0c00 0c000000 00 03 0400 18000000")
"""The beginning of a flatbuffer `Message`: where its root is; its vtable; the root: type RecordBatch, version V5."""
_BATCH = bytes.fromhex("0000 0a00 1800 0c00 0400 0800 0a000000")
"""The vtable of a `RecordBatch`, and its beginning: then come the ways to nodes and buffers, and the length."""
_PADDING = tuple(b"\0" * (-size % 8) for size in range(8))
_CODES = {
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.FLOAT: "f",
    DataType.DOUBLE: "d",
    DataType.UNIXTIME_MICROS: "q",
    DataType.DATE: "i",
}
_DECIMAL_CONTEXT = decimal.Context(prec=76)

Cells = Sequence[Any]
"""Canonical values of one column, by its type."""
Pack = Callable[..., bytes]


class EncodedRows(NamedTuple):
    """Rows as a WriteRequest carries them.

    Attributes:
        rows: one encapsulated Arrow record batch message.
        column_ids: of the carried columns; empty if all are carried.
        has_unset: whether the message begins with the mask of what its rows do not set.
    """

    rows: bytes
    column_ids: tuple[int, ...]
    has_unset: bool


class RowEncoder:
    """Encodes rows of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._columns = tuple(_Column.of(column) for column in schema.columns)

    def encode(self, operations: bytes, rows: Sequence[Cells]) -> EncodedRows:
        """The wire form of 1 to `SMALL_ROWS_MAX` rows.

        Args:
            operations: the code of each row's operation.
            rows: of each a canonical value, None or UNSET per column of the schema. A column that no row sets is left
                out.

        Raises:
            OverflowError, struct.error: a value for which Arrow has another form, such as a FLOAT that is rounded to
                infinity.
        """
        n = len(operations)
        assert n == len(rows) <= SMALL_ROWS_MAX, (n, len(rows))
        size = (n + 7) & -8
        parts = [operations, _PADDING[n & 7]]
        buffers = [0, 0, 0, n]
        nodes = [n, 0]
        left_out = 0
        masks: list[tuple[int, int]] | None = None  # of a column: its place, and its rows that do not set it, as bits
        for i, cells in enumerate(zip(*rows, strict=True)):
            if UNSET in cells:
                unset = _bits([cell is UNSET for cell in cells])
                if unset == (1 << n) - 1:
                    left_out |= 1 << i
                    continue
                masks = [*(masks or ()), (i, unset)]
                cells = tuple(None if cell is UNSET else cell for cell in cells)
            column = self._columns[i]
            nodes.append(n)
            buffers.append(size)
            if None in cells:
                valid = _bits([cell is not None for cell in cells])
                nodes.append(n - valid.bit_count())
                bitmap = valid.to_bytes((n + 7) >> 3, "little")
                buffers.append(len(bitmap))
                parts += (bitmap, _PADDING[len(bitmap) & 7])
                size += (len(bitmap) + 7) & -8
                cells = tuple(column.null if cell is None else cell for cell in cells)
            else:
                nodes.append(0)
                buffers.append(0)
            if column.convert is not None:
                cells = tuple(map(column.convert, cells))
            if column.is_of_bytes:
                size = _add_byte_strings(n, cells, size, buffers, parts)
                continue
            values = column.packs[n](*cells) if column.packs else _bit_string(cells)
            used = column.width * n if column.width else len(values)
            buffers += (size, used)
            padding = _PADDING[len(values) & 7]
            parts += (values, padding)
            size += len(values) + len(padding)
        if masks is not None:
            size = self._insert_masks(n, left_out, masks, size, buffers, nodes, parts)
        layout, start, middle, before_buffers, before_nodes = _layout(len(buffers) >> 1, len(nodes) >> 1)
        metadata = layout(start, size, middle, n, before_buffers, *buffers, before_nodes, *nodes)
        columns = self.schema.columns
        ids = tuple(c.column_id for i, c in enumerate(columns) if not left_out >> i & 1) if left_out else ()
        return EncodedRows(b"".join((metadata, *parts)), ids, masks is not None)

    def _insert_masks(
        self,
        n: int,
        left_out: int,
        masks: list[tuple[int, int]],
        size: int,
        buffers: list[int],
        nodes: list[int],
        parts: list[bytes],
    ) -> int:
        """Puts the column of masks behind that of operations; answers the new size of the body."""
        carried = [i for i in range(len(self._columns)) if not left_out >> i & 1]
        rows = [0] * n
        for i, unset in masks:
            k = carried.index(i)
            for row in range(n):
                rows[row] |= (unset >> row & 1) << k
        width = (len(carried) + 7) >> 3
        mask = b"".join([bits.to_bytes(width, "little") for bits in rows])
        padding = _PADDING[len(mask) & 7]
        more = len(mask) + len(padding)
        at = (n + 7) & -8
        for k in range(4, len(buffers), 2):
            buffers[k] += more
        buffers[4:4] = (at, 0, at, len(mask))
        nodes[2:2] = (n, 0)
        parts[2:2] = (mask, padding)
        return size + more


class _Column(NamedTuple):
    """How cells of one column become a buffer.

    Attributes:
        null: what stands in the place of a null, before `convert`.
        convert: from the canonical value to what is packed; None: the same.
        packs: by the number of cells; empty for byte strings and bits.
        width: bytes of a cell; 0 for byte strings and bits.
        is_of_bytes: byte strings.
    """

    null: Any
    convert: Callable[[Any], Any] | None
    packs: tuple[Pack, ...]
    width: int
    is_of_bytes: bool

    @classmethod
    def of(cls, column: ColumnSchema) -> _Column:
        kind = column.type
        if kind is DataType.BOOL:
            return cls(False, None, (), 0, False)
        if kind is DataType.BINARY:
            return cls(b"", None, (), 0, True)
        if kind is DataType.STRING or kind is DataType.VARCHAR:
            return cls("", str.encode, (), 0, True)
        if kind is DataType.DECIMAL:
            return cls(decimal.Decimal(0), _unscaler(column.scale), _packs("16s"), 16, False)
        code = _CODES[kind]
        packs, width = _packs(code), struct.calcsize(f"<{code}")
        if kind is DataType.UNIXTIME_MICROS:
            return cls(EPOCH, micros_since_epoch, packs, width, False)
        if kind is DataType.DATE:
            return cls(EPOCH.date(), days_since_epoch, packs, width, False)
        return cls(0, None, packs, width, False)


def _add_byte_strings(n: int, cells: Cells, size: int, buffers: list[int], parts: list[bytes]) -> int:
    """Adds the buffers of offsets and bytes; answers the new size of the body."""
    end = 0
    offsets = [0]
    for cell in cells:
        end += len(cell)
        offsets.append(end)
    packed = _packs("i")[n + 1](*offsets)
    at = size + len(packed)
    padding = _PADDING[end & 7]
    buffers += (size, 4 * n + 4, at, end)
    parts += (packed, *cells, padding)
    return at + end + len(padding)


@functools.cache
def _packs(code: str) -> tuple[Pack, ...]:
    """What packs 0, 1, 2... values, padded to eight bytes."""
    width = struct.calcsize(f"<{code}")
    formats = ["<" + code * n + "x" * (-width * n % 8) for n in range(SMALL_ROWS_MAX + 2)]
    return tuple(struct.Struct(form).pack for form in formats)


@functools.cache
def _layout(buffers: int, nodes: int) -> tuple[Pack, bytes, bytes, bytes, bytes]:
    """What packs the metadata of messages with so many buffers and nodes, and the bytes between its numbers."""
    size = 80 + 16 * buffers + 8 + 16 * nodes
    start = struct.pack("<iI", -1, size) + _ROOT
    # From where they stand to the vectors: the buffers come first, the nodes last.
    middle = _BATCH + struct.pack("<II", 16 * buffers + 28, 16)
    layout = struct.Struct(f"<40sq24sq8s{2 * buffers}q8s{2 * nodes}q")
    assert layout.size == 8 + size, (layout.size, size)
    return layout.pack, start, middle, struct.pack("<II", 0, buffers), struct.pack("<II", 0, nodes)


def _bits(marks: Sequence[object]) -> int:
    """Bit i is set if mark i is true."""
    bits = 0
    for i, mark in enumerate(marks):
        if mark:
            bits |= 1 << i
    return bits


def _bit_string(cells: Cells) -> bytes:
    return _bits(cells).to_bytes((len(cells) + 7) >> 3, "little")


def _unscaler(scale: int) -> Callable[[decimal.Decimal], bytes]:
    def unscaled(value: decimal.Decimal) -> bytes:
        return int(value.scaleb(scale, _DECIMAL_CONTEXT)).to_bytes(16, "little", signed=True)

    return unscaled
