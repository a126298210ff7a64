"""`Allocator`: preallocates the next segment while the current one fills, one ahead and no more."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import NamedTuple

import structlog

from kudu_py.env.disk import DiskThreads
from kudu_py.wal.format import SEGMENT_HEADER_BYTES
from kudu_py.wal.options import PAGE_BYTES, WalOptions
from kudu_py.wal.segment import Segment, create_segment, enlarge_segment

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _Allocated(NamedTuple):
    """What a disk job made: the segment, its size now, and whether the space kept free was used for it."""

    segment: Segment
    size_bytes: int
    is_from_reserve: bool


class Allocator:
    """Owned by the writer, on the loop.

    A full disk is not an error here: nobody was promised this segment. `is_full` says so until a later try succeeds;
    tries go on as long as a segment is wanted. Any other error is reported once, by `on_failure`.

    The first segment after an open may be taken from the space kept free if it is small: a tablet whose replicas were
    all started on full disks could not elect a leader otherwise, for that writes an entry, and so could not even be
    read. `is_full` from the start keeps clients from filling that segment.
    """

    def __init__(
        self,
        *,
        threads: DiskThreads,
        directory: str,
        tablet_id: str,
        options: WalOptions,
        next_sequence: int,
        spare: Segment | None,
        on_ready: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._threads = threads
        self._directory = directory
        self._tablet_id = tablet_id
        self._options = options
        self._next_sequence = next_sequence
        self._ready = spare
        self._next_size_bytes = (
            options.segment_size_bytes_first if spare is None else self._size_after(spare.size_bytes)
        )
        self._wanted_bytes = 0
        self._is_working = False
        self._is_closed = False
        self._may_use_reserve = spare is None
        self._retry: asyncio.TimerHandle | None = None
        self._on_ready = on_ready
        self._on_failure = on_failure
        self.is_full = False

    def prepare(self, batch_bytes: int, *, is_urgent: bool) -> None:
        """Sees to it that the next segment has room for a batch of this size. Does nothing if it is being seen to.

        `is_urgent` says that the writer waits for it; otherwise it is made in the background lane.
        """
        self._wanted_bytes = max(self._wanted_bytes, SEGMENT_HEADER_BYTES + batch_bytes)
        if self._is_working or self._is_closed or self._retry is not None:
            return
        if self._ready is not None and self._ready.size_bytes >= self._wanted_bytes and not self.is_full:
            return
        self._is_working = True
        submit = self._threads.submit if is_urgent else self._threads.submit_background
        submit(self._job(self._ready), self._done)

    def take(self, batch_bytes: int) -> Segment | None:
        """The next segment, if it is ready and has room for a batch of this size; it belongs to the caller then."""
        ready = self._ready
        if ready is None or self._is_working or ready.room_bytes < batch_bytes:
            return None
        self._ready, self._wanted_bytes = None, 0
        return ready

    @property
    def spare_room_bytes(self) -> int:
        """What the next segment, if there is one already, has room for."""
        return self._ready.room_bytes if self._ready is not None else 0

    def close(self) -> None:
        """Makes no more segments. A spare one stays on the disk for the next open."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._ready is not None and not self._is_working:
            self._ready.retire()
            self._ready = None

    def _job(self, ready: Segment | None) -> Callable[[], _Allocated]:
        """What is to be done on a disk thread."""
        disk, directory = self._threads.disk, self._directory
        tablet_id, sequence = self._tablet_id, self._next_sequence
        size_bytes = -(-max(self._wanted_bytes, self._next_size_bytes) // PAGE_BYTES) * PAGE_BYTES
        reserved_bytes = self._options.disk_reserved_bytes
        may_use_reserve = self._may_use_reserve and size_bytes <= self._options.segment_size_bytes_min

        def allocate() -> _Allocated:
            missing = size_bytes - (ready.size_bytes if ready is not None else 0)
            is_short = disk.free_bytes(directory) < missing + reserved_bytes
            if is_short and not may_use_reserve:
                raise OSError(errno.ENOSPC, "the space kept free is reached", directory)
            if ready is None:
                segment = create_segment(disk, directory, tablet_id, sequence, size_bytes)
                return _Allocated(segment, size_bytes, is_short)
            enlarge_segment(ready, size_bytes)
            return _Allocated(ready, size_bytes, is_short)

        return allocate

    def _done(self, result: _Allocated | BaseException) -> None:
        self._is_working = False
        if isinstance(result, OSError) and result.errno in _NO_ROOM:
            self._note_full()
            self._on_ready()  # the writer may want to know that it waits in vain
            return
        if isinstance(result, BaseException):
            self._is_closed = True
            self._on_failure(result)
            return
        segment, size_bytes, is_from_reserve = result
        if self._ready is None:
            self._next_sequence += 1
            self._next_size_bytes = self._size_after(self._next_size_bytes)
        segment.size_bytes = size_bytes
        self._may_use_reserve = False
        if is_from_reserve:
            self._note_full()
        elif self.is_full:
            _log.info("log_disk_freed", tablet=self._tablet_id, directory=self._directory)
            self.is_full = False
        self._ready = segment
        if self._is_closed:
            self.close()
            return
        if size_bytes < self._wanted_bytes:  # somebody asked for more meanwhile
            self.prepare(0, is_urgent=True)
        self._on_ready()

    def _note_full(self) -> None:
        if not self.is_full:
            _log.warning(
                "log_disk_filled",
                tablet=self._tablet_id,
                directory=self._directory,
                kept_free_bytes=self._options.disk_reserved_bytes,
                effect="writes are told to try later until there is room",
            )
        self.is_full = True
        if not self._is_closed:
            self._retry = asyncio.get_running_loop().call_later(self._options.full_retry_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.prepare(0, is_urgent=True)

    def _size_after(self, size_bytes: int) -> int:
        options = self._options
        if size_bytes < options.segment_size_bytes_min:
            return options.segment_size_bytes_min
        return min(2 * size_bytes, options.segment_size_bytes_max)
