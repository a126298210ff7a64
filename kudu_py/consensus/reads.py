"""`Reads`: who waits for a read barrier, for an entry to be applied, or for a timestamp to be safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import TabletId
from kudu_py.consensus.applier import Applier
from kudu_py.consensus.core.events import Event, ReadIndexRequested, Token
from kudu_py.consensus.core.model import Role
from kudu_py.consensus.core.output import ReadReady
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.consensus.waits import Waits


class Reads:
    """The waiting reads of one replica; what they are promised is said at `RaftConsensus`, which asks here."""

    def __init__(
        self,
        *,
        tablet_id: TabletId,
        raft: Raft,
        time: TimeManager,
        applier: Applier,
        tokens: Iterator[Token],
        post: Callable[[Event], None],
        require_running: Callable[[], None],
        not_the_leader: Callable[[], KuduError],
    ) -> None:
        """Args: post: takes facts. require_running: raises why the replica does not run."""
        self._tablet_id, self._raft, self._time, self._applier = tablet_id, raft, time, applier
        self._tokens, self._post = tokens, post
        self._require_running, self._not_the_leader = require_running, not_the_leader
        self._barriers: dict[Token, asyncio.Future[int]] = {}
        self._waits = Waits()

    # Waiting.

    async def read_index(self) -> int:
        """See `RaftConsensus.read_index`."""
        self._require_running()
        token = next(self._tokens)
        confirmed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._barriers[token] = confirmed
        try:
            self._post(ReadIndexRequested(token))
            index = await confirmed
        finally:
            self._barriers.pop(token, None)
        await self.wait_applied(index)
        return index

    async def wait_applied(self, index: int) -> None:
        """See `RaftConsensus.wait_applied`."""
        self._require_running()
        if index > self._applier.applied_index:
            applied = self._waits.applied(index)
            self._applier.hurry()
            await applied

    async def wait_safe_time(self, timestamp: HybridTime, timeout_s: float) -> None:
        """See `RaftConsensus.wait_safe_time`."""
        self._require_running()
        self._time.check(timestamp, "the snapshot")
        if timestamp <= self._time.safe_time:
            return
        try:
            async with asyncio.timeout(timeout_s):
                if self._raft.role is Role.LEADER:
                    await self._wait_safe_as_leader(timestamp)
                else:
                    await self._wait_safe_as_follower(timestamp)
        except TimeoutError:
            raise KuduError(
                ErrorCode.TIMED_OUT,
                f"tablet {self._tablet_id}: timestamp {timestamp} was not safe to read within {timeout_s:g} s, "
                f"safe time is {self._time.safe_time}",
                verdict=Verdict.TRY_LATER,
            ) from None

    async def _wait_safe_as_leader(self, timestamp: HybridTime) -> None:
        """Every entry at or below `timestamp` is in the log once the clock has passed it, if it still leads then."""
        term = self._raft.term
        self._time.observe(timestamp, "the snapshot")
        last_index = self._raft.last_op_id.index
        await self.read_index()
        if self._raft.term != term:
            raise self._not_the_leader()
        await self.wait_applied(last_index)
        if self._raft.role is not Role.LEADER or self._raft.term != term:
            raise self._not_the_leader()

    async def _wait_safe_as_follower(self, timestamp: HybridTime) -> None:
        safe = self._waits.safe(timestamp)
        self._applier.hurry()
        await safe

    # What they are told.

    def are_waiting(self) -> bool:
        """Whether somebody waits for entries to be applied, or for safe time."""
        return len(self._waits) > 0

    def note_ready(self, ready: ReadReady) -> None:
        """A barrier was confirmed."""
        confirmed = self._barriers.get(ready.token)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(ready.index)

    def refuse(self, token: Token, error: KuduError) -> bool:
        """Whether what was refused is a barrier from here."""
        confirmed = self._barriers.get(token)
        if confirmed is not None and not confirmed.done():
            confirmed.set_exception(error)
        return confirmed is not None

    def note_applied(self, index: int) -> None:
        """Everything up to `index` is applied, and safe time may have moved with it."""
        self._waits.note_applied(index)
        self._waits.note_safe(self._time.safe_time)

    def note_announced(self, safe: HybridTime, commit_index: int) -> None:
        """The leader says what is safe for whoever has applied everything up to its commit index."""
        self._time.note_announced(safe, commit_index, self._applier.applied_index)
        self._waits.note_safe(self._time.safe_time)

    def fail_all(self, reason: KuduError) -> None:
        """The replica stops."""
        for confirmed in self._barriers.values():
            if not confirmed.done():
                confirmed.set_exception(reason)
        self._waits.fail_all(reason)
