"""`Maintenance`: decides what to flush, compact or collect next, and has it done.

Two lanes, so that a compaction of minutes never stands before a flush that keeps memory bounded. Each takes one piece
of work after another, as many at once as the options say. What to do is decided by pure functions over what the
replicas say:

1. Under memory pressure the replica with the most unflushed memory is flushed.
2. Else one that has reached its threshold, the largest first.
3. Else one whose unflushed rows are old: they keep the log from being collected and make a restart slow.
4. In the second lane, replicas whose files have changed since they were last found to be in good order are compacted in
turn. (Upstream's maintenance manager scores all kinds of work in one queue; with so few kinds an order is easier to
foresee.)

What finds no room on the disk is left alone for a while, but only that: a flush needs less than a compaction, and what
it frees must not wait for what nobody needs today.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.env.clock import Clock
from kudu_py.tablet.manager import TabletManager
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceOptions:
    """When to do what. Times in seconds.

    Attributes:
        flushes_max, compactions_max: at once; none if 0.
        flush_age_s: unflushed rows older than this are flushed, if there are at least `flush_age_bytes_min` of them.
        flush_age_max_s: after this they are flushed however few they are.
        poll_s: how often the replicas are looked at when nothing is urgent.
        room_s: how often the quarantine is purged, and replicas that found the disk full are tried again.
        log_collect_s: how often logs that followers held back are looked at again.
        full_retry_s: what found the disk full is not tried again with this replica for so long.
    """

    flushes_max: int = 1
    compactions_max: int = 1
    flush_age_s: float = 120.0
    flush_age_bytes_min: int = 1 << 20
    flush_age_max_s: float = 3600.0
    poll_s: float = 0.25
    log_collect_s: float = 30.0
    room_s: float = 30.0
    full_retry_s: float = 10.0


class FlushNeed(NamedTuple):
    """What a replica that may be flushed says.

    Attributes:
        unflushed_bytes: memory that a flush would write.
        wants_flush: its threshold is reached.
        age_s: for how long it has had something unflushed.
    """

    tablet_id: TabletId
    unflushed_bytes: int
    wants_flush: bool
    age_s: float


def choose_flush(
    needs: Sequence[FlushNeed], options: MaintenanceOptions, *, is_under_pressure: bool
) -> TabletId | None:
    """Which replica to flush now; None if none needs it."""
    candidates = [need for need in needs if need.unflushed_bytes > 0]
    if not candidates:
        return None
    largest = max(candidates, key=lambda need: (need.unflushed_bytes, need.tablet_id))
    if is_under_pressure:
        return largest.tablet_id
    full = [need for need in candidates if need.wants_flush]
    if full:
        return max(full, key=lambda need: (need.unflushed_bytes, need.tablet_id)).tablet_id
    old = [
        need
        for need in candidates
        if need.age_s >= options.flush_age_max_s
        or (need.age_s >= options.flush_age_s and need.unflushed_bytes >= options.flush_age_bytes_min)
    ]
    return max(old, key=lambda need: (need.age_s, need.tablet_id)).tablet_id if old else None


class Maintenance:
    """The upkeep of all replicas of a server."""

    def __init__(
        self, *, manager: TabletManager, memory: MemoryBudget, clock: Clock, options: MaintenanceOptions
    ) -> None:
        self._manager = manager
        self._memory = memory
        self._clock = clock
        self._options = options
        self._urged = asyncio.Event()
        self._unflushed_since: dict[TabletId, float] = {}
        self._in_good_order: dict[TabletId, object] = {}
        self._left_alone_until: dict[tuple[str, TabletId], float] = {}
        self._out_of_room: set[tuple[str, TabletId]] = set()
        self._compacted_last = TabletId("")
        self._flushing: set[TabletId] = set()
        self._compacting: set[TabletId] = set()
        self.flushes = 0
        self.compactions = 0
        memory.on_pressure = self.urge

    def urge(self) -> None:
        """Memory is short: look at once."""
        self._urged.set()

    async def run(self) -> None:
        """Flushes, compacts and collects until cancelled; what is under way then goes on until it is done.

        Raises what a flush or compaction raised, other than that the disk is full: that is a reason to end the process.
        """
        async with asyncio.TaskGroup() as lanes:
            for number in range(self._options.flushes_max):
                lanes.create_task(self._flush_lane(), name=f"flush-{number}")
            for number in range(self._options.compactions_max):
                lanes.create_task(self._compaction_lane(), name=f"compaction-{number}")
            lanes.create_task(self._collection_lane(), name="log-collection")
            lanes.create_task(self._room_lane(), name="room")

    async def _flush_lane(self) -> None:
        while True:
            tablet_id = choose_flush(
                self._flush_needs(), self._options, is_under_pressure=self._memory.is_under_pressure
            )
            if tablet_id is None:
                self._urged.clear()
                try:
                    async with asyncio.timeout(self._options.poll_s):
                        await self._urged.wait()
                except TimeoutError:
                    pass
                continue
            self._flushing.add(tablet_id)
            try:
                if await self._do("flush", tablet_id, lambda replica: replica.checkpointer.flush()):
                    self.flushes += 1
                    self._unflushed_since.pop(tablet_id, None)
            finally:
                self._flushing.discard(tablet_id)

    async def _compaction_lane(self) -> None:
        while True:
            replica = self._compactable()
            if replica is None:
                await asyncio.sleep(self._options.poll_s)
                continue
            tablet_id, records = replica.tablet_id, replica.tablet.records
            self._compacted_last = tablet_id
            self._compacting.add(tablet_id)
            try:
                if await self._do("compact", tablet_id, lambda replica: replica.checkpointer.compact()):
                    self.compactions += 1
                else:
                    self._in_good_order[tablet_id] = records
            finally:
                self._compacting.discard(tablet_id)
            await asyncio.sleep(0)  # a series of replicas in good order must not hold the loop

    async def _collection_lane(self) -> None:
        while True:
            await asyncio.sleep(self._options.log_collect_s)
            for replica in self._running():
                await self._do("collect", replica.tablet_id, lambda replica: replica.checkpointer.collect_log())

    async def _room_lane(self) -> None:
        while True:
            await asyncio.sleep(self._options.room_s)
            await self._manager.purge_quarantine()
            await self._manager.reopen_for_room()
            self._forget_deleted()

    async def _do(self, what: str, tablet_id: TabletId, work: Callable[[TabletReplica], Awaitable[bool | int]]) -> bool:
        """Does a piece of work on a replica; whether it changed anything."""
        try:
            has_changed = bool(await work(self._manager.replica(tablet_id)))
        except KuduError as error:
            if error.code is ErrorCode.DISK_FULL:
                if (what, tablet_id) not in self._out_of_room:  # said once, not with every try
                    self._out_of_room.add((what, tablet_id))
                    _log.warning("maintenance_postponed", what=what, tablet=tablet_id, error=str(error))
                self._left_alone_until[what, tablet_id] = self._clock.monotonic() + self._options.full_retry_s
                return False
            if error.code is ErrorCode.CORRUPTION:
                self._manager.replica(tablet_id).fail(error)
                return False
            if error.code in (ErrorCode.TABLET_NOT_FOUND, ErrorCode.TABLET_NOT_RUNNING, ErrorCode.TABLET_FAILED):
                self._out_of_room.discard((what, tablet_id))
                return False  # deleted or found damaged meanwhile
            raise
        if (what, tablet_id) in self._out_of_room:
            self._out_of_room.discard((what, tablet_id))
            _log.info("maintenance_resumed", what=what, tablet=tablet_id)
        return has_changed

    def _running(self) -> list[TabletReplica]:
        return [replica for replica in self._manager.replicas() if replica.state is ReplicaState.RUNNING]

    def _flush_needs(self) -> list[FlushNeed]:
        now = self._clock.monotonic()
        needs = []
        for replica in self._running():
            tablet, tablet_id, checkpointer = replica.tablet, replica.tablet_id, replica.checkpointer
            if not checkpointer.has_unflushed:
                self._unflushed_since.pop(tablet_id, None)
                continue
            since = self._unflushed_since.setdefault(tablet_id, now)
            if tablet_id not in self._flushing and not self._is_left_alone("flush", tablet_id, now):
                # Rows that a failed attempt left frozen no longer count as unflushed, but wait all the same.
                wants_flush = tablet.wants_flush or checkpointer.has_frozen or checkpointer.wants_checkpoint
                needs.append(FlushNeed(tablet_id, max(tablet.unflushed_bytes, 1), wants_flush, now - since))
        return needs

    def _compactable(self) -> TabletReplica | None:
        """The next replica, in turn, whose files have changed since it was found in good order."""
        now, running = self._clock.monotonic(), self._running()
        begin = bisect_right(running, self._compacted_last, key=lambda replica: replica.tablet_id)
        for replica in (*running[begin:], *running[:begin]):
            tablet_id = replica.tablet_id
            if tablet_id in self._compacting or self._is_left_alone("compact", tablet_id, now):
                continue
            if self._in_good_order.get(tablet_id) is not replica.tablet.records:
                return replica
        return None

    def _is_left_alone(self, what: str, tablet_id: TabletId, now: float) -> bool:
        until = self._left_alone_until.get((what, tablet_id))
        if until is None:
            return False
        if now < until:
            return True
        del self._left_alone_until[what, tablet_id]
        return False

    def _forget_deleted(self) -> None:
        """Lets go of what was noted of replicas that are no longer here: tables come and go while a server lives."""
        here = {replica.tablet_id for replica in self._manager.replicas()}
        self._unflushed_since = {key: since for key, since in self._unflushed_since.items() if key in here}
        self._in_good_order = {key: records for key, records in self._in_good_order.items() if key in here}
        self._left_alone_until = {key: until for key, until in self._left_alone_until.items() if key[1] in here}
        self._out_of_room = {key for key in self._out_of_room if key[1] in here}
