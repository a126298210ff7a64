"""`Log`: the write-ahead log of one tablet, the façade that the rest of the house uses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.env.disk import Disk, DiskThreads
from kudu_py.wal.allocator import Allocator
from kudu_py.wal.anchors import LogAnchors
from kudu_py.wal.format import CloseReason, Record
from kudu_py.wal.index import SegmentIndex
from kudu_py.wal.options import PAGE_BYTES, WalOptions
from kudu_py.wal.reader import read_records
from kudu_py.wal.recent import CacheBudget, RecentRecords
from kudu_py.wal.recovery import Recovered, TornTail, recover, void_entries_after
from kudu_py.wal.segment import Segment, close_segment, load_index
from kudu_py.wal.writer import Writer

T = TypeVar("T")

_REPLAY_BYTES = 4 << 20


class SegmentFile(NamedTuple):
    """A segment as a tablet copy sees it: the first `durable_bytes` of the file are complete and do not change."""

    path: str
    durable_bytes: int


class CopiedFile(NamedTuple):
    """A segment, or the part of one, that belongs to a copy of the log; it does not change while an anchor holds it.

    Attributes:
        name: of the file, without directory.
        size_bytes: what of it is copied, from its beginning on.
        last_crc: the link of its last batch, which stands for all batches of the log up to there.
    """

    name: str
    size_bytes: int
    last_crc: int


class Log:
    """Records under contiguous indexes, made durable in order. All methods are called on the loop that opened it.

    Marks, by index: base < first_index; durable <= last (accepted). The entry at base precedes the first and is known
    only by its OpId. Records above durable are in memory; those at or below it are on the disk, the latest of them in
    memory too.

    A failed write or sync poisons the log: `on_failure` is called once, nothing is reported durable any more,
    `append` is refused; the owner ends the process. Reads go on.
    """

    def __init__(
        self,
        recovered: Recovered,
        *,
        directory: str,
        tablet_id: str,
        threads: DiskThreads,
        options: WalOptions,
        on_durable: Callable[[OpId], None],
        on_failure: Callable[[BaseException], None],
        cache_budget: CacheBudget | None,
    ) -> None:
        """Use `open`."""
        self.anchors = LogAnchors()
        self._directory = directory
        self._tablet_id = tablet_id
        self._threads = threads
        self._options = options
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._torn_tail = recovered.torn
        self._segments = recovered.segments
        self._base = recovered.base
        self._last = self._durable = recovered.last
        self._terms = recovered.terms
        self._recent = RecentRecords(options.cache_bytes_max, cache_budget)
        self._in_flight_cut: OpId | None = None
        self._truncations = 0
        self._loaded: list[Segment] = []
        self._collecting = asyncio.Lock()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._allocator = Allocator(
            threads=threads,
            directory=directory,
            tablet_id=tablet_id,
            options=options,
            next_sequence=recovered.next_sequence,
            spare=recovered.spare,
            on_ready=lambda: self._writer.start(),
            on_failure=lambda error: self._writer.fail(error),
        )
        self._writer = Writer(
            threads=threads,
            allocator=self._allocator,
            last=recovered.last,
            last_crc=recovered.segments[-1].last_crc if recovered.segments else 0,
            on_segment=self._segments.append,
            on_batch=self._batch_durable,
            on_failure=self._fail,
        )

    @classmethod
    async def open(
        cls,
        *,
        directory: str,
        tablet_id: str,
        threads: DiskThreads,
        options: WalOptions,
        on_durable: Callable[[OpId], None],
        on_failure: Callable[[BaseException], None],
        start_after: OpId = MIN_OP_ID,
        cache_budget: CacheBudget | None = None,
    ) -> Log:
        """Opens the log in `directory`, creating it if there is none; a torn tail is cut, see `torn_tail`.

        Args:
            directory: for this tablet alone; its parent exists.
            on_durable: called on the loop, in order, with the last OpId that is durable.
            on_failure: called once if the log can no longer be written.
            start_after: the OpId before the first entry, if there is no log yet (a tablet that was copied without one).
            cache_budget: bounds the recent entries that all logs of the server keep in memory together.

        Raises:
            KuduError: CORRUPTION, with file and offset, if anything is in doubt; IO_ERROR or DISK_FULL from the disk.
        """
        disk = threads.disk
        try:
            recovered = await threads.run(lambda: recover(disk, directory, tablet_id, start_after=start_after))
        except OSError as error:
            raise _disk_error(f"the log of tablet {tablet_id} cannot be opened", error) from error
        return cls(
            recovered,
            directory=directory,
            tablet_id=tablet_id,
            threads=threads,
            options=options,
            on_durable=on_durable,
            on_failure=on_failure,
            cache_budget=cache_budget,
        )

    # Marks and facts.

    @property
    def first_index(self) -> int:
        """Index of the oldest entry that can be read; one above `last_op_id` if the log is empty."""
        return self._base.index + 1

    @property
    def base_op_id(self) -> OpId:
        """OpId of the entry before the first."""
        return self._base

    @property
    def last_op_id(self) -> OpId:
        """OpId of the last entry accepted; of the one before the first if the log is empty."""
        return self._last

    @property
    def durable_op_id(self) -> OpId:
        """OpId of the last entry that is durable; never one that was truncated."""
        return self._durable

    @property
    def torn_tail(self) -> TornTail | None:
        """What was cut when the log was opened, if anything."""
        return self._torn_tail

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    @property
    def waits_for_room(self) -> bool:
        """Whether the disk was found full and no try since has found room."""
        return self._allocator.is_full

    @property
    def size_bytes(self) -> int:
        """Bytes of all segment files in use."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def queued_bytes(self) -> int:
        """Payload accepted and not yet durable."""
        return self._writer.queued_bytes

    @property
    def cached_bytes(self) -> int:
        """Payload in memory."""
        return self._recent.size_bytes

    @property
    def batches_written(self) -> int:
        """Group commits since the log was opened."""
        return self._writer.batches

    @property
    def stalled_s(self) -> float:
        """How long what is to be written next has been under way, or has waited for a segment that there is no room for
        or that the disk does not deliver; for the watchdog against a disk that never answers."""
        writer = self._writer
        since = writer.in_flight_since if writer.in_flight_since is not None else writer.waiting_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def term_at(self, index: int) -> int | None:
        """The term of an accepted entry or of the one before the first; None outside."""
        if index == self._base.index:
            return self._base.term
        return self._terms.term_at(index) if self._base.index < index <= self._last.index else None

    def segment_files(self) -> list[SegmentFile]:
        """The files with durable batches, oldest first. Hold an anchor while they are read."""
        return [
            SegmentFile(segment.path, segment.size_bytes if segment.is_closed else segment.end_offset)
            for segment in self._segments
            if segment.has_batches
        ]

    def copied_files(self, from_index: int) -> list[CopiedFile]:
        """What a copy of the durable log from an entry on is made of, oldest first; an anchor at or below it is held.

        The last one ends with its last batch, also if it is closed: its footer would say that another segment follows,
        of which nothing may be durable yet.
        """
        segments = [segment for segment in self._segments if segment.has_batches]
        begin = next((i for i, segment in enumerate(segments) if segment.live_last >= from_index), len(segments) - 1)
        return [
            CopiedFile(
                segment.path.rpartition("/")[2],
                segment.size_bytes if segment.is_closed and segment is not segments[-1] else segment.end_offset,
                segment.last_crc,
            )
            for segment in segments[max(begin, 0) :]
        ]

    # Writing.

    def check_room(self, payload_bytes: int) -> None:
        """Refuses when the disk is behind or full. To be asked before anything is promised about new client operations.

        Raises:
            KuduError: SERVER_TOO_BUSY or DISK_FULL, both try later; IO_ERROR if the log has failed.
        """
        self._check_usable()
        if self._allocator.is_full:
            raise KuduError(
                ErrorCode.DISK_FULL,
                f"there is no room for a new log segment of tablet {self._tablet_id} in {self._directory}",
                verdict=Verdict.TRY_LATER,
            )
        self._check_queue(payload_bytes, self._options.queue_bytes_max)

    def has_room(self, payload_bytes: int) -> bool:
        """Whether entries that a leader sent may be taken: what `check_room` lets pass, and on a full disk what still
        fits into the segment in use, or into the next one if that was made ready before. Else a group without room
        could elect leaders, but not commit their first entry.
        """
        if self._allocator.is_full:
            wanted_bytes = payload_bytes + self._writer.queued_bytes + PAGE_BYTES  # more than enough for what wraps it
            in_use_bytes = self._segments[-1].room_bytes if self._segments else 0
            return wanted_bytes <= max(in_use_bytes, self._allocator.spare_room_bytes)
        try:
            self.check_room(payload_bytes)
        except KuduError:
            return False
        return True

    def append(self, records: Sequence[Record], *, hold: bool = False) -> None:
        """Accepts records that continue the log. Does not wait; `on_durable` follows.

        Args:
            records: contiguous, after the last.
            hold: the disk gets them by `start`, which has to follow soon, or with what comes before that.

        Raises:
            KuduError: SERVER_TOO_BUSY, try later, if even the reserve of the queue is used up; IO_ERROR if the log has
                failed. Nothing is changed then.
        """
        if not records:
            return
        self._check_usable()
        term, index = last = self._last
        payload_bytes = 0
        for op_id, payload in records:
            index += 1
            assert op_id.index == index, f"{op_id} does not continue {last}"
            assert op_id.term >= term, f"{op_id} falls behind term {term}"
            term = op_id.term
            payload_bytes += len(payload)
        self._check_queue(payload_bytes, self._options.queue_bytes_max + self._options.queue_bytes_reserve)
        term = last.term if last.index > self._base.index else -1
        for op_id, _ in records:
            if op_id.term != term:
                term = op_id.term
                self._terms.add(op_id.index, term)
        self._last = records[-1].op_id
        self._recent.append(records, payload_bytes)
        self._writer.append(records, payload_bytes, hold=hold)

    def start(self) -> None:
        """Gives the disk what was held."""
        self._writer.start()

    def truncate_after(self, index: int) -> None:
        """Takes back all entries above `index`. Does not wait; durable before any later append is reported durable.

        `durable_op_id` falls at once if it was above; what was taken back is never reported. `index` is not below the
        entry before the first: what was collected was committed.
        """
        if index >= self._last.index:
            return
        self._check_usable()
        term = self.term_at(index)
        assert term is not None, f"cannot truncate after {index}: the log begins at {self.first_index}"
        op_id = OpId(term, index)
        self._truncations += 1
        self._last = op_id
        self._terms.truncate_after(index)
        self._recent.truncate_after(index)
        if op_id.index < self._durable.index:
            self._durable = op_id
        if self._writer.in_flight_since is not None and (
            self._in_flight_cut is None or index < self._in_flight_cut.index
        ):
            self._in_flight_cut = op_id
        self._writer.truncate_after(op_id)

    async def close(self) -> None:
        """Waits until everything accepted is durable (unless the disk is full or failed), then ends the log cleanly.

        Raises:
            KuduError: IO_ERROR or DISK_FULL: the end could not be written. What was reported durable is.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._writer.drain()
        segment = self._writer.stop()
        self._allocator.close()
        if segment is None:
            self._retire_all()
            return
        file, end_offset, footer = segment.open_file, segment.end_offset, segment.encoded_footer(CloseReason.STOPPED)
        try:
            await self._run(lambda: close_segment(file, end_offset, footer), finished=self._retire_all)
        except OSError as error:
            raise _disk_error(f"the log of tablet {self._tablet_id} could not be ended", error) from error

    # Reading.

    def cached(self, first: int, last: int, max_bytes: int) -> list[Record] | None:
        """Records from `first` on, up to `last` and `max_bytes` but at least one, if they are in memory; else None.

        An empty list if `first` is above the last entry.
        """
        if first > self._last.index:
            return []
        return self._recent.get(first, last, max_bytes)

    async def read(self, first: int, last: int, max_bytes: int) -> list[Record]:
        """Records from `first` on, up to `last`: as many as fit `max_bytes`, at least one if there is any; maybe fewer.

        From memory, else from the disk. Records that are accepted but not durable are included.

        Raises:
            KuduError: NOT_FOUND if `first` was collected; CORRUPTION, with file and offset; IO_ERROR.
        """
        while True:
            if first <= self._base.index:
                raise KuduError(
                    ErrorCode.NOT_FOUND,
                    f"entry {first} of tablet {self._tablet_id} was collected; the log begins at {self.first_index}",
                )
            found = self.cached(first, last, max_bytes)
            if found is not None:
                return found
            truncations = self._truncations
            records = await self._read_disk(first, min(last, self._durable.index), max_bytes)
            if truncations == self._truncations and records is not None:
                return records
            # What was read may have been overwritten meanwhile, or collected before it was read: look again.

    async def replay(self) -> AsyncIterator[Record]:
        """Everything that is in the log at the time of the call, oldest first; for bootstrap."""
        index, last = self.first_index, self._last.index
        while index <= last:
            for record in await self.read(index, last, _REPLAY_BYTES):
                yield record
                index = record.op_id.index + 1

    def release_cache(self, index: int) -> None:
        """Lets go of durable records up to `index` in memory: no peer is expected to ask for them."""
        self._recent.release(index)

    # Collection.

    async def collect(self, up_to_index: int) -> int:
        """Removes the oldest segments that hold nothing at or above `up_to_index`, or that an anchor needs.

        The segment of the last durable entry always stays. Returns how many segments were removed.

        Raises:
            KuduError: IO_ERROR; the log stays usable, and a later call goes on where this one ended.
        """
        async with self._collecting:
            lowest = self.anchors.lowest()
            segments = self._collectable(up_to_index if lowest is None else min(lowest, up_to_index))
            if not segments:
                return 0
            self._move_base(self._segments[len(segments) :])
            paths = [segment.path for segment in segments]
            removed: list[str] = []
            try:
                disk, directory = self._threads.disk, self._directory
                await self._run(lambda: _remove(disk, directory, paths, removed))
            except OSError as error:
                raise _disk_error(f"segments of tablet {self._tablet_id} cannot be removed", error) from error
            finally:
                for segment in self._segments[: len(removed)]:
                    segment.retire()
                    self._forget_index(segment)
                del self._segments[: len(removed)]
            return len(removed)

    # Inside.

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise KuduError(
                ErrorCode.IO_ERROR, f"the log of tablet {self._tablet_id} failed: {self._failure}"
            ) from self._failure
        if self._is_closed:
            raise KuduError(ErrorCode.SHUTTING_DOWN, f"the log of tablet {self._tablet_id} is closed")

    def _check_queue(self, payload_bytes: int, bytes_max: int) -> None:
        queued = self._writer.queued_bytes
        if queued and queued + payload_bytes > bytes_max:  # a single one is taken at any size: else it never could be
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"{queued} bytes wait for the disk in the log of tablet {self._tablet_id}",
                verdict=Verdict.TRY_LATER,
            )

    def _batch_durable(self, segment: Segment, preceding: OpId, last: OpId) -> None:
        # The next batch was started already, maybe in a segment behind this one.
        void_entries_after(preceding.index, self._segments, before_sequence=segment.sequence)
        if preceding.index < self._base.index:
            self._base = preceding
        cut, self._in_flight_cut = self._in_flight_cut, None
        self._durable = last if cut is None or last.index <= cut.index else cut
        if len(self._segments) > 1:
            self._note_index(self._segments[-2])
        self._recent.note_durable(self._durable.index)
        self._on_durable(self._durable)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._on_failure(error)

    def _locate(self, index: int) -> Segment:
        """The segment that holds a durable entry."""
        for segment in reversed(self._segments):
            if segment.lowest.index < index <= segment.live_last:
                return segment
        raise AssertionError(f"entry {index} of {self._base} to {self._durable} is in no segment")

    async def _read_disk(self, first: int, last: int, max_bytes: int) -> list[Record] | None:
        """Durable records of one segment; None if it was collected before it could be read."""
        segment = self._locate(first)
        last = min(last, segment.live_last)
        # The job sees the values of now: those of a segment in use change while it runs.
        disk, path, held, identity = self._threads.disk, segment.path, segment.file, segment.identity
        end_offset, size_bytes, was_closed = segment.end_offset, segment.size_bytes, segment.is_closed
        index = segment.index if was_closed or segment.index is None else segment.index.copy()

        def job() -> tuple[list[Record], SegmentIndex]:
            file = held if held is not None else disk.open(path)
            try:
                found = index if index is not None else load_index(file, identity, size_bytes)
                return read_records(
                    file, identity, found, end_offset=end_offset, first=first, last=last, max_bytes=max_bytes
                ), found
            finally:
                if held is None:
                    file.close()

        segment.pins += 1
        try:
            records, found = await self._run(job, finished=segment.unpin)
        except OSError as error:
            if first <= self._base.index:
                return None
            raise _disk_error(f"entry {first} of tablet {self._tablet_id} cannot be read", error) from error
        # Not the copy of a segment that was in use then: it may have got more batches before it was closed.
        if was_closed and not segment.is_retired:
            segment.index = found
            self._note_index(segment)
        return records

    def _note_index(self, segment: Segment) -> None:
        """Counts a closed segment among those whose index is in memory, and lets the one longest unused go."""
        if segment.index is None or not segment.is_closed or (self._loaded and self._loaded[-1] is segment):
            return
        if segment in self._loaded:
            self._loaded.remove(segment)
        self._loaded.append(segment)
        if len(self._loaded) > self._options.loaded_indexes_max:
            self._loaded.pop(0).index = None

    def _forget_index(self, segment: Segment) -> None:
        with contextlib.suppress(ValueError):
            self._loaded.remove(segment)

    def _collectable(self, bound: int) -> list[Segment]:
        """The oldest segments without an entry at or above `bound`, never that of the last durable entry."""
        segments = self._segments
        keep = len(segments) - 1
        while keep >= 0 and segments[keep].live_last <= segments[keep].lowest.index:
            keep -= 1
        count = 0
        while count < keep and segments[count].is_closed and segments[count].live_last < bound:
            count += 1
        return segments[:count]

    def _move_base(self, remaining: Sequence[Segment]) -> None:
        """Lets the log begin with what remains, before the files go: nobody may begin to read what is going."""
        self._base = min((s.lowest for s in remaining if s.has_batches), key=lambda op_id: op_id.index)
        self._terms.drop_before(self._base.index + 1)

    def _retire_all(self) -> None:
        self._recent.clear()
        for segment in self._segments:
            segment.retire()

    async def _run(self, job: Callable[[], T], finished: Callable[[], None] | None = None) -> T:
        """Runs a background job; `finished` is called when it has ended, also if the caller was cancelled before."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | BaseException) -> None:
            if finished is not None:
                finished()
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._threads.submit_background(job, done)
        return await future


def _remove(disk: Disk, directory: str, paths: list[str], removed: list[str]) -> None:
    """Removes files in order, each durably before the next, so that no crash leaves a gap. Notes what is removed."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # removed by an earlier try whose directory sync failed
            disk.unlink(path)
        disk.sync_dir(directory)
        removed.append(path)


def _disk_error(what: str, error: OSError) -> KuduError:
    code = ErrorCode.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.IO_ERROR
    return KuduError(code, f"{what}: {error}", details={"path": str(error.filename)} if error.filename else None)
