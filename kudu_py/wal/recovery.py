"""Opening a log after a stop of any kind: what is believed, what is cut, what is refused.

What the writer promises, and what therefore may be found. A batch is written only when everything before it is
synced, and only the last one written may be torn. A segment gets its name when its header and its zeros are durable.
It gets a footer when all its batches are durable, and the next segment its first batch when that footer is durable.
So, in order:

 1. Leftovers under temporary names never were part of the log: removed.
 2. Segment numbers are without gaps (collection removes the oldest first and syncs the directory each time), headers
    are undamaged and this tablet's: anything else is refused.
 3. Every segment before the last one that was used has a footer, undamaged, and their chains and OpIds join: anything
    else is refused. That a segment with reason ROLLED is followed by another shows that no file was lost at the end.
 4. The last used segment, if it has no footer, is read from the start with its cache dropped: after a failed sync the
    cache may hold what the disk does not. A batch that is damaged, or whose place is empty, is
      - refused, if an undamaged batch follows: it was synced before that one was written;
      - refused, if its header is undamaged but says another place, breaks the chain or leaves a gap: no tear does that;
      - refused, if its header is undamaged and something other than zeros lies behind its end: nothing was ever
        written there;
      - refused, if the segment has a trailer that lies behind it: all batches were durable before that was written;
      - else the torn end of the last write, of which nobody was told: cut. One thing looks the same: a batch that was
        synced, was the very last, and rotted. `TornTail` keeps what is known of it, for those who may have promised it.
 5. What survives is copied to a new file with a footer, synced and renamed over the old one. Nothing is appended to a
    file that an unclean stop left behind: if the cache lied in spite of 4., copying makes it true before anybody
    relies on it, whereas rewriting in place was seen to lose data on ext4.
 6. A segment behind the last used one holds no batch. If it is all zeros it is used next, else (its first batch was
    torn) made anew.
A crash during any of this leaves a state that the same steps bring to the same end.

An error of the disk while reading is raised and never taken for the end of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from kudu_py.common.opid import OpId
from kudu_py.env.disk import Disk
from kudu_py.wal.format import (
    BATCH_HEADER_BYTES,
    FOOTER_MAGIC,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    CloseReason,
    Footer,
    TableRow,
    decode_batch_header,
    decode_table,
    identity_of,
)
from kudu_py.wal.index import SegmentIndex, TermRuns
from kudu_py.wal.reader import WINDOW_BYTES, Window, find_batch, is_zero, records_intact
from kudu_py.wal.segment import (
    TEMPORARY_SUFFIX,
    Segment,
    check_header,
    corruption,
    create_segment,
    parse_segment_name,
    publish,
    read_footer,
    read_trailer,
    require_footer,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of the last write, damaged and cut at this open.

    Attributes:
        path, offset: where it was.
        last_op_id: the last OpId that its header and table announced, if those could be read: it may have been
            acknowledged if the damage is not a tear.
    """

    path: str
    offset: int
    last_op_id: OpId | None


@dataclass(slots=True)
class Recovered:
    """A log as it was found.

    Attributes:
        segments: closed ones, oldest first, all with batches.
        spare: a preallocated segment that is next, if there is one.
        next_sequence: for the first segment to be created.
        base: the OpId before the first entry. last: of the last entry, or `base`.
        terms: of all entries.
        torn: what was cut, if anything.
    """

    base: OpId
    last: OpId
    next_sequence: int = 1
    segments: list[Segment] = field(default_factory=list)
    spare: Segment | None = None
    terms: TermRuns = field(default_factory=TermRuns)
    torn: TornTail | None = None

    def join(self, segment: Segment, end_offset: int, footer: Footer) -> None:
        """Adds the next closed segment, whose batches end at `end_offset`, if it continues what there is.

        Raises:
            KuduError: CORRUPTION: it does not.
        """
        if self.segments:
            before = self.segments[-1]
            if footer.first_previous_crc != before.last_crc:
                raise corruption(segment.path, SEGMENT_HEADER_BYTES, f"it does not continue {before.path}")
            if footer.lowest.index > self.last.index or (
                footer.lowest.index == self.last.index and footer.lowest != self.last
            ):
                raise corruption(segment.path, SEGMENT_HEADER_BYTES, f"it does not continue entry {self.last}")
        else:
            self.base = footer.lowest
        void_entries_after(footer.lowest.index, self.segments, before_sequence=segment.sequence)
        self.terms.truncate_after(footer.lowest.index)
        if footer.lowest.index < self.base.index:
            self.base = footer.lowest
        for index, term in zip(footer.run_firsts, footer.run_terms, strict=True):
            self.terms.add(index, term)
        segment.is_closed, segment.end_offset = True, end_offset
        segment.first_previous_crc, segment.last_crc = footer.first_previous_crc, footer.last_crc
        segment.lowest, segment.last, segment.live_last = footer.lowest, footer.last, footer.last.index
        self.segments.append(segment)
        self.last = footer.last


def void_entries_after(index: int, segments: Sequence[Segment], *, before_sequence: int) -> None:
    """Notes that entries above `index` in segments before this sequence were overwritten later."""
    for segment in reversed(segments):
        if segment.sequence >= before_sequence:
            continue
        if segment.live_last <= index:
            # Older ones end lower still: each was cut when a younger one began below its end.
            break
        segment.live_last = index


def recover(disk: Disk, directory: str, tablet_id: str, *, start_after: OpId) -> Recovered:
    """Brings the log in `directory` into a state to go on from; creates the directory if there is none. Blocks.

    Args:
        start_after: the OpId before the first entry, if there is no log yet.

    Raises:
        KuduError: CORRUPTION, with file and offset.
        OSError: the disk failed or is full; nothing that matters was changed.
    """
    _ensure_directory(disk, directory)
    recovered = Recovered(base=start_after, last=start_after)
    sequences = _sequences(disk, directory)
    tail: list[Segment] = []
    try:
        while sequences and not (tail and _is_used(tail[0])):
            tail.insert(0, _open(disk, directory, tablet_id, sequences.pop()))
        for sequence in sequences:
            _join_closed(disk, directory, tablet_id, recovered, sequence)
        if tail:
            _recover_tail(disk, directory, tablet_id, recovered, tail)
    except BaseException:
        for segment in tail:
            segment.end_use()
        raise
    return recovered


def _ensure_directory(disk: Disk, directory: str) -> None:
    # Synced at every open, because the process before this one may have been killed between a change and its sync.
    disk.make_dir(directory)
    disk.sync_dir(directory.rpartition("/")[0] or "/")
    disk.sync_dir(directory)


def _sequences(disk: Disk, directory: str) -> list[int]:
    """The numbers of the segments there are; removes leftovers (reason 1) and refuses gaps (reason 2)."""
    sequences: list[int] = []
    for name in disk.list_dir(directory):
        if name.endswith(TEMPORARY_SUFFIX) and parse_segment_name(name.removesuffix(TEMPORARY_SUFFIX)) is not None:
            disk.unlink(f"{directory}/{name}")
        elif (sequence := parse_segment_name(name)) is not None:
            sequences.append(sequence)
    for before, after in pairwise(sequences):
        if after != before + 1:
            raise corruption(f"{directory}/{segment_name(before + 1)}", 0, f"missing, while segment {after} is there")
    return sequences


def _open(disk: Disk, directory: str, tablet_id: str, sequence: int) -> Segment:
    file = disk.open(f"{directory}/{segment_name(sequence)}", writable=True)
    try:
        check_header(file, tablet_id, sequence)
        return Segment(file.path, identity_of(tablet_id, sequence), file, file.size())
    except BaseException:
        file.close()
        raise


def _join_closed(disk: Disk, directory: str, tablet_id: str, recovered: Recovered, sequence: int) -> None:
    """Adds a segment that is followed by one that is used (reason 3)."""
    segment = _open(disk, directory, tablet_id, sequence)
    try:
        recovered.join(segment, *require_footer(segment.open_file, segment.identity, segment.size_bytes))
    finally:
        segment.end_use()


def _recover_tail(disk: Disk, directory: str, tablet_id: str, recovered: Recovered, tail: Sequence[Segment]) -> None:
    """Deals with the last used segment and what is behind it; with only the latter, if none was ever used."""
    spares = list(tail)
    if _is_used(tail[0]) and _recover_last(disk, directory, recovered, tail[0], has_next=len(tail) > 1):
        del spares[0]
    if len(spares) > 1:
        raise corruption(spares[0].path, SEGMENT_HEADER_BYTES, f"empty, while segment {spares[1].sequence} is there")
    if not recovered.segments and spares[0].sequence > 1:
        raise corruption(spares[0].path, SEGMENT_HEADER_BYTES, "empty, and the segments before it are missing")
    recovered.next_sequence = tail[-1].sequence + 1
    if spares:
        recovered.spare = _recover_spare(disk, directory, tablet_id, recovered, spares[0])


def _is_used(segment: Segment) -> bool:
    """Whether at least the header of one batch is there; first makes sure that it is the disk that says so.

    What a killed process left in the cache is written out, what a failed sync left there is forgotten.
    """
    file = segment.open_file
    file.sync()
    file.drop_cache()
    return (
        read_trailer(file, segment.size_bytes) is not None
        or find_batch(file, segment.identity, SEGMENT_HEADER_BYTES, segment.size_bytes) is not None
    )


def _recover_spare(disk: Disk, directory: str, tablet_id: str, recovered: Recovered, segment: Segment) -> Segment:
    """The segment behind the last used one, all zeros (reason 6)."""
    if is_zero(segment.open_file, SEGMENT_HEADER_BYTES, segment.size_bytes):
        return segment
    if recovered.torn is None:
        recovered.torn = TornTail(segment.path, SEGMENT_HEADER_BYTES, None)
    segment.end_use()
    return create_segment(disk, directory, tablet_id, segment.sequence, segment.size_bytes)


def _recover_last(disk: Disk, directory: str, recovered: Recovered, segment: Segment, *, has_next: bool) -> bool:
    """Adds the last segment with batches to what is recovered; False if none of its batches survived."""
    closed = read_footer(segment.open_file, segment.identity, segment.size_bytes)
    if closed is not None:
        if closed[1].reason is CloseReason.ROLLED and not has_next:
            raise corruption(segment.path, closed[0], f"segment {segment.sequence + 1} is missing")
        recovered.join(segment, *closed)
        segment.end_use()
        return True
    tail = _Tail(recovered, segment)
    tail.scan()
    recovered.torn = tail.torn
    if not segment.has_batches:
        return False
    size_bytes = _copy(disk, directory, segment)
    segment.end_use()
    sealed = Segment(segment.path, segment.identity, None, size_bytes)
    recovered.join(sealed, segment.end_offset, segment.footer(CloseReason.STOPPED))
    return True


def _copy(disk: Disk, directory: str, segment: Segment) -> int:
    """Copies the batches of a scanned segment to a new file with a footer that takes its place; gives its size."""
    temporary = segment.path + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        window = Window(segment.open_file, segment.end_offset)
        for start in range(0, segment.end_offset, WINDOW_BYTES):
            file.write(start, [window.get(start, min(WINDOW_BYTES, segment.end_offset - start))])
        footer = segment.encoded_footer(CloseReason.STOPPED)
        file.write(segment.end_offset, [footer])
        file.sync()
    finally:
        file.close()
    publish(disk, directory, temporary, segment.path).close()
    return segment.end_offset + len(footer)


class _Tail:
    """Reads the last used segment from the start, by the rules of reason 4."""

    def __init__(self, recovered: Recovered, segment: Segment) -> None:
        self._recovered = recovered
        self._segment = segment
        self._file = segment.open_file
        self._window = Window(segment.open_file, segment.size_bytes)
        self.torn: TornTail | None = None

    def scan(self) -> None:
        """Moves the segment's end behind its last undamaged batch and builds its index."""
        segment = self._segment
        while (header := self._header()) is not None:
            self._check(header)
            table = decode_table(header, self._window.get(header.offset + BATCH_HEADER_BYTES, header.table_bytes))
            if table is None or not records_intact(self._window, header, table):
                self._cut(header, table)
                return
            self._take(header, table)
        start = segment.end_offset
        if is_zero(self._file, start, segment.size_bytes) or self._window.get(start, 4) == FOOTER_MAGIC:
            # No more was written, or a footer of which not all arrived: the batches before it were durable.
            self._refuse_later_batch(start + 1)
        else:
            self._cut(None, None)

    def _header(self) -> BatchHeader | None:
        return decode_batch_header(self._window.get(self._segment.end_offset, BATCH_HEADER_BYTES))

    def _check(self, header: BatchHeader) -> None:
        """Refuses an undamaged header that cannot be the next one."""
        segment, recovered = self._segment, self._recovered
        offset = segment.end_offset
        if header.identity != segment.identity or header.offset != offset:
            self._refuse(offset, f"the batch belongs to offset {header.offset} of segment {header.identity.sequence}")
        if header.end > segment.size_bytes:
            self._refuse(offset, f"the batch ends at {header.end}, behind the end of the file")
        if header.durable_upto > header.preceding.index:
            self._refuse(offset, f"entries up to {header.durable_upto} were durable, {header.preceding} precedes")
        last, last_crc = self._last()
        if last is None:
            return
        if header.previous_crc != last_crc:
            self._refuse(offset, "the batch does not continue the one before it")
        if not header.truncates and header.preceding != last:
            self._refuse(offset, f"the batch continues {header.preceding}, the log ends with {last}")
        if header.truncates and (
            header.preceding.index >= last.index
            or self._term_at(header.preceding.index) not in (None, header.preceding.term)
        ):
            self._refuse(offset, f"the batch truncates after {header.preceding}, which the log does not hold")
        assert recovered.base.index <= last.index, (recovered.base, last)

    def _last(self) -> tuple[OpId | None, int]:
        """The last OpId so far and the link of its batch; None before the first batch of the log."""
        if self._segment.has_batches:
            return self._segment.last, self._segment.last_crc
        if self._recovered.segments:
            return self._recovered.last, self._recovered.segments[-1].last_crc
        return None, 0

    def _term_at(self, index: int) -> int | None:
        """The term of an entry so far; None if it is older than the log: a truncation may reach below what is left."""
        own = self._segment.index
        if own is not None and index > own.lowest.index:
            return own.runs.term_at(index)
        if own is not None and index == own.lowest.index:
            return own.lowest.term
        recovered = self._recovered
        if recovered.segments and index > recovered.base.index:
            return recovered.terms.term_at(index)
        return recovered.base.term if recovered.segments and index == recovered.base.index else None

    def _take(self, header: BatchHeader, table: Sequence[TableRow]) -> None:
        segment = self._segment
        terms = [header.preceding.term, *(row.term for row in table)]
        if any(after < before for before, after in pairwise(terms)):
            self._refuse(header.offset, "terms fall within the batch")
        if segment.index is None:
            last, _ = self._last()
            segment.index = SegmentIndex(header.preceding, header.preceding if last is None else last)
            segment.first_previous_crc = header.previous_crc
        segment.add_batch(
            preceding=header.preceding,
            runs=[(index, row.term) for index, row in enumerate(table, header.preceding.index + 1)],
            last=OpId(terms[-1], header.last_index),
            crc=header.crc,
            end_offset=header.end,
        )

    def _cut(self, header: BatchHeader | None, table: Sequence[TableRow] | None) -> None:
        """Ends the log before the damaged batch, if a tear explains it."""
        start = self._segment.end_offset
        self._refuse_later_batch(start + 1)
        if header is not None and not is_zero(self._file, header.end, self._segment.size_bytes):
            self._refuse(start, f"the batch is damaged, and something was written behind its end at {header.end}")
        trailer = read_trailer(self._file, self._segment.size_bytes)
        if trailer is not None and trailer[0] > start:
            self._refuse(start, "the batch is damaged, and the segment was closed after it was durable")
        claimed = OpId(table[-1].term, header.last_index) if header is not None and table else None
        self.torn = TornTail(self._segment.path, start, claimed)

    def _refuse_later_batch(self, start: int) -> None:
        later = find_batch(self._file, self._segment.identity, start, self._segment.size_bytes)
        if later is not None:
            self._refuse(self._segment.end_offset, f"the batch is damaged, and an undamaged one follows at {later}")

    def _refuse(self, offset: int, why: str) -> NoReturn:
        raise corruption(self._segment.path, offset, why)
