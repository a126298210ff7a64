"""`Tablet`: the rows of one tablet; applies batches, scans snapshots, flushes and compacts.

Synchronous and deterministic: batches are applied in log order, on every replica alike, by the loop's thread.
Everything that takes time is a plan made here from frozen state, run elsewhere, and published here:

    plan = tablet.begin_flush(op_id)           loop: freezes, some microseconds
    result = plan.run(disk)                    disk thread: writes and syncs new files
    records = tablet.records_after(result)     loop: what the superblock must say
    ... the superblock is written ...
    removed = tablet.finish(result)            loop: swaps; `removed` may be unlinked (scans keep what they have mapped)

Between `records_after` and `finish` no other change of the tablet's files may be published: the caller does one at a
time. A flush and a compaction may run at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.key_encoding import I64, U64, Bools, KeyBatch
from kudu_py.common.opid import OpId
from kudu_py.common.row_batch import RowBatch
from kudu_py.common.schema import Schema
from kudu_py.common.small_batch import SmallBatch, SmallBatchReader, join
from kudu_py.env.disk import Disk
from kudu_py.tablet import row_effects
from kudu_py.tablet import scan as scanning
from kudu_py.tablet.compaction import (
    COMPACTION_BLOCK_IDS,
    DEFAULT_COMPACTION,
    CompactionOptions,
    CompactionPlan,
    CompactionResult,
    RunMergePlan,
    RunMergeResult,
    choose_rowsets,
    choose_runs,
    output_record,
    without_old_undo,
)
from kudu_py.tablet.delta_layer import DeltaLayer
from kudu_py.tablet.deltas import DeltaBlock, DeltaLog, deletes_of, updates_of
from kudu_py.tablet.digest import digest_of
from kudu_py.tablet.diskrowset import DiskRowSet, DiskRowSetSource
from kudu_py.tablet.flush import FlushPlan, FlushResult
from kudu_py.tablet.key_index import KeyIndex, runs_by_size
from kudu_py.tablet.key_index_cold import MAX_ROW_SPAN, KeyRun
from kudu_py.tablet.memrowset import MemRowSet
from kudu_py.tablet.memrowset_source import MemRowSetSource
from kudu_py.tablet.records import NO_RECORDS, FileRecord, RowSetRecord, TabletRecords
from kudu_py.tablet.row_locations import RowLocations
from kudu_py.tablet.rowset import RowSource
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.write_result import WriteResult
from kudu_py.tablet.write_tail import WriteTail


@dataclass(frozen=True, slots=True)
class TabletOptions:
    """Bounds of one tablet.

    Attributes:
        flush_bytes: memory at which the tablet wants to be flushed.
        compaction: when to compact.
    """

    flush_bytes: int = 64 << 20
    compaction: CompactionOptions = DEFAULT_COMPACTION

    def __post_init__(self) -> None:
        if self.flush_bytes < 1:
            raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"flush_bytes is at least 1, not {self.flush_bytes}")


Result = FlushResult | CompactionResult | RunMergeResult


class Tablet:
    """The rows of one tablet. All methods are for the loop's thread; a scan's iterator may be used from another one."""

    def __init__(self, *, schema: Schema, options: TabletOptions, directory: str, records: TabletRecords) -> None:
        self._schema = schema
        self._options = options
        self._directory = directory
        self._records = records
        self._next_row_id = records.next_row_id
        self._next_block_id = records.next_block_id
        self._live_rows = records.live_rows
        self._op_id = records.op_id
        self._timestamp: int = records.timestamp
        self._max_key: tuple[int, ...] | None = records.max_key or None
        self._added = {column.column_id: column for column in records.added_columns}
        self._active = MemRowSet(schema, self._next_row_id)
        self._log = DeltaLog()
        self._frozen: tuple[MemRowSet, ...] = ()
        self._frozen_log: DeltaLog | None = None
        self._index = KeyIndex(self._active)
        self._tail = WriteTail(self._next_row_id)
        """What was applied after everything in the active MemRowSet and its log."""
        self._array_bytes: int | None = None
        """Of rows, deltas and hot index in memory; None: not known since they changed."""
        self.reader = SmallBatchReader(schema)
        """Opens batches of the current schema."""
        self._rowsets: tuple[DiskRowSet, ...] = ()
        self._layers: dict[int, DeltaLayer] = {}
        self._flushing = False
        self._compacting = False
        self._pending: tuple[Result, TabletRecords] | None = None

    @classmethod
    def open(
        cls,
        *,
        schema: Schema,
        options: TabletOptions,
        directory: str,
        disk: Disk,
        records: TabletRecords = NO_RECORDS,
    ) -> Tablet:
        """Opens a checkpoint (or an empty tablet). Blocks on the disk; reads headers, filters and which rows are
        deleted.

        Raises:
            KuduError: CORRUPTION that names a damaged file; INVALID_SCHEMA if the schema has no column ids.
            OSError: a file is missing or cannot be read.
        """
        tablet = cls(schema=require_column_ids(schema), options=options, directory=directory, records=records)
        tablet._layers = {r.layer_id: DeltaLayer(disk, directory, r) for r in records.delta_layers}
        tablet._rowsets = tuple(
            DiskRowSet.open(disk, directory, record, schema, tablet._layers) for record in records.rowsets
        )
        tablet._index.runs = runs_by_size([KeyRun(disk, directory, record) for record in records.key_runs])
        tablet._index.locations = RowLocations(tablet._rowsets)
        for layer in tablet._layers.values():
            tablet._index.dead.add(layer.deleted_row_ids())
        return tablet

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self._schema

    @property
    def row_count(self) -> int:
        """Rows that are live now."""
        return self._live_rows

    @property
    def applied_timestamp(self) -> HybridTime:
        """The timestamp of the last applied batch."""
        return HybridTime(self._timestamp)

    @property
    def records(self) -> TabletRecords:
        """The published checkpoint."""
        return self._records

    @property
    def memory_bytes(self) -> int:
        """Memory that a flush would free once it is finished: rows, deltas and hot index, frozen ones included."""
        if self._array_bytes is None:
            size = self._active.memory_bytes + self._log.memory_bytes
            size += sum(memrowset.memory_bytes for memrowset in self._frozen)
            self._array_bytes = size if self._frozen_log is None else size + self._frozen_log.memory_bytes
        return self._array_bytes + self._tail.memory_bytes

    @property
    def unflushed_bytes(self) -> int:
        """Memory that the next flush would write: what came since the last freeze."""
        return self._active.memory_bytes + self._log.memory_bytes + self._tail.memory_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory that stays however often the tablet is flushed: filters and marks of deleted rows."""
        return self._index.memory_bytes

    @property
    def wants_flush(self) -> bool:
        """Whether the memory bound is reached and no flush is under way."""
        return not self._flushing and self.unflushed_bytes >= self._options.flush_bytes

    @property
    def has_unflushed(self) -> bool:
        """Whether there is anything that is not in the checkpoint's files."""
        return bool(self._tail.rows or self._active.rows or self._log.rows or self._frozen or self._frozen_log)

    @property
    def on_disk_bytes(self) -> int:
        """Size of the checkpoint's files."""
        return sum(file.size_bytes for file in self._records.files)

    # -- writes -------------------------------------------------------------------------------------------------------

    def apply(self, batch: RowBatch | SmallBatch, timestamp: HybridTime, op_id: OpId) -> WriteResult:
        """Applies a validated batch: each row by its operation, rows of one key in order.

        The same log gives the same rows and results on every replica. Timestamps and OpIds never go back. Never raises
        because of data.

        Raises:
            KuduError: CORRUPTION if a key that must be compared cannot be read from disk any more.
        """
        assert timestamp >= self._timestamp, (timestamp, self._timestamp)
        assert op_id.index > self._op_id.index, (op_id, self._op_id)
        if isinstance(batch, SmallBatch):
            if batch.kind.schema is self._schema:
                return self._apply_small(batch, timestamp, op_id)
            batch = join([batch])
        self._settle()
        batch = self._adopt(batch)
        keys = batch.keys
        single = batch.single_operation
        if single is not None and row_effects.INSERTS[single] and self._above_all(keys):
            # Keys that only rise are the commonest bulk load: above every key ever seen, they need no search.
            effects = row_effects.of_distinct(batch.operations, single, np.full(keys.rows, -1, np.int64))
            hashes = keys.hashes()
        else:
            hashes = keys.hashes()
            existing = self._index.find(hashes, keys)
            groups = row_effects.equal_key_groups(hashes, keys) if keys.rows > 1 else None
            if groups is None:
                effects = row_effects.of_distinct(batch.operations, single, existing)
            else:
                effects = row_effects.of_repeated(batch.operations, existing, groups, self._next_row_id)
        if len(effects.deletes):
            # Before the inserts: a key may leave and come back within the batch. (Rows that come and leave are not
            # indexed.)
            known = effects.delete_ids < self._next_row_id
            self._index.remove(hashes[effects.deletes[known]], effects.delete_ids[known])
        count = len(effects.inserts)
        if count:
            some = count < batch.row_count
            self._append(
                batch,
                effects.inserts if some else None,
                np.full(count, timestamp, np.uint64),
                hashes[effects.inserts] if some else hashes,
                effects.indexed,
            )
            self._next_row_id += count
        if len(effects.updates):
            self._log.append(updates_of(batch, effects.updates, effects.update_ids, timestamp))
        if len(effects.deletes):
            self._log.append(deletes_of(effects.delete_ids, timestamp))
        result = WriteResult(effects.errors, count, len(effects.updates), len(effects.deletes))
        self._array_bytes = None
        self._tail = WriteTail(self._next_row_id)
        self._note_applied(result, timestamp, op_id)
        return result

    def _apply_small(self, batch: SmallBatch, timestamp: HybridTime, op_id: OpId) -> WriteResult:
        highest = self._max_key[0] if self._max_key is not None else -1
        result = self._tail.apply(batch, timestamp, self._index, self._next_row_id, highest)
        self._next_row_id += result.inserted
        self._note_applied(result, timestamp, op_id)
        if self._tail.is_full:
            self._settle()
        return result

    def _note_applied(self, result: WriteResult, timestamp: HybridTime, op_id: OpId) -> None:
        self._live_rows += result.inserted - result.deleted
        self._timestamp = timestamp
        self._op_id = op_id

    def _settle(self) -> None:
        """Makes arrays of the tail, before anybody looks at them. Nothing else is different afterwards."""
        tail = self._tail
        if not tail.rows:
            return
        for some in tail.inserted():
            rows = some.rows if len(some.rows) < some.batch.row_count else None
            self._append(some.batch, rows, some.timestamps, None, some.indexed)
        for block in tail.deltas():
            self._log.append(block)
        self._array_bytes = None
        self._tail = WriteTail(self._next_row_id)

    def _append(
        self, batch: RowBatch, rows: I64 | None, timestamps: U64, hashes: U64 | None, indexed: Bools | None
    ) -> None:
        """Adds inserted rows to the active MemRowSet and its index.

        Args:
            rows: rows of the batch; None: all.
            hashes: of the keys of the inserted rows, if known.
            indexed: which of the inserted rows are live; None: all.
        """
        columns = inserted_columns(batch, rows)
        keys = batch.keys if rows is None else KeyBatch.of(batch.schema, columns)
        positions = np.arange(self._active.rows, self._active.rows + keys.rows, dtype=np.int64)
        self._active.append(batch.schema, columns, keys, timestamps)
        largest = keys.largest()
        if largest is not None and (self._max_key is None or largest > self._max_key):
            self._max_key = largest
        if hashes is None:
            hashes = keys.hashes()
        if indexed is not None:
            hashes, positions = hashes[indexed], positions[indexed]
        self._active.index.insert(hashes, positions)

    def _above_all(self, keys: KeyBatch) -> bool:
        ordinal = keys.ordinal(0)
        if ordinal is None or not (self._max_key is None or ordinal > self._max_key):
            return False
        return keys.ascending()

    def _adopt(self, batch: RowBatch) -> RowBatch:
        """The batch under this tablet's schema object, if that is the same schema.

        Chunks of one schema can be joined.
        """
        if batch.schema is self._schema:
            return batch
        if batch.schema == self._schema:
            return dataclasses.replace(batch, schema=self._schema)
        require_column_ids(batch.schema)
        return batch

    def alter_schema(self, schema: Schema, op_id: OpId) -> None:
        """Takes a new schema at its place in the log. Rows older than an added column read its default of now.

        Raises:
            KuduError: INVALID_SCHEMA if the primary key is another one or a column changed its type.
        """
        require_column_ids(schema)
        old = {column.column_id: column for column in self._schema.columns}
        keys = [column.column_id for column in self._schema.key_columns]
        if [column.column_id for column in schema.key_columns] != keys:
            raise KuduError(ErrorCode.INVALID_SCHEMA, "the primary key of a table cannot be altered")
        for column in schema.columns:
            before = old.get(column.column_id)
            if before is None:
                self._added.setdefault(column.column_id, column)
            elif before.arrow_type != column.arrow_type:
                raise KuduError(ErrorCode.INVALID_SCHEMA, f"column {column.name!r} cannot change its type")
        self._schema = schema
        self.reader = SmallBatchReader(schema)
        self._op_id = op_id

    # -- reads --------------------------------------------------------------------------------------------------------

    def scan(self, spec: ScanSpec) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot, checked and pinned now; batches are made as the iterator is asked for them.

        The timestamp must be safe: no write at or below it may be applied later. The iterator reads frozen state only,
        so it may be driven by another thread, and flush, compaction and removal of files go on meanwhile. Its batches'
        schema is the projection's.

        Raises:
            KuduError: COLUMN_NOT_FOUND, INVALID_ARGUMENT or INVALID_SCAN_SPEC for a request that does not fit the
                schema; INVALID_SNAPSHOT if history before the timestamp has been dropped. While iterating: CORRUPTION.
        """
        if spec.timestamp < self._records.history_start:
            raise KuduError(
                ErrorCode.INVALID_SNAPSHOT,
                f"snapshot {spec.timestamp} lies before the history kept, that begins at {self._records.history_start}",
            )
        bound = scanning.bind(self._schema, spec, self._read_defaults())
        return scanning.scan(self._sources(), bound)

    def digest(self, timestamp: HybridTime) -> int:
        """A checksum of the rows at a snapshot: equal on all replicas, whatever their files look like.

        Reads everything.
        """
        spec = ScanSpec(columns=self._schema.names, timestamp=timestamp)
        return digest_of(self._schema, self.scan(spec))

    def _sources(self) -> list[RowSource]:
        self._settle()
        newer: tuple[DeltaBlock, ...] = self._log.blocks
        if self._frozen_log is not None:
            newer = self._frozen_log.blocks + newer
        sources: list[RowSource] = [DiskRowSetSource(rowset, newer) for rowset in self._rowsets]
        sources.extend(MemRowSetSource(memrowset, newer) for memrowset in self._frozen)
        if self._active.rows:
            sources.append(MemRowSetSource(self._active, newer))
        return sources

    # -- flush --------------------------------------------------------------------------------------------------------

    def begin_flush(self, op_id: OpId | None = None) -> FlushPlan:
        """Freezes everything in memory as the state at `op_id` (by default the last applied operation).

        The caller has applied everything up to `op_id` and nothing after it. One flush at a time.
        """
        assert not self._flushing, "a flush is under way"
        self._flushing = True
        self._settle()
        frozen, log = self._active, self._log
        checkpoint = dataclasses.replace(
            self._records,
            op_id=self._op_id if op_id is None else op_id,
            timestamp=HybridTime(self._timestamp),
            next_row_id=self._next_row_id,
            live_rows=self._live_rows,
            max_key=self._max_key or (),
            added_columns=tuple(self._added.values()),
        )
        plan = FlushPlan(
            directory=self._directory,
            schema=self._schema,
            read_defaults=self._read_defaults(),
            memrowset=frozen if frozen.rows else None,
            deltas=log.blocks,
            block_ids=self._block_ids(2 + -(-frozen.rows // MAX_ROW_SPAN)),
            checkpoint=checkpoint,
        )
        if frozen.rows:
            self._frozen = (frozen,)
            self._active = MemRowSet(self._schema, self._next_row_id, min(frozen.rows // 2, 1 << 20))
            self._index.active = self._active
            self._index.frozen = self._frozen
        if log.rows:
            self._frozen_log = log
            self._log = DeltaLog()
        self._array_bytes = None
        return plan

    # -- compaction ---------------------------------------------------------------------------------------------------

    def begin_compaction(self, history_start: HybridTime) -> CompactionPlan | RunMergePlan | None:
        """What is best merged next, from files only; None if there is nothing to gain. One compaction at a time.

        Args:
            history_start: history below it need not be kept; scans below it are refused once the plan is published.
        """
        assert not self._compacting, "a compaction is under way"
        options = self._options.compaction
        history_start = max(history_start, self._records.history_start)
        runs = choose_runs(self._index.runs, options)
        if runs:
            self._compacting = True
            return RunMergePlan(self._directory, tuple(runs), self._index.locations, self._block_ids(1)[0])
        chosen = choose_rowsets(self._rowsets, options, history_start)
        if not chosen:
            return None
        self._compacting = True
        return CompactionPlan(
            directory=self._directory,
            schema=self._schema,
            read_defaults=self._read_defaults(),
            rowsets=tuple(chosen),
            history_start=history_start,
            block_ids=self._block_ids(COMPACTION_BLOCK_IDS),
        )

    def abandon_compaction(self) -> None:
        """The plan of `begin_compaction` failed or will not be run: another one may begin."""
        self._compacting = False

    def _after_compaction(self, result: CompactionResult) -> TabletRecords:
        current = {rowset.record.rowset_id: rowset for rowset in self._rowsets}
        inputs = {rowset.record.rowset_id for rowset in result.inputs}
        rowsets = [rowset.record for rowset in self._rowsets if rowset.record.rowset_id not in inputs]
        output = output_record(result, current)
        layers = {record.layer_id: record for record in self._records.delta_layers}
        if output is not None:
            rowsets.append(output)
            written = result.undo if result.deletes is None else (*result.undo, result.deletes)
            layers.update({layer.record.layer_id: layer.record for layer in written})
        rowsets = [without_old_undo(record, layers, result.history_start) for record in rowsets]
        named = {layer for record in rowsets for layer in (*record.undo_layers, *record.redo_layers)}
        return dataclasses.replace(
            self._records,
            history_start=result.history_start,
            next_block_id=self._next_block_id,
            rowsets=tuple(sorted(rowsets, key=lambda record: record.row_ids[0].first)),
            delta_layers=tuple(record for layer_id, record in sorted(layers.items()) if layer_id in named),
        )

    def _finish_compaction(self, result: CompactionResult, records: TabletRecords) -> None:
        written = result.undo if result.deletes is None else (*result.undo, result.deletes)
        self._layers.update({layer.record.layer_id: layer for layer in written})
        open_rowsets = {rowset.record.rowset_id: rowset for rowset in self._rowsets}
        if result.rowset is not None:
            open_rowsets[result.rowset.record.rowset_id] = result.rowset
        self._set_rowsets(records, open_rowsets)
        first = self._index.locations.first_row_id
        self._index.dead.forget_below(self._unflushed_first_row_id if first is None else first)
        self._compacting = False

    @property
    def _unflushed_first_row_id(self) -> int:
        return self._frozen[0].first_row_id if self._frozen else self._active.first_row_id

    def _after_run_merge(self, result: RunMergeResult) -> TabletRecords:
        inputs = {run.run_id for run in result.inputs}
        runs = [record for record in self._records.key_runs if record.run_id not in inputs]
        return dataclasses.replace(
            self._records, next_block_id=self._next_block_id, key_runs=(*runs, result.run.record)
        )

    def _finish_run_merge(self, result: RunMergeResult) -> None:
        inputs = {run.run_id for run in result.inputs}
        runs = [run for run in self._index.runs if run.run_id not in inputs]
        self._index.runs = runs_by_size([*runs, result.run])
        self._compacting = False

    # -- publication --------------------------------------------------------------------------------------------------

    def records_after(self, result: Result) -> TabletRecords:
        """What the superblock must say before `finish(result)`."""
        if isinstance(result, FlushResult):
            records = self._after_flush(result)
        elif isinstance(result, CompactionResult):
            records = self._after_compaction(result)
        else:
            records = self._after_run_merge(result)
        self._pending = (result, records)
        return records

    def finish(self, result: Result) -> tuple[FileRecord, ...]:
        """Publishes what `records_after` told, once the superblock is durable; the files that are no longer named."""
        assert self._pending is not None, "records_after comes before finish"
        pending, records = self._pending
        assert pending is result, "another change was published since records_after"
        self._pending = None
        if isinstance(result, FlushResult):
            self._finish_flush(result, records)
        elif isinstance(result, CompactionResult):
            self._finish_compaction(result, records)
        else:
            self._finish_run_merge(result)
        return self._publish(records)

    def _after_flush(self, result: FlushResult) -> TabletRecords:
        rowsets = [rowset.record for rowset in self._rowsets]
        if result.rowset is not None:
            rowsets.append(result.rowset.record)
        layers = self._records.delta_layers
        layer = result.layer
        if layer is not None:
            rowsets = [with_redo(record, layer) for record in rowsets]
            layers = (*layers, layer.record)
        return dataclasses.replace(
            result.checkpoint,
            history_start=self._records.history_start,
            next_block_id=self._next_block_id,
            rowsets=tuple(sorted(rowsets, key=lambda record: record.row_ids[0].first)),
            delta_layers=layers,
            key_runs=self._records.key_runs + tuple(run.record for run in result.runs),
        )

    def _finish_flush(self, result: FlushResult, records: TabletRecords) -> None:
        if result.layer is not None:
            self._layers[result.layer.record.layer_id] = result.layer
        open_rowsets = {rowset.record.rowset_id: rowset for rowset in self._rowsets}
        if result.rowset is not None:
            open_rowsets[result.rowset.record.rowset_id] = result.rowset
        self._set_rowsets(records, open_rowsets)
        self._index.runs = runs_by_size([*self._index.runs, *result.runs])
        self._frozen = ()
        self._index.frozen = ()
        self._frozen_log = None
        self._array_bytes = None
        self._flushing = False

    def _set_rowsets(self, records: TabletRecords, open_rowsets: dict[int, DiskRowSet]) -> None:
        rowsets = []
        for record in records.rowsets:
            rowset = open_rowsets[record.rowset_id]
            rowsets.append(rowset if rowset.record == record else rowset.with_record(record, self._layers))
        self._rowsets = tuple(rowsets)
        self._index.locations = RowLocations(self._rowsets)

    def _publish(self, records: TabletRecords) -> tuple[FileRecord, ...]:
        kept = {file.name for file in records.files}
        removed = tuple(file for file in self._records.files if file.name not in kept)
        self._records = records
        named = {layer.layer_id for layer in records.delta_layers}
        self._layers = {layer_id: layer for layer_id, layer in self._layers.items() if layer_id in named}
        return removed

    def _read_defaults(self) -> dict[int, object]:
        return {column_id: column.default for column_id, column in self._added.items()}

    def _block_ids(self, count: int) -> range:
        first = self._next_block_id
        self._next_block_id += count
        return range(first, first + count)


def with_redo(record: RowSetRecord, layer: DeltaLayer) -> RowSetRecord:
    """The record of a rowset after a flush that wrote `layer`."""
    if not layer.concerns(record.row_ids):
        return record
    return dataclasses.replace(record, redo_layers=(*record.redo_layers, layer.record.layer_id))


def inserted_columns(batch: RowBatch, rows: I64 | None) -> list[pa.Array]:
    """All columns of the schema for rows that are inserted (None.

    All of the batch), defaults where a row sets nothing.
    """
    n = batch.row_count if rows is None else len(rows)
    cells: list[pa.Array] = batch.rows.columns
    if rows is not None:
        indices = pa.array(rows)
        cells = [column.take(indices) for column in cells]
    if batch.unset is None and len(batch.positions) == len(batch.schema.columns):
        return cells
    carried = {position: k for k, position in enumerate(batch.positions)}
    columns = []
    for i, column in enumerate(batch.schema.columns):
        k = carried.get(i)
        if k is None:
            columns.append(pa.repeat(pa.scalar(column.default, column.arrow_type), n))
            continue
        values = cells[k]
        if batch.unset is not None and i >= batch.schema.key_count:
            unset: Bools = batch.unset[:, k] if rows is None else batch.unset[rows, k]
            if unset.any():
                values = pc.if_else(pa.array(unset), pa.scalar(column.default, column.arrow_type), values)
        columns.append(values)
    return columns


def require_column_ids(schema: Schema) -> Schema:
    """`schema` itself, if its columns have ids.

    Raises:
        KuduError: INVALID_SCHEMA; storage knows columns by id, so that renaming one changes no file.
    """
    ids = {column.column_id for column in schema.columns}
    if len(ids) != len(schema.columns) or min(ids) < 0:
        raise KuduError(
            ErrorCode.INVALID_SCHEMA, "a tablet's schema has a column id per column, at least 0, all different"
        )
    return schema
