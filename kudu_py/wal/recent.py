"""`RecentRecords`: the end of the log in memory, so that peers are served without the disk."""

from __future__ import annotations

from collections.abc import Sequence

from kudu_py.wal.format import Record

_COMPACT_RECORDS = 1024


class CacheBudget:
    """The bound of all logs of a server together: the log that was quiet the longest gives up its records first.

    Attributes:
        bytes_max: the bound, exceeded only by records that are not durable yet.
        size_bytes: payload held by all logs.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0, bytes_max
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._caches: dict[RecentRecords, None] = {}  # longest quiet first

    def note_use(self, cache: RecentRecords) -> None:
        """The cache has just grown; makes room for it if it must."""
        self._caches.pop(cache, None)
        self._caches[cache] = None
        if self.size_bytes <= self.bytes_max:
            return
        for quiet in list(self._caches):
            quiet.shrink(max(0, quiet.size_bytes - (self.size_bytes - self.bytes_max)))
            if not quiet.size_bytes:
                del self._caches[quiet]  # until it grows again
            if self.size_bytes <= self.bytes_max:
                return

    def forget(self, cache: RecentRecords) -> None:
        """The log was closed."""
        self._caches.pop(cache, None)


class RecentRecords:
    """Contiguous records up to the last one accepted. Holds everything that is not durable, and more up to a bound.

    Attributes:
        size_bytes: payload held.
    """

    def __init__(self, bytes_max: int, budget: CacheBudget | None = None) -> None:
        self._bytes_max = bytes_max
        self._budget = budget if budget is not None else CacheBudget(1 << 62)
        self._records: list[Record] = []
        self._start = 0  # records before this position were dropped; the list is shortened now and then
        self._durable_index = 0
        self.size_bytes = 0

    @property
    def first_index(self) -> int | None:
        """Index of the oldest record held; None if there is none."""
        return self._records[self._start].op_id.index if self._start < len(self._records) else None

    def append(self, records: Sequence[Record], payload_bytes: int) -> None:
        self._records.extend(records)
        self._count(payload_bytes)
        self._budget.note_use(self)

    def truncate_after(self, index: int) -> None:
        removed_bytes = 0
        while len(self._records) > self._start and self._records[-1].op_id.index > index:
            removed_bytes += len(self._records.pop().payload)
        self._durable_index = min(self._durable_index, index)
        self._count(-removed_bytes)

    def get(self, first: int, last: int, max_bytes: int) -> list[Record] | None:
        """Records `first` to `last`: at least one, then as many as fit; None if `first` is not held."""
        held_from = self.first_index
        if held_from is None or first < held_from:
            return None
        position = self._start + first - held_from
        found: list[Record] = []
        for record in self._records[position : position + last - first + 1]:
            max_bytes -= len(record.payload)
            if found and max_bytes < 0:
                break
            found.append(record)
        return found or None

    def note_durable(self, durable_index: int) -> None:
        """Records up to here may be dropped; drops the oldest while more than the bound is held."""
        self._durable_index = durable_index
        if self.size_bytes > self._bytes_max:
            self.shrink(self._bytes_max)

    def shrink(self, bytes_max: int) -> None:
        """Drops the oldest durable records while more than `bytes_max` is held."""
        records, start, size_bytes = self._records, self._start, self.size_bytes
        while size_bytes > bytes_max and start < len(records) and records[start].op_id.index <= self._durable_index:
            size_bytes -= len(records[start].payload)
            start += 1
        self._count(size_bytes - self.size_bytes)
        self._forget_before(start)

    def release(self, index: int) -> None:
        """Drops durable records up to `index`: nobody is expected to ask for them."""
        held_from = self.first_index
        index = min(index, self._durable_index)
        if held_from is None or index < held_from:
            return
        start = min(len(self._records), self._start + index - held_from + 1)
        self._count(-sum([len(record.payload) for record in self._records[self._start : start]]))
        self._forget_before(start)

    def clear(self) -> None:
        """The log was closed."""
        self._count(-self.size_bytes)
        self._forget_before(len(self._records))
        self._budget.forget(self)

    def _count(self, change_bytes: int) -> None:
        self.size_bytes += change_bytes
        self._budget.size_bytes += change_bytes

    def _forget_before(self, start: int) -> None:
        self._start = start
        if start >= _COMPACT_RECORDS or start == len(self._records):
            del self._records[:start]
            self._start = 0
