"""The disks that must behave alike."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kudu_py.env.disk import Disk
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.env.sparing_disk import SparingDisk
from kudu_py.testing.sim_disk import SimDisk


@dataclass
class Bench:
    """A disk and a directory on it to work in."""

    disk: Disk
    root: str


@pytest.fixture(params=["posix", "sim", "sparing"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "posix":
        yield Bench(PosixDisk(), str(tmp_path))
    else:
        disk = SimDisk(random.Random(1))
        disk.make_dir("/work")
        yield Bench(disk if request.param == "sim" else SparingDisk(disk, "/work", 1 << 20), "/work")
