"""`MemRowSetSource`: a MemRowSet as a scan sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from kudu_py.common.key_encoding import I64, U64
from kudu_py.common.predicate import BoundPredicate
from kudu_py.common.schema import ColumnSchema
from kudu_py.tablet.deltas import DeltaBlock
from kudu_py.tablet.memrowset import MemChunk, MemRowSet
from kudu_py.tablet.records import RowIdRange


class MemRowSetSource:
    """A snapshot of a MemRowSet and of the deltas that may concern it."""

    key_ordered = False

    def __init__(self, memrowset: MemRowSet, redo: Sequence[DeltaBlock]) -> None:
        self._chunks = memrowset.chunks
        self._redo = redo
        self.row_ranges: Sequence[RowIdRange] = (RowIdRange(memrowset.first_row_id, memrowset.rows),)

    def positions(self, row_ids: I64) -> I64:
        """Rows lie in the order of their row ids."""
        result: I64 = row_ids - np.int64(self.row_ranges[0].first)
        return result

    def chunks(self) -> Iterator[_SourceChunk]:
        """All rows of the snapshot."""
        return map(_SourceChunk, self._chunks)

    def redo(self) -> Sequence[DeltaBlock]:
        """Deltas of all row ids; those of other rowsets are left out by the view."""
        return self._redo

    def undo(self, timestamp: int) -> Sequence[DeltaBlock]:
        """Rows in memory are as they were inserted."""
        return ()


class _SourceChunk:
    def __init__(self, chunk: MemChunk) -> None:
        self._chunk = chunk
        self.first = chunk.first
        self.rows = chunk.rows
        self.max_timestamp = int(chunk.timestamps[-1])

    def timestamps(self) -> U64:
        return self._chunk.timestamps

    def column(self, column: ColumnSchema) -> pa.Array | None:
        return chunk_column(self._chunk, column)

    def may_match(self, predicate: BoundPredicate) -> bool:
        return True


def chunk_column(chunk: MemChunk, column: ColumnSchema) -> pa.Array | None:
    """A column of a chunk by its id; None if the chunk is older than the column."""
    for candidate, cells in zip(chunk.schema.columns, chunk.columns, strict=True):
        if candidate.column_id == column.column_id:
            return cells
    return None
