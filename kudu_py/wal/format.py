"""The bytes of a segment: pure encode and decode, little-endian, CRC-32C.

    segment  = header (512 bytes) batch* [footer trailer]        closed, the file ends there
             | header batch* zeros                               in use, preallocated
    batch    = batch header (80 bytes), one table row of 16 bytes a record (term, length, checksum), payloads
    footer   = what the batches amount to: first and last OpIds, where each batch starts, terms by index

A batch is what one group commit wrote: its records are durable together. The header's checksum covers the lengths, so
that a rotten length is never followed; the table's is in the header, each payload's in the table, so that one record
can be read and verified alone. Because the next header holds the checksum of this one, all batches of a log form one
chain.

A batch header says where it was written (tablet, segment, offset), so that a misplaced or foreign one is not believed.
It names the OpId before its first record. If that is below the last OpId so far, the flag TRUNCATES is set and
everything in between is void: this is how a log is truncated (docs/decisions says why).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import NamedTuple

import google_crc32c

from kudu_py.common.opid import OpId
from kudu_py.env.disk import Buffer

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 512
"""A sector of its own: no torn batch shares it."""
TABLET_ID_BYTES_MAX = 64

_SEGMENT_MAGIC = b"KUDUPYWL"
_SEGMENT_HEADER = struct.Struct("<8sIIQ64s")  # magic, version, length of the tablet id, sequence, tablet id
_CRC = struct.Struct("<I")

BATCH_MAGIC = b"\xb1KB\x9e"
"""Unlikely in text and in small numbers; found by search when the place of the next batch is not known."""
_BATCH_PREFIX = struct.Struct("<4sI")  # magic, checksum of the rest
_BATCH_REST = struct.Struct("<QQIIQQQIIQII")
BATCH_HEADER_BYTES = _BATCH_PREFIX.size + _BATCH_REST.size
_TABLE_ROW = struct.Struct("<QII")  # term, length, checksum
TABLE_ROW_BYTES = _TABLE_ROW.size
_TRUNCATES = 1

FOOTER_MAGIC = b"\xf1KF\x9e"
_FOOTER_PREFIX = struct.Struct("<4sI")  # magic, checksum of the rest
_FOOTER_REST = struct.Struct("<QIIIIQQQQQI")
_TRAILER_MAGIC = b"KUDUPYWE"
_TRAILER = struct.Struct("<QQ8s")  # where the footer starts, its length, magic
TRAILER_BYTES = _TRAILER.size

_JOIN_BYTES = 32 << 10
"""Batches below this are copied into one buffer: cheaper than the kernel's bookkeeping for many small ones."""


class Record(NamedTuple):
    """An entry of the log. The payload belongs to the log from `append` on and is never changed."""

    op_id: OpId
    payload: bytes


def crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli); with the processor's instruction 12 GB/s."""
    return int(google_crc32c.value(content))


class SegmentIdentity(NamedTuple):
    """What every batch of a segment repeats: the segment's number and the checksum of its tablet's id."""

    sequence: int
    tablet_crc: int


def identity_of(tablet_id: str, sequence: int) -> SegmentIdentity:
    return SegmentIdentity(sequence, crc32c(tablet_id.encode()))


# Segment header.


class SegmentHeader(NamedTuple):
    """The first sector of a segment, durable before the segment has its name."""

    version: int
    tablet_id: str
    sequence: int


def encode_segment_header(tablet_id: str, sequence: int) -> bytes:
    """Exactly SEGMENT_HEADER_BYTES bytes."""
    encoded = tablet_id.encode()
    assert 0 < len(encoded) <= TABLET_ID_BYTES_MAX, f"tablet id of {len(encoded)} bytes"
    head = _SEGMENT_HEADER.pack(_SEGMENT_MAGIC, FORMAT_VERSION, len(encoded), sequence, encoded)
    return (head + _CRC.pack(crc32c(head))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def decode_segment_header(raw: bytes) -> SegmentHeader | None:
    """The header, or None if these bytes are none."""
    if len(raw) < SEGMENT_HEADER_BYTES:
        return None
    head = raw[: _SEGMENT_HEADER.size]
    magic, version, id_length, sequence, tablet_id = _SEGMENT_HEADER.unpack(head)
    if magic != _SEGMENT_MAGIC or _CRC.unpack_from(raw, _SEGMENT_HEADER.size)[0] != crc32c(head):
        return None
    return SegmentHeader(version, tablet_id[:id_length].decode(), sequence)


# Batches.


class BatchHeader(NamedTuple):
    """What is known of a batch before its records are read.

    Attributes:
        offset: where in the segment it starts.
        identity: of the segment.
        truncates: whether entries above `preceding` were in the log before and are void from here on.
        preceding: OpId of the entry before the first record (before nothing, if there is none).
        durable_upto: index up to which the log was synced when this was written; everything before this batch was.
        previous_crc: `crc` of the batch before, in this segment or the one before; 0 for the first of a log.
        record_count, payload_bytes, table_crc: what follows.
        crc: the checksum of this header, the link of the chain.
    """

    offset: int
    identity: SegmentIdentity
    truncates: bool
    preceding: OpId
    durable_upto: int
    previous_crc: int
    record_count: int
    payload_bytes: int
    table_crc: int
    crc: int

    @property
    def table_bytes(self) -> int:
        return self.record_count * TABLE_ROW_BYTES

    @property
    def payload_offset(self) -> int:
        return self.offset + BATCH_HEADER_BYTES + self.table_bytes

    @property
    def end(self) -> int:
        """Where the next batch starts."""
        return self.payload_offset + self.payload_bytes

    @property
    def last_index(self) -> int:
        return self.preceding.index + self.record_count


class TableRow(NamedTuple):
    """What a batch's table says of one record."""

    term: int
    length: int
    crc: int


class EncodedBatch(NamedTuple):
    """A batch ready to be written.

    Attributes:
        buffers: to be written one after another; payloads are not copied if they are large.
        size_bytes: of all buffers.
        crc: the link for the next batch.
        runs: (first index, term) wherever the term changes, beginning with the first record.
        last: OpId of the last record, or the preceding one if there is none.
    """

    buffers: list[Buffer]
    size_bytes: int
    crc: int
    runs: list[tuple[int, int]]
    last: OpId


def batch_bytes(record_count: int, payload_bytes: int) -> int:
    """The size of a batch in a segment."""
    return BATCH_HEADER_BYTES + record_count * TABLE_ROW_BYTES + payload_bytes


def encode_batch(
    *,
    identity: SegmentIdentity,
    offset: int,
    truncates: bool,
    preceding: OpId,
    durable_upto: int,
    previous_crc: int,
    records: Sequence[Record],
) -> EncodedBatch:
    """A batch of contiguous records after `preceding`; of none, if it only truncates."""
    pack, checksum = _TABLE_ROW.pack, google_crc32c.value
    rows: list[bytes] = []
    payloads: list[bytes] = []
    runs: list[tuple[int, int]] = []
    payload_bytes, term = 0, -1
    for (record_term, index), payload in records:
        length = len(payload)
        rows.append(pack(record_term, length, checksum(payload)))
        payloads.append(payload)
        payload_bytes += length
        if record_term != term:
            runs.append((index, record_term))
            term = record_term
    table = b"".join(rows)
    rest = _BATCH_REST.pack(
        offset,
        identity.sequence,
        identity.tablet_crc,
        _TRUNCATES if truncates else 0,
        preceding.term,
        preceding.index,
        durable_upto,
        previous_crc,
        len(rows),
        payload_bytes,
        checksum(table),
        0,
    )
    crc: int = checksum(rest)
    head = _BATCH_PREFIX.pack(BATCH_MAGIC, crc) + rest
    size_bytes = len(head) + len(table) + payload_bytes
    is_small = size_bytes <= _JOIN_BYTES
    buffers: list[Buffer] = [b"".join((head, table, *payloads))] if is_small else [head + table, *payloads]
    return EncodedBatch(buffers, size_bytes, crc, runs, records[-1].op_id if records else preceding)


def decode_batch_header(raw: bytes) -> BatchHeader | None:
    """The header at the start of `raw`, or None if there is none or it is damaged."""
    if len(raw) < BATCH_HEADER_BYTES:
        return None
    magic, crc = _BATCH_PREFIX.unpack_from(raw)
    if magic != BATCH_MAGIC or crc != crc32c(raw[_BATCH_PREFIX.size : BATCH_HEADER_BYTES]):
        return None
    (
        offset,
        sequence,
        tablet_crc,
        flags,
        preceding_term,
        preceding_index,
        durable_upto,
        previous_crc,
        record_count,
        payload_bytes,
        table_crc,
        _,
    ) = _BATCH_REST.unpack_from(raw, _BATCH_PREFIX.size)
    return BatchHeader(
        offset=offset,
        identity=SegmentIdentity(sequence, tablet_crc),
        truncates=bool(flags & _TRUNCATES),
        preceding=OpId(preceding_term, preceding_index),
        durable_upto=durable_upto,
        previous_crc=previous_crc,
        record_count=record_count,
        payload_bytes=payload_bytes,
        table_crc=table_crc,
        crc=crc,
    )


def decode_table(header: BatchHeader, raw: bytes) -> list[TableRow] | None:
    """The table of a batch, or None if it is damaged."""
    if len(raw) != header.table_bytes or crc32c(raw) != header.table_crc:
        return None
    table = [TableRow._make(row) for row in _TABLE_ROW.iter_unpack(raw)]
    return table if sum(row.length for row in table) == header.payload_bytes else None


# Footer.


@unique
class CloseReason(IntEnum):
    """Why a segment was closed."""

    ROLLED = 1
    """The next segment was there already: if it is missing, it was lost."""
    STOPPED = 2
    """The log was closed, or cut after a crash; there may be no next segment."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What the batches of a closed segment amount to; it has at least one.

    Attributes:
        reason: why it was closed.
        first_previous_crc: `previous_crc` of its first batch. last_crc: `crc` of its last.
        lowest: of all OpIds that precede its batches the one with the lowest index: entries of earlier segments above
            it are void.
        last: the last OpId of the log when it was closed.
        firsts, offsets: first index and offset of each batch that was not overwritten within the segment, ascending.
        run_firsts, run_terms: where the term changes among those.
    """

    reason: CloseReason
    first_previous_crc: int
    last_crc: int
    lowest: OpId
    last: OpId
    firsts: array[int]
    offsets: array[int]
    run_firsts: array[int]
    run_terms: array[int]


def encode_footer(identity: SegmentIdentity, offset: int, footer: Footer) -> bytes:
    """Footer and trailer, to be written at `offset`, where the next batch would start; the file ends after them."""
    rest = _FOOTER_REST.pack(
        identity.sequence,
        identity.tablet_crc,
        footer.reason,
        footer.first_previous_crc,
        footer.last_crc,
        footer.lowest.term,
        footer.lowest.index,
        footer.last.term,
        footer.last.index,
        len(footer.firsts),
        len(footer.run_firsts),
    )
    arrays = (footer.firsts, footer.offsets, footer.run_firsts, footer.run_terms)
    rest += b"".join(a.tobytes() for a in arrays)
    encoded = _FOOTER_PREFIX.pack(FOOTER_MAGIC, crc32c(rest)) + rest
    return encoded + _TRAILER.pack(offset, len(encoded), _TRAILER_MAGIC)


def decode_trailer(raw: bytes) -> tuple[int, int] | None:
    """Offset and length of the footer, from the last TRAILER_BYTES of a file; None if they are no trailer."""
    if len(raw) != TRAILER_BYTES:
        return None
    offset, length, magic = _TRAILER.unpack(raw)
    return (offset, length) if magic == _TRAILER_MAGIC else None


def decode_footer(identity: SegmentIdentity, raw: bytes) -> Footer | None:
    """The footer, or None if it is damaged or another segment's."""
    fixed = _FOOTER_PREFIX.size + _FOOTER_REST.size
    if len(raw) < fixed:
        return None
    magic, crc = _FOOTER_PREFIX.unpack_from(raw)
    if magic != FOOTER_MAGIC or crc != crc32c(raw[_FOOTER_PREFIX.size :]):
        return None
    (sequence, tablet_crc, reason, first_crc, last_crc, low_term, low_index, last_term, last_index, batches, runs) = (
        _FOOTER_REST.unpack_from(raw, _FOOTER_PREFIX.size)
    )
    if (sequence, tablet_crc) != identity or len(raw) != fixed + 16 * (batches + runs):
        return None
    arrays: list[array[int]] = []
    start = fixed
    for length in (batches, batches, runs, runs):
        values = array("Q")
        values.frombytes(raw[start : start + 8 * length])
        arrays.append(values)
        start += 8 * length
    return Footer(
        CloseReason(reason), first_crc, last_crc, OpId(low_term, low_index), OpId(last_term, last_index), *arrays
    )
