"""`WalOptions`: the sizes and bounds of a log."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes in bytes, times in seconds; checked at construction.

    Attributes:
        segment_size_bytes_first: of the first segment after each open. Small, because a server creates and elects
            hundreds of tablets at once and most of them stay idle.
        segment_size_bytes_min: of the second one; each following is twice as large, up to
        segment_size_bytes_max: which only a single larger record exceeds.
        queue_bytes_max: payload waiting for the disk beyond which `Log.check_room` refuses more.
        queue_bytes_reserve: what `Log.append` takes above that, for entries that consensus cannot do without.
        cache_bytes_max: recent durable payload kept in memory for peers, per log; what is not durable is kept in any
            case.
        disk_reserved_bytes: space on the file system that preallocation leaves alone, but for a small first segment
            after each open, so that votes, flushes (down to half of it) and the removal of old files still find room.
        full_retry_s: pause between two tries to preallocate on a full disk.
        loaded_indexes_max: closed segments whose index stays in memory after a read.
    """

    segment_size_bytes_first: int = 32 << 10
    segment_size_bytes_min: int = 256 << 10
    segment_size_bytes_max: int = 8 << 20
    queue_bytes_max: int = 64 << 20
    queue_bytes_reserve: int = 16 << 20
    cache_bytes_max: int = 8 << 20
    disk_reserved_bytes: int = 64 << 20
    full_retry_s: float = 1.0
    loaded_indexes_max: int = 2

    def __post_init__(self) -> None:
        sizes = (self.segment_size_bytes_first, self.segment_size_bytes_min, self.segment_size_bytes_max)
        assert PAGE_BYTES <= sizes[0] <= sizes[1] <= sizes[2], f"segment sizes must rise from {PAGE_BYTES}: {sizes}"
        assert self.queue_bytes_max > 0, self.queue_bytes_max
        assert self.queue_bytes_reserve >= 0, self.queue_bytes_reserve
        assert self.cache_bytes_max >= 0, self.cache_bytes_max
        assert self.disk_reserved_bytes >= 0, self.disk_reserved_bytes
        assert self.full_retry_s > 0, self.full_retry_s
        assert self.loaded_indexes_max >= 1, self.loaded_indexes_max
