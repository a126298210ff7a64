"""The checksum of a set of rows, whatever their order: the sum of a hash of each row, modulo 2**64.

Each cell is hashed with its column's id, so that equal values of two columns cannot change places unseen. Floats are
hashed
by their bits: replicas that read the same log hold the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.key_encoding import U64, BytesPart, FixedPart, hash_parts, parts_of
from kudu_py.common.schema import ColumnSchema, DataType, Schema

_NULL = np.uint64(0xA5A5A5A55A5A5A5A)


def digest_of(schema: Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """The digest of all rows of the batches, which have all columns of `schema` in order."""
    total = 0
    for batch in batches:
        total += int(row_hashes(schema, batch).sum(dtype=np.uint64))
    return total & ((1 << 64) - 1)


def row_hashes(schema: Schema, batch: pa.RecordBatch) -> U64:
    """uint64[n]: a hash of each row's cells."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column, cells in zip(schema.columns, batch.columns, strict=True):
        # A column by itself, then folded in: rows of one column are worked on while they are in the cache.
        of_column = hash_parts(_parts(column, cells)) + np.uint64(column.column_id + 1)
        if cells.null_count:
            of_column[cells.is_null().to_numpy(zero_copy_only=False)] = _NULL + np.uint64(column.column_id + 1)
        hashes ^= of_column
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _parts(column: ColumnSchema, cells: pa.Array) -> list[FixedPart | BytesPart]:
    if column.type is DataType.BOOL:
        return [FixedPart(pc.fill_null(cells, False).to_numpy(zero_copy_only=False).view(np.uint8), False)]
    return parts_of(column, cells)
