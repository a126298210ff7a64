"""Fetching a replica from another server: what must come, what may be used again, and how it can fail."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.pb import tablet_copy_pb2
from kudu_py.tablet import metadata
from kudu_py.tablet.directories import ReplicaDirectories, remove_tree
from kudu_py.tablet.tablet_copy.board import CopyProgress, CopyProgressBoard, CopyState
from kudu_py.tablet.tablet_copy.client import FetchedReplica, fetch
from kudu_py.tablet.tablet_copy.landing import require_sound
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import Fault, Operation

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]

SMALL = TabletCopyOptions(chunk_bytes=1 << 10, piece_bytes=2 << 10, sync_bytes=4 << 10, bytes_per_s=0, burst_bytes=1)
OPTIONS = replace(TESTING_OPTIONS, copy=SMALL)
DIRECTORIES = ReplicaDirectories("/data")
Row = tuple[int, int, str]


def some_rows(first: int, count: int) -> list[Row]:
    """Rows that no encoding makes small."""
    return [(key, key * 2, f"{random.Random(key).getrandbits(800):0200x}") for key in range(first, first + count)]


@dataclass
class Rig:
    """A tablet on all hosts but the last, which copies it.

    Attributes:
        heard: the progress that was told.
    """

    group: ReplicaGroup
    tablet_id: TabletId
    heard: list[CopyProgress] = field(default_factory=list)

    @staticmethod
    async def start(*, sources: int = 1, seed: int = 1, options=OPTIONS) -> Rig:
        group = ReplicaGroup(seed, size=sources + 1, options=options)
        await group.start()
        new = group.new_tablet()
        members = tuple(m for m in new.config.members if m.uuid != group.hosts[-1].uuid)
        new = replace(new, config=RaftConfig(0, members))
        for host in group.hosts[:-1]:
            await host.manager.create_tablet(new)
        return Rig(group, new.tablet_id)

    @property
    def source(self) -> ReplicaHost:
        return self.group.hosts[0]

    @property
    def target(self) -> ReplicaHost:
        return self.group.hosts[-1]

    @property
    def replica(self) -> TabletReplica:
        return self.source.manager.replica(self.tablet_id)

    async def write(self, first: int, count: int, *, flush: bool = False) -> None:
        leader = await self.group.leader(self.tablet_id, self.group.hosts[:-1])
        await leader.write_batch(batch_of(some_rows(first, count)))
        if flush:
            await self.replica.checkpointer.flush()

    async def fetch(self, committed: OpId = MIN_OP_ID, source: ReplicaHost | None = None) -> FetchedReplica:
        source = source or self.source
        self.heard.clear()
        return await fetch(
            context=self.target.manager.context,
            dialer=self.group.network.dialer(self.target.address),
            tablet_id=self.tablet_id,
            source_uuid=source.uuid,
            source_address=source.address,
            committed_op_id=committed,
            directory=f"/data/{self.tablet_id}",
            on_progress=self.heard.append,
        )

    @property
    def progress(self) -> CopyProgress:
        return self.heard[-1]

    @property
    def landed(self) -> str:
        """Where files of the source are on the target."""
        return f"/data/{self.tablet_id}/{self.source.uuid}"

    def fetched_bytes(self) -> int:
        return self.target.manager.context.copies.bytes_fetched

    async def fetch_until(self, holds: Callable[[], bool]) -> asyncio.Task[FetchedReplica]:
        """A fetch that is under way and has come to a point."""
        task = asyncio.create_task(self.fetch())
        await self.group.wait_until(lambda: task.done() or (bool(self.heard) and holds()))
        assert not task.done(), "it ended before"
        return task

    async def install(self, fetched: FetchedReplica) -> TabletReplica:
        """Puts what was fetched in place by hand, and opens it."""
        disk = self.target.disk
        await self.target.stop()
        for name in (DIRECTORIES.row_directory(self.tablet_id), DIRECTORIES.log_directory(self.tablet_id)):
            remove_tree(disk, name)
        disk.rename(fetched.rows_directory, DIRECTORIES.row_directory(self.tablet_id))
        disk.rename(fetched.log_directory, DIRECTORIES.log_directory(self.tablet_id))
        ConsensusMetadata.create(disk, DIRECTORIES.consensus_metadata_path(self.tablet_id), fetched.consensus)
        metadata.write(disk, DIRECTORIES.superblock_path(self.tablet_id), fetched.superblock)
        await self.target.start()
        return self.target.manager.replica(self.tablet_id)


def test_a_fetched_replica_has_the_rows_of_the_checkpoint_and_the_log_after_it(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        await rig.write(100, 50)
        fetched = await rig.fetch()
        copied = await rig.install(fetched)
        assert rows_of(copied) == some_rows(0, 100)
        assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
        assert copied.consensus.committed_config == rig.replica.consensus.committed_config
        assert fetched.consensus.hard_state.term == rig.replica.consensus.term
        assert fetched.consensus.hard_state.voted_for is None
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_never_took_a_write_can_be_fetched(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        copied = await rig.install(await rig.fetch())
        assert rows_of(copied) == []
        await rig.group.stop()

    simulate(main())


def test_a_source_that_lags_behind_what_is_committed_refuses(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 10)
        ahead = OpId(rig.replica.consensus.term, rig.replica.applied.index + 1)
        with pytest.raises(KuduError, match="could forget what it has acknowledged") as refused:
            await rig.fetch(committed=ahead)
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        assert refused.value.details["side"] == "source"
        assert len(rig.source.copy_sessions) == 0
        await asyncio.sleep(0)
        await rig.group.stop()

    simulate(main())


def test_nothing_is_fetched_again_that_is_there_whole(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        await rig.write(100, 20)
        await rig.fetch()
        once = rig.fetched_bytes()
        assert once == rig.progress.bytes_total == rig.progress.bytes_done
        await rig.fetch()
        assert rig.fetched_bytes() == once
        assert rig.progress.bytes_resumed == rig.progress.bytes_done == rig.progress.bytes_total
        await rig.group.stop()

    simulate(main())


def test_a_log_that_has_grown_is_fetched_on_from_the_last_record(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100)
        await rig.fetch()
        once = rig.fetched_bytes()
        await rig.write(100, 1)
        fetched = await rig.fetch()
        assert 0 < rig.fetched_bytes() - once < 1000
        copied = await rig.install(fetched)
        assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
        await rig.group.stop()

    simulate(main())


def test_a_copied_log_opens_wherever_the_source_was_between_two_segments(simulate: Simulate):
    async def main() -> None:
        sizes = dict.fromkeys(("segment_size_bytes_first", "segment_size_bytes_min", "segment_size_bytes_max"), 4096)
        small = replace(OPTIONS.wal, **sizes)
        rig = await Rig.start(options=replace(OPTIONS, wal=small))
        for key in range(25):
            await rig.write(key, 4, flush=key == 12)
            copied = await rig.install(await rig.fetch())
            assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
            assert copied.log.segment_count >= rig.replica.log.segment_count - 1
            await rig.target.manager.delete_tablet(rig.tablet_id)
        assert rig.replica.log.segment_count > 3
        await rig.group.stop()

    simulate(main())


def test_a_fetch_goes_on_where_the_target_was_when_its_power_was_cut(simulate: Simulate):
    async def main() -> None:
        larger = replace(SMALL, chunk_bytes=4 << 10, piece_bytes=8 << 10, sync_bytes=16 << 10)
        rig = await Rig.start(options=replace(OPTIONS, copy=larger))
        for first in (0, 60):
            await rig.write(first, 60, flush=True)
        await rig.write(120, 20)
        disk, kept, step = rig.target.disk, 0, 0
        cut_short: list[asyncio.Task[FetchedReplica]] = []
        while True:
            step += 1
            remove_tree(disk, f"/data/{rig.tablet_id}")
            disk.crash_at_step = disk.steps + step
            task = asyncio.create_task(rig.fetch())
            await rig.group.wait_until(lambda task=task: task.done() or disk.is_crashed)
            if not disk.is_crashed:
                break
            await rig.target.halt()
            cut_short.append(task)
            await rig.target.restart()
            fetched = await rig.fetch()
            kept = max(kept, rig.progress.bytes_resumed)
            assert rig.fetched_bytes() == rig.progress.bytes_total - rig.progress.bytes_resumed
            names = {file.name for file in fetched.superblock.rows.files}
            assert set(disk.list_dir(fetched.rows_directory)) == names
        disk.crash_at_step = None
        for task in cut_short:
            task.cancel()
        await asyncio.gather(*cut_short, return_exceptions=True)
        assert step > 20
        assert kept > 0.8 * rig.progress.bytes_total
        copied = await rig.install(await rig.fetch())
        assert rows_of(copied) == some_rows(0, 120)
        assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
        await rig.group.stop()

    simulate(main())


def test_a_fetch_goes_on_where_it_was_when_the_source_was_killed(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        await rig.write(100, 100)
        task = await rig.fetch_until(lambda: rig.progress.bytes_done > rig.progress.bytes_total / 2)
        await rig.source.crash()
        with pytest.raises(KuduError, match="reset") as gone:
            await task
        assert gone.value.code is ErrorCode.UNAVAILABLE
        assert gone.value.details["side"] == "source"
        await rig.source.restart()
        await rig.group.leader(rig.tablet_id, [rig.source])
        copied = await rig.install(await rig.fetch())
        assert rig.progress.bytes_resumed > rig.progress.bytes_total / 4
        assert rows_of(copied) == some_rows(0, 100)
        assert copied.consensus.last_op_id == rig.replica.log.durable_op_id
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("kind", ["rows", "log"])
def test_what_was_damaged_since_it_was_fetched_is_fetched_again(simulate: Simulate, kind: str):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        await rig.write(100, 100)
        await rig.fetch()
        name = rig.target.disk.list_dir(f"{rig.landed}/{kind}")[-1]
        rig.target.disk.corrupt(f"{rig.landed}/{kind}/{name}", 3000, b"\xff\xfe\xfd\xfc")
        once = rig.fetched_bytes()
        copied = await rig.install(await rig.fetch())
        assert rig.progress.bytes_done == rig.progress.bytes_total
        assert rows_of(copied) == some_rows(0, 100)
        assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
        assert once > 0
        await rig.group.stop()

    simulate(main())


def test_a_part_that_was_damaged_since_is_given_up_for_the_whole(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 200, flush=True)
        (largest, *_) = sorted(rig.replica.superblock.rows.files, key=lambda file: -file.size_bytes)
        part = f"{rig.landed}/rows/{largest.name}.part"
        disk = rig.target.disk
        task = await rig.fetch_until(lambda: disk.exists(part) and disk.size(part) > 9000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        disk.corrupt(part, 100, b"\xff\xfe\xfd\xfc")
        copied = await rig.install(await rig.fetch())
        assert rig.progress.bytes_done == rig.progress.bytes_total
        assert rows_of(copied) == some_rows(0, 200)
        await rig.group.stop()

    simulate(main())


def test_a_cancelled_fetch_ends_its_session_and_keeps_what_it_has(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 200, flush=True)
        task = await rig.fetch_until(lambda: rig.progress.bytes_done > 0.7 * rig.progress.bytes_total)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(rig.source.copy_sessions) == 0
        await rig.fetch()
        assert rig.progress.bytes_resumed > 0
        await rig.group.stop()

    simulate(main())


def test_a_file_that_is_damaged_at_the_source_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        (largest, *_) = sorted(rig.replica.superblock.rows.files, key=lambda file: -file.size_bytes)
        rig.source.disk.corrupt(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}", 2000, b"\xff\xfe\xfd")
        with pytest.raises(KuduError, match=f"{largest.name} does not have the checksum") as damaged:
            await rig.fetch()
        assert damaged.value.code is ErrorCode.CORRUPTION
        assert damaged.value.details["side"] == "source"
        assert largest.name not in rig.target.disk.list_dir(f"{rig.landed}/rows")
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("what", ["damaged", "missing", "shortened"])
def test_a_source_that_finds_its_own_file_damaged_fails_and_another_leader_serves(simulate: Simulate, what: str):
    async def main() -> None:
        rig = await Rig.start(sources=3)
        hosts = rig.group.hosts[:-1]
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, hosts)
        source = next(host for host in hosts if host.uuid == leader.consensus.uuid)
        await leader.checkpointer.flush()
        (largest, *_) = sorted(leader.superblock.rows.files, key=lambda file: -file.size_bytes)
        path = f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}"
        if what == "damaged":
            source.disk.corrupt(path, 2000, b"\xff\xfe\xfd")
        elif what == "missing":
            source.disk.unlink(path)
        else:
            file = source.disk.open(path, writable=True)
            file.truncate(file.size() - 10)
            file.close()
        with pytest.raises(KuduError):
            await rig.fetch(source=source)
        await rig.group.wait_until(lambda: leader.state is ReplicaState.FAILED)
        assert largest.name in str(leader.error)
        others = [host for host in hosts if host is not source]
        successor = await rig.group.leader(rig.tablet_id, others)
        await rig.fetch(source=next(host for host in others if host.uuid == successor.consensus.uuid))
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_is_all_there_is_does_not_fail_for_what_a_copy_finds(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        (largest, *_) = sorted(rig.replica.superblock.rows.files, key=lambda file: -file.size_bytes)
        rig.source.disk.corrupt(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}", 2000, b"\xff\xfe\xfd")
        with pytest.raises(KuduError):
            await rig.fetch()
        await asyncio.sleep(1)
        assert rig.replica.state is ReplicaState.RUNNING
        await rig.group.stop()

    simulate(main())


def test_a_file_that_is_missing_at_the_source_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        missing = rig.replica.superblock.rows.files[0]
        rig.source.disk.unlink(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{missing.name}")
        with pytest.raises(KuduError, match=f"{missing.name} is missing at the source") as gone:
            await rig.fetch()
        assert gone.value.code is ErrorCode.NOT_FOUND
        assert gone.value.details["side"] == "source"
        await rig.group.stop()

    simulate(main())


def test_a_disk_without_room_is_found_out_before_anything_is_fetched(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        reserved = OPTIONS.wal.disk_reserved_bytes
        rig.target.disk.capacity_bytes = reserved + 5000
        with pytest.raises(KuduError, match="there is no room on this server") as full:
            await rig.fetch()
        assert full.value.code is ErrorCode.DISK_FULL
        assert full.value.details["side"] == "target"
        assert rig.fetched_bytes() == 0
        assert not rig.target.disk.exists(f"/data/{rig.tablet_id}")
        assert len(rig.source.copy_sessions) == 0
        rig.target.disk.capacity_bytes = None
        await rig.fetch()
        await rig.group.stop()

    simulate(main())


def test_a_disk_that_fills_up_meanwhile_gets_its_room_back(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 200, flush=True)
        task = await rig.fetch_until(lambda: rig.progress.bytes_done > 0)
        rig.target.disk.capacity_bytes = OPTIONS.wal.disk_reserved_bytes
        with pytest.raises(KuduError) as full:
            await task
        assert full.value.code is ErrorCode.DISK_FULL
        assert not rig.target.disk.exists(f"/data/{rig.tablet_id}")
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.SYNC, Operation.RENAME, Operation.SYNC_DIR])
def test_a_file_that_this_disk_failed_to_write_is_not_believed(simulate: Simulate, operation: Operation):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        rig.target.disk.inject(Fault(operation, errno.EIO, path_contains="/rows", skip=1))
        with pytest.raises(KuduError) as failed:
            await rig.fetch()
        assert failed.value.code is ErrorCode.IO_ERROR
        assert failed.value.details["side"] == "target"
        copied = await rig.install(await rig.fetch())
        assert rows_of(copied) == some_rows(0, 100)
        await rig.group.stop()

    simulate(main())


def test_a_source_that_falls_silent_is_given_up(simulate: Simulate):
    async def main() -> None:
        silent = replace(SMALL, stall_timeout_s=0.5)
        rig = await Rig.start(options=replace(OPTIONS, copy=silent))
        await rig.write(0, 200, flush=True)
        task = await rig.fetch_until(lambda: rig.progress.bytes_done > 0)
        rig.group.network.cut(rig.source.address, rig.target.address, both_ways=False)
        with pytest.raises(KuduError, match="sent nothing for") as gave_up:
            await task
        assert gave_up.value.code is ErrorCode.UNAVAILABLE
        await rig.group.stop()

    simulate(main())


def test_a_source_that_is_not_there_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.source.stop()
        with pytest.raises(KuduError, match=f"from server {rig.source.uuid} at {rig.source.address}") as gone:
            await rig.fetch()
        assert gone.value.code is ErrorCode.UNAVAILABLE
        await rig.group.stop()

    simulate(main())


def test_a_copy_outlives_a_change_of_the_leader(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(sources=3)
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, rig.group.hosts[:-1])
        source = next(host for host in rig.group.hosts if host.uuid == leader.consensus.uuid)
        await leader.checkpointer.flush()
        task = asyncio.create_task(rig.fetch(committed=leader.applied, source=source))
        await rig.group.wait_until(lambda: bool(rig.heard) and rig.progress.bytes_done > 0)
        await leader.consensus.leader_step_down()
        await rig.group.wait_until(lambda: not leader.is_leader)
        copied = await rig.install(await task)
        assert rows_of(copied) == some_rows(0, 100)
        await rig.group.stop()

    simulate(main())


def test_a_follower_that_has_applied_what_is_committed_is_as_good_a_source(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(sources=3)
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, rig.group.hosts[:-1])
        follower = next(host for host in rig.group.hosts[:-1] if host.uuid != leader.consensus.uuid)
        replica = follower.manager.replica(rig.tablet_id)
        await rig.group.wait_until(lambda: replica.applied == leader.applied)
        await replica.checkpointer.flush()
        fetched = await rig.fetch(committed=leader.applied, source=follower)
        copied = await rig.install(fetched)
        assert rows_of(copied) == some_rows(0, 100)
        await rig.group.stop()

    simulate(main())


def test_all_copies_together_keep_to_the_throttle(simulate: Simulate):
    async def main() -> None:
        slow = replace(SMALL, bytes_per_s=10_000, burst_bytes=1000)
        rig = await Rig.start(options=replace(OPTIONS, copy=slow))
        await rig.write(0, 200, flush=True)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await rig.fetch()
        took_s = loop.time() - started
        assert took_s == pytest.approx(rig.progress.bytes_total / 10_000, rel=0.1)
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".hidden", "x.part", "wal-1\n", "x" * 200])
def test_a_source_cannot_make_files_outside_of_where_they_belong(name: str):
    with pytest.raises(KuduError, match="none of a replica's"):
        require_sound([tablet_copy_pb2.CopyFile(kind=tablet_copy_pb2.CopyFile.ROWS, name=name)])


def test_more_copies_than_allowed_wait_for_their_turn(simulate: Simulate):
    async def main() -> None:
        board = CopyProgressBoard(uuid=ServerId("a" * 32), clock=SimClock(), options=replace(SMALL, copies_max=1))
        go_on = asyncio.Event()

        async def copy(tablet: str) -> None:
            async with board.copying(TabletId(tablet), ServerId("b" * 32)):
                await go_on.wait()

        tasks = [asyncio.create_task(copy(tablet)) for tablet in ("first", "second", "third")]
        await asyncio.sleep(0.01)
        states = sorted(shown.state.value for shown in board.copies_to_here())
        assert states == ["FETCHING", "QUEUED", "QUEUED"]
        queued = next(shown for shown in board.copies_to_here() if shown.state is CopyState.QUEUED)
        waiting = tasks[["first", "second", "third"].index(queued.tablet_id)]
        waiting.cancel()
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert queued.state is CopyState.CANCELLED
        assert board.copies_ended[CopyState.SUCCEEDED] == 2
        assert board.copies_to_here() == []

    simulate(main())


def test_the_board_shows_what_comes_a_second(simulate: Simulate):
    async def main() -> None:
        board = CopyProgressBoard(uuid=ServerId("a" * 32), clock=SimClock(), options=SMALL)
        async with board.copying(TabletId("tablet"), ServerId("b" * 32)) as shown:
            for second in range(21):
                shown.note_progress(CopyProgress(10_000, 500 + 100 * second, 500))
                await asyncio.sleep(1)
            assert shown.bytes_per_s == pytest.approx(100, rel=0.2)
        assert shown.bytes_per_s == 0
        assert board.copies() == [shown]

    simulate(main())
