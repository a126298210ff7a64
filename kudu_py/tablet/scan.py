"""Snapshot, predicates and projection: rowsets in, Arrow batches out.

A scan never compares keys to find versions: a key is live in at most one place, so each rowset is read by itself. Per
chunk of base rows: leave out rows that are not yet or no longer there at the snapshot, lay the deltas over the columns
that are needed, evaluate the predicates, project. An ordered scan merges the rowsets' selected rows by key, a bounded
stretch of each at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import I64, Bools, KeyBatch, encode_keys
from kudu_py.common.predicate import BoundPredicate
from kudu_py.common.schema import ColumnSchema, Schema
from kudu_py.tablet.deltas import DeltaView, view_of
from kudu_py.tablet.rowset import Chunk, RowSource
from kudu_py.tablet.scan_spec import ScanSpec

STRETCH_ROWS = 65_536
"""Base rows worked on at once.

Large enough that NumPy's and Arrow's fixed costs vanish, small enough for the caches.
"""
_COUNT_ROWS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class BoundScan:
    """A scan checked against the schema.

    Attributes:
        schema: the tablet's schema.
        projection: the columns to give, in order.
        arrow_schema: of the batches.
        predicates: all must hold.
        read_defaults: by column id, what rows older than a column read; absent: null.
        spec: the rest of the request.
    """

    schema: Schema
    projection: tuple[ColumnSchema, ...]
    arrow_schema: pa.Schema
    predicates: tuple[BoundPredicate, ...]
    read_defaults: dict[int, object]
    spec: ScanSpec

    @property
    def timestamp(self) -> int:
        """The snapshot."""
        return self.spec.timestamp


def bind(schema: Schema, spec: ScanSpec, read_defaults: dict[int, object]) -> BoundScan:
    """Checks a request.

    Raises:
        KuduError: COLUMN_NOT_FOUND, INVALID_ARGUMENT (a predicate's values) or INVALID_SCAN_SPEC, naming what is wrong.
    """
    if spec.limit is not None and spec.limit < 0:
        raise KuduError(ErrorCode.INVALID_SCAN_SPEC, f"a scan's limit is at least 0, not {spec.limit}")
    if len(set(spec.columns)) != len(spec.columns):
        twice = next(name for name in spec.columns if spec.columns.count(name) > 1)
        raise KuduError(ErrorCode.INVALID_SCAN_SPEC, f"column {twice[:256]!r} is projected twice")
    projection = tuple(schema.column(name) for name in spec.columns)
    return BoundScan(
        schema,
        projection,
        pa.schema([column.arrow_field for column in projection]),
        tuple(predicate.bind(schema) for predicate in spec.predicates),
        read_defaults,
        spec,
    )


def scan(sources: Sequence[RowSource], bound: BoundScan) -> Iterator[pa.RecordBatch]:
    """The selected rows in batches of about `batch_bytes`; holds `sources` until it ends or is closed."""
    selected = _merged(sources, bound) if bound.spec.ordered else _unordered(sources, bound)
    yield from _batches(selected, bound)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Selected rows: projected columns, and key columns if the scan is ordered."""

    rows: int
    arrays: list[pa.Array]
    keys: list[pa.Array]


def _unordered(sources: Sequence[RowSource], bound: BoundScan) -> Iterator[_Piece]:
    for source in sources:
        yield from _select(source, bound)


def _select(source: RowSource, bound: BoundScan) -> Iterator[_Piece]:
    """The selected rows of one rowset, by rising position."""
    wanted = {column.column_id: column for column in bound.projection}
    wanted.update({predicate.column.column_id: predicate.column for predicate in bound.predicates})
    value_ids = [c.column_id for c in bound.schema.columns[bound.schema.key_count :] if c.column_id in wanted]
    view = view_of(
        redo=source.redo(),
        undo=source.undo(bound.timestamp),
        ranges=source.row_ranges,
        positions=source.positions,
        timestamp=bound.timestamp,
        column_ids=value_ids,
    )
    for chunk in source.chunks():
        if not all(_may_match(chunk, view, predicate) for predicate in bound.predicates):
            continue
        for first in range(0, chunk.rows, STRETCH_ROWS):
            piece = _Stretch(chunk, view, bound, first, min(STRETCH_ROWS, chunk.rows - first)).select()
            if piece is not None:
                yield piece


def _may_match(chunk: Chunk, view: DeltaView, predicate: BoundPredicate) -> bool:
    # Statistics are of base values: they say nothing where a delta changes the column.
    changes = view.columns.get(predicate.column.column_id)
    if changes is not None and len(changes.between(chunk.first, chunk.first + chunk.rows)[0]):
        return True
    return chunk.may_match(predicate)


class _Stretch:
    """Consecutive rows of a chunk, at most `STRETCH_ROWS`."""

    def __init__(self, chunk: Chunk, view: DeltaView, bound: BoundScan, first: int, rows: int) -> None:
        self._chunk = chunk
        self._view = view
        self._bound = bound
        self._first = first
        self._rows = rows
        self._columns: dict[int, pa.Array] = {}

    def select(self) -> _Piece | None:
        """The selected rows; None if there is none."""
        bound = self._bound
        mask = self._visible()
        for predicate in bound.predicates:
            holds = predicate.evaluate(self._column(predicate.column)).to_numpy(zero_copy_only=False)
            mask = holds if mask is None else mask & holds
            if not mask.any():
                return None
        mask = self._within_bounds(mask)
        rows = self._rows
        indices: pa.Array | None = None
        if mask is not None:
            chosen = np.flatnonzero(mask)
            rows = len(chosen)
            if rows == 0:
                return None
            if rows < self._rows:
                indices = pa.array(chosen)
        arrays = [self._chosen(column, indices) for column in bound.projection]
        keys = [self._chosen(column, indices) for column in bound.schema.key_columns] if bound.spec.ordered else []
        return _Piece(rows, arrays, keys)

    def _chosen(self, column: ColumnSchema, indices: pa.Array | None) -> pa.Array:
        cells = self._column(column)
        return cells if indices is None else cells.take(indices)

    def _visible(self) -> Bools | None:
        """Rows inserted and not deleted at the snapshot; None: all."""
        mask: Bools | None = None
        if self._chunk.max_timestamp > self._bound.timestamp:
            times = self._chunk.timestamps()[self._first : self._first + self._rows]
            mask = times <= np.uint64(self._bound.timestamp)
        at = self._chunk.first + self._first
        deleted = self._view.deleted_between(at, at + self._rows)
        if len(deleted):
            if mask is None:
                mask = np.ones(self._rows, np.bool_)
            mask[deleted] = False
        return mask

    def _within_bounds(self, mask: Bools | None) -> Bools | None:
        spec = self._bound.spec
        bounds = (
            (spec.start_key, pc.greater_equal),
            (spec.start_after_key, pc.greater),
            (spec.end_key, pc.less),
        )
        if all(key is None for key, _ in bounds):
            return mask
        schema = self._bound.schema
        encoded = encode_keys(schema, [self._column(column) for column in schema.key_columns]).array
        for key, kernel in bounds:
            if key is not None:
                holds = kernel(encoded, pa.scalar(key, pa.binary())).to_numpy(zero_copy_only=False)
                mask = holds if mask is None else mask & holds
        return mask

    def _column(self, column: ColumnSchema) -> pa.Array:
        """The column's values at the snapshot (of rows that are visible; others may read anything)."""
        cells = self._columns.get(column.column_id)
        if cells is None:
            base = self._chunk.column(column)
            if base is None:
                default = self._bound.read_defaults.get(column.column_id)
                cells = pa.repeat(pa.scalar(default, column.arrow_type), self._rows)
            else:
                cells = base.slice(self._first, self._rows)
            changes = self._view.columns.get(column.column_id)
            if changes is not None:
                at = self._chunk.first + self._first
                positions, values = changes.between(at, at + self._rows)
                if len(positions):
                    cells = overlay(cells, positions, values)
            self._columns[column.column_id] = cells
        return cells


def overlay(cells: pa.Array, positions: I64, values: pa.Array) -> pa.Array:
    """`cells` with `values` at `positions` (rising, no two equal)."""
    if len(positions) == len(cells):
        return values
    kind = cells.type
    if not cells.null_count and not values.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        changed = cells.to_numpy().copy()
        changed[positions] = values.to_numpy()
        return pa.array(changed, kind)
    places = np.arange(len(cells), dtype=np.int64)
    places[positions] = np.arange(len(cells), len(cells) + len(values))
    return pa.concat_arrays([cells, values]).take(pa.array(places))


# -- batches ----------------------------------------------------------------------------------------------------------


def _batches(pieces: Iterator[_Piece], bound: BoundScan) -> Iterator[pa.RecordBatch]:
    """Joins small pieces, divides large ones, and stops at the limit."""
    left = bound.spec.limit
    if left == 0:
        return
    if not bound.projection:
        yield from _counts(pieces, left)
        return
    pending: list[list[pa.Array]] = []
    pending_bytes = 0
    target = bound.spec.batch_bytes
    for piece in pieces:
        arrays, rows = piece.arrays, piece.rows
        if left is not None:
            if rows > left:
                arrays, rows = [array.slice(0, left) for array in arrays], left
            left -= rows
        pending.append(arrays)
        pending_bytes += sum(array.nbytes for array in arrays)
        # A piece a little below the target goes out by itself: joining copies it.
        if 4 * pending_bytes >= 3 * target:
            yield from _emit(pending, pending_bytes, bound)
            pending, pending_bytes = [], 0
        if left == 0:
            break
    if pending:
        yield from _emit(pending, pending_bytes, bound)


def _emit(pending: list[list[pa.Array]], size_bytes: int, bound: BoundScan) -> Iterator[pa.RecordBatch]:
    arrays = pending[0] if len(pending) == 1 else [pa.concat_arrays(list(same)) for same in zip(*pending, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=bound.arrow_schema)
    parts = max(1, min(-(-size_bytes // max(1, bound.spec.batch_bytes)), batch.num_rows))
    # Half a batch too much is no reason to divide.
    if parts == 1 or 2 * size_bytes <= 3 * bound.spec.batch_bytes:
        yield batch
        return
    rows = -(-batch.num_rows // parts)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _counts(pieces: Iterator[_Piece], left: int | None) -> Iterator[pa.RecordBatch]:
    total = 0
    for piece in pieces:
        total += piece.rows
        if left is not None and total >= left:
            total = left
            break
        if left is None and total >= _COUNT_ROWS_MAX:
            yield rows_without_columns(total)
            total = 0
    if total:
        yield rows_without_columns(total)


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """A batch of no columns that knows its number of rows."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


# -- key order --------------------------------------------------------------------------------------------------------


class _Stream:
    """The selected rows of one rowset in key order, a piece at a time."""

    def __init__(self, pieces: Iterator[_Piece], schema: Schema) -> None:
        self._pieces = pieces
        self._schema = schema
        self._piece: _Piece | None = None
        self._encoded: pa.Array | None = None
        self._next = 0
        self._ahead = next(pieces, None)
        self.advance()

    def advance(self) -> None:
        """Takes the next piece, once the current one is used up."""
        self._piece = self._ahead
        if self._piece is not None:
            self._ahead = next(self._pieces, None)
            self._encoded = encode_keys(self._schema, self._piece.keys).array
        self._next = 0

    @property
    def done(self) -> bool:
        return self._piece is None

    @property
    def last_key_if_more(self) -> bytes | None:
        """The last key of the current piece, if another piece follows: rows above it are not known yet."""
        if self._ahead is None or self._encoded is None:
            return None
        key: bytes = self._encoded[-1].as_py()
        return key

    def take_to(self, bound: bytes | None) -> _Piece | None:
        """The rows of the current piece up to `bound` (None: all)."""
        piece, encoded = self._piece, self._encoded
        assert piece is not None
        assert encoded is not None
        end = piece.rows
        if bound is not None:
            end = bisect_right(range(piece.rows), bound, lo=self._next, key=lambda i: encoded[i].as_py())
        first, self._next = self._next, end
        taken = None
        if end > first:
            count = end - first
            taken = _Piece(
                count, [a.slice(first, count) for a in piece.arrays], [k.slice(first, count) for k in piece.keys]
            )
        if end == piece.rows:
            self.advance()
        return taken


def _merged(sources: Sequence[RowSource], bound: BoundScan) -> Iterator[_Piece]:
    streams = []
    for source in sources:
        pieces = _select(source, bound)
        stream = _Stream(pieces if source.key_ordered else _sorted(pieces, bound.schema), bound.schema)
        if not stream.done:
            streams.append(stream)
    while streams:
        if len(streams) == 1:
            # Nothing to merge with: the rest as it comes.
            while not streams[0].done:
                rest = streams[0].take_to(None)
                if rest is not None:
                    yield rest
            return
        limits = [key for key in (stream.last_key_if_more for stream in streams) if key is not None]
        limit = min(limits) if limits else None
        parts = [part for part in (stream.take_to(limit) for stream in streams) if part is not None]
        streams = [stream for stream in streams if not stream.done]
        if parts:
            yield _sort(parts, bound.schema)


def _sorted(pieces: Iterator[_Piece], schema: Schema) -> Iterator[_Piece]:
    """All pieces of a rowset in arrival order as one in key order; a MemRowSet fits in memory."""
    parts = list(pieces)
    if parts:
        yield _sort(parts, schema)


def _sort(parts: list[_Piece], schema: Schema) -> _Piece:
    arrays = [pa.concat_arrays(list(same)) for same in zip(*(part.arrays for part in parts), strict=True)]
    keys = [pa.concat_arrays(list(same)) for same in zip(*(part.keys for part in parts), strict=True)]
    order = pa.array(KeyBatch.of(schema, keys).order())
    return _Piece(len(order), [array.take(order) for array in arrays], [key.take(order) for key in keys])
