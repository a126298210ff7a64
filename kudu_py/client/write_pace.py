"""`WritePace`: when the Writes of one client leave, so that those of many callers leave together.

A Write costs client, leader and followers much the same whether it carries one row or a hundred, and so does a message
whether it carries one Write or ten. Hence:

1. Writes that become ready in one turn of the loop leave in the next, those for one server in one message.
2. While many single rows are on their way, a tablet that has become free waits for the others' answers, whose callers
   will have the next rows: for all of them, but not much longer than an answer takes, and not at all when few rows are
   on their way. Were each tablet's next Write sent the moment the last is answered, it would carry only the rows of
   those callers that happened to be answered meanwhile. Arrow batches never wait.
3. A lone caller's row leaves at once: after an answer to one caller alone, nobody else is about to have a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BUSY_ROWS = 16
"""With fewer single rows on their way nobody waits."""
WAIT_SHARE = 1.5
"""Of the time that an answer takes, since the slowest of a round takes longer. On a busy machine 64 callers over six
tablets had 2,600 calls/s without waiting, 3,600 with 0.5 and 4,000 with 1; with 1.5 most rounds stay whole: 10.3 rows
in a Write, not 9.7, and two Writes in a message. Latencies fell alike: servers were busy with fewer messages."""
WAIT_S_MAX = 0.02
_SMOOTHING = 0.1

Send = Callable[[], None]


class WritePace:
    """The Writes of one client. Bound to one event loop."""

    def __init__(self, flush: Send) -> None:
        """
        Args:
            flush: called after each group of Writes, to make them leave.
        """
        self._loop = asyncio.get_running_loop()
        self._flush = flush
        self._rows_under_way = 0
        self._rows_told = 0
        self._answer_s = 0.0
        self._ready: list[Send] = []
        self._held: list[Send] = []
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def leave(self, send: Send) -> None:
        """A Write is ready: `send` is called once, in the next turn of the loop."""
        self._ready.append(send)
        self._schedule()

    def leave_with_others(self, send: Send) -> None:
        """The same for one of single rows, which may have to wait for others."""
        self._held.append(send)
        if self._timer is None:
            self._schedule()

    def leave_alone(self, send: Send) -> None:
        """The same for the row of a caller that waits for its outcome; `send` may be called within."""
        told, self._rows_told = self._rows_told, 0
        if told == 1 and self._rows_under_way < BUSY_ROWS:
            send()
            self._flush()
        else:
            self.leave_with_others(send)

    def sent(self, rows: int) -> None:
        """A Write of so many single rows leaves."""
        self._rows_under_way += rows

    def answered(self, rows: int, answer_s: float) -> None:
        """Its callers have been told of its end, however it ended, so long after it left."""
        self._rows_under_way -= rows
        assert self._rows_under_way >= 0, self._rows_under_way
        self._rows_told += rows
        self._answer_s += (answer_s - self._answer_s) * _SMOOTHING
        if self._held and not self._rows_under_way:
            # Behind the callers that were just told, who have their next rows then.
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_scheduled = False
        ready, self._ready = self._ready, []
        if self._held:
            # Those that wait already wait for the last: else it would leave alone ever after.
            if self._rows_under_way < (BUSY_ROWS if self._timer is None else 1):
                ready += self._released()
            elif self._timer is None:
                self._timer = self._loop.call_later(min(self._answer_s * WAIT_SHARE, WAIT_S_MAX), self._on_waited)
        self._send(ready)

    def _on_waited(self) -> None:
        self._send(self._released())

    def _released(self) -> list[Send]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        return held

    def _send(self, ready: list[Send]) -> None:
        for send in ready:
            send()
        if ready:
            self._flush()
