"""`WritePace`: lets the single-row Writes of many callers leave together, in a few large groups.

A Write costs client, leader and followers much the same whether it carries one row or a hundred. With many callers and
several tablets, answers come at different times; were each tablet's next Write sent the moment the last is answered,
it would carry only the rows of those callers that happened to be answered meanwhile. So while many rows are on their
way, a tablet that has become free waits for the others' answers, whose callers will have the next rows: at most as
long as an answer takes, and not at all when few rows are on their way. A lone caller never waits, nor do Arrow batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BUSY_ROWS = 16
"""With fewer single rows on their way nobody waits."""
WAIT_SHARE = 1.0
"""Of the time that an answer takes. On a busy machine 64 callers over six tablets had 2,600 calls/s without waiting,
3,600 with 0.5 and 4,000 with 1; latencies fell alike, since the servers were busy with fewer messages."""
WAIT_S_MAX = 0.02
_SMOOTHING = 0.1


class WritePace:
    """The Writes of single rows of one client. Bound to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rows_under_way = 0
        self._answer_s = 0.0
        self._held: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def holds(self, send: Callable[[], None]) -> bool:
        """Whether a Write should wait; `send` is then called once, soon."""
        if self._rows_under_way < BUSY_ROWS:
            return False
        self._held.append(send)
        if self._timer is None:
            self._timer = self._loop.call_later(min(self._answer_s * WAIT_SHARE, WAIT_S_MAX), self._release)
        return True

    def sent(self, rows: int) -> float:
        """A Write of so many single rows leaves; answers what to give to `answered`."""
        self._rows_under_way += rows
        return self._loop.time()

    def answered(self, rows: int, sent_at: float) -> None:
        """Its callers have been told of its end, however it ended."""
        self._rows_under_way -= rows
        assert self._rows_under_way >= 0, self._rows_under_way
        self._answer_s += (self._loop.time() - sent_at - self._answer_s) * _SMOOTHING
        if self._held and self._rows_under_way < BUSY_ROWS:
            # Behind the callers that were just told, who have their next rows then.
            self._loop.call_soon(self._release)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for send in held:
            send()
