"""`MemRowSet`: the rowset that takes inserts, as Arrow batches in arrival order.

Its rows have consecutive row ids from `first_row_id`; a row's position is its arrival number here. It holds the values
as the arrays they came in (small batches are joined, since each array costs about a kilobyte however few rows it has),
the keys once more in arrays that grow, where any position can be gathered, and the hot part of the key index for its
rows. Nothing in it is ever changed once appended, so a scan that holds a list of its chunks is a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.key_encoding import I64, U64, BytesPart, FixedPart, KeyBatch, KeyPart
from kudu_py.common.schema import Schema
from kudu_py.tablet.key_index_hot import HotIndex

_JOIN_COUNT = 32
_JOIN_ROWS_MAX = 4096
_CHUNK_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class MemChunk:
    """Consecutive rows of a MemRowSet.

    Attributes:
        schema: the tablet's schema when they were inserted.
        columns: all columns of that schema.
        timestamps: uint64[rows], when each row was inserted; rising.
        first: position of the first row.
        rows: number of rows.
    """

    schema: Schema
    columns: tuple[pa.Array, ...]
    timestamps: U64
    first: int
    rows: int


class MemRowSet:
    """Inserted rows since the last flush. Only the loop's thread appends; a frozen one is read by any thread."""

    def __init__(self, schema: Schema, first_row_id: int, expected_rows: int = 0) -> None:
        self.first_row_id = first_row_id
        self.rows = 0
        self.index = HotIndex(expected_rows)
        self.max_key: tuple[int, ...] | None = None
        self._keys = _GrowingKeys(schema)
        self._chunks: list[MemChunk] = []
        self._levels: list[int] = []
        self._value_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Memory that the rows, their keys and their index take."""
        return (
            self._value_bytes
            + self._keys.memory_bytes
            + self.index.memory_bytes
            + self.rows * 8
            + len(self._chunks) * _CHUNK_OVERHEAD_BYTES
        )

    @property
    def chunks(self) -> tuple[MemChunk, ...]:
        """All rows so far, in arrival order; a snapshot."""
        return tuple(self._chunks)

    def append(self, schema: Schema, columns: list[pa.Array], keys: KeyBatch, timestamps: U64) -> None:
        """Adds rows with all columns of `schema` and rising timestamps; the caller enters them in the index."""
        n = keys.rows
        self._keys.append(keys)
        self._chunks.append(MemChunk(schema, tuple(columns), timestamps, self.rows, n))
        self._levels.append(0 if n <= _JOIN_ROWS_MAX // _JOIN_COUNT else -1)
        self.rows += n
        for column in columns:
            self._value_bytes += column.nbytes
        if len(self._levels) >= _JOIN_COUNT:
            self._join()

    def key_at(self, position: int) -> tuple[int | bytes, ...]:
        """One key, as `KeyBatch.scalars` gives it."""
        return self._keys.at(position)

    def keys_at(self, positions: I64) -> KeyBatch:
        """The keys of rows by position."""
        return self._keys.gather(positions)

    def keys(self) -> KeyBatch:
        """All keys in arrival order; a view."""
        return self._keys.all()

    def _join(self) -> None:
        """Joins the last chunks while there are enough of one size: each row is copied once per power of 32."""
        while len(self._levels) >= _JOIN_COUNT:
            level = self._levels[-1]
            if level < 0 or self._levels[-_JOIN_COUNT] != level:
                return
            if any(x != level for x in self._levels[-_JOIN_COUNT:]):
                return
            chunks = self._chunks[-_JOIN_COUNT:]
            if any(chunk.schema is not chunks[0].schema for chunk in chunks):
                self._levels[-_JOIN_COUNT:] = [-1] * _JOIN_COUNT
                return
            rows = sum(chunk.rows for chunk in chunks)
            joined = MemChunk(
                chunks[0].schema,
                tuple(pa.concat_arrays(list(same)) for same in zip(*(chunk.columns for chunk in chunks), strict=True)),
                np.concatenate([chunk.timestamps for chunk in chunks]),
                chunks[0].first,
                rows,
            )
            self._chunks[-_JOIN_COUNT:] = [joined]
            self._levels[-_JOIN_COUNT:] = [level + 1 if rows < _JOIN_ROWS_MAX else -1]


class _GrowingKeys:
    """Keys in arrays that double, so that any position can be gathered."""

    def __init__(self, schema: Schema) -> None:
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], column.arrow_type) for column in schema.key_columns],
            names=list(schema.names[: schema.key_count]),
        )
        self._columns = [_column_for(part) for part in KeyBatch.of(schema, empty.columns).parts]
        self._rows = 0

    @property
    def memory_bytes(self) -> int:
        return sum(column.memory_bytes for column in self._columns)

    def append(self, keys: KeyBatch) -> None:
        for column, part in zip(self._columns, keys.parts, strict=True):
            column.append(part, self._rows)
        self._rows += keys.rows

    def gather(self, positions: I64) -> KeyBatch:
        return KeyBatch(tuple(column.gather(positions) for column in self._columns), len(positions))

    def at(self, position: int) -> tuple[int | bytes, ...]:
        return tuple(column.at(position) for column in self._columns)

    def all(self) -> KeyBatch:
        return KeyBatch(tuple(column.all(self._rows) for column in self._columns), self._rows)


class _FixedColumn:
    def __init__(self, part: FixedPart) -> None:
        self._words = np.empty(64, part.words.dtype)
        self._signed = part.signed

    @property
    def memory_bytes(self) -> int:
        return self._words.nbytes

    def append(self, part: KeyPart, at: int) -> None:
        assert isinstance(part, FixedPart)
        end = at + len(part.words)
        if end > len(self._words):
            self._words = _grown(self._words, end)
        self._words[at:end] = part.words

    def gather(self, positions: I64) -> FixedPart:
        return FixedPart(self._words.take(positions), self._signed)

    def at(self, position: int) -> int:
        return int(self._words[position])

    def all(self, rows: int) -> FixedPart:
        return FixedPart(self._words[:rows], self._signed)


class _BytesColumn:
    def __init__(self) -> None:
        self._starts = np.empty(64, np.int64)
        self._lengths = np.empty(64, np.int64)
        self._memory = np.zeros(1024, np.uint8)
        self._end = 0

    @property
    def memory_bytes(self) -> int:
        return self._starts.nbytes + self._lengths.nbytes + self._memory.nbytes

    def append(self, part: KeyPart, at: int) -> None:
        assert isinstance(part, BytesPart)
        end = at + len(part.starts)
        if end > len(self._starts):
            self._starts = _grown(self._starts, end)
            self._lengths = _grown(self._lengths, end)
        # A key batch made from arrays has its strings one after another from offset 0 and eight spare bytes.
        size = int(part.starts[-1] + part.lengths[-1])
        if self._end + size + 8 > len(self._memory):
            self._memory = _grown(self._memory, self._end + size + 8)
        self._memory[self._end : self._end + size] = part.memory[:size]
        np.add(part.starts, self._end, out=self._starts[at:end])
        self._lengths[at:end] = part.lengths
        self._end += size

    def gather(self, positions: I64) -> BytesPart:
        return BytesPart(self._starts.take(positions), self._lengths.take(positions), self._memory)

    def at(self, position: int) -> bytes:
        start = int(self._starts[position])
        return self._memory[start : start + int(self._lengths[position])].tobytes()

    def all(self, rows: int) -> BytesPart:
        return BytesPart(self._starts[:rows], self._lengths[:rows], self._memory)


def _column_for(part: KeyPart) -> _FixedColumn | _BytesColumn:
    return _FixedColumn(part) if isinstance(part, FixedPart) else _BytesColumn()


def _grown(array: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    grown = np.empty(max(needed, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
