"""A data directory has one owner for life and one user at a time, whatever crashes when."""

from __future__ import annotations

import os
import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon.layout import INSTANCE_NAME, open_existing, open_or_create, read_instance
from kudu_py.env import atomic_file
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.testing.sim_disk import DiskCrashed, Fault, Operation, SimDisk

ROOT = "/srv/kudu/tserver-1"
SOME_UUID = "c" * 32


def sim_disk(seed=7):
    return SimDisk(random.Random(seed))


def opened(disk, root=ROOT, role="tserver", seed=1, **options):
    return open_or_create(disk, root, role=role, rng=random.Random(seed), wall_micros=1_000, **options)


def test_a_new_directory_gets_an_owner_that_stays():
    disk = sim_disk()
    first = opened(disk)
    first.close()

    second = opened(disk, seed=2)

    assert (first.is_new, second.is_new) == (True, False)
    assert first.uuid == second.uuid
    assert read_instance(disk, ROOT).created_micros == 1_000


def test_the_owner_is_durable_when_the_directory_is_open():
    disk = SimDisk(random.Random(7), survival=0.0)
    uuid = opened(disk).uuid

    disk.power_cut()
    disk.restart()

    assert opened(disk, seed=2).uuid == uuid


def test_a_crash_at_any_step_leaves_a_directory_that_opens_and_never_changes_its_owner():
    rehearsal = sim_disk()
    opened(rehearsal)
    assert rehearsal.steps > 5
    for step in range(1, rehearsal.steps + 1):
        for seed in range(5):
            disk = sim_disk(seed * 1_000 + step)
            disk.crash_at_step = step
            uuid = None
            with pytest.raises(DiskCrashed):
                uuid = opened(disk).uuid
            assert uuid is None
            disk.restart()
            uuid = opened(disk, seed=2).uuid
            disk.power_cut()
            disk.restart()
            assert opened(disk, seed=3).uuid == uuid, f"{step=} {seed=}"


def test_a_second_process_is_refused_by_name_until_the_first_lets_go():
    disk = sim_disk()
    first = opened(disk)

    with pytest.raises(KuduError, match=f"{ROOT} is in use by another process") as raised:
        opened(disk)
    first.close()
    first.close()

    assert raised.value.code is ErrorCode.CONFIGURATION_ERROR
    assert opened(disk).uuid == first.uuid


def test_a_directory_of_another_role_is_refused():
    disk = sim_disk()
    opened(disk, role="master").close()

    with pytest.raises(KuduError, match="belongs to a master"):
        opened(disk, role="tserver")
    opened(disk, role="master").close()  # and the refused start did not keep the lock


def test_a_directory_of_another_server_or_a_new_one_is_refused_where_a_server_is_expected():
    disk = sim_disk()
    with pytest.raises(KuduError, match="is the file system mounted"):
        opened(disk, expected_uuid=SOME_UUID)
    layout = opened(disk)
    layout.close()

    with pytest.raises(KuduError, match=f"belongs to the server {layout.uuid}"):
        opened(disk, expected_uuid=SOME_UUID)
    assert opened(disk, expected_uuid=layout.uuid).uuid == layout.uuid


def test_a_directory_with_foreign_content_is_refused_and_left_as_it_is():
    disk = sim_disk()
    disk.make_dir("/home")
    disk.create("/home/thesis.tex").close()

    with pytest.raises(KuduError, match=r"/home is not empty and no data directory .*thesis\.tex"):
        opened(disk, "/home")

    assert disk.list_dir("/home") == ["thesis.tex"]


def test_a_fresh_mount_point_is_taken():
    disk = sim_disk()
    disk.make_dir("/mnt")
    disk.make_dir("/mnt/lost+found")

    assert opened(disk, "/mnt").is_new


def test_a_damaged_instance_file_is_corruption_and_no_new_owner_is_made():
    disk = sim_disk()
    opened(disk).close()
    disk.corrupt(f"{ROOT}/{INSTANCE_NAME}", 22, b"\xff")

    with pytest.raises(KuduError, match=INSTANCE_NAME) as raised:
        opened(disk)

    assert raised.value.code is ErrorCode.CORRUPTION


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b""])
def test_an_instance_file_without_a_server_is_corruption(content):
    disk = sim_disk()
    opened(disk).close()
    atomic_file.replace(disk, f"{ROOT}/{INSTANCE_NAME}", content)

    with pytest.raises(KuduError) as raised:
        opened(disk)

    assert raised.value.code is ErrorCode.CORRUPTION


def test_a_newer_format_is_refused_by_its_version():
    disk = sim_disk()
    opened(disk).close()
    instance = read_instance(disk, ROOT)
    instance.format_version = 9
    atomic_file.replace(disk, f"{ROOT}/{INSTANCE_NAME}", instance.SerializeToString())

    with pytest.raises(KuduError, match="format version 9"):
        opened(disk)


def test_a_disk_that_fails_is_named():
    disk = sim_disk()
    disk.inject(Fault(Operation.SYNC))

    with pytest.raises(KuduError, match=f"{ROOT} cannot be used"):
        opened(disk)


def test_on_a_real_disk(tmp_path):
    root = str(tmp_path / "a" / "b")
    layout = opened(PosixDisk(), root)
    with pytest.raises(KuduError, match="in use"):
        opened(PosixDisk(), root)
    layout.close()

    assert opened(PosixDisk(), root).uuid == layout.uuid
    assert sorted(os.listdir(root)) == ["instance", "lock"]


def test_a_file_in_place_of_the_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(KuduError, match="Not a directory"):
        opened(PosixDisk(), str(tmp_path / "file"))


def test_a_tool_takes_the_directory_of_a_server_that_does_not_run():
    disk = sim_disk()
    running = opened(disk)
    with pytest.raises(KuduError) as refused:
        open_existing(disk, ROOT)
    assert refused.value.code is ErrorCode.CONFIGURATION_ERROR
    assert "in use by another process" in refused.value.message
    running.close()
    taken = open_existing(disk, ROOT)
    assert (taken.uuid, taken.role, taken.is_new) == (running.uuid, running.role, False)
    with pytest.raises(KuduError):
        opened(disk)
    taken.close()
    opened(disk).close()


def test_a_tool_makes_no_data_directory():
    disk = sim_disk()
    with pytest.raises(KuduError) as refused:
        open_existing(disk, ROOT)
    assert "is no data directory" in refused.value.message
    assert disk.list_dir("/") == []
