"""A later start has a higher number, whatever clock and disk do."""

from __future__ import annotations

import errno
import random

import pytest

from kudu_py.daemon.start_number import START_NAME, take_start_number
from kudu_py.testing.sim_disk import DiskCrashed, Fault, Operation, SimDisk

ROOT = "/data"
PATH = f"{ROOT}/{START_NAME}"


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(7))
    disk.make_dir(ROOT)
    disk.sync_dir("/")
    return disk


def test_the_first_number_is_the_wall_clock_s(disk):
    assert take_start_number(disk, ROOT, 1_000_000) == 1_000_000


def test_numbers_rise_whatever_the_clock_does(disk):
    clock = [5_000, 6_000, 6_000, 10, 7_000, 0]
    numbers = [take_start_number(disk, ROOT, micros) for micros in clock]
    assert numbers == sorted(set(numbers))


def test_a_number_that_was_given_is_durable():
    disk = SimDisk(random.Random(7), survival=0.0)
    disk.make_dir(ROOT)
    disk.sync_dir("/")
    first = take_start_number(disk, ROOT, 5_000)

    disk.power_cut()
    disk.restart()

    assert take_start_number(disk, ROOT, 10) > first


def test_a_crash_at_any_step_leaves_numbers_that_rise(disk):
    def started(seed):
        disk = SimDisk(random.Random(seed))
        disk.make_dir(ROOT)
        disk.sync_dir("/")
        return disk, take_start_number(disk, ROOT, 5_000)

    rehearsal, _ = started(7)
    before = rehearsal.steps
    take_start_number(rehearsal, ROOT, 10)
    assert rehearsal.steps > before + 3
    for step in range(1, rehearsal.steps - before + 1):
        for seed in range(5):
            disk, first = started(seed)
            disk.crash_at_step = disk.steps + step
            with pytest.raises(DiskCrashed):
                take_start_number(disk, ROOT, 10)
            disk.restart()
            assert take_start_number(disk, ROOT, 10) > first


def test_a_disk_that_cannot_be_written_keeps_no_server_from_starting(disk):
    first = take_start_number(disk, ROOT, 5_000)
    disk.inject(Fault(Operation.CREATE, errno=errno.ENOSPC))

    assert take_start_number(disk, ROOT, 10) > first


def test_a_damaged_file_gives_way_to_the_clock(disk):
    take_start_number(disk, ROOT, 5_000)
    file = disk.open(PATH, writable=True)
    file.write(0, [b"rubbish"])
    file.close()

    assert take_start_number(disk, ROOT, 6_000) == 6_000
    assert take_start_number(disk, ROOT, 10) == 6_001
