"""`Segment`: one file of the log, and the disk jobs that create, enlarge and close it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.env.disk import Disk, File
from kudu_py.wal.format import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    CloseReason,
    Footer,
    SegmentIdentity,
    decode_footer,
    decode_segment_header,
    decode_trailer,
    encode_footer,
    encode_segment_header,
    identity_of,
)
from kudu_py.wal.index import SegmentIndex, TermRuns

TEMPORARY_SUFFIX = ".tmp"
_PREFIX = "wal-"
_ZEROS = memoryview(bytes(1 << 20))


def segment_name(sequence: int) -> str:
    """The file name of a segment, upstream's form; sorts by sequence."""
    return f"{_PREFIX}{sequence:09d}"


def parse_segment_name(name: str) -> int | None:
    """The sequence in a file name, None if it is no segment's."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if name != digits and digits.isdecimal() and segment_name(int(digits)) == name else None


def corruption(path: str, offset: int, why: str) -> KuduError:
    """The refusal of a file whose content is in doubt."""
    return KuduError(
        ErrorCode.CORRUPTION, f"{path} at offset {offset}: {why}", details={"path": path, "offset": str(offset)}
    )


@dataclass(eq=False, slots=True)
class Segment:
    """A segment that holds batches or is ready to.

    Attributes:
        path: of the file.
        identity: its number and tablet.
        file: while it is in use, the one descriptor it is written and read through, opened before the first write: the
            kernel reports a failed write to the descriptors that were open at the time. None once it is closed and no
            read uses it: a server has more segments than it may have open files.
        size_bytes: length of the file: preallocated for one in use, exact for a closed one.
        end_offset: where the next batch goes; everything before is durable.
        first_previous_crc, last_crc: the ends of its piece of the chain of batches; 0 while there are none.
        lowest, last: as in `SegmentIndex`.
        live_last: index of its last entry that no later segment overwrote; at or below `lowest.index` if there is none.
        index: its batches; None for a closed segment whose index was not needed lately.
        is_closed: whether it has a footer.
        pins: reads that are using the file at the moment.
        is_retired: no longer written nor part of the log.
    """

    path: str
    identity: SegmentIdentity
    file: File | None
    size_bytes: int
    end_offset: int = SEGMENT_HEADER_BYTES
    first_previous_crc: int = 0
    last_crc: int = 0
    lowest: OpId = MIN_OP_ID
    last: OpId = MIN_OP_ID
    live_last: int = 0
    index: SegmentIndex | None = None
    is_closed: bool = False
    pins: int = 0
    is_retired: bool = False

    @property
    def sequence(self) -> int:
        return self.identity.sequence

    @property
    def room_bytes(self) -> int:
        """What can be written without the file growing."""
        return 0 if self.is_closed else self.size_bytes - self.end_offset

    @property
    def has_batches(self) -> bool:
        return self.end_offset > SEGMENT_HEADER_BYTES

    def add_batch(
        self, *, preceding: OpId, runs: Iterable[tuple[int, int]], last: OpId, crc: int, end_offset: int
    ) -> None:
        """Takes in the next batch, which is durable and ends at `end_offset`."""
        assert self.index is not None, f"{self.path} is in use and has its index in memory"
        self.index.add(preceding=preceding, offset=self.end_offset, runs=runs, last=last)
        self.lowest, self.last, self.live_last = self.index.lowest, last, last.index
        self.last_crc, self.end_offset = crc, end_offset

    def footer(self, reason: CloseReason) -> Footer:
        """What its footer says if it is closed now."""
        assert self.index is not None, f"{self.path} is in use and has its index in memory"
        assert self.has_batches, f"{self.path} has nothing to close"
        return Footer(
            reason=reason,
            first_previous_crc=self.first_previous_crc,
            last_crc=self.last_crc,
            lowest=self.lowest,
            last=self.last,
            firsts=self.index.firsts,
            offsets=self.index.offsets,
            run_firsts=self.index.runs.firsts,
            run_terms=self.index.runs.terms,
        )

    def encoded_footer(self, reason: CloseReason) -> bytes:
        return encode_footer(self.identity, self.end_offset, self.footer(reason))

    @property
    def open_file(self) -> File:
        """The file of a segment in use."""
        assert self.file is not None, f"{self.path} is not in use"
        return self.file

    def unpin(self) -> None:
        """Ends a read."""
        self.pins -= 1
        self.close_unused()

    def retire(self) -> None:
        """The segment leaves the log, or the log ends; reads that are under way go on to their end."""
        self.is_retired = True
        self.close_unused()

    def close_unused(self) -> None:
        """Closes the file if neither the writer nor a read needs it."""
        if not self.pins and (self.is_closed or self.is_retired):
            self.end_use()

    def end_use(self) -> None:
        """Closes the file. Idempotent."""
        if self.file is not None:
            self.file.close()
            self.file = None


# Disk jobs.


def create_segment(disk: Disk, directory: str, tablet_id: str, sequence: int, size_bytes: int) -> Segment:
    """A preallocated segment without batches, durable under its name.

    Zeros are written, not `fallocate`d: on ext4 a write into blocks that were only promised converts them at each sync,
    which costs twice the time, and a segment of such blocks lost rewritten bytes after one failed sync.

    Raises:
        OSError: there is no such segment; what is left of it goes away with the next try or the next open.
    """
    path = f"{directory}/{segment_name(sequence)}"
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    file = disk.create(temporary)
    try:
        file.write(0, [encode_segment_header(tablet_id, sequence)])
        write_zeros(file, SEGMENT_HEADER_BYTES, size_bytes)
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        file.close()
    file = publish(disk, directory, temporary, path)
    return Segment(path, identity_of(tablet_id, sequence), file, size_bytes)


def publish(disk: Disk, directory: str, temporary: str, path: str) -> File:
    """Gives a synced file its name, durably, and opens it: once, before anything that matters is written to it."""
    disk.rename(temporary, path)
    disk.sync_dir(directory)
    return disk.open(path, writable=True)


def enlarge_segment(segment: Segment, size_bytes: int) -> None:
    """Preallocates more of a segment that is not in use yet. An error leaves it as it was, as far as it was."""
    write_zeros(segment.open_file, segment.size_bytes, size_bytes)
    segment.open_file.sync()


def write_zeros(file: File, start: int, end: int) -> None:
    """Fills a part of a file with zeros, a megabyte at a time."""
    while start < end:
        length = min(end - start, len(_ZEROS))
        file.write(start, [_ZEROS[:length]])
        start += length


def close_segment(file: File, end_offset: int, footer: bytes) -> None:
    """Writes the footer and gives back what was preallocated behind it. Durable on return."""
    file.write(end_offset, [footer])
    file.truncate(end_offset + len(footer))
    file.sync()


def check_header(file: File, tablet_id: str, sequence: int) -> None:
    """Refuses a file that is not this segment. Its header was durable before it had its name."""
    header = decode_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
    if header is None:
        raise corruption(file.path, 0, "the segment header is damaged")
    if header.version != 1:
        raise corruption(file.path, 0, f"format version {header.version} is not known to this release")
    if header.tablet_id != tablet_id:
        raise corruption(file.path, 0, f"the segment belongs to tablet {header.tablet_id}, not to {tablet_id}")
    if header.sequence != sequence:
        raise corruption(file.path, 0, f"the header says segment {header.sequence}")


def read_trailer(file: File, size_bytes: int) -> tuple[int, int] | None:
    """Offset and length of the footer if the file ends with a trailer."""
    return decode_trailer(file.read(size_bytes - TRAILER_BYTES, TRAILER_BYTES)) if size_bytes > TRAILER_BYTES else None


def read_footer(file: File, identity: SegmentIdentity, size_bytes: int) -> tuple[int, Footer] | None:
    """Offset and content of the footer of a closed segment; None if there is none or it is damaged."""
    trailer = read_trailer(file, size_bytes)
    if trailer is None or trailer[0] + trailer[1] + TRAILER_BYTES != size_bytes:
        return None
    footer = decode_footer(identity, file.read(*trailer))
    return None if footer is None else (trailer[0], footer)


def require_footer(file: File, identity: SegmentIdentity, size_bytes: int) -> tuple[int, Footer]:
    """As `read_footer`, of a segment that must have one."""
    closed = read_footer(file, identity, size_bytes)
    if closed is None:
        raise corruption(file.path, size_bytes, "the footer of a closed segment is missing or damaged")
    return closed


def load_index(file: File, identity: SegmentIdentity, size_bytes: int) -> SegmentIndex:
    """The index of a closed segment, from its footer."""
    footer = require_footer(file, identity, size_bytes)[1]
    index = SegmentIndex(footer.lowest, footer.last)
    index.firsts, index.offsets = footer.firsts, footer.offsets
    index.runs = TermRuns(footer.run_firsts, footer.run_terms)
    return index
