"""What the simulated disk forgets, tears, refuses and hides."""

import asyncio
import errno
import random

import pytest

from kudu_py.testing import sim_loop
from kudu_py.testing.sim_disk import DiskCrashed, Fault, Operation, SimDisk, SimDiskThreads


def made(survival=0.0, **options):
    disk = SimDisk(random.Random(7), survival=survival, **options)
    file = disk.create("/a")
    file.write(0, [b"old " * 512])
    file.sync()
    disk.sync_dir("/")
    return disk, file


def content(disk, path="/a"):
    file = disk.open(path)
    return file.read(0, file.size())


def test_a_power_cut_forgets_what_was_not_synced():
    disk, file = made()
    file.write(0, [b"new"])
    disk.create("/b")
    disk.power_cut()
    disk.restart()
    assert content(disk) == b"old " * 512
    assert disk.list_dir("/") == ["a"]


def test_what_was_synced_survives_but_its_name_needs_the_directory_synced():
    disk, _ = made()
    file = disk.create("/b")
    file.write(0, [b"bytes"])
    file.sync()
    assert disk.durable_content("/b") is None
    disk.sync_dir("/")
    assert disk.durable_content("/b") == b"bytes"


def test_a_rename_is_atomic_and_forgotten_until_the_directory_is_synced():
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        for name, data in (("/a", b"old"), ("/a.tmp", b"new")):
            file = disk.create(name)
            file.write(0, [data])
            file.sync()
        disk.sync_dir("/")
        disk.rename("/a.tmp", "/a")
        disk.power_cut()
        disk.restart()
        assert (disk.list_dir("/"), content(disk)) in [(["a", "a.tmp"], b"old"), (["a"], b"new")]


def test_a_torn_write_mixes_old_and_new_sectors_and_nothing_else():
    seen = set()
    for seed in range(30):
        disk, file = made(survival=None)
        disk._rng.seed(seed)
        file.write(256, [b"NEW!" * 384])
        disk.power_cut()
        disk.restart()
        found = content(disk)
        assert found[:256] == b"old " * 64
        for start, end in ((256, 512), (512, 1024), (1024, 1536), (1536, 1792)):
            assert found[start:end] in (b"old " * ((end - start) // 4), b"NEW!" * ((end - start) // 4))
        assert found[1792:] == b"old " * 64
        seen.add(found)
    assert len(seen) > 4


def test_kill_keeps_the_cache_and_ends_open_files():
    disk, file = made()
    file.write(0, [b"new"])
    lock = disk.lock("/lock")
    disk.kill()
    with pytest.raises(DiskCrashed):
        disk.list_dir("/")
    disk.restart()
    with pytest.raises(DiskCrashed):
        file.read(0, 1)
    assert content(disk)[:3] == b"new"
    disk.lock("/lock")
    lock.close()
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")


def test_after_a_failed_sync_the_cache_lies_and_the_next_sync_succeeds():
    disk, file = made()
    file.write(0, [b"new"])
    disk.inject(Fault(Operation.SYNC))
    disk._rng.choice = lambda options: 0.0
    with pytest.raises(OSError, match="/a") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert file.read(0, 3) == b"new"
    disk.kill()
    disk.restart()
    assert content(disk)[:3] == b"new"
    file = disk.open("/a", writable=True)
    file.drop_cache()
    assert file.read(0, 3) == b"old"


def test_a_failed_write_may_have_done_a_part():
    disk, file = made()
    disk.inject(Fault(Operation.WRITE))
    with pytest.raises(OSError, match="/a"):
        file.write(0, [b"NEW!" * 512])
    found = file.read(0, 2048)
    assert found != b"NEW!" * 512
    assert set(found) <= set(b"old NEW!")


def test_faults_choose_by_operation_path_and_count():
    disk, file = made()
    disk.inject(Fault(Operation.READ, path_contains="b"))
    assert file.read(0, 3) == b"old"
    fault = disk.inject(Fault(Operation.READ, errno=errno.EACCES, skip=1, times=2))
    assert file.read(0, 3) == b"old"
    for _ in range(2):
        with pytest.raises(PermissionError):
            file.read(0, 3)
    assert file.read(0, 3) == b"old"
    assert fault.times == 0


def test_a_full_disk_takes_what_fits_and_says_so():
    disk, file = made(capacity_bytes=3_000)
    assert disk.free_bytes("/") == 3_000 - 2_048
    with pytest.raises(OSError, match="No space") as caught:
        file.write(2_048, [bytes(953)])
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes("/") == 0
    file.write(0, [b"overwriting needs no room"])
    file.truncate(100)
    assert disk.free_bytes("/") == 2_900


def test_the_step_of_a_crash_is_begun_and_nothing_after_it():
    disk, file = made(survival=1.0)
    disk.crash_at_step = disk.steps + 2
    file.write(0, [b"1"])
    with pytest.raises(DiskCrashed):
        file.write(1, [b"2"])
    with pytest.raises(DiskCrashed):
        file.write(2, [b"3"])
    disk.restart()
    assert content(disk)[:3] == b"12d"


def test_jobs_take_virtual_time_and_end_with_the_process():
    async def main():
        disk, file = made()
        threads = SimDiskThreads(disk, random.Random(1))
        loop = asyncio.get_running_loop()
        start = loop.time()
        assert await threads.run(file.size) == 2048
        assert loop.time() > start
        told = []
        threads.submit(lambda: file.write(0, [b"x"]), told.append)
        disk.crash_at_step = disk.steps + 1
        await asyncio.sleep(1)
        disk.restart()
        threads.submit(lambda: 1, told.append)
        await asyncio.sleep(1)
        assert told == []

    sim_loop.run(main())


def test_a_hung_disk_answers_when_it_is_released():
    async def main():
        disk, _ = made()
        threads = SimDiskThreads(disk, random.Random(1))
        told = []
        threads.hang()
        threads.submit(lambda: 1, told.append)
        await asyncio.sleep(100)
        assert told == []
        threads.release()
        await asyncio.sleep(1)
        assert told == [1]

    sim_loop.run(main())
