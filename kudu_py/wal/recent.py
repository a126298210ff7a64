"""`RecentRecords`: the end of the log in memory, so that peers are served without the disk."""

from __future__ import annotations

from collections.abc import Sequence

from kudu_py.wal.format import Record

_COMPACT_RECORDS = 1024


class RecentRecords:
    """Contiguous records up to the last one accepted. Holds everything that is not durable, and more up to a bound.

    Attributes:
        size_bytes: payload held.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._records: list[Record] = []
        self._start = 0  # records before this position were dropped; the list is shortened now and then
        self.size_bytes = 0

    @property
    def first_index(self) -> int | None:
        """Index of the oldest record held; None if there is none."""
        return self._records[self._start].op_id.index if self._start < len(self._records) else None

    def append(self, records: Sequence[Record]) -> None:
        self._records.extend(records)
        self.size_bytes += sum([len(record.payload) for record in records])

    def truncate_after(self, index: int) -> None:
        while len(self._records) > self._start and self._records[-1].op_id.index > index:
            self.size_bytes -= len(self._records.pop().payload)

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

    def evict(self, durable_index: int) -> None:
        """Drops the oldest durable records while more than the bound is held."""
        records, start = self._records, self._start
        while (
            self.size_bytes > self._bytes_max and start < len(records) and records[start].op_id.index <= durable_index
        ):
            self.size_bytes -= len(records[start].payload)
            start += 1
        self._forget_before(start)

    def release(self, index: int) -> None:
        """Drops records up to `index`, all durable: nobody is expected to ask for them."""
        held_from = self.first_index
        if held_from is None or index < held_from:
            return
        start = min(len(self._records), self._start + index - held_from + 1)
        self.size_bytes -= sum([len(record.payload) for record in self._records[self._start : start]])
        self._forget_before(start)

    def _forget_before(self, start: int) -> None:
        self._start = start
        if start >= _COMPACT_RECORDS or start == len(self._records):
            del self._records[:start]
            self._start = 0
