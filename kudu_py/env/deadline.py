"""`DeadlineTimer`: one timer for a deadline that moves with almost every event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kudu_py.env.clock import Clock


class DeadlineTimer:
    """Calls back when the deadline has come. Set lazily: that it has moved away is only noticed at the old one, so that
    moving it costs nothing."""

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock, self._on_due = clock, on_due
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def set(self, deadline: float | None) -> None:
        """Moves the deadline (loop time); None: there is none."""
        self._deadline = deadline
        if deadline is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        # Noted here, for uvloop gives a handle without a time for what is already due.
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def cancel(self) -> None:
        """Never calls back again, until `set`."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._clock.monotonic() >= self._deadline:
            self._on_due()
        else:
            self.set(self._deadline)
