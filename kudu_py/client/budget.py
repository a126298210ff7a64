"""`ByteBudget`: how much may be buffered; callers wait for room in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """A bound on bytes handed over and not yet given back. Bound to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._taken = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Bytes that are out."""
        return self._taken

    def try_take(self, size: int) -> bool:
        """Takes `size` bytes if there is room now and nobody waits; what is larger than all fits alone."""
        if self._waiters or (self._taken and self._taken + size > self._max):
            return False
        self._taken += size
        return True

    async def take(self, size: int) -> None:
        """Takes `size` bytes, waiting for room."""
        if self.try_take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(size)  # it was granted in the same turn
            raise

    def give_back(self, size: int) -> None:
        """Returns bytes, and grants them to those who wait."""
        self._taken -= size
        assert self._taken >= 0, "more given back than taken"
        while self._waiters:
            wanted, future = self._waiters[0]
            if future.cancelled():
                self._waiters.popleft()
                continue
            if self._taken and self._taken + wanted > self._max:
                return
            self._waiters.popleft()
            self._taken += wanted
            future.set_result(None)
