"""`TabletRig`: one row engine on a disk, driven by hand, with a superblock that is a Python value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.common.predicate import Predicate
from kudu_py.common.row_batch import RowBatch, RowOperation, decode, validate
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.small_batch import SmallBatch
from kudu_py.env.disk import Disk
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.tablet.compaction import CompactionOptions, CompactionPlan, RunMergePlan
from kudu_py.tablet.flush import FlushPlan
from kudu_py.tablet.records import TabletRecords
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet import Tablet, TabletOptions
from kudu_py.tablet.write_result import WriteResult

SIMPLE_SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.INT64, column_id=0),
        ColumnSchema("int_val", DataType.INT32, nullable=True, column_id=1),
        ColumnSchema("string_val", DataType.STRING, nullable=True, column_id=2),
    ),
    key_count=1,
)
EAGER = TabletOptions(
    compaction=CompactionOptions(rowsets_min=2, rowsets_max=3, layers_max=1, delta_share=0.01, runs_min=2)
)
"""Compacts as soon as there is anything to compact."""


def batch_of(
    schema: Schema,
    operations: RowOperation | Sequence[RowOperation],
    columns: Sequence[Sequence[object]],
    *,
    positions: Sequence[int] | None = None,
    unset: Sequence[Sequence[bool]] | None = None,
) -> RowBatch:
    """A batch of Python values, by column, sent through its wire form as in life."""
    carried = tuple(range(len(schema.columns))) if positions is None else tuple(positions)
    arrays = [pa.array(cells, schema.columns[p].arrow_type) for p, cells in zip(carried, columns, strict=True)]
    n = len(arrays[0])
    codes = np.full(n, operations, np.uint8) if isinstance(operations, RowOperation) else np.array(operations, np.uint8)
    rows = pa.RecordBatch.from_arrays(arrays, names=[schema.columns[p].name for p in carried])
    batch = RowBatch(schema, codes, rows, carried, None if unset is None else np.array(unset, np.bool_))
    decoded = decode(schema, batch.encode(), batch.column_ids, has_unset=unset is not None)
    validate(decoded)
    return decoded


class TabletRig:
    """A tablet, its clock and its superblock.

    Attributes:
        tablet: the open tablet.
        records: what the superblock says.
        timestamp: of the last batch.
        index: of the last batch.
    """

    def __init__(
        self,
        directory: str,
        schema: Schema = SIMPLE_SCHEMA,
        *,
        disk: Disk | None = None,
        options: TabletOptions = EAGER,
    ) -> None:
        self.schema = schema
        self.directory = directory
        self.disk: Disk = PosixDisk() if disk is None else disk
        self.options = options
        self.records = TabletRecords()
        self.timestamp = 0
        self.index = 0
        self._log: list[tuple[int, int, RowBatch]] = []
        self.tablet = self._open()

    def _open(self) -> Tablet:
        return Tablet.open(
            schema=self.schema, options=self.options, directory=self.directory, disk=self.disk, records=self.records
        )

    def apply(self, batch: RowBatch) -> WriteResult:
        """Applies a batch at the next timestamp and OpId."""
        self.timestamp += 10
        self.index += 1
        self._log.append((self.timestamp, self.index, batch))
        return self._apply(batch, self.timestamp, self.index)

    def _apply(self, batch: RowBatch, timestamp: int, index: int) -> WriteResult:
        opened: RowBatch | SmallBatch = batch
        if batch.schema == self.tablet.schema:
            # As a replica opens an entry: a batch of a few rows takes another way than a large one.
            opened = self.tablet.reader.open(batch.encode(), batch.column_ids, has_unset=batch.unset is not None)
        return self.tablet.apply(opened, HybridTime(timestamp), OpId(1, index))

    def write(self, operation: RowOperation, *columns: Sequence[object]) -> WriteResult:
        """Applies rows given by column."""
        return self.apply(batch_of(self.schema, operation, columns))

    def alter(self, schema: Schema) -> None:
        """Takes a new schema at the next OpId. Replay after `reopen` does not repeat it: flush first."""
        self.index += 1
        self.tablet.alter_schema(schema, OpId(1, self.index))
        self.schema = schema

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Flushes; `meanwhile` runs between the freeze and the work."""
        plan = self.tablet.begin_flush()
        meanwhile()
        self.carry_out(plan)

    def compact(self, history_start: int = 0, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Compacts once; whether there was anything to do."""
        plan = self.tablet.begin_compaction(HybridTime(history_start))
        if plan is None:
            return False
        meanwhile()
        self.carry_out(plan)
        return True

    def carry_out(self, plan: FlushPlan | CompactionPlan | RunMergePlan) -> None:
        """Runs a plan and publishes what it wrote."""
        result = plan.run(self.disk)
        self.records = self.tablet.records_after(result)
        for file in self.tablet.finish(result):
            self.disk.unlink(f"{self.directory}/{file.name}")

    def reopen(self) -> None:
        """As after a crash: opens what the superblock names and replays the log after it."""
        named = {file.name for file in self.records.files}
        for name in self.disk.list_dir(self.directory):
            if name not in named:
                self.disk.unlink(f"{self.directory}/{name}")
        self.tablet = self._open()
        for timestamp, index, batch in self._log:
            if index > self.records.op_id.index:
                self._apply(batch, timestamp, index)

    def rows(
        self,
        timestamp: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        predicates: Sequence[Predicate] = (),
        ordered: bool = False,
        limit: int | None = None,
        batch_bytes: int = 1 << 20,
        start_after_key: bytes | None = None,
    ) -> list[tuple[object, ...]]:
        """The rows of a scan, as tuples in the order they came."""
        spec = ScanSpec(
            columns=self.schema.names if columns is None else tuple(columns),
            timestamp=HybridTime(self.timestamp if timestamp is None else timestamp),
            predicates=tuple(predicates),
            ordered=ordered,
            limit=limit,
            batch_bytes=batch_bytes,
            start_after_key=start_after_key,
        )
        result: list[tuple[object, ...]] = []
        for batch in self.tablet.scan(spec):
            batch.validate(full=True)
            result.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        return result
