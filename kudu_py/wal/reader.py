"""Reads batches of one segment: records by index for peers and replay, every batch in order for recovery."""

from __future__ import annotations

from collections.abc import Iterator

from kudu_py.common.opid import OpId
from kudu_py.env.disk import File
from kudu_py.wal.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BatchHeader,
    Record,
    SegmentIdentity,
    TableRow,
    crc32c,
    decode_batch_header,
    decode_table,
)
from kudu_py.wal.index import SegmentIndex
from kudu_py.wal.segment import corruption

WINDOW_BYTES = 512 << 10


class Window:
    """A file read forward, a large piece at a time."""

    def __init__(self, file: File, end: int, piece_bytes: int = WINDOW_BYTES) -> None:
        """Nothing at or behind `end` is read."""
        self._file = file
        self._end = end
        self._piece_bytes = piece_bytes
        self._start = 0
        self._piece = b""

    def get(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end."""
        start = offset - self._start
        if start < 0 or start + length > len(self._piece):
            wanted = min(max(length, self._piece_bytes), max(0, self._end - offset))
            self._piece = self._file.read(offset, wanted)
            self._start, start = offset, 0
        return self._piece[start : start + length]


def read_records(
    file: File,
    identity: SegmentIdentity,
    index: SegmentIndex,
    *,
    end_offset: int,
    first: int,
    last: int,
    max_bytes: int,
) -> list[Record]:
    """Records `first` to `last`, all durable entries of this segment; at least one, then as many as fit `max_bytes`.

    Raises:
        KuduError: CORRUPTION. OSError: the disk could not be read.
    """
    records: list[Record] = []
    window = Window(file, end_offset, min(WINDOW_BYTES, max_bytes + 4096))
    for position in range(index.position_of(first), len(index)):
        place = index.place(position)
        if place.first > last or (records and max_bytes <= 0):
            break
        header = decode_batch_header(window.get(place.offset, BATCH_HEADER_BYTES))
        if header is None or header.identity != identity or header.offset != place.offset:
            raise corruption(file.path, place.offset, "the batch header is damaged")
        if header.preceding.index + 1 != place.first or header.last_index + 1 < place.end:
            raise corruption(file.path, place.offset, f"the batch lacks entries {place.first} to {place.end - 1}")
        table = decode_table(header, window.get(place.offset + BATCH_HEADER_BYTES, header.table_bytes))
        if table is None:
            raise corruption(file.path, place.offset, "the table of the batch is damaged")
        offset = header.payload_offset
        for number, row in enumerate(table, place.first):
            if number > last or number >= place.end:
                break
            if number >= first:
                max_bytes -= row.length
                if records and max_bytes < 0:
                    return records
                payload = window.get(offset, row.length)
                if len(payload) != row.length or crc32c(payload) != row.crc:
                    raise corruption(file.path, offset, f"entry {row.term}.{number} is damaged")
                records.append(Record(OpId(row.term, number), payload))
            offset += row.length
    return records


def records_intact(window: Window, header: BatchHeader, table: list[TableRow]) -> bool:
    """Whether all payloads of a batch are what was written."""
    offset = header.payload_offset
    for row in table:
        payload = window.get(offset, row.length)
        if len(payload) != row.length or crc32c(payload) != row.crc:
            return False
        offset += row.length
    return True


def find_batch(file: File, identity: SegmentIdentity, start: int, end: int) -> int | None:
    """The offset of the first undamaged batch header of this segment that starts at or behind `start`, if there is one.

    A header says where it was written, so bytes of a payload that look like one are not taken for it.
    """
    for offset, piece in _pieces(file, start, end):
        found = piece.find(BATCH_MAGIC)
        while found >= 0:
            header = decode_batch_header(piece[found : found + BATCH_HEADER_BYTES])
            if header is not None and header.offset == offset + found and header.identity == identity:
                return header.offset
            found = piece.find(BATCH_MAGIC, found + 1)
    return None


def is_zero(file: File, start: int, end: int) -> bool:
    """Whether this part of the file holds nothing but zeros."""
    return not any(piece.count(0) != len(piece) for _, piece in _pieces(file, start, end))


def _pieces(file: File, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes from `start` to `end`; pieces overlap, so that each batch header is whole in one of them."""
    while start < end:
        piece = file.read(start, min(WINDOW_BYTES, end - start))
        yield start, piece
        if start + len(piece) >= end or len(piece) <= BATCH_HEADER_BYTES:
            return
        start += len(piece) - BATCH_HEADER_BYTES
