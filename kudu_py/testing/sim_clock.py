"""`SimClock`: a node's clocks on virtual time; its wall clock may be off and may drift."""

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
