"""`DiskRowSet`: an immutable, key-ordered rowset on disk, and the delta layers that belong to it.

Its rows file has a column per table column (named by the column's id, so that renaming changes nothing), the row id
relative to the rowset's first one, and the insert timestamp. `locations` is the other way round, row id to position; it
is derived from the row id column, and written beside it so that opening reads nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from kudu_py.common.key_encoding import BYTES_TYPES, I64, U64, BytesPart, FixedPart, KeyBatch, KeyPart
from kudu_py.common.predicate import BoundPredicate
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.env.disk import Disk
from kudu_py.tablet.block_file import (
    CHECKED_BLOCK_BYTES,
    BlockFileWriter,
    CheckedBlocks,
    as_bytes,
    block_checksums,
    damaged,
)
from kudu_py.tablet.columnar_file import ColumnarFile
from kudu_py.tablet.delta_layer import DeltaLayer
from kudu_py.tablet.deltas import DeltaBlock
from kudu_py.tablet.records import FileRecord, RowIdRange, RowSetRecord

ROW_ID = "row_id"
TIMESTAMP = "timestamp"
GONE = np.uint32(0xFFFFFFFF)
MAX_ROW_SPAN = (1 << 32) - 1
_LOCATIONS_MAGIC = b"kudupyLO"
_LOCATIONS_TRAILER = struct.Struct("<8sQQ")


_FIRST_ROW_ID = b"first_row_id"


def rows_schema(columns: Sequence[ColumnSchema], first_row_id: int) -> pa.Schema:
    """The Arrow schema of a rows file; its metadata says what the row ids in the file are relative to."""
    fields = [pa.field(str(column.column_id), column.arrow_type) for column in columns]
    fields += [pa.field(ROW_ID, pa.uint32()), pa.field(TIMESTAMP, pa.uint64())]
    return pa.schema(fields, metadata={_FIRST_ROW_ID: str(first_row_id)})


# -- locations --------------------------------------------------------------------------------------------------------


def write_locations(disk: Disk, directory: str, name: str, locations: npt.NDArray[np.uint32]) -> FileRecord:
    """Writes the positions of row ids, in order of the rowset's ranges."""
    writer = BlockFileWriter(disk, directory, name)
    try:
        content = as_bytes(locations)
        checksums = as_bytes(np.array(block_checksums(content), np.uint64))
        writer.append(content)
        writer.append(bytes(-len(content) % 8))
        writer.append(checksums)
        digest = xxhash.xxh3_64_intdigest(checksums)
        writer.append(_LOCATIONS_TRAILER.pack(_LOCATIONS_MAGIC, len(locations), digest))
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Locations:
    """The mapped positions, verified block by block."""

    def __init__(self, disk: Disk, directory: str, record: FileRecord) -> None:
        path = f"{directory}/{record.name}"
        content = disk.map(path)
        if len(content) != record.size_bytes or len(content) < _LOCATIONS_TRAILER.size:
            raise damaged(path, f"it has {len(content)} bytes instead of {record.size_bytes}")
        magic, count, checksum = _LOCATIONS_TRAILER.unpack(content[-_LOCATIONS_TRAILER.size :])
        size = 4 * count
        blocks = -(-size // CHECKED_BLOCK_BYTES)
        start = -(-size // 8) * 8
        end = len(content) - _LOCATIONS_TRAILER.size
        if magic != _LOCATIONS_MAGIC or start + 8 * blocks != end:
            raise damaged(path, "its trailer is not that of a locations file")
        if xxhash.xxh3_64_intdigest(content[start:end]) != checksum:
            raise damaged(path, "the checksum of its checksums is wrong")
        self.values: npt.NDArray[np.uint32] = np.frombuffer(content, np.uint32, count)
        self._blocks = CheckedBlocks(path, content, size, np.frombuffer(content, np.uint64, blocks, start))

    def take(self, places: I64) -> I64:
        self._blocks.require(places >> 14)
        found = self.values.take(places)
        result = found.astype(np.int64)
        result[found == GONE] = -1
        return result


# -- keys -------------------------------------------------------------------------------------------------------------


class DiskKeys:
    """Keys by position, read where they are mapped."""

    def __init__(self, file: ColumnarFile, schema: Schema) -> None:
        self._file = file
        self._names = [str(column.column_id) for column in schema.key_columns]
        self._shift = np.int64(file.chunk_rows.bit_length() - 1)
        self._mask = np.int64(file.chunk_rows - 1)
        self._memory = np.frombuffer(file.content, np.uint8)
        self._verified: npt.NDArray[np.bool_] = np.zeros(max(1, file.chunk_count), np.bool_)
        self._gatherers: list[Callable[[I64, I64], list[KeyPart]]] = [self._gatherer(c) for c in schema.key_columns]

    def gather(self, positions: I64) -> KeyBatch:
        """The keys of rows by position, any order."""
        chunks = positions >> self._shift
        if not self._verified.take(chunks).all():
            self._verify(chunks)
        within = positions & self._mask
        parts: list[KeyPart] = []
        for gather in self._gatherers:
            parts.extend(gather(chunks, within))
        return KeyBatch(tuple(parts), len(positions))

    def _verify(self, chunks: I64) -> None:
        for chunk in np.unique(chunks).tolist():
            for name in self._names:
                self._file.column(chunk, name)
            self._verified[chunk] = True

    def _gatherer(self, column: ColumnSchema) -> Callable[[I64, I64], list[KeyPart]]:
        values, data = self._file.addresses(str(column.column_id))
        memory = self._memory
        if column.type in BYTES_TYPES:
            offsets = _view(memory, np.int32)
            firsts = values >> 2

            def gather_bytes(chunks: I64, within: I64) -> list[KeyPart]:
                at = firsts.take(chunks) + within
                starts = offsets.take(at).astype(np.int64)
                lengths = offsets.take(at + 1) - starts
                starts += data.take(chunks)
                return [BytesPart(starts, lengths, memory)]

            return gather_bytes
        if column.type is DataType.DECIMAL:
            words = _view(memory, np.uint64)
            bases = values >> 3

            def gather_decimal(chunks: I64, within: I64) -> list[KeyPart]:
                at = bases.take(chunks) + (within << 1)
                return [FixedPart(words.take(at + 1), True), FixedPart(words.take(at), False)]

            return gather_decimal
        width = column.arrow_type.bit_width // 8
        plain = _view(memory, np.dtype(f"u{width}"))
        begins = values // width

        def gather_fixed(chunks: I64, within: I64) -> list[KeyPart]:
            return [FixedPart(plain.take(begins.take(chunks) + within), True)]

        return gather_fixed


def _view(memory: npt.NDArray[np.uint8], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    return memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)


# -- the rowset -------------------------------------------------------------------------------------------------------


class DiskRowSet:
    """An open rowset. Immutable: new layers make a new object that shares the files."""

    def __init__(
        self,
        record: RowSetRecord,
        schema: Schema,
        *,
        file: ColumnarFile,
        locations: _Locations | None,
        keys: DiskKeys,
        redo: Sequence[DeltaLayer],
        undo: Sequence[DeltaLayer],
    ) -> None:
        self.record = record
        self.file = file
        self.keys = keys
        self.redo_layers = tuple(redo)
        self.undo_layers = tuple(undo)
        self._schema = schema
        self._locations = locations
        self._first_row_id = int(file.schema.metadata[_FIRST_ROW_ID])
        self._firsts = np.array([span.first for span in record.row_ids], np.int64)
        counts = np.array([span.count for span in record.row_ids], np.int64)
        self._offsets = np.cumsum(counts) - counts

    @classmethod
    def open(
        cls, disk: Disk, directory: str, record: RowSetRecord, schema: Schema, layers: dict[int, DeltaLayer]
    ) -> DiskRowSet:
        """Opens the files that the record names; `layers` has those that it lists."""
        file = ColumnarFile(disk, directory, record.rows_file)
        if file.rows != record.rows:
            raise damaged(file.path, f"it has {file.rows} rows instead of {record.rows}")
        locations = None
        if record.locations_file is not None:
            locations = _Locations(disk, directory, record.locations_file)
        return cls(
            record,
            schema,
            file=file,
            locations=locations,
            keys=DiskKeys(file, schema),
            redo=[layers[i] for i in record.redo_layers],
            undo=[layers[i] for i in record.undo_layers],
        )

    def with_record(self, record: RowSetRecord, layers: dict[int, DeltaLayer]) -> DiskRowSet:
        """The same rows under a record that differs in its layers only."""
        return DiskRowSet(
            record,
            self._schema,
            file=self.file,
            locations=self._locations,
            keys=self.keys,
            redo=[layers[i] for i in record.redo_layers],
            undo=[layers[i] for i in record.undo_layers],
        )

    def positions(self, row_ids: I64) -> I64:
        """Positions of row ids in this rowset's ranges; -1 for those that compaction has dropped."""
        if len(self._firsts) == 1:
            places = row_ids - self._firsts[0]
        else:
            span = np.searchsorted(self._firsts, row_ids, side="right") - 1
            places = row_ids - self._firsts.take(span) + self._offsets.take(span)
        return places if self._locations is None else self._locations.take(places)

    def row_ids_of(self, chunk: int) -> I64:
        """int64: the row ids of a chunk's rows."""
        result: I64 = self.file.column(chunk, ROW_ID).to_numpy().astype(np.int64) + self._first_row_id
        return result

    def timestamps_of(self, chunk: int) -> U64:
        """uint64: the insert timestamps of a chunk's rows."""
        result: U64 = self.file.column(chunk, TIMESTAMP).to_numpy()
        return result


class DiskRowSetSource:
    """A disk rowset as a scan sees it."""

    key_ordered = True

    def __init__(self, rowset: DiskRowSet, newer: Sequence[DeltaBlock]) -> None:
        """`newer`: deltas that are not in a layer yet, in order of time."""
        self._rowset = rowset
        self._newer = newer
        self.row_ranges: Sequence[RowIdRange] = rowset.record.row_ids

    def positions(self, row_ids: I64) -> I64:
        """See `DiskRowSet.positions`."""
        return self._rowset.positions(row_ids)

    def chunks(self) -> Iterator[_SourceChunk]:
        """All base rows."""
        return (_SourceChunk(self._rowset, i) for i in range(self._rowset.file.chunk_count))

    def redo(self) -> Sequence[DeltaBlock]:
        """The layers' blocks, then the newer ones."""
        blocks: list[DeltaBlock] = []
        for layer in self._rowset.redo_layers:
            blocks.extend(layer.blocks)
        blocks.extend(self._newer)
        return blocks

    def undo(self, timestamp: int) -> Sequence[DeltaBlock]:
        """The undo layers, oldest first, if the snapshot lies before what the base rows show."""
        if timestamp >= self._rowset.record.first_snapshot:
            return ()
        return [block for layer in self._rowset.undo_layers for block in layer.blocks]


class _SourceChunk:
    def __init__(self, rowset: DiskRowSet, number: int) -> None:
        self._rowset = rowset
        self._number = number
        self.first = number * rowset.file.chunk_rows
        self.rows = rowset.file.row_counts[number]
        highest = rowset.file.statistic(number, TIMESTAMP)[1]
        self.max_timestamp = int(highest.as_py())

    def timestamps(self) -> U64:
        return self._rowset.timestamps_of(self._number)

    def column(self, column: ColumnSchema) -> pa.Array | None:
        name = str(column.column_id)
        return self._rowset.file.column(self._number, name) if self._rowset.file.has(name) else None

    def may_match(self, predicate: BoundPredicate) -> bool:
        name = str(predicate.column.column_id)
        if not self._rowset.file.has(name):
            return True
        low, high, nulls = self._rowset.file.statistic(self._number, name)
        return predicate.may_match(low, high, nulls, self.rows)
