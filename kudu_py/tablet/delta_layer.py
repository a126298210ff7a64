"""`DeltaLayer`: updates and deletes in an immutable file, in order of row id and time.

A flush writes one layer for all rowsets that it concerns; each of them names it in its record, and the file goes when
none does any more. Columns: row id, timestamp, whether it deletes, then per changed table column its values and, unless
every delta sets it, a column that says which do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.key_encoding import I64
from kudu_py.env.disk import Disk
from kudu_py.tablet.columnar_file import ColumnarFile, ColumnarFileWriter, chunk_rows_for
from kudu_py.tablet.deltas import DeltaBlock, DeltaColumn
from kudu_py.tablet.records import DeltaLayerRecord, RowIdRange

ROW_ID = "row_id"
TIMESTAMP = "timestamp"
DELETE = "delete"
_DELETES = b"deletes"
"""In the schema's metadata: how many of the deltas delete. Most layers have none, and a start looks for them."""


def write_layer(disk: Disk, directory: str, layer_id: int, block: DeltaBlock) -> DeltaLayerRecord:
    """Writes deltas; those of one row are in order of time in `block`."""
    order = np.argsort(block.row_ids, kind="stable")
    fields = [pa.field(ROW_ID, pa.int64()), pa.field(TIMESTAMP, pa.uint64()), pa.field(DELETE, pa.bool_())]
    for column_id, column in block.columns.items():
        fields.append(pa.field(str(column_id), column.values.type))
        if column.is_set is not None:
            fields.append(pa.field(f"set_{column_id}", pa.bool_()))
    schema = pa.schema(fields, metadata={_DELETES: str(int(block.deletes.sum()))})
    chunk_rows = chunk_rows_for(block.rows, block.memory_bytes)
    writer = ColumnarFileWriter(disk, directory, f"{layer_id}.deltas", schema, chunk_rows=chunk_rows)
    try:
        for first in range(0, block.rows, chunk_rows):
            part = block.take(order[first : first + chunk_rows])
            arrays = [pa.array(part.row_ids), pa.array(part.timestamps), pa.array(part.deletes)]
            for column in part.columns.values():
                arrays.append(column.values)
                if column.is_set is not None:
                    arrays.append(pa.array(column.is_set))
            writer.write(arrays)
        file = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return DeltaLayerRecord(
        layer_id=layer_id,
        file=file,
        rows=block.rows,
        min_timestamp=HybridTime(int(block.timestamps.min())),
        max_timestamp=HybridTime(int(block.timestamps.max())),
    )


class DeltaLayer:
    """An open file of deltas, in order of row id and time."""

    def __init__(self, disk: Disk, directory: str, record: DeltaLayerRecord) -> None:
        self.record = record
        self._file = ColumnarFile(disk, directory, record.file)
        self._blocks: list[DeltaBlock] = []
        self.deletes = int((self._file.schema.metadata or {}).get(_DELETES, b"0"))

    @property
    def blocks(self) -> Sequence[DeltaBlock]:
        """All deltas, mapped; a chunk is a block."""
        if not self._blocks:
            self._blocks = [self._block(chunk) for chunk in range(self._file.chunk_count)]
        return self._blocks

    def foldable(self, spans: Sequence[RowIdRange], history_start: int) -> int:
        """Number of deltas of row ids in these ranges that a compaction is rid of: all but deletes that are still
        history.
        """
        total = 0
        keeps_deletes = self.deletes > 0 and self.record.max_timestamp > history_start
        for block in self.blocks:
            for span in spans:
                low, high = np.searchsorted(block.row_ids, (span.first, span.first + span.count)).tolist()
                total += high - low
                if keeps_deletes:
                    kept = block.deletes[low:high] & (block.timestamps[low:high] > np.uint64(history_start))
                    total -= int(np.count_nonzero(kept))
        return total

    def concerns(self, spans: Sequence[RowIdRange]) -> bool:
        """Whether there is a delta of a row id in these ranges."""
        for block in self.blocks:
            for span in spans:
                low, high = np.searchsorted(block.row_ids, (span.first, span.first + span.count)).tolist()
                if low < high:
                    return True
        return False

    def deleted_row_ids(self) -> I64:
        """Row ids that are deleted here."""
        if not self.deletes:
            return np.zeros(0, np.int64)
        return np.concatenate([block.row_ids[block.deletes] for block in self.blocks])

    def _block(self, chunk: int) -> DeltaBlock:
        file = self._file
        columns = {}
        for name in file.schema.names:
            if name.isdecimal():
                mask = f"set_{name}"
                is_set = _bools(file.column(chunk, mask)) if file.has(mask) else None
                columns[int(name)] = DeltaColumn(file.column(chunk, name), is_set)
        return DeltaBlock(
            file.column(chunk, ROW_ID).to_numpy(),
            file.column(chunk, TIMESTAMP).to_numpy(),
            _bools(file.column(chunk, DELETE)),
            columns,
            is_sorted=True,
        )


def _bools(column: pa.Array) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return result
