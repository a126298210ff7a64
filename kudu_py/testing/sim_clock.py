"""Clocks of tests: `SimClock` follows a loop's virtual time, `HandClock` is moved by hand."""

from __future__ import annotations

import asyncio

EPOCH_MICROS = 1_800_000_000_000_000
"""What the wall shows at virtual time 0: some day in 2027."""


class SimClock:
    """The double of `SystemClock`.

    Attributes:
        offset_s: how far the wall clock is ahead; may be changed at any time, which is a step of the clock.
        drift: how much faster the wall clock runs, as a fraction.
    """

    def __init__(self, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self.offset_s = offset_s
        self.drift = drift

    def monotonic(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def wall_micros(self) -> int:
        """Virtual microseconds since the epoch."""
        elapsed = self.monotonic()
        return EPOCH_MICROS + round((elapsed * (1.0 + self.drift) + self.offset_s) * 1e6)


class HandClock:
    """Stands still until it is moved; both its clocks show the same.

    Attributes:
        micros: since its beginning, which is the epoch.
    """

    def __init__(self, start_s: int = 100) -> None:
        self.micros = start_s * 1_000_000

    def advance(self, seconds: float) -> None:
        """Moves it; back, if negative."""
        self.micros += round(seconds * 1e6)

    def monotonic(self) -> float:
        """Seconds since its beginning."""
        return self.micros / 1e6

    def wall_micros(self) -> int:
        """Microseconds since the epoch."""
        return self.micros
