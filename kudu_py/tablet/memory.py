"""`MemoryBudget`: what the rows and writes of a whole server may take, and when writes are told to come back later."""

from __future__ import annotations

from collections.abc import Callable

from kudu_py.common.errors import ErrorCode, KuduError, Verdict


class MemoryBudget:
    """Bytes held by unflushed rows, by writes on their way and by entries of other leaders that are not applied yet,
    over all replicas of a server.

    Above `pressure_bytes` flushes are urged. Above `limit_bytes` writes are refused, before they take a timestamp,
    until a flush has made room. The limit is a part of the process's memory: flushes copy what they sort, and Arrow,
    gRPC and the logs' caches need room of their own (see `ROWS_SHARE`).

    Entries of other leaders are put off only above `followed_limit_bytes`, which is higher. Flushes free rows, but
    writes on their way are freed only when followers take them: with one bound for both, servers that are full of
    writes of their own would wait for each other for ever.
    """

    ROWS_SHARE = 0.4
    """Part of the process's memory limit that rows may take."""
    FOLLOWED_EXTRA_SHARE = 0.25
    """Of the rows' limit: room above it for entries of other leaders."""
    FOLLOWED_EXTRA_BYTES_MIN = 32 << 20
    """More than the largest write, which is let in while there is any room."""
    PRESSURE_SHARE = 0.5
    """Part of the rows' limit above which flushes are urged: a flush takes a while, and writes go on meanwhile."""

    def __init__(self, process_limit_bytes: int, on_pressure: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes = int(process_limit_bytes * self.ROWS_SHARE)
        self.pressure_bytes = int(self.limit_bytes * self.PRESSURE_SHARE)
        self.used_bytes = 0
        self.on_pressure = on_pressure
        """Called when a change takes the use above `pressure_bytes`, and when a write was refused."""

    @property
    def is_under_pressure(self) -> bool:
        """Whether flushes should be hurried."""
        return self.used_bytes > self.pressure_bytes

    @property
    def followed_limit_bytes(self) -> int:
        """Above this no entries of other leaders are taken."""
        return self.limit_bytes + max(int(self.limit_bytes * self.FOLLOWED_EXTRA_SHARE), self.FOLLOWED_EXTRA_BYTES_MIN)

    def has_room_to_follow(self) -> bool:
        """Whether entries of another leader may be taken; it sends them again if not."""
        if self.used_bytes <= self.followed_limit_bytes:
            return True
        self.on_pressure()
        return False

    def has_room_to_keep(self) -> bool:
        """Whether entries that wait to be applied may stay in memory; else they are read from the log again."""
        return self.used_bytes <= self.limit_bytes

    def change(self, delta_bytes: int) -> None:
        """Takes or gives back memory."""
        was_under_pressure = self.is_under_pressure
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, self.used_bytes
        if self.is_under_pressure and not was_under_pressure:
            self.on_pressure()

    def require_room(self) -> None:
        """Lets a write pass, or refuses it.

        Raises:
            KuduError: THROTTLED, try later.
        """
        if self.used_bytes > self.limit_bytes:
            self.on_pressure()
            raise KuduError(
                ErrorCode.THROTTLED,
                f"unflushed rows take {self.used_bytes} of {self.limit_bytes} bytes; they are being flushed",
                verdict=Verdict.TRY_LATER,
                details={"used_bytes": str(self.used_bytes), "limit_bytes": str(self.limit_bytes)},
            )
