"""Running scans: bounded in number, shown on a page, ended when their client takes nothing any more.

A scan is a stream of answers with flow control, so one whose client does not read stands still and holds its snapshot,
and with it files that compaction has replaced. It expires after a while: its snapshot is let go, and if the client
reads on after all it is told so and begins anew.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.env.clock import Clock

FINISHED_KEPT = 50
"""Scans that the page still shows after their end."""


_NOT_KNOWN = HybridTime(0)


@dataclass(eq=False, slots=True)
class Scanner:
    """One scan, from its admission to its end.

    Attributes:
        number: counted by the server.
        tablet_id, query_id: as the client said.
        started_s, last_active_s: monotonic seconds; active is whoever asks for the next batch.
        timestamp: of the snapshot; 0 until it is known.
        rows, bytes: answered so far.
        is_advancing: a batch is being made, maybe by another thread.
        outcome: "running", then how it ended.
    """

    number: int
    tablet_id: str
    query_id: str
    started_s: float
    last_active_s: float
    timestamp: HybridTime = _NOT_KNOWN
    rows: int = 0
    bytes: int = 0
    is_advancing: bool = False
    outcome: str = "running"
    _batches: Iterator[pa.RecordBatch] | None = field(default=None, repr=False)

    def begin(self, timestamp: HybridTime, batches: Iterator[pa.RecordBatch]) -> None:
        """The snapshot is pinned by `batches`."""
        self.timestamp, self._batches = timestamp, batches

    def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, None at the end. May be called by another thread, one at a time, between `advancing`."""
        batches = self._batches
        assert batches is not None, "the scan has not begun, or was released"
        return next(batches, None)

    def release(self) -> None:
        """Lets go of the snapshot, now or when the batch that is being made elsewhere is done. Idempotent."""
        self._batches = None

    def require_alive(self) -> None:
        """Refuses to go on with an expired scan.

        Raises:
            KuduError: SCANNER_EXPIRED.
        """
        if self.outcome == "expired":
            raise KuduError(
                ErrorCode.SCANNER_EXPIRED,
                f"nobody took rows of the scan of tablet {self.tablet_id} for too long; begin it again",
                verdict=Verdict.TRY_LATER,
            )


class Scanners:
    """All scans of a server."""

    def __init__(self, *, clock: Clock, ttl_s: float, running_max: int) -> None:
        """No scan yet.

        Args:
            ttl_s: a scan expires when nobody asks for its next batch for so long.
            running_max: more are refused.
        """
        self._clock = clock
        self._ttl_s = ttl_s
        self._running_max = running_max
        self._numbers = itertools.count(1)
        self._running: dict[int, Scanner] = {}
        self._finished: deque[Scanner] = deque(maxlen=FINISHED_KEPT)

    def __len__(self) -> int:
        return len(self._running)

    @contextlib.contextmanager
    def admit(self, tablet_id: str, query_id: str) -> Iterator[Scanner]:
        """A new scan for as long as the context lasts.

        Raises:
            KuduError: SERVER_TOO_BUSY, try later.
        """
        if len(self._running) >= self._running_max:
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"{len(self._running)} scans run on this server, as many as it takes",
                verdict=Verdict.TRY_LATER,
            )
        now = self._clock.monotonic()
        scanner = Scanner(next(self._numbers), tablet_id, query_id[:64], now, now)
        self._running[scanner.number] = scanner
        try:
            yield scanner
            if scanner.outcome == "running":
                scanner.outcome = "finished"
        except KuduError as error:
            if scanner.outcome == "running":
                scanner.outcome = error.code.value
            raise
        finally:
            if scanner.outcome == "running":
                scanner.outcome = "cancelled"
            scanner.release()
            self._running.pop(scanner.number, None)
            self._finished.append(scanner)

    @contextlib.contextmanager
    def advancing(self, scanner: Scanner) -> Iterator[None]:
        """While the next batch is made, which may happen elsewhere: such a scan does not expire.

        Raises:
            KuduError: SCANNER_EXPIRED.
        """
        scanner.require_alive()
        scanner.is_advancing = True
        try:
            yield
        finally:
            scanner.is_advancing = False
            scanner.last_active_s = self._clock.monotonic()

    def expire(self) -> int:
        """Ends the scans that nobody has asked for too long; how many. To be called now and then."""
        before = self._clock.monotonic() - self._ttl_s
        idle = [s for s in self._running.values() if not s.is_advancing and s.last_active_s < before]
        for scanner in idle:
            scanner.outcome = "expired"
            scanner.release()
            # It no longer counts; its call is still there, blocked in a write, and ends when it notices.
            del self._running[scanner.number]
        return len(idle)

    def running(self) -> list[Scanner]:
        """Oldest first."""
        return list(self._running.values())

    def finished(self) -> list[Scanner]:
        """The last ones, latest first."""
        return list(reversed(self._finished))
