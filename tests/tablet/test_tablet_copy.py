"""Fetching a replica from another server: what must come, what may be used again, and how this server can fail it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.tablet.directories import remove_tree
from kudu_py.tablet.tablet_copy.board import CopyProgress, CopyProgressBoard, CopyState
from kudu_py.tablet.tablet_copy.client import FetchedReplica
from kudu_py.testing.copy_rig import OPTIONS, SMALL_PIECES, FetchRig, some_rows
from kudu_py.testing.replica_group import rows_of
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import Fault, Operation

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_fetched_replica_has_the_rows_of_the_checkpoint_and_the_log_after_it(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
        copied = await rig.install(await rig.fetch())
        assert rows_of(copied) == []
        await rig.group.stop()

    simulate(main())


def test_nothing_is_fetched_again_that_is_there_whole(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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
        rig = await FetchRig.start(options=replace(OPTIONS, wal=small))
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
        larger = replace(SMALL_PIECES, chunk_bytes=4 << 10, piece_bytes=8 << 10, sync_bytes=16 << 10)
        rig = await FetchRig.start(options=replace(OPTIONS, copy=larger))
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
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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


def test_a_disk_without_room_is_found_out_before_anything_is_fetched(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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
        rig = await FetchRig.start()
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


def test_all_copies_together_keep_to_the_throttle(simulate: Simulate):
    async def main() -> None:
        slow = replace(SMALL_PIECES, bytes_per_s=10_000, burst_bytes=1000)
        rig = await FetchRig.start(options=replace(OPTIONS, copy=slow))
        await rig.write(0, 200, flush=True)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await rig.fetch()
        took_s = loop.time() - started
        assert took_s == pytest.approx(rig.progress.bytes_total / 10_000, rel=0.1)
        await rig.group.stop()

    simulate(main())


def test_more_copies_than_allowed_wait_for_their_turn(simulate: Simulate):
    async def main() -> None:
        board = CopyProgressBoard(
            uuid=ServerId("a" * 32), clock=SimClock(), options=replace(SMALL_PIECES, copies_max=1)
        )
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
        board = CopyProgressBoard(uuid=ServerId("a" * 32), clock=SimClock(), options=SMALL_PIECES)
        async with board.copying(TabletId("tablet"), ServerId("b" * 32)) as shown:
            for second in range(21):
                shown.note_progress(CopyProgress(10_000, 500 + 100 * second, 500))
                await asyncio.sleep(1)
            assert shown.bytes_per_s == pytest.approx(100, rel=0.2)
        assert shown.bytes_per_s == 0
        assert board.copies() == [shown]

    simulate(main())
