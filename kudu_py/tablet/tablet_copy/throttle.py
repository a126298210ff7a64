"""`Throttle`: a token bucket that all copies to a server draw from."""

from __future__ import annotations

import asyncio

from kudu_py.env.clock import Clock


class Throttle:
    """So many bytes a second, with a bounded burst; fair, since whoever came first is served first."""

    def __init__(self, clock: Clock, *, bytes_per_s: int, burst_bytes: int) -> None:
        """Args: bytes_per_s: 0 for no bound."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s if bytes_per_s else 0.0
        self._free_at: float | None = None
        """When everything drawn so far is paid for; a burst is what lies before now. None: nothing was drawn yet."""

    async def take(self, size_bytes: int) -> None:
        """Waits until so much more may come. Cancelling gives nothing back."""
        if not self._bytes_per_s:
            return
        now = self._clock.monotonic()
        earliest = now - self._burst_s
        begin = earliest if self._free_at is None else max(self._free_at, earliest)
        self._free_at = begin + size_bytes / self._bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
