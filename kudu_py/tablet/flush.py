"""Flush: all of a tablet's memory up to one OpId into files.

`FlushPlan` is frozen input: the loop makes it and goes on writing elsewhere; `run` works in a disk job and changes
nothing but its new files; what comes back is published by the loop, after the superblock names the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudu_py.common.key_encoding import I64, U64
from kudu_py.common.schema import ColumnSchema, Schema
from kudu_py.env.disk import Disk
from kudu_py.tablet.columnar_file import ColumnarFileWriter, chunk_rows_for
from kudu_py.tablet.delta_layer import DeltaLayer, write_layer
from kudu_py.tablet.deltas import DeltaBlock, concatenate
from kudu_py.tablet.diskrowset import DiskRowSet, rows_schema, write_locations
from kudu_py.tablet.key_index_cold import MAX_ROW_SPAN, KeyRun, write_run
from kudu_py.tablet.memrowset import MemRowSet
from kudu_py.tablet.memrowset_source import chunk_column
from kudu_py.tablet.records import RowIdRange, RowSetRecord, TabletRecords

_LARGE_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class FlushResult:
    """What a flush has written: durable, open, and not named by a superblock yet.

    Attributes:
        checkpoint: records with the fields of the checkpoint (OpId, timestamp, row ids, live rows, largest key, added
            columns); its files are those of before.
        memrowset: the frozen one that the files replace; None if it was empty.
        rowset, runs, layer: the new files.
    """

    checkpoint: TabletRecords
    memrowset: MemRowSet | None
    rowset: DiskRowSet | None
    runs: tuple[KeyRun, ...]
    layer: DeltaLayer | None


@dataclass(frozen=True, eq=False)
class FlushPlan:
    """Everything a flush reads, frozen.

    Attributes:
        directory: where the files go.
        schema: of the tablet at the freeze.
        read_defaults: by column id, what rows older than a column read.
        memrowset: the frozen rows; None if there are none.
        deltas: the frozen deltas, in order of time.
        block_ids: ids for the rowset, the layer and the runs, in that order.
        checkpoint: see `FlushResult`.
    """

    directory: str
    schema: Schema
    read_defaults: dict[int, object]
    memrowset: MemRowSet | None
    deltas: tuple[DeltaBlock, ...]
    block_ids: range
    checkpoint: TabletRecords

    def run(self, disk: Disk) -> FlushResult:
        """Writes and syncs the files, then their directory. Raises OSError if the disk does.

        The rows come before the index only because something must be first: nothing names any of the files yet.
        """
        rowset: DiskRowSet | None = None
        runs: list[KeyRun] = []
        layer: DeltaLayer | None = None
        memrowset = self.memrowset
        if memrowset is not None:
            rowset = self._write_rows(disk, memrowset)
            runs = self._write_runs(disk, memrowset)
        if self.deltas:
            record = write_layer(disk, self.directory, self.block_ids[1], concatenate(self.deltas))
            layer = DeltaLayer(disk, self.directory, record)
        if rowset is not None or layer is not None:
            disk.sync_dir(self.directory)
        return FlushResult(self.checkpoint, memrowset, rowset, tuple(runs), layer)

    def _write_rows(self, disk: Disk, memrowset: MemRowSet) -> DiskRowSet:
        rowset_id = self.block_ids[0]
        order = memrowset.keys().order()
        in_order = bool((np.diff(order) == 1).all()) and order[0] == 0
        columns = [self._column(memrowset, column) for column in self.schema.columns]
        timestamps = np.concatenate([chunk.timestamps for chunk in memrowset.chunks])
        schema = rows_schema(self.schema.columns, memrowset.first_row_id)
        size_bytes = sum(column.nbytes for column in columns)
        chunk_rows = chunk_rows_for(memrowset.rows, size_bytes)
        writer = ColumnarFileWriter(
            disk,
            self.directory,
            f"{rowset_id}.rows",
            schema,
            chunk_rows=chunk_rows,
            addressed=self.schema.key_count,
        )
        try:
            for first in range(0, memrowset.rows, chunk_rows):
                rows = order[first : first + chunk_rows]
                arrays = _rows_of(columns, rows, None if in_order else pa.array(rows), schema)
                arrays.append(pa.array(rows.astype(np.uint32)))
                arrays.append(pa.array(timestamps[rows]))
                writer.write(arrays)
            rows_file = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        locations_file = None
        if not in_order:
            locations = np.empty(memrowset.rows, np.uint32)
            locations[order] = np.arange(memrowset.rows, dtype=np.uint32)
            locations_file = write_locations(disk, self.directory, f"{rowset_id}.locations", locations)
        record = RowSetRecord(
            rowset_id=rowset_id,
            rows_file=rows_file,
            locations_file=locations_file,
            row_ids=(RowIdRange(memrowset.first_row_id, memrowset.rows),),
            rows=memrowset.rows,
        )
        return DiskRowSet.open(disk, self.directory, record, self.schema, {})

    def _column(self, memrowset: MemRowSet, column: ColumnSchema) -> pa.Array:
        """All values of a column in arrival order, in one array."""
        parts = []
        for chunk in memrowset.chunks:
            cells = chunk_column(chunk, column)
            if cells is None:
                cells = pa.repeat(pa.scalar(self.read_defaults.get(column.column_id), column.arrow_type), chunk.rows)
            parts.append(cells)
        if sum(part.nbytes for part in parts) > _LARGE_BYTES:
            # 32-bit offsets may not reach: a memrowset larger than the flush threshold wants it to be.
            if pa.types.is_string(column.arrow_type):
                parts = [part.cast(pa.large_string()) for part in parts]
            elif pa.types.is_binary(column.arrow_type):
                parts = [part.cast(pa.large_binary()) for part in parts]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _write_runs(self, disk: Disk, memrowset: MemRowSet) -> list[KeyRun]:
        runs = []
        for i, low in enumerate(range(0, memrowset.rows, MAX_ROW_SPAN)):
            first = memrowset.first_row_id + low
            pieces = _hashed(memrowset, low, low + MAX_ROW_SPAN)
            record = write_run(disk, self.directory, self.block_ids[2 + i], first_row_id=first, pieces=pieces)
            if record is not None:
                runs.append(KeyRun(disk, self.directory, record))
        return runs


def _hashed(memrowset: MemRowSet, low: int, high: int) -> Iterator[tuple[U64, I64]]:
    """Hashes and row ids of the rows that the hot index holds (a hot entry lacks hash bits that a run needs)."""
    for positions in memrowset.index.row_ids():
        inside = positions[(positions >= low) & (positions < high)]
        if len(inside):
            yield memrowset.keys_at(inside).hashes(), inside + memrowset.first_row_id


def _rows_of(columns: Sequence[pa.Array], rows: I64, indices: pa.Array | None, schema: pa.Schema) -> list[pa.Array]:
    """One chunk of every column; `indices` None: the rows follow one another."""
    arrays = []
    for column, field in zip(columns, schema, strict=False):
        part = column.slice(int(rows[0]), len(rows)) if indices is None else column.take(indices)
        arrays.append(part if part.type == field.type else part.cast(field.type))
    return arrays
