"""`Writer`: group commit. What is queued while a sync is in flight goes out as one batch, one write and one sync.

The order, and the reasons:
 1. One batch in flight. So everything before a batch is durable when the batch is written, at most one batch can be
    torn, and a damaged batch that another follows is known to be rot and not a tear.
 2. What a batch holds and where it ends is decided before its sync begins. Records that arrive during the sync are in
    the next batch; nothing is reported by a sync that began before it was written.
 3. A batch is encoded on the loop: the job on the disk thread is a write and a sync and nothing else, which keeps the
    thread from competing for the interpreter with the loop that waits for it.
 4. The next batch starts before the last one is reported, so that the disk does not wait for the loop; reports still
    come in order, because the next one cannot end before it is this one's turn on the loop.
 5. Rolling is: footer of the full segment, sync, then the batch into the next one, sync. A footer is thus durable
    before anything follows it, and a segment without one can only be the last.
 6. Truncation is a mark on the next batch (its `preceding` OpId), in the same write as the entries that replace the old
    ones, so that no crash can keep one and lose the other. What is still queued is taken out of the queue: the disk
    never saw it. A truncation that nothing follows is written as a batch without records. It starts only at the next
    turn of the loop, because the entries that replace the old ones come right behind it.
 7. After any error of a write or a sync nothing is written, synced or reported any more (`on_failure`, once). Syncing
    again could succeed without the bytes being anywhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from kudu_py.common.opid import OpId
from kudu_py.env.disk import DiskThreads, write_then_sync
from kudu_py.wal.allocator import Allocator
from kudu_py.wal.format import (
    TABLE_ROW_BYTES,
    CloseReason,
    EncodedBatch,
    Record,
    batch_bytes,
    encode_batch,
)
from kudu_py.wal.index import SegmentIndex
from kudu_py.wal.segment import Segment, close_segment


class Writer:
    """Owned by the log, on the loop.

    Attributes:
        queued_bytes: payload accepted and not yet durable, the batch in flight included.
        is_failed: an error ended the log; nothing is durable any more that was not reported.
        batches: since the log was opened, for metrics.
        in_flight_since: loop time at which the batch in flight was started; None if there is none.
        waiting_since: loop time at which the queue began to wait for a segment to write to; None if it does not.
    """

    def __init__(
        self,
        *,
        threads: DiskThreads,
        allocator: Allocator,
        last: OpId,
        last_crc: int,
        on_segment: Callable[[Segment], None],
        on_batch: Callable[[Segment, OpId, OpId], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Args: the ends of the log so far, and

        on_segment: a new segment is about to get its first batch.
        on_batch: a batch is durable; gets its segment, the OpId before it, the last OpId of the log as of this batch.
        """
        self._threads = threads
        self._allocator = allocator
        self._written_last = last  # last OpId of the log as of the last batch started
        self._last_crc = last_crc
        self._on_segment = on_segment
        self._on_batch = on_batch
        self._on_failure = on_failure
        self._segment: Segment | None = None
        self._queue: deque[Record] = deque()
        self._queue_payload_bytes = 0
        self._in_flight_payload_bytes = 0
        self._truncate_to: OpId | None = None
        self._is_stopped = False
        self._idle: list[asyncio.Future[None]] = []
        self.in_flight_since: float | None = None
        self.waiting_since: float | None = None
        self.is_failed = False
        self.batches = 0

    @property
    def queued_bytes(self) -> int:
        return self._queue_payload_bytes + self._in_flight_payload_bytes

    def append(self, records: Sequence[Record], payload_bytes: int, *, hold: bool) -> None:
        """Queues records that continue the log; starts at once if the disk is idle, unless told to `hold`."""
        self._queue.extend(records)
        self._queue_payload_bytes += payload_bytes
        if self.in_flight_since is None and not hold:
            self.start()

    def truncate_after(self, op_id: OpId) -> None:
        """Orders that the log ends with `op_id`, one of its entries, before what is appended next."""
        before_queue = self._truncate_to or self._written_last
        if op_id.index >= before_queue.index:
            while self._queue and self._queue[-1].op_id.index > op_id.index:
                self._queue_payload_bytes -= len(self._queue.pop().payload)
            return
        self._queue.clear()
        self._queue_payload_bytes = 0
        self._truncate_to = op_id
        asyncio.get_running_loop().call_soon(self.start)  # reason 6

    def start(self) -> None:
        """Starts the next batch if there is something to write, the disk is idle and a segment has room."""
        if self.in_flight_since is not None or self.is_failed or self._is_stopped:
            return
        if not self._queue and self._truncate_to is None:
            self.waiting_since = None
            self._tell_idle()
            return
        needed = batch_bytes(1, len(self._queue[0].payload)) if self._queue else batch_bytes(0, 0)
        segment, full = self._segment, None
        if segment is None or segment.room_bytes < needed:
            full, segment = segment, self._allocator.take(needed)
            if segment is None:
                if self.waiting_since is None:
                    self.waiting_since = asyncio.get_running_loop().time()
                self._allocator.prepare(needed, is_urgent=True)
                if self._allocator.is_full:
                    self._tell_idle()
                return
            self._segment = segment
            self._on_segment(segment)
        self._submit(full, segment)

    async def drain(self) -> None:
        """Returns when everything queued is durable, or cannot be for lack of room or because the log failed."""
        if self.is_failed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        self.start()
        await future

    def stop(self) -> Segment | None:
        """Starts nothing more. The segment in use, if it has batches and a footer may be written."""
        self._is_stopped = True
        segment = self._segment
        return segment if segment is not None and segment.has_batches and not self.is_failed else None

    def _submit(self, full: Segment | None, segment: Segment) -> None:
        records, payload_bytes = self._take(segment.room_bytes)
        preceding, self._truncate_to = self._truncate_to or self._written_last, None
        assert not records or records[0].op_id.index == preceding.index + 1, (preceding, records[0].op_id)
        batch = encode_batch(
            identity=segment.identity,
            offset=segment.end_offset,
            truncates=preceding.index < self._written_last.index,
            preceding=preceding,
            durable_upto=preceding.index,  # reason 1
            previous_crc=self._last_crc,
            records=records,
        )
        assert batch.size_bytes <= segment.room_bytes, (batch.size_bytes, segment.room_bytes)
        if segment.index is None:
            segment.index = SegmentIndex(preceding, self._written_last)
            segment.first_previous_crc = self._last_crc
        self._written_last, self._last_crc = batch.last, batch.crc
        self._in_flight_payload_bytes = payload_bytes
        self.in_flight_since, self.waiting_since = asyncio.get_running_loop().time(), None

        def done(result: int | BaseException | None) -> None:
            self._done(full, segment, preceding, batch, result)

        if full is None:
            self._threads.write_and_sync(segment.open_file, segment.end_offset, batch.buffers, done)
        else:
            self._threads.submit(_roll_job(full, segment, batch), done)

    def _take(self, room_bytes: int) -> tuple[list[Record], int]:
        """As many queued records as fit a batch in this room, and their payload bytes."""
        queue = self._queue
        if batch_bytes(len(queue), self._queue_payload_bytes) <= room_bytes:
            records, payload_bytes = list(queue), self._queue_payload_bytes
            queue.clear()
            self._queue_payload_bytes = 0
            return records, payload_bytes
        room_bytes -= batch_bytes(0, 0)
        records, payload_bytes = [], 0
        while (size := len(queue[0].payload)) + TABLE_ROW_BYTES <= room_bytes:
            records.append(queue.popleft())
            payload_bytes += size
            room_bytes -= size + TABLE_ROW_BYTES
        self._queue_payload_bytes -= payload_bytes
        return records, payload_bytes

    def _done(
        self,
        full: Segment | None,
        segment: Segment,
        preceding: OpId,
        batch: EncodedBatch,
        result: int | BaseException | None,
    ) -> None:
        self.in_flight_since = None
        self._in_flight_payload_bytes = 0
        if isinstance(result, BaseException):
            self.fail(result)
            return
        if full is not None:
            assert result is not None, "closing a segment gives its size"
            full.is_closed, full.size_bytes = True, result
            full.close_unused()
        segment.add_batch(
            preceding=preceding,
            runs=batch.runs,
            last=batch.last,
            crc=batch.crc,
            end_offset=segment.end_offset + batch.size_bytes,
        )
        self.batches += 1
        if segment.end_offset * 2 > segment.size_bytes:
            self._allocator.prepare(batch_bytes(1, 0), is_urgent=False)
        self.start()  # reason 4
        self._on_batch(segment, preceding, batch.last)

    def fail(self, error: BaseException) -> None:
        """Ends the log (reason 7)."""
        if self.is_failed:
            return
        self.is_failed = True
        self._allocator.close()
        self._tell_idle()
        self._on_failure(error)

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


def _roll_job(full: Segment, segment: Segment, batch: EncodedBatch) -> Callable[[], int]:
    """The job of a batch that begins a segment; returns the final size of the one that was full (reason 5)."""
    file, offset, buffers = segment.open_file, segment.end_offset, batch.buffers
    full_file, end_offset, footer = full.open_file, full.end_offset, full.encoded_footer(CloseReason.ROLLED)

    def roll() -> int:
        close_segment(full_file, end_offset, footer)
        write_then_sync(file, offset, buffers)
        return end_offset + len(footer)

    return roll
