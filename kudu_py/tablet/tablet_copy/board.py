"""`CopyProgressBoard`: the copies that a server takes part in; bounds those to it, and shows all of them.

A copy to this server is on the board from the moment it is asked for (QUEUED, until it has its turn) to some time after
its end; one from this server while its session is open and some time after. What masters, pages and metrics say of
copies is read from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum, unique

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.env.clock import Clock
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_copy.throttle import Throttle

_RATE_WINDOW_S = 5.0
_RATE_SAMPLE_S = 0.25


@unique
class CopyState(Enum):
    """What a copy is doing."""

    QUEUED = "QUEUED"
    FETCHING = "FETCHING"
    INSTALLING = "INSTALLING"
    """All is there; it is being put in place and opened."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a copy is.

    Attributes:
        bytes_total: of all that has to be there in the end.
        bytes_done: of what is there, durable or about to be.
        bytes_resumed: of `bytes_done`: what an earlier copy had fetched.
    """

    bytes_total: int = 0
    bytes_done: int = 0
    bytes_resumed: int = 0


@dataclass(eq=False, slots=True)
class Copy:
    """One copy, as this server sees it. Whoever carries it out tells it how far it is.

    Attributes:
        session_id: the source's; empty until there is one.
        tablet_id, table_name: of what; the name is empty until it is known.
        source_uuid, target_uuid: from where to where; this server is one of them.
        is_source: whether it is the source.
        state, progress: see there.
        started_micros, ended_micros: wall time; 0: not ended.
        error: why it failed.
    """

    tablet_id: TabletId
    source_uuid: ServerId
    target_uuid: ServerId
    is_source: bool
    started_micros: int
    _clock: Clock = field(repr=False)
    session_id: str = ""
    table_name: str = ""
    state: CopyState = CopyState.QUEUED
    progress: CopyProgress = CopyProgress()
    ended_micros: int = 0
    error: str = ""
    _samples: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def note_progress(self, progress: CopyProgress) -> None:
        """It is so far now."""
        self.progress = progress
        now, fetched = self._clock.monotonic(), progress.bytes_done - progress.bytes_resumed
        if not self._samples or now - self._samples[-1][0] >= _RATE_SAMPLE_S:
            self._samples.append((now, fetched))
        while len(self._samples) > 1 and self._samples[0][0] < now - _RATE_WINDOW_S:
            self._samples.popleft()

    def note_installing(self) -> None:
        """All is fetched."""
        self.state = CopyState.INSTALLING

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.ended_micros == 0

    @property
    def bytes_per_s(self) -> int:
        """Over the last seconds; 0 once it has ended."""
        if self.state is not CopyState.FETCHING or not self._samples:
            return 0
        since, fetched = self._samples[0]
        elapsed_s = self._clock.monotonic() - since
        now = self.progress.bytes_done - self.progress.bytes_resumed
        return int((now - fetched) / elapsed_s) if elapsed_s > 0 else 0

    def end(self, state: CopyState, error: str = "") -> None:
        """It is over."""
        assert self.is_running, f"the copy of tablet {self.tablet_id} ended as {self.state} already"
        self.state, self.error, self.ended_micros = state, error, max(1, self._clock.wall_micros())


class CopyProgressBoard:
    """All copies of one server.

    Attributes:
        throttle: what all copies to it draw from.
        bytes_fetched, bytes_resumed, bytes_sent: since the start; resumed are those that need not be fetched again.
        copies_ended: how the copies to it ended, since the start.
    """

    def __init__(self, *, uuid: ServerId, clock: Clock, options: TabletCopyOptions) -> None:
        self._uuid = uuid
        self._clock = clock
        self._turns = asyncio.Semaphore(options.copies_max)
        self._running: list[Copy] = []
        self._ended: deque[Copy] = deque(maxlen=options.remembered_max)
        self.throttle = Throttle(clock, bytes_per_s=options.bytes_per_s, burst_bytes=options.burst_bytes)
        self.bytes_fetched = 0
        self.bytes_resumed = 0
        self.bytes_sent = 0
        self.copies_ended = {CopyState.SUCCEEDED: 0, CopyState.FAILED: 0, CopyState.CANCELLED: 0}

    @contextlib.asynccontextmanager
    async def copying(self, tablet_id: TabletId, source_uuid: ServerId, table_name: str = "") -> AsyncIterator[Copy]:
        """A copy to this server, for as long as the context lasts: waits for its turn first.

        How the context is left is how the copy ended: with an exception FAILED, with a cancellation CANCELLED.
        """
        copy = Copy(tablet_id, source_uuid, self._uuid, False, self._clock.wall_micros(), self._clock)
        copy.table_name = table_name
        self._add(copy)
        try:
            async with self._turns:
                copy.state = CopyState.FETCHING
                yield copy
        except asyncio.CancelledError:
            self._end(copy, CopyState.CANCELLED)
            raise
        except BaseException as error:
            self._end(copy, CopyState.FAILED, error.message if isinstance(error, KuduError) else str(error))
            raise
        self._end(copy, CopyState.SUCCEEDED)

    def sending(self, tablet_id: TabletId, target_uuid: ServerId, table_name: str, session_id: str) -> Copy:
        """A copy from this server whose session was opened; see `sent`."""
        copy = Copy(tablet_id, self._uuid, target_uuid, True, self._clock.wall_micros(), self._clock)
        copy.table_name, copy.session_id, copy.state = table_name, session_id, CopyState.FETCHING
        return self._add(copy)

    def sent(self, copy: Copy, state: CopyState, error: str = "") -> None:
        """The session was closed."""
        self._end(copy, state, error)

    def copies(self) -> list[Copy]:
        """Those under way, then those that ended, the latest first."""
        return [*self._running, *reversed(self._ended)]

    def copies_to_here(self) -> list[Copy]:
        """Those to this server that have not ended."""
        return [copy for copy in self._running if not copy.is_source]

    def copy_to_here(self, tablet_id: TabletId) -> Copy | None:
        """The copy of this tablet to this server, if there is one that has not ended."""
        return next((copy for copy in self.copies_to_here() if copy.tablet_id == tablet_id), None)

    def _add(self, copy: Copy) -> Copy:
        self._running.append(copy)
        return copy

    def _end(self, copy: Copy, state: CopyState, error: str = "") -> None:
        copy.end(state, error)
        self._running.remove(copy)
        self._ended.append(copy)
        if not copy.is_source:
            self.copies_ended[state] += 1
