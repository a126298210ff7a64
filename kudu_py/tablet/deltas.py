"""Updates and deletes, kept by row id and laid over base rows by position.

A `DeltaBlock` is a batch of deltas, in memory or mapped from a layer file. `DeltaLog` collects those since the last
flush.
A `DeltaView` is what a scan makes of all blocks of one rowset for one snapshot: per column the rows that read another
value than their base, and the rows that are deleted. Row ids stay the same when rows move, so neither flush nor
compaction ever rewrites a delta because its row went elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kudu_py.common.key_encoding import I64, U64, Bools
from kudu_py.common.row_batch import RowBatch
from kudu_py.tablet.records import RowIdRange

_JOIN_COUNT = 32
_JOIN_ROWS_MAX = 65_536
_BLOCK_OVERHEAD_BYTES = 2048


@dataclass(frozen=True, slots=True, eq=False)
class DeltaColumn:
    """New values of one column.

    Attributes:
        values: [n]; null where not set (and where set to null).
        is_set: bool[n], whether the delta changes this column; None: all do.
    """

    values: pa.Array
    is_set: Bools | None


@dataclass(frozen=True, eq=False)
class DeltaBlock:
    """n deltas; those of one row are in order of time.

    Attributes:
        row_ids: int64[n].
        timestamps: uint64[n].
        deletes: bool[n]; a delete changes no column and is its row's last delta.
        columns: by column id.
        is_sorted: the row ids rise.
    """

    row_ids: I64
    timestamps: U64
    deletes: Bools
    columns: dict[int, DeltaColumn]
    is_sorted: bool = False
    _order: list[tuple[I64, I64]] = field(init=False, repr=False, default_factory=list)

    @property
    def rows(self) -> int:
        """n."""
        return len(self.row_ids)

    @property
    def memory_bytes(self) -> int:
        """Memory that the arrays take."""
        size = self.rows * 17 + _BLOCK_OVERHEAD_BYTES
        for column in self.columns.values():
            size += column.values.nbytes + (0 if column.is_set is None else self.rows)
        return size

    def by_row_id(self) -> tuple[I64, I64]:
        """Row ids in rising order and the place of each in the block.

        Computed once (twice, if two threads meet here).
        """
        if not self._order:
            if self.is_sorted:
                self._order.append((self.row_ids, np.arange(self.rows, dtype=np.int64)))
            else:
                order = np.argsort(self.row_ids, kind="stable")
                self._order.append((self.row_ids[order], order))
        return self._order[0]

    def take(self, rows: I64) -> DeltaBlock:
        """Some deltas, in that order."""
        indices = pa.array(rows)
        columns = {
            column_id: DeltaColumn(column.values.take(indices), None if column.is_set is None else column.is_set[rows])
            for column_id, column in self.columns.items()
        }
        return DeltaBlock(self.row_ids[rows], self.timestamps[rows], self.deletes[rows], columns)


def updates_of(batch: RowBatch, rows: I64, row_ids: I64, timestamp: int) -> DeltaBlock:
    """The deltas that rows of a batch make to existing rows: their values, without the key, as far as they are set."""
    n = len(rows)
    whole = n == batch.row_count
    indices = None if whole else pa.array(rows)
    columns: dict[int, DeltaColumn] = {}
    schema = batch.schema
    for k in range(schema.key_count, len(batch.positions)):
        cells = batch.rows.column(k)
        is_set: Bools | None = None
        if batch.unset is not None:
            unset = batch.unset[:, k] if whole else batch.unset[rows, k]
            if unset.all():
                continue
            if unset.any():
                is_set = ~unset
        columns[schema.columns[batch.positions[k]].column_id] = DeltaColumn(
            cells if indices is None else cells.take(indices), is_set
        )
    return DeltaBlock(row_ids, np.full(n, timestamp, np.uint64), np.zeros(n, np.bool_), columns)


def deletes_of(row_ids: I64, timestamp: int) -> DeltaBlock:
    """The deltas that delete rows."""
    return deletes_at(row_ids, np.full(len(row_ids), timestamp, np.uint64))


def deletes_at(row_ids: I64, timestamps: U64) -> DeltaBlock:
    """The deltas that delete each row at its time."""
    return DeltaBlock(row_ids, timestamps, np.ones(len(row_ids), np.bool_), {})


def concatenate(blocks: Sequence[DeltaBlock]) -> DeltaBlock:
    """All deltas of the blocks, one after another."""
    if len(blocks) == 1:
        return blocks[0]
    kinds: dict[int, pa.DataType] = {}
    for block in blocks:
        for column_id, column in block.columns.items():
            kinds.setdefault(column_id, column.values.type)
    columns = {column_id: _concatenate_column(blocks, column_id, kind) for column_id, kind in sorted(kinds.items())}
    return DeltaBlock(
        np.concatenate([block.row_ids for block in blocks]),
        np.concatenate([block.timestamps for block in blocks]),
        np.concatenate([block.deletes for block in blocks]),
        columns,
    )


def _concatenate_column(blocks: Sequence[DeltaBlock], column_id: int, kind: pa.DataType) -> DeltaColumn:
    values = []
    masks = []
    partial = False
    for block in blocks:
        column = block.columns.get(column_id)
        if column is None:
            values.append(pa.nulls(block.rows, kind))
            masks.append(np.zeros(block.rows, np.bool_))
            partial = True
        else:
            values.append(column.values)
            masks.append(np.ones(block.rows, np.bool_) if column.is_set is None else column.is_set)
            partial = partial or column.is_set is not None
    return DeltaColumn(pa.concat_arrays(values), np.concatenate(masks) if partial else None)


class DeltaLog:
    """Deltas since the last flush, in the order they were applied. The loop's thread appends; blocks never change."""

    def __init__(self) -> None:
        self._blocks: list[DeltaBlock] = []
        self._levels: list[int] = []
        self.rows = 0
        self.memory_bytes = 0

    @property
    def blocks(self) -> tuple[DeltaBlock, ...]:
        """All deltas so far; a snapshot."""
        return tuple(self._blocks)

    def append(self, block: DeltaBlock) -> None:
        """Adds deltas; those of one row are younger than all of that row before."""
        self._blocks.append(block)
        self._levels.append(0 if block.rows <= _JOIN_ROWS_MAX // _JOIN_COUNT else -1)
        self.rows += block.rows
        self.memory_bytes += block.memory_bytes
        while len(self._levels) >= _JOIN_COUNT and self._levels[-1] >= 0:
            level = self._levels[-1]
            if any(x != level for x in self._levels[-_JOIN_COUNT:]):
                return
            parts = self._blocks[-_JOIN_COUNT:]
            joined = concatenate(parts)
            self.memory_bytes += joined.memory_bytes - sum(part.memory_bytes for part in parts)
            self._blocks[-_JOIN_COUNT:] = [joined]
            self._levels[-_JOIN_COUNT:] = [level + 1 if joined.rows < _JOIN_ROWS_MAX else -1]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnChanges:
    """Which rows of a rowset read another value than their base in one column.

    Attributes:
        positions: int64[m], rising, no two equal.
        values: [m].
    """

    positions: I64
    values: pa.Array

    def between(self, first: int, end: int) -> tuple[I64, pa.Array]:
        """The changes in [first, end): positions relative to `first`, and values."""
        low, high = np.searchsorted(self.positions, (first, end)).tolist()
        return self.positions[low:high] - first, self.values.slice(low, high - low)


@dataclass(frozen=True, slots=True, eq=False)
class DeltaView:
    """The deltas of one rowset as of one snapshot, by position.

    Attributes:
        deleted: int64[d], rising: positions of rows that were deleted at the snapshot.
        columns: by column id, only those with a change.
    """

    deleted: I64
    columns: dict[int, ColumnChanges]

    def deleted_between(self, first: int, end: int) -> I64:
        """Deleted positions in [first, end), relative to `first`."""
        low, high = np.searchsorted(self.deleted, (first, end)).tolist()
        result: I64 = self.deleted[low:high] - first
        return result


Positions = Callable[[I64], I64]
"""Row ids of a rowset's ranges to positions; -1 for a row that compaction has dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnHistory:
    """Every change of one column of a rowset, by position and, within a row, in order of time.

    Attributes:
        positions: int64[m], rising; a row with several changes occurs several times.
        timestamps: uint64[m].
        values: [m].
    """

    positions: I64
    timestamps: U64
    values: pa.Array

    def bounds(self, first: int, end: int) -> tuple[int, int]:
        """Which changes are of rows in [first, end)."""
        low, high = np.searchsorted(self.positions, (first, end)).tolist()
        return low, high


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Deltas of one block that concern a rowset.

    Attributes:
        block: where they are.
        rows: int64[m], their places in the block.
        positions: int64[m], the positions of their rows.
    """

    block: DeltaBlock
    rows: I64
    positions: I64


def view_of(
    *,
    redo: Iterable[DeltaBlock],
    undo: Iterable[DeltaBlock],
    ranges: Sequence[RowIdRange],
    positions: Positions,
    timestamp: int,
    column_ids: Iterable[int],
) -> DeltaView:
    """Lays the blocks (each sequence in order of time) of one rowset out by position, as of `timestamp`."""
    later = [select(block, ranges, positions, after=False, timestamp=timestamp) for block in redo]
    earlier = [select(block, ranges, positions, after=True, timestamp=timestamp) for block in undo]
    redone = [part for part in later if part is not None]
    undone = [part for part in earlier if part is not None]
    dead = [part.positions[part.block.deletes[part.rows]] for part in redone]
    deleted = np.sort(np.concatenate(dead)) if dead else np.zeros(0, np.int64)
    columns = {}
    for column_id in column_ids:
        changes = _changes(redone, undone, column_id)
        if changes is not None:
            columns[column_id] = changes
    return DeltaView(deleted, columns)


def history_of(parts: Sequence[Selected], column_id: int) -> ColumnHistory | None:
    """All changes of a column in the selected deltas, which are in order of time; None if there is none."""
    positions = []
    timestamps = []
    values = []
    for part in parts:
        column = part.block.columns.get(column_id)
        if column is None:
            continue
        rows, at = part.rows, part.positions
        if column.is_set is not None:
            is_set = column.is_set[rows]
            rows, at = rows[is_set], at[is_set]
        if len(at):
            positions.append(at)
            timestamps.append(part.block.timestamps[rows])
            values.append(column.values.take(pa.array(rows)))
    if not positions:
        return None
    at = np.concatenate(positions)
    order = np.argsort(at, kind="stable")
    return ColumnHistory(at[order], np.concatenate(timestamps)[order], pa.concat_arrays(values).take(pa.array(order)))


def select(
    block: DeltaBlock, ranges: Sequence[RowIdRange], positions: Positions, *, after: bool, timestamp: int
) -> Selected | None:
    """The block's deltas of rows in `ranges` that are still there, at or before (`after`: after) the timestamp."""
    row_ids, places = block.by_row_id()
    chosen = []
    for span in ranges:
        low, high = np.searchsorted(row_ids, (span.first, span.first + span.count)).tolist()
        if low < high:
            chosen.append(slice(low, high))
    if not chosen:
        return None
    if len(chosen) == 1:
        row_ids, places = row_ids[chosen[0]], places[chosen[0]]
    else:
        row_ids = np.concatenate([row_ids[part] for part in chosen])
        places = np.concatenate([places[part] for part in chosen])
    cut = np.uint64(timestamp)
    times = block.timestamps[places]
    in_time = times > cut if after else times <= cut
    if not in_time.all():
        row_ids, places = row_ids[in_time], places[in_time]
    at = positions(row_ids)
    here = at >= 0
    if not here.all():
        places, at = places[here], at[here]
    return Selected(block, places, at) if len(at) else None


def _changes(redone: list[Selected], undone: list[Selected], column_id: int) -> ColumnChanges | None:
    # The last redo at or before the snapshot, or the first undo after it. No row has both: its redos are younger than
    # its undos, so an undo after the snapshot means that no redo is at or before it.
    latest = _pick(redone, column_id, last=True)
    oldest = _pick(undone, column_id, last=False)
    if latest is None or oldest is None:
        return latest if oldest is None else oldest
    positions = np.concatenate([oldest.positions, latest.positions])
    order = np.argsort(positions, kind="stable")
    values = pa.concat_arrays([oldest.values, latest.values]).take(pa.array(order))
    return ColumnChanges(positions[order], values)


def _pick(parts: list[Selected], column_id: int, *, last: bool) -> ColumnChanges | None:
    positions = []
    values = []
    for part in parts:
        column = part.block.columns.get(column_id)
        if column is None:
            continue
        rows, at = part.rows, part.positions
        if column.is_set is not None:
            is_set = column.is_set[rows]
            if not is_set.all():
                rows, at = rows[is_set], at[is_set]
        if len(at):
            positions.append(at)
            values.append(
                column.values
                if len(rows) == part.block.rows and _is_range(rows)
                else column.values.take(pa.array(rows))
            )
    if not positions:
        return None
    at = positions[0] if len(positions) == 1 else np.concatenate(positions)
    order = np.argsort(at, kind="stable")
    at = at[order]
    keep = np.ones(len(at), np.bool_)
    if last:
        keep[:-1] = at[1:] != at[:-1]
    else:
        keep[1:] = at[1:] != at[:-1]
    if not keep.all():
        at, order = at[keep], order[keep]
    joined = values[0] if len(values) == 1 else pa.concat_arrays(values)
    return ColumnChanges(at, joined if _is_range(order) and len(order) == len(joined) else joined.take(pa.array(order)))


def _is_range(rows: I64) -> bool:
    return bool(len(rows) and rows[0] == 0 and rows[-1] == len(rows) - 1 and (np.diff(rows) == 1).all())
