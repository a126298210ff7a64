"""`Clock`: monotonic seconds and wall microseconds, and the hybrid clock on top of it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from kudu_py.common.hybrid_time import LOGICAL_BITS, HybridTime, from_micros


class Clock(Protocol):
    """The seam for time. Timers are asyncio's (`loop.call_at`), on the same monotonic time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back; the running loop's time."""

    def wall_micros(self) -> int:
        """Microseconds since the Unix epoch; may jump either way."""


class SystemClock:
    """The machine's clocks; `monotonic` is `loop.time()` of the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_micros(self) -> int:
        return time.time_ns() // 1000


def elapsing_s() -> float:
    """Monotonic seconds that go on within a turn of the loop, where uvloop's time stands still; for how long a call of
    the system took."""
    return time.monotonic()


class HybridClock:
    """Timestamps that strictly increase on one server and never fall behind one it was told of.

    One per server, shared by its replicas. Not thread-safe: only the event loop calls it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def now(self) -> HybridTime:
        """A timestamp above every one given or received before."""
        self._last = max(self._last + 1, self._clock.wall_micros() << LOGICAL_BITS)
        return HybridTime(self._last)

    def update(self, received: HybridTime) -> None:
        """Moves the clock so that `now()` is above `received`. The caller bounds how far ahead it may be."""
        self._last = max(self._last, received)

    def physical(self) -> HybridTime:
        """The wall clock as a hybrid time, without taking a timestamp."""
        return from_micros(self._clock.wall_micros())
