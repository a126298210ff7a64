"""Frozen records that say which files make up a tablet's checkpoint; the superblock stores them.

A checkpoint holds all rows up to one applied OpId. Files are immutable and named by block ids that are never used twice
in a tablet; flush and compaction write new files and then exchange records. Nothing else is needed to open the tablet.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.common.schema import ColumnSchema

_BEGINNING = HybridTime(0)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An immutable file of the tablet's directory.

    Attributes:
        name: file name without directory.
        size_bytes: its length.
        checksum: xxh3-64 of all of its bytes; for copies. (Readers verify smaller pieces as they meet them.)
    """

    name: str
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class RowIdRange:
    """Consecutive row ids [first, first + count)."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class RowSetRecord:
    """A rowset on disk.

    Attributes:
        rowset_id: its block id.
        rows_file: base rows in key order, with row ids and insert timestamps.
        locations_file: uint32 position of each row id of `row_ids`, in order (all ones: gone). None: row id
            `row_ids[0].first + i` is at position i.
        row_ids: rising, disjoint ranges of the row ids that this rowset answers for.
        rows: number of base rows.
        undo_layers: ids of the layers that lead from the base rows back to older snapshots, oldest compaction first.
        redo_layers: ids of the delta layers that apply to the base rows, in order of time.
        first_snapshot: base rows show every folded update; a scan below this timestamp needs the undo layers.
    """

    rowset_id: int
    rows_file: FileRecord
    locations_file: FileRecord | None
    row_ids: tuple[RowIdRange, ...]
    rows: int
    undo_layers: tuple[int, ...] = ()
    redo_layers: tuple[int, ...] = ()
    first_snapshot: HybridTime = _BEGINNING


@dataclass(frozen=True, slots=True)
class DeltaLayerRecord:
    """A file of updates and deletes by row id, named by the rowsets that need it.

    Attributes:
        layer_id: its block id.
        file: the deltas, in order of row id and time.
        rows: number of deltas.
        min_timestamp, max_timestamp: bounds of their timestamps.
    """

    layer_id: int
    file: FileRecord
    rows: int
    min_timestamp: HybridTime
    max_timestamp: HybridTime


@dataclass(frozen=True, slots=True)
class KeyIndexRecord:
    """An immutable run of the key index.

    Attributes:
        run_id: its block id.
        file: hash entries and filter.
        first_row_id: what the row ids in the entries are relative to.
        entries: number of entries.
    """

    run_id: int
    file: FileRecord
    first_row_id: int
    entries: int


@dataclass(frozen=True, slots=True)
class TabletRecords:
    """The whole of a tablet's checkpoint.

    Attributes:
        op_id: every operation up to this one is contained, none after it.
        timestamp: of the last applied write.
        rowsets: by rising smallest row id.
        delta_layers: every layer that a rowset names.
        key_runs: the cold key index.
        next_row_id: row ids below this have been given away.
        next_block_id: block ids below this have been given away.
        live_rows: rows that were live at the checkpoint.
        history_start: snapshots below this timestamp may be incomplete, since compaction has dropped history.
        max_key: ordinal of the largest key ever inserted (`KeyBatch.ordinal`), empty if not tracked.
        added_columns: columns as they were when ALTER TABLE added them: rows older than a column read its default of
            then.
    """

    op_id: OpId = MIN_OP_ID
    timestamp: HybridTime = _BEGINNING
    rowsets: tuple[RowSetRecord, ...] = ()
    delta_layers: tuple[DeltaLayerRecord, ...] = ()
    key_runs: tuple[KeyIndexRecord, ...] = ()
    next_row_id: int = 0
    next_block_id: int = 1
    live_rows: int = 0
    history_start: HybridTime = _BEGINNING
    max_key: tuple[int, ...] = ()
    added_columns: tuple[ColumnSchema, ...] = ()

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Every file that the checkpoint needs."""
        files = [layer.file for layer in self.delta_layers]
        files.extend(run.file for run in self.key_runs)
        for rowset in self.rowsets:
            files.append(rowset.rows_file)
            if rowset.locations_file is not None:
                files.append(rowset.locations_file)
        return tuple(files)


NO_RECORDS = TabletRecords()
"""The checkpoint of a tablet that was never flushed."""
