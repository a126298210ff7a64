"""The small parts of a tablet copy: the token bucket, pins of files, what of a segment is undamaged, options."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.tablet.file_pins import FilePins
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_copy.throttle import Throttle
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.wal import Log, Record, WalOptions
from kudu_py.wal.format import SEGMENT_HEADER_BYTES
from kudu_py.wal.prefix import intact_prefix, is_whole

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
TABLET = "b" * 32
SMALL = WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=4096)


# The token bucket.


def test_a_burst_is_bounded_and_what_follows_comes_at_the_rate(simulate: Simulate):
    async def main() -> None:
        throttle = Throttle(SimClock(), bytes_per_s=100, burst_bytes=50)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await throttle.take(50)
        assert loop.time() == started
        for _ in range(10):
            await throttle.take(20)
        assert loop.time() - started == pytest.approx(2.0)
        await asyncio.sleep(100)
        started = loop.time()
        await throttle.take(150)
        assert loop.time() - started == pytest.approx(1.0), "a long pause saves no more than a burst"

    simulate(main())


def test_those_who_draw_at_once_share_the_rate(simulate: Simulate):
    async def main() -> None:
        throttle = Throttle(SimClock(), bytes_per_s=1000, burst_bytes=1)
        ended: dict[int, float] = {}
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def draw(number: int) -> None:
            for _ in range(10):
                await throttle.take(100)
            ended[number] = loop.time() - started

        await asyncio.gather(*(draw(number) for number in range(4)))
        assert max(ended.values()) == pytest.approx(4.0, rel=0.01)
        assert min(ended.values()) > 3.5

    simulate(main())


def test_no_rate_is_no_bound(simulate: Simulate):
    async def main() -> None:
        throttle = Throttle(SimClock(), bytes_per_s=0, burst_bytes=1)
        started = asyncio.get_running_loop().time()
        await throttle.take(1 << 40)
        assert asyncio.get_running_loop().time() == started

    simulate(main())


# Pins.


def test_a_file_goes_when_nobody_names_it_and_nobody_holds_it():
    pins = FilePins()
    pins.hold(["a", "b"])
    pins.hold(["b"])
    assert pins.removable(["a", "b", "c"]) == ["c"]
    assert pins.release(["a", "b"]) == ["a"]
    assert pins.release(["b"]) == ["b"]
    assert len(pins) == 0


def test_a_file_that_is_still_named_stays_when_it_is_released():
    pins = FilePins()
    pins.hold(["a"])
    assert pins.release(["a"]) == []
    assert pins.removable(["a"]) == ["a"]


# Segments.


async def log_on(disk: SimDisk, *, durable: list[OpId]) -> Log:
    return await Log.open(
        directory="/log",
        tablet_id=TABLET,
        threads=SimDiskThreads(disk, random.Random(1)),
        options=SMALL,
        on_durable=durable.append,
        on_failure=lambda error: None,
    )


async def written(disk: SimDisk, records: int) -> Log:
    durable: list[OpId] = []
    log = await log_on(disk, durable=durable)
    for index in range(1, records + 1):
        log.append([Record(OpId(1, index), bytes([index]) * 300)])
        while log.durable_op_id.index < index:  # noqa: ASYNC110  # batch by batch
            await asyncio.sleep(0.001)
    return log


def test_the_files_of_a_copied_log_are_whole_where_they_are_named(simulate: Simulate):
    async def main() -> None:
        disk = SimDisk(random.Random(1))
        log = await written(disk, 40)
        files = log.copied_files(0)
        assert len(files) > 2
        for copied in files[:-1]:
            file = disk.open(f"/log/{copied.name}")
            assert is_whole(file, TABLET, copied.name, size_bytes=copied.size_bytes, last_crc=copied.last_crc)
            assert not is_whole(file, "c" * 32, copied.name, size_bytes=copied.size_bytes, last_crc=copied.last_crc)
            assert not is_whole(file, TABLET, copied.name, size_bytes=copied.size_bytes, last_crc=copied.last_crc ^ 1)
            assert not is_whole(file, TABLET, copied.name, size_bytes=copied.size_bytes - 1, last_crc=copied.last_crc)
        prefix = intact_prefix(disk.open(f"/log/{files[-1].name}"), TABLET, files[-1].name)
        assert prefix == (files[-1].size_bytes, files[-1].last_crc)
        await log.close()

    simulate(main())


def test_a_prefix_ends_before_the_first_damaged_batch(simulate: Simulate):
    async def main() -> None:
        disk = SimDisk(random.Random(1))
        log = await written(disk, 40)
        name = log.copied_files(0)[0].name
        whole = intact_prefix(disk.open(f"/log/{name}"), TABLET, name)
        ends = {0}
        for offset in range(SEGMENT_HEADER_BYTES, whole.end_offset, 97):
            was = disk.open(f"/log/{name}").read(offset, 1)
            disk.corrupt(f"/log/{name}", offset, bytes([was[0] ^ 0x55]))
            end = intact_prefix(disk.open(f"/log/{name}"), TABLET, name).end_offset
            assert end <= offset
            assert end >= max(ends)
            ends.add(end)
            disk.corrupt(f"/log/{name}", offset, was)
        assert len(ends) > 5
        await log.close()

    simulate(main())


def test_a_copied_log_begins_with_the_segment_of_its_first_entry(simulate: Simulate):
    async def main() -> None:
        disk = SimDisk(random.Random(1))
        log = await written(disk, 40)
        everything = log.copied_files(0)
        for index in range(1, 42):
            part = log.copied_files(index)
            assert part == everything[len(everything) - len(part) :]
            assert part, "the last segment always comes, or the copy would not know how the log ends"
        assert len(log.copied_files(40)) == 1
        await log.close()

    simulate(main())


# Options.


@pytest.mark.parametrize(
    "given",
    [{"copies_max": 0}, {"bytes_per_s": -1}, {"chunk_bytes": 3 << 20}, {"sync_bytes": 5 << 20}, {"idle_timeout_s": 0}],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any]):
    with pytest.raises(KuduError) as refused:
        TabletCopyOptions(**given)
    assert refused.value.code is ErrorCode.CONFIGURATION_ERROR
