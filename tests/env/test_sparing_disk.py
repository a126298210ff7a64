"""New files leave the space that is kept free."""

from __future__ import annotations

import errno
import random

import pytest

from kudu_py.env.sparing_disk import SparingDisk
from kudu_py.testing.sim_disk import SimDisk


def test_a_new_file_ends_before_it_reaches_into_the_space_kept_free():
    disk = SimDisk(random.Random(1), capacity_bytes=1000)
    disk.make_dir("/work")
    file = SparingDisk(disk, "/work", 400).create("/work/new")
    file.write(0, [b"x" * 300, b"y" * 300])
    with pytest.raises(OSError, match="400 are free, of which 400 are kept so") as refused:
        file.write(600, [b"z"])
    assert refused.value.errno == errno.ENOSPC
    assert disk.free_bytes("/work") == 400
    assert file.size() == 600
    disk.capacity_bytes = 1001
    file.write(600, [b"z"])
    assert disk.free_bytes("/work") == 400
