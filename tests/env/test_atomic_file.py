"""A replaced file holds the old content or the new, whole, after a crash at any step."""

import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.env import atomic_file
from kudu_py.testing.sim_disk import DiskCrashed, Fault, Operation, SimDisk

CONTENTS = [b"first" * 300, b"", b"third" * 5]


def replace_until_crash(disk: SimDisk) -> int:
    """Replaces the file by each content in turn; the number of replacements that returned."""
    for done, content in enumerate(CONTENTS):
        try:
            atomic_file.replace(disk, "/d/file", content)
        except DiskCrashed:
            return done
    return len(CONTENTS)


def made_disk(kind: type[SimDisk], seed: int) -> SimDisk:
    disk = kind(random.Random(seed))
    disk.make_dir("/d")
    disk.sync_dir("/")
    disk.sync_dir("/d")
    disk.steps = 0
    return disk


def crash_everywhere(kind: type[SimDisk], seeds: int) -> str | None:
    """Crashes at each step of each seed; what was found wrong, if anything."""
    for seed in range(seeds):
        rehearsal = made_disk(kind, seed)
        replace_until_crash(rehearsal)
        for step in range(1, rehearsal.steps + 1):
            disk = made_disk(kind, seed * 1_000 + step)
            disk.crash_at_step = step
            done = replace_until_crash(disk)
            disk.restart()
            allowed = CONTENTS[max(0, done - 1) : done + 1]
            try:
                found = atomic_file.read(disk, "/d/file")
            except FileNotFoundError:
                if done:
                    return f"seed {seed} step {step}: the file is gone"
                continue
            except KuduError as error:
                return f"seed {seed} step {step}: {error}"
            if found not in allowed:
                return f"seed {seed} step {step}: not the old content and not the new"
            atomic_file.replace(disk, "/d/file", b"after")  # whatever is left over must not be in the way
            assert atomic_file.read(disk, "/d/file") == b"after"
    return None


def test_a_replacement_is_atomic_and_durable_at_every_step():
    assert crash_everywhere(SimDisk, 20) is None


class ForgetsFileSyncs(SimDisk):
    def drops_sync(self, path: str) -> bool:
        return path.endswith(".tmp")


class ForgetsDirectorySyncs(SimDisk):
    def drops_sync(self, path: str) -> bool:
        return path == "/d"


@pytest.mark.parametrize("kind", [ForgetsFileSyncs, ForgetsDirectorySyncs])
def test_a_missing_sync_is_seen(kind):
    assert crash_everywhere(kind, 20) is not None


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.WRITE, Operation.SYNC, Operation.RENAME])
def test_an_error_before_the_rename_leaves_the_old_content(operation):
    disk = made_disk(SimDisk, 1)
    atomic_file.replace(disk, "/d/file", b"old")
    disk.inject(Fault(operation))
    with pytest.raises(OSError, match="/d/file"):
        atomic_file.replace(disk, "/d/file", b"new")
    assert atomic_file.read(disk, "/d/file") == b"old"


@pytest.mark.parametrize("offset", [0, 9, 17, 20, 24])
def test_a_changed_byte_is_reported_with_the_name_of_the_file(offset):
    disk = made_disk(SimDisk, 1)
    atomic_file.replace(disk, "/d/file", b"content")
    before = disk.open("/d/file").read(offset, 1)
    disk.corrupt("/d/file", offset, bytes([before[0] ^ 0x40]))
    with pytest.raises(KuduError, match="/d/file") as caught:
        atomic_file.read(disk, "/d/file")
    assert caught.value.code is ErrorCode.CORRUPTION


def test_a_file_that_was_cut_short_is_corruption():
    disk = made_disk(SimDisk, 1)
    atomic_file.replace(disk, "/d/file", b"content")
    for length in (25, 3, 0):
        disk.open("/d/file", writable=True).truncate(length)
        with pytest.raises(KuduError, match="CORRUPTION"):
            atomic_file.read(disk, "/d/file")


def test_an_error_of_the_disk_is_not_an_empty_file():
    disk = made_disk(SimDisk, 1)
    atomic_file.replace(disk, "/d/file", b"content")
    disk.inject(Fault(Operation.READ))
    with pytest.raises(OSError, match="/d/file"):
        atomic_file.read(disk, "/d/file")
