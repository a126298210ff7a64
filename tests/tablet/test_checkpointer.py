"""Flush, compaction and collection of the log: bounded memory, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.row_batch import RowOperation
from kudu_py.tablet.checkpointer import LogMarks
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.tablet_replica import TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, batch_of, rows_of
from kudu_py.testing.sim_disk import Fault, Operation, SimDisk
from kudu_py.wal.options import WalOptions

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
DIRECTORIES = ReplicaDirectories("/data")
SMALL_SEGMENTS = replace(
    TESTING_OPTIONS,
    wal=WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=8192),
)


def test_a_flush_gives_memory_back_and_changes_no_row(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        rows = [(key, key, "x" * 50) for key in range(2000)]
        await replica.write_batch(batch_of(rows))
        memory = replica._context.memory
        before = memory.used_bytes
        assert await replica.checkpointer.flush()
        assert memory.used_bytes < before / 2
        assert rows_of(replica) == rows
        assert not await replica.checkpointer.flush()
        await group.stop()

    simulate(main())


def test_a_flush_waits_until_the_own_log_has_what_a_majority_committed(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        await group.settle(tablet_id)
        host = next(host for host in group.hosts if host.uuid == leader.consensus.uuid)
        threads = leader._context.threads
        threads._delay_s = (0.5, 0.6)  # its own log is slower than the followers'
        await leader.write_batch(batch_of([(1, 1, None)]))
        assert leader.log.durable_op_id < leader.applied
        flush = asyncio.ensure_future(leader.checkpointer.flush())
        path = DIRECTORIES.superblock_path(tablet_id)
        written = host.disk.durable_content(path)
        while leader.log.durable_op_id < leader.applied:
            assert host.disk.durable_content(path) == written
            await asyncio.sleep(0.01)
        assert await flush
        assert leader.superblock.checkpoint == leader.applied
        await group.stop()

    simulate(main())


def test_rows_written_during_a_flush_are_in_no_file_of_it(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        await replica.write_batch(batch_of([(key, 0, None) for key in range(100)]))
        at = replica.applied
        flush = asyncio.ensure_future(replica.checkpointer.flush())
        await group.wait_until(lambda: replica.checkpointer.is_busy)
        await replica.write_batch(batch_of([(key, 1, None) for key in range(50, 60)], RowOperation.UPDATE))
        await flush
        assert replica.superblock.checkpoint == at
        await group.hosts[0].crash()
        await group.hosts[0].restart()
        replica = await group.leader(tablet_id)
        assert rows_of(replica) == [(key, int(50 <= key < 60), None) for key in range(100)]
        await group.stop()

    simulate(main())


def test_writes_that_change_no_row_let_the_log_be_collected_too(simulate: Simulate):
    """Inserts that are ignored, say, by a job that is run again and again."""

    async def main() -> None:
        options = replace(TESTING_OPTIONS, log_retain_bytes=0, checkpoint_log_bytes=50_000)
        group = ReplicaGroup(options=options)
        await group.start()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        rows = [(key, key, "x" * 50) for key in range(100)]
        await replica.write_batch(batch_of(rows))
        assert await replica.checkpointer.flush()
        assert not await replica.checkpointer.flush()
        while not replica.checkpointer.has_unflushed:
            await replica.write_batch(batch_of(rows, RowOperation.INSERT_IGNORE))
        assert not replica.tablet.has_unflushed
        assert replica.checkpointer.wants_checkpoint
        assert await replica.checkpointer.flush()
        assert replica.superblock.checkpoint == replica.applied
        assert not replica.checkpointer.has_unflushed
        assert not await replica.checkpointer.flush()
        await group.hosts[0].crash()
        await group.hosts[0].restart()
        assert rows_of(await group.leader(tablet_id)) == rows
        await group.stop()

    simulate(main())


def test_a_full_disk_puts_a_flush_off_and_loses_nothing(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        host, replica = group.hosts[0], await group.leader(tablet_id)
        rows = [(key, key, None) for key in range(100)]
        await replica.write_batch(batch_of(rows[:50]))
        full = host.disk.inject(Fault(Operation.WRITE, errno.ENOSPC, path_contains="/data/data/", times=None))
        with pytest.raises(KuduError) as raised:
            await replica.checkpointer.flush()
        assert (raised.value.code, raised.value.verdict) == (ErrorCode.DISK_FULL, Verdict.TRY_LATER)
        assert host.disk.list_dir(DIRECTORIES.row_directory(tablet_id)) == []
        await replica.write_batch(batch_of(rows[50:]))
        assert rows_of(replica) == rows
        full.times = 0
        assert await replica.checkpointer.flush()
        assert await replica.checkpointer.flush()
        await host.crash()
        await host.restart()
        assert rows_of(await group.leader(tablet_id)) == rows
        assert host.fatal == []
        await group.stop()

    simulate(main())


def leave_free(disk: SimDisk, size_bytes: int) -> None:
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes -= disk.free_bytes("/data") - size_bytes


async def compact_all(replica: TabletReplica) -> None:
    while await replica.checkpointer.compact():
        pass


def incompressible(count: int, step: int = 0) -> list[tuple[int, int, str]]:
    rng = random.Random(step)
    return [(step * count + i, i, f"{rng.getrandbits(4000):x}") for i in range(count)]


def test_upkeep_leaves_the_space_kept_free_and_goes_on_when_there_is_room(simulate: Simulate):
    """A flush leaves half of it, for it is what lets the log go; a compaction, which can wait, all of it."""
    kept = 4 << 20

    async def main() -> None:
        options = replace(TESTING_OPTIONS, wal=WalOptions(disk_reserved_bytes=kept))
        group = ReplicaGroup(options=options)
        await group.start()
        tablet_id = await group.create()
        host, replica = group.hosts[0], await group.leader(tablet_id)
        checkpointer, directory = replica.checkpointer, DIRECTORIES.row_directory(tablet_id)
        await replica.write_batch(batch_of(incompressible(1000)))
        leave_free(host.disk, kept // 2 + 200_000)
        with pytest.raises(KuduError, match="waits for room on the disk") as raised:
            await checkpointer.flush()
        assert (raised.value.code, raised.value.verdict) == (ErrorCode.DISK_FULL, Verdict.TRY_LATER)
        assert host.disk.list_dir(directory) == []
        leave_free(host.disk, kept)
        assert await checkpointer.flush()  # though the log would find no room

        for step in range(1, 5):
            leave_free(host.disk, 1 << 30)
            await group.write(tablet_id, batch_of(incompressible(1000, step)))
            await checkpointer.flush()
        rows, files = rows_of(replica), host.disk.list_dir(directory)
        leave_free(host.disk, kept + 1_000_000)
        with pytest.raises(KuduError, match=r"compaction of tablet .* waits for room on the disk"):
            await compact_all(replica)
        leave_free(host.disk, 1 << 30)
        await compact_all(replica)
        assert len(replica.tablet.records.rowsets) < 5
        assert host.disk.list_dir(directory) != files
        assert rows_of(replica) == rows
        assert host.fatal == []
        await group.stop()

    simulate(main())


def test_a_disk_that_fails_a_flush_ends_the_process(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        host, replica = group.hosts[0], await group.leader(tablet_id)
        await replica.write_batch(batch_of([(1, 1, None)]))
        host.disk.inject(Fault(Operation.SYNC, errno.EIO, path_contains="/data/data/"))
        with pytest.raises(OSError, match=r"\."):
            await replica.checkpointer.flush()
        assert len(host.fatal) == 1
        await host.crash()

    simulate(main())


def test_compaction_changes_no_row_and_leaves_no_file_behind(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        host, replica = group.hosts[0], await group.leader(tablet_id)
        wanted = {}
        for step in range(8):
            rows = [(key, step, None) for key in range(step * 10, step * 10 + 40)]
            await replica.write_batch(batch_of(rows, RowOperation.UPSERT))
            wanted.update((row[0], row) for row in rows)
            await replica.checkpointer.flush()
        before = len(replica.tablet.records.rowsets)
        while await replica.checkpointer.compact():
            pass
        assert len(replica.tablet.records.rowsets) < before
        assert rows_of(replica) == sorted(wanted.values())
        named = {file.name for file in replica.superblock.rows.files}
        assert set(host.disk.list_dir(DIRECTORIES.row_directory(tablet_id))) == named
        await host.crash()
        await host.restart()
        assert rows_of(await group.leader(tablet_id)) == sorted(wanted.values())
        await group.stop()

    simulate(main())


def test_the_log_is_collected_up_to_the_checkpoint(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(options=replace(SMALL_SEGMENTS, log_retain_bytes=0))
        await group.start()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        for key in range(60):
            await replica.write_batch(batch_of([(key, key, "x" * 500)]))
        segments = replica.log.segment_count
        assert segments > 3
        assert replica.log.first_index == 1
        await replica.checkpointer.flush()
        assert 1 < replica.log.first_index <= replica.superblock.checkpoint.index + 1
        assert replica.log.segment_count < segments
        await group.hosts[0].crash()
        await group.hosts[0].restart()
        assert len(rows_of(await group.leader(tablet_id))) == 60
        await group.stop()

    simulate(main())


def test_the_log_is_kept_for_a_follower_that_is_away_within_the_bound(simulate: Simulate):
    async def main(retain_bytes_max: int) -> bool:
        options = replace(SMALL_SEGMENTS, log_retain_bytes=0, log_retain_bytes_max=retain_bytes_max)
        group = ReplicaGroup(size=3, options=options)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        away = next(host for host in group.hosts if host.uuid != leader.consensus.uuid)
        await away.crash()
        for key in range(40):
            await leader.write_batch(batch_of([(key, key, "x" * 60_000)]))
        await leader.checkpointer.flush()
        kept = leader.log.first_index == 1
        if kept:
            await away.restart()
            await group.settle(tablet_id)
            assert rows_of(away.manager.replica(tablet_id)) == rows_of(leader)
        await group.stop()
        return kept

    assert simulate(main(1 << 30))
    assert not simulate(main(0))


def test_an_operator_may_keep_more_log_than_is_kept_for_followers_and_no_more_than_that(simulate: Simulate):
    async def main() -> None:
        options = replace(SMALL_SEGMENTS, log_retain_bytes=4 << 20, log_retain_bytes_max=1 << 20)
        group = ReplicaGroup(options=options)
        await group.start()
        replica = await group.leader(await group.create())
        for key in range(150):
            await replica.write_batch(batch_of([(key, key, "x" * 60_000)]))
        await replica.checkpointer.flush()
        assert 4 << 20 <= replica.log.size_bytes < 6 << 20
        await group.stop()

    simulate(main())


def test_marks_find_where_so_many_bytes_ago_is():
    marks = LogMarks(first=10, keep_bytes=1 << 30)
    assert marks.index_before(1) == 0
    for index in range(11, 31):
        marks.note(index, 600_000)
    total = 20 * 600_000
    assert marks.index_before(0) == 30
    assert marks.index_before(total + 1) == 0
    for wanted in (1, 1_000_000, 5_000_000, total):
        index = marks.index_before(wanted)
        assert (30 - index) * 600_000 >= wanted
        assert (30 - index) * 600_000 < wanted + 2 * (1 << 20)


def test_marks_too_old_to_be_asked_for_are_forgotten():
    marks = LogMarks(first=0, keep_bytes=4 << 20)
    for index in range(1, 1001):
        marks.note(index, 1 << 20)
    assert len(marks._marks) <= 5
    assert marks.index_before(4 << 20) == 996
