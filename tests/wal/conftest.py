"""A log on a simulated disk, on virtual time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.wal import Log, Record, WalOptions

TABLET = "0123456789abcdef" * 2
DIRECTORY = f"/wals/{TABLET}"


def record(term: int, index: int, size: int = 20) -> Record:
    """A record whose payload tells term and index and has `size` bytes at least."""
    return Record(OpId(term, index), f"{term}.{index} ".encode().ljust(size, b"%d" % (index % 10)))


def records(term: int, first: int, last: int, size: int = 20) -> list[Record]:
    return [record(term, index, size) for index in range(first, last + 1)]


@dataclass
class Rig:
    """One disk and the logs that are opened on it, one after another."""

    seed: int = 0
    options: WalOptions = field(
        default_factory=lambda: WalOptions(
            segment_size_bytes_first=4096,
            segment_size_bytes_min=8192,
            segment_size_bytes_max=16384,
            cache_bytes_max=0,
            disk_reserved_bytes=0,
        )
    )
    disk: SimDisk = None
    threads: SimDiskThreads = None
    log: Log = None
    reported: list[OpId] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = self.disk or SimDisk(random.Random(self.seed))
        self.disk.make_dir("/wals")
        self.disk.sync_dir("/")

    async def open(self, start_after: OpId = MIN_OP_ID, **changes: Any) -> Log:
        """Opens the log as a new process would."""
        if self.disk.is_crashed:
            self.disk.restart()
        self.threads = SimDiskThreads(self.disk, random.Random(self.seed))
        self.log = await Log.open(
            directory=DIRECTORY,
            tablet_id=changes.get("tablet_id", TABLET),
            threads=self.threads,
            options=self.options,
            on_durable=self.reported.append,
            on_failure=self.failures.append,
            start_after=start_after,
        )
        return self.log

    async def settle(self) -> None:
        """Until everything accepted is durable, or never will be."""
        await self.log._writer.drain()

    async def content(self) -> list[Record]:
        """Everything in the log."""
        return [r async for r in self.log.replay()]

    def files(self) -> list[str]:
        return self.disk.list_dir(DIRECTORY)

    def segment(self, number: int) -> str:
        return f"{DIRECTORY}/wal-{number:09d}"

    def bytes_of(self, path: str) -> bytes:
        file = self.disk.open(path)
        return file.read(0, file.size())


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def make_rig() -> type[Rig]:
    return Rig


@pytest.fixture
def make_records() -> Callable[..., list[Record]]:
    return records
