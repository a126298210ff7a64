"""Columns of many rows in one immutable file: an Arrow IPC stream with a directory behind its end.

The file begins as an ordinary Arrow IPC stream (schema, record batches, end mark), which any Arrow reader opens. Behind
the end mark stand the *directory* (an Arrow stream itself: per record batch, here called chunk, its place, row count,
checksums and statistics by column) and a trailer that finds it. All chunks but the last have the same number of rows,
so that arithmetic finds a row. Buffers are not compressed: a scan uses them where they are mapped, and the key index
reads single keys.

Verified: trailer and directory at open, a chunk's head when it is first used, a column of a chunk when it is first
read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from kudu_py.common.key_encoding import I64, U64, Bools
from kudu_py.env.disk import Buffer, Disk
from kudu_py.tablet.block_file import BlockFileWriter, damaged
from kudu_py.tablet.records import FileRecord

_MAGIC = b"kudupyCF"
_VERSION = 1
_TRAILER = struct.Struct("<8sIIQQQQ")
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_STATISTIC_BYTES_MAX = 64
CHUNK_ROWS_MAX = 65_536
_CHUNK_BYTES = 4 << 20


def chunk_rows_for(rows: int, size_bytes: int) -> int:
    """Rows per chunk, a power of two: 65,536, fewer if rows are wide (a chunk's strings must stay far below 2 GiB)."""
    width = max(1, size_bytes // max(1, rows))
    chunk_rows = CHUNK_ROWS_MAX
    while chunk_rows > 1024 and chunk_rows * width > _CHUNK_BYTES:
        chunk_rows //= 2
    return chunk_rows


class ColumnarFileWriter:
    """Writes chunks one after another; memory is bounded by a chunk."""

    def __init__(
        self, disk: Disk, directory: str, name: str, schema: pa.Schema, *, chunk_rows: int, addressed: int = 0
    ) -> None:
        """`addressed`: the first so many columns can be gathered by position without opening chunks."""
        self._schema = schema
        self._chunk_rows = chunk_rows
        self._addressed = addressed
        self._rows = 0
        self._table: dict[str, list[int]] = {name: [] for name in ("offset", "size", "rows", "head")}
        self._columns: list[dict[str, list[object]]] = [
            {name: [] for name in ("checksum", "nulls", "min", "max", "values", "bytes")} for _ in schema
        ]
        self._short = False
        self._file = BlockFileWriter(disk, directory, name)
        self._head = schema.serialize()
        self._file.append(self._head)

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._rows

    def write(self, arrays: Sequence[pa.Array]) -> None:
        """Adds one chunk: `chunk_rows` rows, fewer only for the last."""
        assert not self._short, "a chunk follows a short one"
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=self._schema)
        assert 0 < batch.num_rows <= self._chunk_rows, (batch.num_rows, self._chunk_rows)
        self._short = batch.num_rows < self._chunk_rows
        message = batch.serialize()
        offset = self._file.offset
        # As a reader will see it: buffers at their final places, cut to size.
        placed = pa.ipc.read_record_batch(message, self._schema)
        head = 8 + int.from_bytes(memoryview(message)[4:8], "little")
        self._table["offset"].append(offset)
        self._table["size"].append(message.size)
        self._table["rows"].append(batch.num_rows)
        self._table["head"].append(xxhash.xxh3_64_intdigest(memoryview(message)[:head]))
        for i, column in enumerate(placed.columns):
            self._describe(self._columns[i], column, offset - message.address, addressed=i < self._addressed)
        self._rows += batch.num_rows
        self._file.append(message)

    def _describe(self, table: dict[str, list[object]], column: pa.Array, shift: int, *, addressed: bool) -> None:
        table["checksum"].append(_column_checksum(column))
        table["nulls"].append(column.null_count)
        low, high = _bounds(column)
        table["min"].append(low)
        table["max"].append(high)
        if addressed:
            places = [0 if buffer is None else buffer.address + shift for buffer in column.buffers()[1:]]
            table["values"].append(places[0])
            table["bytes"].append(places[1] if len(places) > 1 else 0)

    def finish(self) -> FileRecord:
        """Writes the directory and syncs."""
        self._file.append(_END_OF_STREAM)
        offset = self._file.offset
        arrays = [pa.array(self._table[name], pa.uint64()) for name in ("offset", "size", "rows", "head")]
        names = ["offset", "size", "rows", "head"]
        for i, (field, table) in enumerate(zip(self._schema, self._columns, strict=True)):
            for name, kind in (
                ("checksum", pa.uint64()),
                ("nulls", pa.uint64()),
                ("min", field.type),
                ("max", field.type),
            ):
                names.append(f"{name}_{i}")
                arrays.append(pa.array(table[name], kind))
            if i < self._addressed:
                for name in ("values", "bytes"):
                    names.append(f"{name}_{i}")
                    arrays.append(pa.array(table[name], pa.uint64()))
        sink = pa.BufferOutputStream()
        directory = pa.RecordBatch.from_arrays(arrays, names=names)
        with pa.ipc.new_stream(sink, directory.schema) as writer:
            writer.write_batch(directory)
        content = sink.getvalue()
        self._file.append(content)
        checksum = _frame_checksum(self._head, content, self._chunk_rows, self._rows)
        self._file.append(_TRAILER.pack(_MAGIC, _VERSION, self._chunk_rows, self._rows, offset, content.size, checksum))
        return self._file.finish()

    def abandon(self) -> None:
        """Closes after a failure."""
        self._file.abandon()


class ColumnarFile:
    """An open file. Reading is safe from any thread: what it remembers only says what was verified."""

    def __init__(self, disk: Disk, directory: str, record: FileRecord) -> None:
        self.path = f"{directory}/{record.name}"
        content = disk.map(self.path)
        if len(content) != record.size_bytes or len(content) < _TRAILER.size:
            raise damaged(self.path, f"it has {len(content)} bytes instead of {record.size_bytes}")
        magic, version, chunk_rows, rows, offset, size, checksum = _TRAILER.unpack(content[-_TRAILER.size :])
        if magic != _MAGIC or version != _VERSION:
            raise damaged(self.path, "its trailer is not that of a columnar file")
        if offset + size != len(content) - _TRAILER.size:
            raise damaged(self.path, "its trailer does not find the directory")
        table = content[offset : offset + size]
        head = content[: 8 + int.from_bytes(content[4:8], "little")]
        if _frame_checksum(head, table, chunk_rows, rows) != checksum:
            raise damaged(self.path, "the checksum of its schema and directory is wrong")
        self.content = content
        self.chunk_rows: int = chunk_rows
        self.rows: int = rows
        self.size_bytes = len(content)
        self._directory = pa.ipc.open_stream(pa.py_buffer(table)).read_next_batch()
        self._offsets: list[int] = self._numbers("offset").tolist()
        self._sizes: list[int] = self._numbers("size").tolist()
        self._heads: list[int] = self._numbers("head").tolist()
        self.row_counts: list[int] = self._numbers("rows").tolist()
        self.chunk_count = len(self._offsets)
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(head))
        self._positions = {name: i for i, name in enumerate(self.schema.names)}
        self._batches: list[pa.RecordBatch | None] = [None] * self.chunk_count
        self._checksums: list[U64] = [self._numbers(f"checksum_{i}") for i in range(len(self._positions))]
        self._verified: list[Bools] = [np.zeros(self.chunk_count, np.bool_) for _ in self._positions]

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name in self._positions

    def column(self, chunk: int, name: str) -> pa.Array:
        """A column of a chunk, where it is mapped."""
        i = self._positions[name]
        batch = self._batches[chunk]
        if batch is None:
            batch = self._open(chunk)
            self._batches[chunk] = batch
        column = batch.column(i)
        if not self._verified[i][chunk]:
            if _column_checksum(column) != int(self._checksums[i][chunk]):
                raise damaged(self.path, f"the checksum of column {name} in chunk {chunk} is wrong")
            self._verified[i][chunk] = True
        return column

    def statistic(self, chunk: int, name: str) -> tuple[pa.Scalar, pa.Scalar, int]:
        """Smallest and largest value that is not null (null scalars if unknown) and the number of nulls."""
        i = self._positions[name]
        low = self._directory.column(f"min_{i}")[chunk]
        high = self._directory.column(f"max_{i}")[chunk]
        return low, high, int(self._directory.column(f"nulls_{i}")[chunk].as_py())

    def addresses(self, name: str) -> tuple[I64, I64]:
        """For an addressed column, by chunk.

        Where its values (or offsets) lie in the file, and the bytes of its strings.
        """
        i = self._positions[name]
        return self._numbers(f"values_{i}").view(np.int64), self._numbers(f"bytes_{i}").view(np.int64)

    def _numbers(self, name: str) -> U64:
        numbers: U64 = self._directory.column(name).to_numpy()
        return numbers

    def _open(self, chunk: int) -> pa.RecordBatch:
        offset, size = self._offsets[chunk], self._sizes[chunk]
        message = self.content[offset : offset + size]
        head = 8 + int.from_bytes(message[4:8], "little")
        if head > size or xxhash.xxh3_64_intdigest(message[:head]) != self._heads[chunk]:
            raise damaged(self.path, f"the checksum of the head of chunk {chunk} is wrong")
        return pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)


def _frame_checksum(head: Buffer, directory: Buffer, chunk_rows: int, rows: int) -> int:
    """Of everything in the file that is not a chunk."""
    digest = xxhash.xxh3_64(head)
    digest.update(directory)
    digest.update(struct.pack("<QQ", chunk_rows, rows))
    return digest.intdigest()


def _column_checksum(column: pa.Array) -> int:
    digest = xxhash.xxh3_64()
    for buffer in column.buffers():
        if buffer is not None and buffer.size:
            digest.update(buffer)
    return digest.intdigest()


def _bounds(column: pa.Array) -> tuple[object, object]:
    """Smallest and largest value; None for both if there is none or they are of no use."""
    kind = column.type
    if column.null_count == len(column):
        return None, None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    bounds = pc.min_max(column)
    low, high = bounds["min"], bounds["max"]
    if pa.types.is_binary(column.type):
        low, high = low.as_py(), high.as_py()
        if len(low) > _STATISTIC_BYTES_MAX or len(high) > _STATISTIC_BYTES_MAX:
            return None, None
        return (low.decode(), high.decode()) if pa.types.is_string(kind) else (low, high)
    return low, high
