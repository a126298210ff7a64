"""The log after a crash at every step of a life, and variants that leave out a sync, which must be seen to fail.

The life: appends, a truncation, rolls, a collection, a clean stop, a second process that goes on. At each step the
power is cut (or the process killed and the power cut in the next life), and the log is opened again. Then must hold:
everything that was reported durable is there, what is there was written, in order, overwritten entries do not come back
once their replacement was reported, and opening again changes nothing.
"""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.wal import Log, Record, WalOptions

TABLET = "fedcba9876543210" * 2
DIRECTORY = f"/wals/{TABLET}"
OPTIONS = WalOptions(
    segment_size_bytes_first=4096,
    segment_size_bytes_min=4096,
    segment_size_bytes_max=8192,
    cache_bytes_max=0,
    disk_reserved_bytes=0,
    full_retry_s=0.01,
)


@dataclass
class Model:
    """What the owner of the log knows.

    Attributes:
        accepted: the log as it should be if all that was accepted survives.
        older: for each index, other records that were accepted there earlier and may come back only while their
            replacement was not reported.
        durable: OpId last reported.
        floor: entries below may be collected.
    """

    accepted: dict[int, Record] = field(default_factory=dict)
    older: dict[int, list[Record]] = field(default_factory=dict)
    durable: OpId = MIN_OP_ID
    floor: int = 1

    def append(self, log: Log, term: int, count: int, size: int, rng: random.Random) -> None:
        first = log.last_op_id.index + 1
        fresh = [
            Record(OpId(term, i), f"{term}.{i} ".encode() + rng.randbytes(size)) for i in range(first, first + count)
        ]
        log.append(fresh)
        for record in fresh:
            self.accepted[record.op_id.index] = record

    def truncate_after(self, log: Log, index: int) -> None:
        for gone in range(index + 1, log.last_op_id.index + 1):
            self.older.setdefault(gone, []).append(self.accepted.pop(gone))
        log.truncate_after(index)
        if self.durable.index > index:
            self.durable = log.durable_op_id

    def report(self, op_id: OpId) -> None:
        self.durable = op_id

    def fail(self, error: BaseException) -> None:
        """A crash is a failure too: what counts is what `report` was told before."""

    def violation(self, log: Log, content: list[Record]) -> str | None:
        """What is wrong with a recovered log, if anything."""
        indexes = [record.op_id.index for record in content]
        if indexes != list(range(log.first_index, log.last_op_id.index + 1)):
            return f"the log says {log.first_index} to {log.last_op_id} and holds {indexes}"
        if log.first_index > self.floor and log.first_index > 1:
            return f"entries up to {log.first_index} are gone, {self.floor} is still needed"
        if log.last_op_id.index < self.durable.index:
            return f"{self.durable} was reported, the log ends with {log.last_op_id}"
        is_replaced = False
        for record in content:
            index = record.op_id.index
            if record == self.accepted.get(index) and not is_replaced:
                continue
            # From here on it is the log as it was before a truncation that was not reported.
            is_replaced = True
            if index <= self.durable.index:
                return f"{record.op_id} is not what was reported at {index}"
            if record not in self.older.get(index, []):
                return f"{record.op_id} was invented"
        return None


@dataclass
class Life:
    """One process after another on one disk."""

    disk: SimDisk
    seed: int
    model: Model = field(default_factory=Model)

    async def open(self) -> Log:
        return await Log.open(
            directory=DIRECTORY,
            tablet_id=TABLET,
            threads=SimDiskThreads(self.disk, random.Random(self.seed)),
            options=OPTIONS,
            on_durable=self.model.report,
            on_failure=self.model.fail,
        )

    async def workload(self) -> None:
        rng = random.Random(self.seed)
        model = self.model
        log = await self.open()
        for count, size in ((1, 10), (3, 700), (1, 0), (2, 1500), (4, 300)):
            model.append(log, 1, count, size, rng)
            await asyncio.sleep(rng.choice((0, 0.001, 0.02)))
        await asyncio.sleep(0.05)
        model.append(log, 1, 3, 900, rng)
        await asyncio.sleep(rng.choice((0, 0.001)))
        model.truncate_after(log, log.last_op_id.index - 5)
        model.append(log, 2, 4, 800, rng)
        await asyncio.sleep(0.05)
        model.append(log, 2, 2, 5_000, rng)
        model.append(log, 2, 1, 100, rng)
        await asyncio.sleep(0.05)
        model.floor = 9
        await log.collect(9)
        model.append(log, 2, 2, 10, rng)
        await log.close()
        log = await self.open()
        model.append(log, 3, 5, 600, rng)
        await asyncio.sleep(0.03)
        model.truncate_after(log, log.last_op_id.index - 7)
        await asyncio.sleep(rng.choice((0, 0.02)))
        model.append(log, 4, 6, 500, rng)
        await asyncio.sleep(0.05)
        model.floor = log.last_op_id.index - 2
        await log.collect(model.floor)
        await log.close()

    async def until_crash(self, main) -> None:
        """Runs `main` until it ends or the disk crashes."""
        crashed = asyncio.get_running_loop().create_future()
        self.disk.on_crash.append(lambda: crashed.done() or crashed.set_result(None))
        task = asyncio.ensure_future(main)
        await asyncio.wait({task, crashed}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def content(self, log: Log) -> list[Record]:
        return [record async for record in log.replay()]

    async def check(self) -> str | None:
        """Opens, compares, opens again after a power cut, compares, goes on writing, opens once more."""
        try:
            log = await self.open()
            content = await self.content(log)
            wrong = self.model.violation(log, content)
            if wrong:
                return wrong
            self.disk.power_cut()
            self.disk.restart()
            log = await self.open()
            if await self.content(log) != content:
                return "a second recovery found something else than the first"
            first = log.last_op_id.index + 1
            more = [Record(OpId(9, index), bytes(700)) for index in range(first, first + 9)]
            reported = self.model.durable = log.durable_op_id
            for record in more:
                log.append([record])
            await asyncio.sleep(0.2)
            if (reported := self.model.durable) != more[-1].op_id:
                return f"after recovery the log reports {reported} only"
            self.disk.power_cut()
            self.disk.restart()
            log = await self.open()
            if await self.content(log) != content + more:
                return "what was written after recovery is not there"
        except KuduError as error:
            return str(error)
        return None


def prepared(kind: type[SimDisk], seed: int) -> Life:
    disk = kind(random.Random(seed))
    disk.make_dir("/wals")
    disk.sync_dir("/")
    disk.steps = 0
    return Life(disk, seed)


def steps_of(kind: type[SimDisk], seed: int) -> int:
    life = prepared(kind, seed)
    sim_loop.run(life.workload(), seed=seed)
    return life.disk.steps


def crash_at(kind: type[SimDisk], seed: int, step: int, *, kills: bool = False) -> str | None:
    """One life that ends at a step. `kills`: the process dies there and the cache lives on."""

    async def main() -> str | None:
        life = prepared(kind, seed)
        life.disk._rng.seed(seed * 100_003 + step)
        if kills:
            life.disk.power_cut = life.disk.kill
        life.disk.crash_at_step = step
        await life.until_crash(life.workload())
        if kills:
            del life.disk.power_cut
        if not life.disk.is_crashed:
            return None  # another order of events than the one rehearsed ended a step or two earlier
        life.disk.restart()
        return await life.check()

    return sim_loop.run(main(), seed=seed)


def crash_everywhere(kind: type[SimDisk], seeds: range, *, stride: int = 1, kills: bool = False) -> str | None:
    for seed in seeds:
        for step in range(1 + seed % stride, steps_of(kind, seed) + 1, stride):
            wrong = crash_at(kind, seed, step, kills=kills)
            if wrong is not None:
                return f"seed {seed} step {step}: {wrong}"
    return None


def test_a_power_cut_at_any_step_loses_nothing_reported_and_invents_nothing():
    assert crash_everywhere(SimDisk, range(12)) is None


def test_a_kill_at_any_step_and_a_power_cut_later_lose_nothing_reported():
    assert crash_everywhere(SimDisk, range(20, 28), kills=True) is None


def test_a_power_cut_during_recovery_is_recovered_from():
    """Two crashes in a row: at a step of the life, then at each step of the recovery."""

    async def twice(seed: int, step: int, second: int) -> tuple[bool, str | None]:
        life = prepared(SimDisk, seed)
        life.disk._rng.seed(seed * 100_003 + step)
        life.disk.crash_at_step = step
        await life.until_crash(life.workload())
        life.disk.restart()
        life.disk.crash_at_step = life.disk.steps + second
        await life.until_crash(life.open())
        if not life.disk.is_crashed:
            return False, None
        life.disk.restart()
        return True, await life.check()

    for seed in range(2):
        for step in range(5 + seed, steps_of(SimDisk, seed), 6):
            second, goes_on = 1, True
            while goes_on:
                goes_on, wrong = sim_loop.run(twice(seed, step, second), seed=seed)
                assert wrong is None, f"seed {seed} steps {step}, {second}: {wrong}"
                second += 1
            assert second > 3


def was_shortened(disk: SimDisk, path: str) -> bool:
    """Whether a truncation waits for the sync of this file: it is being closed."""
    return any(type(change).__name__ == "_Truncate" for change in disk._file(path).pending)


class ForgetsBatchSyncs(SimDisk):
    """Leaves out the sync of segments in use, but not that behind a footer."""

    def drops_sync(self, path: str) -> bool:
        return "/wal-" in path and not path.endswith(".tmp") and not was_shortened(self, path)


class ForgetsFooterSyncs(SimDisk):
    """Leaves out the sync behind a footer."""

    def drops_sync(self, path: str) -> bool:
        return "/wal-" in path and was_shortened(self, path)


class ForgetsPreallocationSyncs(SimDisk):
    """Leaves out the sync of files before they are renamed: preallocated segments and copies of the tail."""

    def drops_sync(self, path: str) -> bool:
        return path.endswith(".tmp")


class ForgetsDirectorySyncs(SimDisk):
    def drops_sync(self, path: str) -> bool:
        return path in (DIRECTORY, "/wals")


@pytest.mark.parametrize(
    "kind", [ForgetsBatchSyncs, ForgetsFooterSyncs, ForgetsPreallocationSyncs, ForgetsDirectorySyncs]
)
def test_a_missing_sync_is_seen(kind):
    assert crash_everywhere(kind, range(6), stride=2) is not None


class RemovesWithoutOrder(SimDisk):
    """Leaves out the sync of the directory behind the removal of a segment."""

    def drops_sync(self, path: str) -> bool:
        pending = self._directory(path).pending if path == DIRECTORY else []
        return bool(pending) and all(
            node is None and not name.endswith(".tmp") for name, node in list(pending[-1].items())
        )


def test_removal_that_is_not_durable_in_order_is_seen():
    assert crash_everywhere(RemovesWithoutOrder, range(6)) is not None
