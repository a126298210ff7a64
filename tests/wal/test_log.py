"""The log as its users see it."""

import asyncio
import errno
import random

import pytest
import structlog
import uvloop

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.opid import OpId
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.testing.sim_disk import Fault, Operation
from kudu_py.wal import Log, Record, WalOptions


def test_what_was_appended_is_there_after_a_restart(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        assert (log.first_index, log.last_op_id, log.durable_op_id) == (1, (0, 0), (0, 0))
        written = make_records(1, 1, 40, size=300) + make_records(3, 41, 60, size=300)
        for start in range(0, 60, 7):
            log.append(written[start : start + 7])
            await asyncio.sleep(random.Random(start).random() / 500)
        await rig.settle()
        assert log.durable_op_id == log.last_op_id == (3, 60)
        assert log.segment_count > 1
        assert await rig.content() == written
        await log.close()
        log = await rig.open()
        assert (log.first_index, log.last_op_id, log.durable_op_id) == (1, (3, 60), (3, 60))
        assert log.torn_tail is None
        assert await rig.content() == written
        assert [log.term_at(i) for i in (0, 1, 40, 41, 60, 61)] == [0, 1, 1, 3, 3, None]
        log.append(make_records(3, 61, 62))
        await rig.settle()
        assert await rig.content() == written + make_records(3, 61, 62)

    simulate(main())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_works_on_the_real_disk(tmp_path, loop_factory, make_records):
    async def main():
        threads = PosixDiskThreads()
        reported = asyncio.Queue()
        options = {
            "directory": f"{tmp_path}/log",
            "tablet_id": "f" * 32,
            "threads": threads,
            "options": WalOptions(cache_bytes_max=0),
            "on_durable": reported.put_nowait,
            "on_failure": lambda error: reported.put_nowait(error),
        }
        log = await Log.open(**options)
        large = Record(OpId(2, 301), bytes(9_000_000))
        written = [*make_records(1, 1, 300, size=5_000), large, *make_records(2, 302, 303)]
        for one in written:
            log.append([one])
        while await asyncio.wait_for(reported.get(), 30) != (2, 303):
            pass
        assert [r async for r in log.replay()] == written
        assert await log.collect(250) > 0
        assert 1 < log.first_index <= 250
        await log.close()
        log = await Log.open(**options)
        assert [r async for r in log.replay()] == written[log.first_index - 1 :]
        await log.close()
        threads.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_nothing_is_reported_before_its_sync(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 2))
        assert rig.reported == []
        assert log.durable_op_id == (0, 0)
        while not rig.reported:
            await asyncio.sleep(0.000_01)
            if not rig.reported:
                continue
            content = rig.disk.durable_content(rig.segment(1))
            assert b"1.2 " in content
        assert rig.reported == [(1, 2)]

    simulate(main())


def test_what_arrives_during_a_sync_goes_out_together_and_in_order(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 1))
        await rig.settle()
        syncs = rig.disk.steps
        for one in make_records(1, 2, 21):
            log.append([one])
        await rig.settle()
        assert rig.reported == [(1, 1), (1, 2), (1, 21)]
        assert log.batches_written == 3
        assert rig.disk.steps - syncs == 4  # two writes, two syncs

    simulate(main())


def test_a_log_may_begin_behind_a_copied_state(simulate, rig, make_records):
    async def main():
        log = await rig.open(start_after=OpId(7, 1000))
        assert (log.first_index, log.last_op_id, log.term_at(1000)) == (1001, (7, 1000), 7)
        log.append(make_records(8, 1001, 1003))
        await rig.settle()
        rig.disk.kill()
        log = await rig.open(start_after=OpId(7, 1000))
        assert (log.first_index, log.last_op_id, log.term_at(1000)) == (1001, (8, 1003), 7)
        assert await rig.content() == make_records(8, 1001, 1003)

    simulate(main())


def test_a_new_log_writes_little_and_an_idle_one_nothing(simulate, rig):
    async def main():
        await rig.open()
        assert rig.files() == []
        assert rig.log.size_bytes == 0
        rig.log.append([Record(OpId(1, 1), b"")])
        await rig.settle()
        assert rig.log.size_bytes == rig.options.segment_size_bytes_first

    simulate(main())


def test_records_beyond_the_largest_segment_get_one_that_fits(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        written = [*make_records(1, 1, 1, 100), *make_records(1, 2, 2, 50_000), *make_records(1, 3, 3, 0)]
        written += make_records(1, 4, 4, 70_000)
        for one in written:
            log.append([one])
        await rig.settle()
        assert await rig.content() == written
        await log.close()
        await rig.open()
        assert await rig.content() == written

    simulate(main())


def test_segments_double_up_to_the_largest(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        sizes = set()
        for one in make_records(1, 1, 60, 1_000):
            log.append([one])
            await rig.settle()
            await asyncio.sleep(0.1)
            sizes.add(rig.disk.size(rig.files()[-1].join((log._directory + "/", ""))))
        assert {4096, 8192, 16384} <= sizes
        assert max(sizes) == 16384

    simulate(main())


# Truncation.


def test_overwritten_entries_are_gone_before_and_after_a_restart(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 30, 400))
        await rig.settle()
        log.truncate_after(10)
        assert (log.last_op_id, log.durable_op_id) == ((1, 10), (1, 10))
        assert await log.read(11, 30, 1 << 20) == []
        log.append(make_records(2, 11, 14, 400))
        await rig.settle()
        wanted = make_records(1, 1, 10, 400) + make_records(2, 11, 14, 400)
        assert log.durable_op_id == (2, 14)
        assert await rig.content() == wanted
        rig.disk.power_cut()
        log = await rig.open()
        assert await rig.content() == wanted
        assert [log.term_at(i) for i in (10, 11, 14, 15)] == [1, 2, 2, None]

    simulate(main())


def test_a_truncation_that_nothing_follows_is_written_too(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 9))
        await rig.settle()
        log.truncate_after(4)
        await rig.settle()
        await asyncio.sleep(0.1)
        rig.disk.power_cut()
        log = await rig.open()
        assert log.last_op_id == (1, 4)
        assert await rig.content() == make_records(1, 1, 4)

    simulate(main())


def test_a_batch_in_flight_that_is_truncated_is_not_reported(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await rig.settle()
        rig.reported.clear()
        log.append(make_records(1, 4, 8))  # in flight
        log.append(make_records(1, 9, 9))  # queued
        log.truncate_after(5)
        log.append(make_records(2, 6, 7))
        await rig.settle()
        assert rig.reported == [(1, 5), (2, 7)]
        assert await rig.content() == make_records(1, 1, 5) + make_records(2, 6, 7)

    simulate(main())


def test_truncations_in_a_row_leave_the_lowest(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 9))
        log.truncate_after(7)
        log.append(make_records(2, 8, 12))
        log.truncate_after(9)
        log.truncate_after(3)
        log.append(make_records(3, 4, 6))
        log.truncate_after(5)
        await rig.settle()
        wanted = make_records(1, 1, 3) + make_records(3, 4, 5)
        assert await rig.content() == wanted
        assert log.durable_op_id == (3, 5)
        rig.disk.kill()
        await rig.open()
        assert await rig.content() == wanted

    simulate(main())


def test_truncation_reaches_over_segments_and_below_what_is_left_of_them(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        for one in make_records(1, 1, 80, 400):
            log.append([one])
            await rig.settle()
        assert log.segment_count > 3
        assert await log.collect(41) > 0
        base = log.base_op_id
        assert 1 < base.index < 41
        log.truncate_after(base.index)
        log.append(make_records(2, base.index + 1, base.index + 3))
        await rig.settle()
        wanted = make_records(2, base.index + 1, base.index + 3)
        assert await rig.content() == wanted
        assert await log.collect(base.index + 1) > 0  # nothing but overwritten entries in them
        assert log.segment_count == 1
        assert await rig.content() == wanted
        rig.disk.power_cut()
        log = await rig.open()
        assert log.base_op_id == base
        assert await rig.content() == wanted

    simulate(main())


# Reading.


def test_read_honours_its_bounds_from_memory_and_from_disk(simulate, make_rig, make_records):
    async def main(cache_bytes):
        rig = make_rig(
            options=WalOptions(
                segment_size_bytes_first=4096,
                segment_size_bytes_min=4096,
                segment_size_bytes_max=8192,
                cache_bytes_max=cache_bytes,
            )
        )
        log = await rig.open()
        written = make_records(1, 1, 100, 100)
        for start in range(0, 100, 3):
            log.append(written[start : start + 3])
            await rig.settle()
        assert await log.read(5, 9, 1 << 20) == written[4:9] if cache_bytes else True
        assert (await log.read(17, 19, 1))[0] == written[16]
        assert len(await log.read(17, 19, 1)) == 1
        assert len(await log.read(16, 19, 250)) == 2
        assert await log.read(100, 500, 1 << 20) == written[99:]
        assert await log.read(101, 500, 1 << 20) == []
        found = []
        while len(found) < 100:
            found += await log.read(len(found) + 1, 100, 1_000)
        assert found == written
        assert log.cached(1, 100, 1 << 20) == (written if cache_bytes else None)
        assert log.cached_bytes == (10_000 if cache_bytes else 0)
        log.release_cache(90)
        assert log.cached(1, 100, 1 << 20) is None
        assert log.cached(91, 100, 1 << 20) == (written[90:] if cache_bytes else None)

    simulate(main(0))
    simulate(main(1 << 20))


def test_entries_not_yet_durable_are_read_from_memory(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 5))
        await rig.settle()
        log.append(make_records(1, 6, 9))
        assert log.cached(6, 9, 1 << 20) == make_records(1, 6, 9)
        assert await log.read(8, 20, 1 << 20) == make_records(1, 8, 9)
        assert await log.read(2, 9, 1 << 20) == make_records(1, 2, 5)

    simulate(main())


def test_a_read_that_was_overtaken_by_a_truncation_answers_the_new_entries(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 9))
        await rig.settle()
        reading = asyncio.ensure_future(log.read(5, 9, 1 << 20))
        await asyncio.sleep(0)
        log.truncate_after(4)
        log.append(make_records(2, 5, 6))
        assert await reading == make_records(2, 5, 6)

    simulate(main())


def test_an_error_while_reading_is_an_error_and_not_the_end(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 9))
        await rig.settle()
        rig.disk.inject(Fault(Operation.READ))
        with pytest.raises(KuduError, match="wal-000000001") as caught:
            await log.read(1, 9, 100)
        assert caught.value.code is ErrorCode.IO_ERROR
        assert await log.read(1, 9, 1 << 20) == make_records(1, 1, 9)

    simulate(main())


def test_a_rotten_record_is_refused_by_name_when_it_is_read(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 9, 100))
        await rig.settle()
        offset = rig.bytes_of(rig.segment(1)).index(b"1.7 ")
        rig.disk.corrupt(rig.segment(1), offset, b"X")
        assert await log.read(1, 6, 1 << 20) == make_records(1, 1, 6, 100)
        with pytest.raises(KuduError, match=f"wal-000000001 at offset {offset}: entry 1.7") as caught:
            await log.read(7, 9, 1 << 20)
        assert caught.value.code is ErrorCode.CORRUPTION

    simulate(main())


# Collection.


def test_collection_stops_at_anchors_and_keeps_the_last_entry(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        for one in make_records(1, 1, 80, 400):
            log.append([one])
            await rig.settle()
        anchor = log.anchors.register(20, "rowset 1")
        other = log.anchors.register(60, "rowset 2")
        assert await log.collect(1_000) > 0
        assert log.first_index <= 20
        assert (await log.read(20, 20, 100))[0].op_id == (1, 20)
        with pytest.raises(KuduError, match="collected") as caught:
            await log.read(1, 5, 100)
        assert caught.value.code is ErrorCode.NOT_FOUND
        assert log.term_at(log.first_index - 1) == 1
        assert log.term_at(1) is None
        anchor.release()
        anchor.release()
        other.update(70)
        assert await log.collect(1_000) > 0
        assert 20 < log.first_index <= 70
        other.release()
        await log.close()
        log = await rig.open()
        await log.collect(1_000)
        assert log.last_op_id == (1, 80)
        assert log.first_index <= 80
        log = await rig.open()
        assert log.last_op_id == (1, 80)
        assert (await rig.content())[-1].op_id == (1, 80)

    simulate(main())


def test_a_read_that_meets_a_collection_answers_the_entries_or_that_they_are_gone(simulate, make_rig, make_records):
    async def main(seed):
        rig = make_rig(seed=seed)
        log = await rig.open()
        for one in make_records(1, 1, 80, 400):
            log.append([one])
            await rig.settle()
        reading = asyncio.ensure_future(log.read(1, 3, 100))
        await asyncio.sleep(0.000_1)  # its job is submitted
        assert await log.collect(60) > 0
        result = (await asyncio.gather(reading, return_exceptions=True))[0]
        if isinstance(result, KuduError):
            assert result.code is ErrorCode.NOT_FOUND
            return "gone"
        assert result == make_records(1, 1, 1, 400)
        return "read"

    assert {simulate(main(seed)) for seed in range(20)} == {"read", "gone"}


def test_a_read_that_meets_a_roll_leaves_the_index_whole(simulate, make_rig, make_records):
    async def main(seed):
        rig = make_rig(seed=seed)
        log = await rig.open()
        written = make_records(1, 1, 60, 400)
        for one in written:
            log.append([one])
            await rig.settle()
            assert (await log.read(one.op_id.index, one.op_id.index, 1)) == [one]
            reading = asyncio.ensure_future(log.read(max(1, one.op_id.index - 1), one.op_id.index, 1))
            await asyncio.sleep(0.000_1)
        await reading
        assert await rig.content() == written

    for seed in range(5):
        simulate(main(seed))


def test_only_segments_in_use_keep_a_file_open(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        for one in make_records(1, 1, 80, 400):
            log.append([one])
            await rig.settle()
        assert log.segment_count == 4
        assert [segment.file is not None for segment in log._segments] == [False] * (log.segment_count - 1) + [True]
        await rig.content()
        assert sum(segment.file is not None for segment in log._segments) == 1
        assert sum(segment.index is not None for segment in log._segments) <= 1 + rig.options.loaded_indexes_max
        await log.close()
        log = await rig.open()
        assert all(segment.file is None for segment in log._segments)

    simulate(main())


def test_a_failed_removal_is_reported_and_can_be_tried_again(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        for one in make_records(1, 1, 80, 400):
            log.append([one])
            await rig.settle()
        rig.disk.inject(Fault(Operation.SYNC_DIR, path_contains=log._directory, skip=1))
        with pytest.raises(KuduError, match="cannot be removed") as caught:
            await log.collect(70)
        assert caught.value.code is ErrorCode.IO_ERROR
        assert rig.failures == []
        assert await log.collect(70) > 0
        assert await rig.content() == make_records(1, log.first_index, 80, 400)
        await rig.open()
        assert (await rig.content())[-1].op_id == (1, 80)

    simulate(main())


# Bounds and failures.


def test_a_full_queue_refuses_before_anything_changes(simulate, make_rig, make_records):
    async def main():
        rig = make_rig(options=WalOptions(queue_bytes_max=10_000, queue_bytes_reserve=5_000))
        log = await rig.open()
        log.append(make_records(1, 1, 1, 20_000))  # a single one is taken at any size
        assert not log.has_room(1)
        with pytest.raises(KuduError, match="wait for the disk") as caught:
            log.append(make_records(1, 2, 2))
        assert (caught.value.code, caught.value.verdict) == (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER)
        assert log.last_op_id == (1, 1)
        await rig.settle()
        log.append(make_records(1, 2, 3, 4_000))
        assert log.has_room(2_000)
        assert not log.has_room(2_001)
        log.append(make_records(1, 4, 4, 7_000))  # the reserve
        await rig.settle()
        assert log.durable_op_id == (1, 4)

    simulate(main())


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.SYNC])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_in_a_segment_in_use_poisons_the_log(simulate, rig, make_records, operation, code):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await rig.settle()
        rig.reported.clear()
        rig.disk.inject(Fault(operation, errno=code, path_contains="wal-000000001"))
        log.append(make_records(1, 4, 4))
        log.append(make_records(1, 5, 5))
        await asyncio.sleep(1)
        steps = rig.disk.steps
        assert len(rig.failures) == 1
        assert log.is_failed
        assert rig.reported == []
        assert log.durable_op_id == (1, 3)
        for refused in (
            lambda: log.append(make_records(1, 6, 6)),
            lambda: log.truncate_after(2),
            lambda: log.check_room(1),
        ):
            with pytest.raises(KuduError, match="failed") as caught:
                refused()
            assert caught.value.code is ErrorCode.IO_ERROR
        assert await log.read(1, 3, 1 << 20) == make_records(1, 1, 3)
        await log.close()
        assert rig.disk.steps == steps  # never synced, never written again
        assert len(rig.failures) == 1
        rig.disk.kill()
        await rig.open()
        content = await rig.content()
        assert content[:3] == make_records(1, 1, 3)
        assert content == make_records(1, 1, len(content))

    simulate(main())


def test_after_a_failed_sync_a_restart_believes_the_disk_and_makes_it_last(simulate, make_rig, make_records):
    """The cache shows bytes that never reached the disk; whatever is recovered must survive a power cut."""

    async def main(seed):
        rig = make_rig(seed=seed)
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await rig.settle()
        rig.disk.inject(Fault(Operation.SYNC, path_contains="wal-"))
        log.append(make_records(1, 4, 9, 300))
        await asyncio.sleep(1)
        rig.disk.kill()
        await rig.open()
        content = await rig.content()
        rig.disk.power_cut()
        await rig.open()
        assert await rig.content() == content
        return len(content)

    assert {simulate(main(seed)) for seed in range(40)} == {3, 9}


def test_no_room_for_the_next_segment_is_answered_and_passes(simulate, rig, make_records):
    async def main():
        rig.disk.capacity_bytes = 6_000
        log = await rig.open()
        for one in make_records(1, 1, 3, 1_000):
            log.append([one])
            await rig.settle()
        await asyncio.sleep(0.5)
        assert not log.has_room(1)
        with pytest.raises(KuduError, match="no room") as caught:
            log.check_room(1)
        assert (caught.value.code, caught.value.verdict) == (ErrorCode.DISK_FULL, Verdict.TRY_LATER)
        log.append(make_records(1, 4, 8, 1_000))  # what consensus had promised already waits
        await rig.settle()
        assert rig.failures == []
        assert log.durable_op_id == (1, 3)
        rig.disk.capacity_bytes = 100_000
        await asyncio.sleep(3)
        assert log.durable_op_id == (1, 8)
        assert log.has_room(1)
        await log.close()
        await rig.open()
        assert await rig.content() == make_records(1, 1, 8, 1_000)

    simulate(main())


def test_a_log_that_waits_for_room_can_be_closed(simulate, rig, make_records):
    async def main():
        rig.disk.capacity_bytes = 6_000
        log = await rig.open()
        for one in make_records(1, 1, 9, 1_000):
            log.append([one])
        await asyncio.sleep(0.5)
        await log.close()
        durable = log.durable_op_id.index
        rig.disk.capacity_bytes = None
        await rig.open()
        assert await rig.content() == make_records(1, 1, durable, 1_000)

    simulate(main())


def test_an_error_of_preallocation_that_is_not_for_room_poisons(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await rig.settle()
        rig.disk.inject(Fault(Operation.SYNC, path_contains=".tmp"))
        log.append(make_records(1, 4, 30, 300))
        await asyncio.sleep(1)
        assert len(rig.failures) == 1

    simulate(main())


def test_a_hung_disk_shows(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await rig.settle()
        assert log.stalled_s == 0
        rig.threads.hang()
        log.append(make_records(1, 4, 4))
        await asyncio.sleep(7)
        assert log.stalled_s == pytest.approx(7, abs=0.1)
        rig.threads.release()
        await rig.settle()
        assert log.stalled_s == 0

    simulate(main())


def test_waiting_for_a_segment_shows_as_a_stall(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        full = rig.disk.inject(Fault(Operation.CREATE, errno.ENOSPC, path_contains="wal-", times=None))
        log.append(make_records(1, 1, 3))
        await asyncio.sleep(5)
        assert log.stalled_s == pytest.approx(5, abs=0.1)
        full.times = 0
        await asyncio.sleep(2)
        assert log.stalled_s == 0
        assert log.durable_op_id.index == 3

    simulate(main())


def test_on_a_full_disk_entries_are_taken_that_fit_into_the_segment_made_ready_before(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 1, 2500))  # more than half of the first segment: the next one is made ready
        await asyncio.sleep(1)
        rig.disk.inject(Fault(Operation.WRITE, errno.ENOSPC, path_contains="wal-", times=None))
        log.append(make_records(1, 2, 2, 12_000))  # the next one would have to grow, for which there is no room
        await asyncio.sleep(1)
        assert log.waits_for_room
        assert not log.has_room(2500)  # it would wait behind that one

        log.truncate_after(1)

        assert log.has_room(2500)
        assert not log.has_room(12_000)

    simulate(main())


def test_a_full_disk_is_said_once_in_the_log_of_the_daemon_and_so_is_its_end(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        full = rig.disk.inject(Fault(Operation.CREATE, errno.ENOSPC, path_contains="wal-", times=None))
        log.append(make_records(1, 1, 3))
        await asyncio.sleep(5)
        full.times = 0
        await asyncio.sleep(2)

    with structlog.testing.capture_logs() as events:
        simulate(main())

    assert [event["event"] for event in events] == ["log_disk_filled", "log_disk_freed"]


def test_a_closed_log_refuses(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        log.append(make_records(1, 1, 3))
        await log.close()
        await log.close()
        assert rig.reported == [(1, 3)]
        with pytest.raises(KuduError, match="closed"):
            log.append(make_records(1, 4, 4))

    simulate(main())


def test_gaps_and_falling_terms_are_bugs(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        with pytest.raises(AssertionError, match="does not continue"):
            log.append(make_records(1, 2, 2))
        log.append(make_records(3, 1, 1))
        with pytest.raises(AssertionError, match="falls behind"):
            log.append(make_records(2, 2, 2))
        await rig.settle()

    simulate(main())
