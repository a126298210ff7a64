"""Compaction: rowsets merged into one, deltas folded into base rows, history dropped past its age; key runs merged.

Three phases like a flush: a plan of immutable inputs, `run` in a disk job, publication by the loop. Rows are merged by
key a stretch at a time, so memory is bounded by a chunk per input, the output's locations (4 bytes a row, see
`CompactionOptions`) and the inputs' deltas.

A folded update moves into the base row, and what it replaced becomes an *undo* delta if it is younger than
`history_start`: scans of now read base rows alone, scans of the past undo. A row that was deleted before
`history_start` is dropped, and its row id is gone; one that was deleted later stays, with its delete as a redo delta.
All inputs are files, so nothing that is written here is younger than the checkpoint.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import MAX_HYBRID_TIME, HybridTime
from kudu_py.common.key_encoding import I64, U64, Bools, KeyBatch, encode_keys
from kudu_py.common.schema import ColumnSchema, Schema
from kudu_py.env.disk import Disk
from kudu_py.tablet.columnar_file import ColumnarFileWriter, chunk_rows_for
from kudu_py.tablet.delta_layer import DeltaLayer, write_layer
from kudu_py.tablet.deltas import (
    ColumnHistory,
    DeltaBlock,
    DeltaColumn,
    Selected,
    concatenate,
    deletes_at,
    history_of,
    select,
)
from kudu_py.tablet.diskrowset import GONE, MAX_ROW_SPAN, DiskRowSet, rows_schema, write_locations
from kudu_py.tablet.key_index_cold import KeyRun, may_merge, merge_runs
from kudu_py.tablet.records import DeltaLayerRecord, RowIdRange, RowSetRecord
from kudu_py.tablet.row_locations import RowLocations
from kudu_py.tablet.scan import overlay

_UNDO_LAYER_BYTES = 32 << 20
COMPACTION_BLOCK_IDS = 1 << 16
"""Ids set aside for one compaction: a rowset, a layer of deletes, and as many undo layers as it may take."""


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When to compact, and how much at once.

    Attributes:
        rowsets_min: merge when so many rowsets are of about one size.
        rowsets_max: merge at most so many at once.
        rows_max: no output has more rows; bounds the memory for locations at 4 bytes each.
        tier_rows: rowsets below this are of one size, then the tiers grow by four.
        layers_max: fold when a rowset has more delta layers with something to fold.
        delta_share: fold when deltas that can be folded exceed this share of a rowset's rows.
        runs_min: merge key runs when so many are of about one size (tiers grow by eight).
    """

    rowsets_min: int = 4
    rowsets_max: int = 8
    rows_max: int = 32 << 20
    tier_rows: int = 1 << 17
    layers_max: int = 24
    delta_share: float = 0.1
    runs_min: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.rowsets_min <= self.rowsets_max or self.runs_min < 2 or not 0 < self.rows_max < MAX_ROW_SPAN:
            raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"compaction options do not fit each other: {self}")


DEFAULT_COMPACTION = CompactionOptions()


# -- what to compact --------------------------------------------------------------------------------------------------


def choose_rowsets(rowsets: Sequence[DiskRowSet], options: CompactionOptions, history_start: int) -> list[DiskRowSet]:
    """The rowsets to merge (or the one to fold) next; empty if there is nothing to gain."""
    tiers: dict[int, list[DiskRowSet]] = {}
    for rowset in rowsets:
        tiers.setdefault((rowset.record.rows // options.tier_rows).bit_length() // 2, []).append(rowset)
    for _, members in sorted(tiers.items()):
        chosen = _that_fit(members, options)
        if len(chosen) >= options.rowsets_min:
            return chosen
    for rowset in rowsets:
        layers = [layer for layer in rowset.redo_layers if _has_something_to_fold(layer, history_start)]
        if len(layers) > options.layers_max:
            return [rowset]
        if layers:
            deltas = sum(layer.foldable(rowset.record.row_ids, history_start) for layer in layers)
            if deltas > options.delta_share * rowset.record.rows:
                return [rowset]
    return []


def _that_fit(members: Sequence[DiskRowSet], options: CompactionOptions) -> list[DiskRowSet]:
    chosen: list[DiskRowSet] = []
    rows = 0
    for rowset in members:
        rows += rowset.record.rows
        ids = [span for other in (*chosen, rowset) for span in other.record.row_ids]
        extent = max(span.first + span.count for span in ids) - min(span.first for span in ids)
        if len(chosen) == options.rowsets_max or rows > options.rows_max or extent >= MAX_ROW_SPAN:
            break
        chosen.append(rowset)
    return chosen


def _has_something_to_fold(layer: DeltaLayer, history_start: int) -> bool:
    """Deletes that are still history stay as they are: folding them would gain nothing, again and again."""
    return layer.deletes < layer.record.rows or layer.record.min_timestamp <= history_start


def choose_runs(runs: Sequence[KeyRun], options: CompactionOptions) -> list[KeyRun]:
    """The key runs to merge next; empty if there is nothing to gain."""
    tiers: dict[int, list[KeyRun]] = {}
    for run in runs:
        tiers.setdefault((run.entries // options.tier_rows).bit_length() // 3, []).append(run)
    for _, members in sorted(tiers.items()):
        members.sort(key=lambda run: run.first_row_id)
        chosen: list[KeyRun] = []
        for run in members:
            if len(chosen) < 2 * options.runs_min and may_merge([*chosen, run]):
                chosen.append(run)
        if len(chosen) >= options.runs_min:
            return chosen
    return []


# -- key runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunMergeResult:
    """A merged key run, durable and open.

    Attributes:
        inputs: the runs it replaces.
        run: the new one.
    """

    inputs: tuple[KeyRun, ...]
    run: KeyRun


@dataclass(frozen=True, eq=False)
class RunMergePlan:
    """A merge of key runs.

    Attributes:
        directory: of the tablet.
        runs: the inputs.
        locations: of the rows on disk when the plan was made: entries of rows that are gone are left out. (Not those of
            deleted rows: the delete may be younger than the checkpoint.)
        run_id: the new run's block id.
    """

    directory: str
    runs: tuple[KeyRun, ...]
    locations: RowLocations
    run_id: int

    @property
    def input_bytes(self) -> int:
        """About what the output may take."""
        return sum(run.record.file.size_bytes for run in self.runs)

    def run(self, disk: Disk) -> RunMergeResult:
        """Writes and syncs the file, then the directory."""
        record = merge_runs(disk, self.directory, self.run_id, self.runs, self.locations.gone)
        disk.sync_dir(self.directory)
        return RunMergeResult(self.runs, KeyRun(disk, self.directory, record))


# -- rowsets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CompactionResult:
    """The output of a compaction, durable and open.

    Attributes:
        inputs: the rowsets it replaces, as they were when the plan was made.
        rowset: the output, without layers; None if no row is left.
        deletes: deltas of rows that were deleted within history; None if there are none.
        undo: what leads back to older snapshots.
        history_start: snapshots below this are no longer complete.
    """

    inputs: tuple[DiskRowSet, ...]
    rowset: DiskRowSet | None
    deletes: DeltaLayer | None
    undo: tuple[DeltaLayer, ...]
    history_start: HybridTime


@dataclass(frozen=True, eq=False)
class CompactionPlan:
    """A merge of rowsets.

    Attributes:
        directory: of the tablet.
        schema: of the tablet when the plan was made.
        read_defaults: by column id, what rows older than a column read.
        rowsets: the inputs.
        history_start: history below this is dropped.
        block_ids: ids for the output.
    """

    directory: str
    schema: Schema
    read_defaults: dict[int, object]
    rowsets: tuple[DiskRowSet, ...]
    history_start: HybridTime
    block_ids: range

    @property
    def input_bytes(self) -> int:
        """About what the output may take; deltas that are folded in come on top."""
        return sum(rowset.record.rows_file.size_bytes for rowset in self.rowsets)

    def run(self, disk: Disk) -> CompactionResult:
        """Writes and syncs the files, then the directory.

        Raises OSError, or KuduError CORRUPTION for a damaged input.
        """
        return _Merge(self, disk).run()


class _Merge:
    """One run of a plan."""

    def __init__(self, plan: CompactionPlan, disk: Disk) -> None:
        self._plan = plan
        self._disk = disk
        self._schema = plan.schema
        self._inputs = [_Input(rowset, plan) for rowset in plan.rowsets]
        self._spans = _union(plan.rowsets)
        self._base = self._spans[0].first
        self._locations = np.full(sum(span.count for span in self._spans), GONE, np.uint32)
        self._rowset_id = plan.block_ids[0]
        rows = sum(rowset.record.rows for rowset in plan.rowsets)
        size_bytes = sum(rowset.file.size_bytes for rowset in plan.rowsets)
        self._chunk_rows = min(chunk_rows_for(rows, size_bytes), *(rowset.file.chunk_rows for rowset in plan.rowsets))
        self._buffer: list[_Stretch] = []
        self._buffered = 0
        self._written = 0
        self._undo: list[DeltaBlock] = []
        self._undo_bytes = 0
        self._undo_layers: list[DeltaLayer] = []
        self._deletes: list[DeltaBlock] = []

    def run(self) -> CompactionResult:
        plan = self._plan
        writer = ColumnarFileWriter(
            self._disk,
            plan.directory,
            f"{self._rowset_id}.rows",
            rows_schema(self._schema.columns, self._base),
            chunk_rows=self._chunk_rows,
            addressed=self._schema.key_count,
        )
        try:
            for stretch in self._merged():
                self._buffer.append(stretch)
                self._buffered += stretch.rows
                if self._buffered >= self._chunk_rows:
                    self._write(writer, last=False)
            self._write(writer, last=True)
            rows_file = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        self._write_undo()
        deletes = self._write_deletes()
        rowset: DiskRowSet | None = None
        if self._written:
            first_snapshot = max((layer.record.max_timestamp for layer in self._undo_layers), default=0)
            spans, locations = _trimmed(self._spans, self._locations)
            in_order = (
                len(spans) == 1
                and len(locations) == self._written
                and bool((np.diff(locations.view(np.int32)) == 1).all())
            )
            locations_file = None
            if not in_order:
                name = f"{self._rowset_id}.locations"
                locations_file = write_locations(self._disk, plan.directory, name, locations)
            record = RowSetRecord(
                rowset_id=self._rowset_id,
                rows_file=rows_file,
                locations_file=locations_file,
                row_ids=spans,
                rows=self._written,
                first_snapshot=HybridTime(first_snapshot),
            )
        else:
            self._disk.unlink(f"{plan.directory}/{rows_file.name}")
        self._disk.sync_dir(plan.directory)
        if self._written:
            rowset = DiskRowSet.open(self._disk, plan.directory, record, self._schema, {})
        return CompactionResult(plan.rowsets, rowset, deletes, tuple(self._undo_layers), plan.history_start)

    # The merge.

    def _merged(self) -> Iterator[_Stretch]:
        """Rows in key order; each stretch comes from all inputs."""
        inputs = [source for source in self._inputs if not source.done]
        while inputs:
            limits = [key for key in (source.last_key_if_more for source in inputs) if key is not None]
            limit = min(limits) if limits else None
            parts = []
            for source in inputs:
                part = source.take_to(limit)
                if part is not None:
                    self._keep_history(part)
                    if part.stretch.rows:
                        parts.append(part.stretch)
            inputs = [source for source in inputs if not source.done]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                joined = _joined(parts)
                order = KeyBatch.of(self._schema, joined.columns).order()
                yield joined.take(order)

    def _keep_history(self, part: _Part) -> None:
        self._deletes.extend(part.deletes)
        for block in part.undo:
            self._undo.append(block)
            self._undo_bytes += block.memory_bytes
        if self._undo_bytes >= _UNDO_LAYER_BYTES:
            self._write_undo()

    # The output.

    def _write(self, writer: ColumnarFileWriter, *, last: bool) -> None:
        """Writes whole chunks of what is buffered, at the end the rest as well."""
        if not self._buffered:
            return
        stretch = self._buffer[0] if len(self._buffer) == 1 else _joined(self._buffer)
        end = stretch.rows if last else stretch.rows // self._chunk_rows * self._chunk_rows
        for first in range(0, end, self._chunk_rows):
            chunk = stretch.slice(first, min(self._chunk_rows, end - first))
            relative = (chunk.row_ids - self._base).astype(np.uint32)
            writer.write([*chunk.columns, pa.array(relative), pa.array(chunk.timestamps)])
            places = _places(self._spans, chunk.row_ids)
            self._locations[places] = np.arange(self._written, self._written + chunk.rows, dtype=np.uint32)
            self._written += chunk.rows
        rest = stretch.slice(end, stretch.rows - end)
        self._buffer = [rest] if rest.rows else []
        self._buffered = rest.rows

    def _write_undo(self) -> None:
        if not self._undo:
            return
        layer_id = self._plan.block_ids[2 + len(self._undo_layers)]
        record = write_layer(self._disk, self._plan.directory, layer_id, concatenate(self._undo))
        self._undo_layers.append(DeltaLayer(self._disk, self._plan.directory, record))
        self._undo, self._undo_bytes = [], 0

    def _write_deletes(self) -> DeltaLayer | None:
        if not self._deletes:
            return None
        record = write_layer(self._disk, self._plan.directory, self._plan.block_ids[1], concatenate(self._deletes))
        return DeltaLayer(self._disk, self._plan.directory, record)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Rows as they will be written."""

    columns: list[pa.Array]
    row_ids: I64
    timestamps: U64

    @property
    def rows(self) -> int:
        return len(self.row_ids)

    def take(self, rows: I64) -> _Stretch:
        indices = pa.array(rows)
        return _Stretch([column.take(indices) for column in self.columns], self.row_ids[rows], self.timestamps[rows])

    def slice(self, first: int, count: int) -> _Stretch:
        columns = [column.slice(first, count) for column in self.columns]
        return _Stretch(columns, self.row_ids[first : first + count], self.timestamps[first : first + count])


def _joined(parts: Sequence[_Stretch]) -> _Stretch:
    return _Stretch(
        [pa.concat_arrays(list(same)) for same in zip(*(part.columns for part in parts), strict=True)],
        np.concatenate([part.row_ids for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A stretch of one input, and the history of its rows."""

    stretch: _Stretch
    undo: list[DeltaBlock]
    deletes: list[DeltaBlock]


class _Input:
    """One rowset, read from first to last row with its deltas folded."""

    def __init__(self, rowset: DiskRowSet, plan: CompactionPlan) -> None:
        self._rowset = rowset
        self._plan = plan
        self._schema = plan.schema
        self._chunk = -1
        self._next = 0
        self._encoded: pa.Array | None = None
        redo = [block for layer in rowset.redo_layers for block in layer.blocks]
        undo = [block for layer in rowset.undo_layers for block in layer.blocks]
        spans, positions = rowset.record.row_ids, rowset.positions
        redone = [select(block, spans, positions, after=False, timestamp=MAX_HYBRID_TIME) for block in redo]
        undone = [select(block, spans, positions, after=True, timestamp=plan.history_start) for block in undo]
        selected = [part for part in redone if part is not None]
        self._histories: dict[int, ColumnHistory] = {}
        for column in plan.schema.columns[plan.schema.key_count :]:
            history = history_of(selected, column.column_id)
            if history is not None:
                self._histories[column.column_id] = history
        self._deleted, self._deleted_at = _deletes(selected)
        self._undone = [_by_position(part) for part in undone if part is not None]
        self._advance()

    @property
    def done(self) -> bool:
        return self._chunk >= self._rowset.file.chunk_count

    @property
    def last_key_if_more(self) -> bytes | None:
        """The last key of the current chunk, if another chunk follows."""
        if self._chunk + 1 >= self._rowset.file.chunk_count or self._encoded is None:
            return None
        key: bytes = self._encoded[-1].as_py()
        return key

    def take_to(self, limit: bytes | None) -> _Part | None:
        """The rows of the current chunk up to a key (None: all)."""
        encoded = self._encoded
        assert encoded is not None
        first, end = self._next, len(encoded)
        if limit is not None:
            end = bisect_right(range(end), limit, lo=first, key=lambda i: encoded[i].as_py())
        part = self._read(first, end) if end > first else None
        self._next = end
        if end == len(encoded):
            self._advance()
        return part

    def _advance(self) -> None:
        self._chunk += 1
        self._next = 0
        if not self.done:
            file = self._rowset.file
            keys = [file.column(self._chunk, str(column.column_id)) for column in self._schema.key_columns]
            self._encoded = encode_keys(self._schema, keys).array

    def _read(self, first: int, end: int) -> _Part:
        at = self._chunk * self._rowset.file.chunk_rows + first
        count = end - first
        row_ids = self._rowset.row_ids_of(self._chunk)[first:end]
        timestamps = self._rowset.timestamps_of(self._chunk)[first:end]
        base = [self._base(column, first, count) for column in self._schema.columns]
        columns = [self._folded(column, cells, at) for column, cells in zip(self._schema.columns, base, strict=True)]
        low, high = np.searchsorted(self._deleted, (at, at + count)).tolist()
        dead, dead_at = self._deleted[low:high] - at, self._deleted_at[low:high]
        forgotten = dead_at <= np.uint64(self._plan.history_start)
        kept: Bools = np.ones(count, np.bool_)
        kept[dead[forgotten]] = False
        undo = self._carried(at, count, kept)
        undo.extend(self._replaced(base, at, count, kept, row_ids))
        remembered = np.flatnonzero(~forgotten)
        deletes = [deletes_at(row_ids[dead[remembered]], dead_at[remembered])] if len(remembered) else []
        stretch = _Stretch(columns, row_ids, timestamps)
        if not kept.all():
            stretch = stretch.take(np.flatnonzero(kept))
        return _Part(stretch, undo, deletes)

    def _base(self, column: ColumnSchema, first: int, count: int) -> pa.Array:
        name = str(column.column_id)
        if self._rowset.file.has(name):
            return self._rowset.file.column(self._chunk, name).slice(first, count)
        default = self._plan.read_defaults.get(column.column_id)
        return pa.repeat(pa.scalar(default, column.arrow_type), count)

    def _folded(self, column: ColumnSchema, cells: pa.Array, at: int) -> pa.Array:
        history = self._histories.get(column.column_id)
        if history is None:
            return cells
        low, high = history.bounds(at, at + len(cells))
        if low == high:
            return cells
        positions = history.positions[low:high]
        last = np.ones(high - low, np.bool_)
        last[:-1] = positions[1:] != positions[:-1]
        chosen = np.flatnonzero(last)
        return overlay(cells, positions[chosen] - at, history.values.slice(low, high - low).take(pa.array(chosen)))

    def _carried(self, at: int, count: int, kept: Bools) -> list[DeltaBlock]:
        """Undo deltas of earlier compactions that are still history."""
        blocks = []
        for block, positions, rows in self._undone:
            low, high = np.searchsorted(positions, (at, at + count)).tolist()
            if low < high:
                chosen = rows[low:high][kept[positions[low:high] - at]]
                if len(chosen):
                    blocks.append(block.take(chosen))
        return blocks

    def _replaced(self, base: list[pa.Array], at: int, count: int, kept: Bools, row_ids: I64) -> list[DeltaBlock]:
        """What the folded updates replaced, as far as it is history: one block for columns that changed together."""
        blocks: list[DeltaBlock] = []
        for column, cells in zip(self._schema.columns, base, strict=True):
            history = self._histories.get(column.column_id)
            if history is None:
                continue
            low, high = history.bounds(at, at + count)
            if low == high:
                continue
            positions = history.positions[low:high] - at
            timestamps = history.timestamps[low:high]
            # The value before: of the change before, or the base row's for a row's first one.
            before = np.arange(count - 1, count - 1 + len(positions), dtype=np.int64)
            begins = np.ones(len(positions), np.bool_)
            begins[1:] = positions[1:] != positions[:-1]
            before[begins] = positions[begins]
            chosen = np.flatnonzero((timestamps > np.uint64(self._plan.history_start)) & kept[positions])
            if not len(chosen):
                continue
            values = pa.concat_arrays([cells, history.values.slice(low, high - low)]).take(pa.array(before[chosen]))
            changed, times = row_ids[positions[chosen]], timestamps[chosen]
            changes = {column.column_id: DeltaColumn(values, None)}
            if blocks and np.array_equal(blocks[-1].row_ids, changed) and np.array_equal(blocks[-1].timestamps, times):
                changes = {**blocks[-1].columns, **changes}
                blocks.pop()
            blocks.append(DeltaBlock(changed, times, np.zeros(len(changed), np.bool_), changes))
        return blocks


def _deletes(parts: Sequence[Selected]) -> tuple[I64, U64]:
    """Positions of deleted rows, rising, and when each was deleted."""
    positions = [part.positions[part.block.deletes[part.rows]] for part in parts]
    times = [part.block.timestamps[part.rows[part.block.deletes[part.rows]]] for part in parts]
    if not positions:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    at, when = np.concatenate(positions), np.concatenate(times)
    order = np.argsort(at, kind="stable")
    return at[order], when[order]


def _by_position(part: Selected) -> tuple[DeltaBlock, I64, I64]:
    order = np.argsort(part.positions, kind="stable")
    return part.block, part.positions[order], part.rows[order]


# -- row ids ----------------------------------------------------------------------------------------------------------


def _union(rowsets: Sequence[DiskRowSet]) -> tuple[RowIdRange, ...]:
    """All row ids of the inputs, adjacent ranges joined."""
    spans = sorted((span.first, span.count) for rowset in rowsets for span in rowset.record.row_ids)
    joined: list[RowIdRange] = []
    for first, count in spans:
        if joined and joined[-1].first + joined[-1].count == first:
            joined[-1] = RowIdRange(joined[-1].first, joined[-1].count + count)
        else:
            joined.append(RowIdRange(first, count))
    return tuple(joined)


def _places(spans: Sequence[RowIdRange], row_ids: I64) -> I64:
    """Where each row id stands in the locations of these ranges."""
    firsts = np.array([span.first for span in spans], np.int64)
    counts = np.array([span.count for span in spans], np.int64)
    span = np.searchsorted(firsts, row_ids, side="right") - 1
    result: I64 = row_ids - firsts[span] + (np.cumsum(counts) - counts)[span]
    return result


def _trimmed(
    spans: Sequence[RowIdRange],
    locations: npt.NDArray[Any],
) -> tuple[tuple[RowIdRange, ...], npt.NDArray[Any]]:
    """The ranges without row ids at their ends that are gone."""
    kept: list[RowIdRange] = []
    parts = []
    offset = 0
    for span in spans:
        part = locations[offset : offset + span.count]
        offset += span.count
        here = np.flatnonzero(part != GONE)
        if len(here):
            low, high = int(here[0]), int(here[-1]) + 1
            kept.append(RowIdRange(span.first + low, high - low))
            parts.append(part[low:high])
    return tuple(kept), parts[0] if len(parts) == 1 else np.concatenate(parts)


def output_record(result: CompactionResult, current: dict[int, DiskRowSet]) -> RowSetRecord | None:
    """The output's record as it must be published: with its own layers and those that flushes have added meanwhile.

    Args:
        result: the finished compaction.
        current: the tablet's rowsets now, by id: the inputs with all of their layers.
    """
    if result.rowset is None:
        return None
    known = {layer for rowset in result.inputs for layer in rowset.record.redo_layers}
    now = {layer for rowset in result.inputs for layer in current[rowset.record.rowset_id].record.redo_layers}
    own = () if result.deletes is None else (result.deletes.record.layer_id,)
    return dataclasses.replace(
        result.rowset.record,
        redo_layers=(*own, *sorted(now - known)),
        undo_layers=tuple(layer.record.layer_id for layer in result.undo),
    )


def without_old_undo(
    record: RowSetRecord, layers: dict[int, DeltaLayerRecord], history_start: HybridTime
) -> RowSetRecord:
    """The record without undo layers that no permitted snapshot needs any more."""
    kept = tuple(layer for layer in record.undo_layers if layers[layer].max_timestamp > history_start)
    return record if kept == record.undo_layers else dataclasses.replace(record, undo_layers=kept)
