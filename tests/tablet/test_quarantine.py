"""What waits in the quarantine: its names, what goes first, and what is spared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.pb import consensus_pb2
from kudu_py.tablet import quarantine
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.quarantine import (
    QuarantineEntry,
    QuarantineKind,
    QuarantineName,
    QuarantineOptions,
    choose_expired,
)
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, batch_of
from kudu_py.testing.sim_disk import Fault, Operation, SimDisk

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
DIRECTORIES = ReplicaDirectories("/data")
DAY = 24 * 3600
NOW = 1_800_000_000_000_000
TABLET = TabletId("7" * 32)
OTHER = TabletId("8" * 32)


def entry(days: float, size_bytes: int = 100, tablet_id: TabletId = TABLET) -> QuarantineEntry:
    name = QuarantineName(tablet_id, NOW - int(days * DAY * 1e6), QuarantineKind.DELETED)
    return QuarantineEntry(name, size_bytes)


@pytest.mark.parametrize("kind", list(QuarantineKind))
def test_a_name_is_read_as_it_was_written(kind: QuarantineKind):
    name = QuarantineName(TABLET, NOW, kind)
    assert QuarantineName.parse(str(name)) == name


@pytest.mark.parametrize("name", ["", "..", "lost+found", f"{TABLET}-12-deleted", f"{TABLET}-{NOW}-copy/..", "x" * 200])
def test_what_is_no_name_of_the_quarantine_is_none(name: str):
    assert QuarantineName.parse(name) is None


def test_what_is_old_goes():
    old, new = entry(1.5), entry(0.5)
    assert choose_expired([new, old], QuarantineOptions(retention_s=DAY), now_micros=NOW) == [old]


def test_beyond_the_bound_the_oldest_goes_first_and_no_more_than_needed():
    entries = [entry(0.1), entry(0.3), entry(0.2)]
    expired = choose_expired(entries, QuarantineOptions(bytes_max=250), now_micros=NOW)
    assert expired == [entry(0.3)]


def test_what_the_disk_lacks_is_taken_from_the_quarantine():
    entries = [entry(0.1), entry(0.2)]
    assert choose_expired(entries, QuarantineOptions(), now_micros=NOW, missing_bytes=101) == entries[::-1]


def test_tablets_that_are_worked_on_are_spared():
    entries = [entry(9), entry(9, tablet_id=OTHER)]
    assert choose_expired(entries, QuarantineOptions(), now_micros=NOW, in_use=[TABLET]) == [entries[1]]


@pytest.mark.parametrize("options", [{"retention_s": -1.0}, {"bytes_max": -1}])
def test_bounds_below_nothing_are_refused(options: dict[str, Any]):
    with pytest.raises(KuduError) as refused:
        QuarantineOptions(**options)
    assert refused.value.code is ErrorCode.CONFIGURATION_ERROR


def test_each_deletion_has_a_directory_of_its_own_and_a_copy_goes_on_in_the_latest():
    disk = SimDisk(random.Random(1))
    disk.make_dir("/data")
    DIRECTORIES.create(disk)
    opened = [quarantine.open_directory(disk, DIRECTORIES, TABLET, QuarantineKind.DELETED, NOW) for _ in range(3)]
    assert len(set(opened)) == 3
    first = quarantine.open_directory(disk, DIRECTORIES, TABLET, QuarantineKind.COPY, NOW)
    assert quarantine.open_directory(disk, DIRECTORIES, TABLET, QuarantineKind.COPY, NOW + 5) == first
    assert {str(found.name) for found in quarantine.entries(disk, DIRECTORIES)} == {*opened, first}


class _RestlessDisk(SimDisk):
    """A part is given its name just before it is looked at, as by a copy that goes on meanwhile."""

    def size(self, path: str) -> int:
        if path.endswith(".part"):
            self.rename(path, path.removesuffix(".part"))
        return super().size(path)


def test_what_goes_while_the_quarantine_is_looked_at_counts_nothing():
    disk = _RestlessDisk(random.Random(1))
    disk.make_dir("/data")
    DIRECTORIES.create(disk)
    name = quarantine.open_directory(disk, DIRECTORIES, TABLET, QuarantineKind.COPY, NOW)
    root = quarantine.path_of(DIRECTORIES, name)
    disk.make_dir(f"{root}/log")
    for path in ("log/wal-1.part", "whole"):
        disk.create(f"{root}/{path}").write(0, [b"12345"])
    assert [found.size_bytes for found in quarantine.entries(disk, DIRECTORIES)] == [5]


def test_a_quarantine_that_cannot_be_read_is_no_reason_for_a_server_to_end(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        host = group.hosts[0]
        await host.manager.delete_tablet(await group.create())
        list_dir = host.disk.list_dir

        def failing(path: str) -> list[str]:
            if "/quarantine/" in path:
                raise OSError(5, "Input/output error", path)
            return list_dir(path)

        host.disk.list_dir = failing
        assert await host.manager.purge_quarantine() == []
        await group.stop()

    simulate(main())


def test_a_server_purges_what_is_old_or_in_the_way(simulate: Simulate):
    async def main() -> None:
        options = replace(TESTING_OPTIONS, quarantine=QuarantineOptions(retention_s=100.0))
        group = ReplicaGroup(options=options)
        await group.start()
        host = group.hosts[0]
        for _ in range(2):
            tablet_id = await group.create()
            await group.write(tablet_id, batch_of([(1, 1, None)]))
            await host.manager.delete_tablet(tablet_id)
        assert await host.manager.purge_quarantine() == []
        await asyncio.sleep(101.0)
        purged = await host.manager.purge_quarantine()
        assert len(purged) == 2
        assert all(found.size_bytes > 0 for found in purged)
        assert host.disk.list_dir(DIRECTORIES.quarantine) == []
        await host.crash()
        await host.restart()
        assert len(host.manager.tombstones()) == 2, "what they promised is not in the quarantine"
        await group.stop()

    simulate(main())


def test_a_full_disk_takes_the_quarantine_first(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        host = group.hosts[0]
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of([(1, 1, None)]))
        await host.manager.delete_tablet(tablet_id)
        host.disk.capacity_bytes = 1 << 20
        assert len(await host.manager.purge_quarantine()) == 1
        await group.stop()

    simulate(main())


def test_no_replica_is_created_from_what_is_kept_free(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        host = group.hosts[0]
        host.disk.capacity_bytes = TESTING_OPTIONS.wal.disk_reserved_bytes + 1000
        error = await refusal(group.create())
        assert error.code is ErrorCode.DISK_FULL
        assert host.disk.list_dir(DIRECTORIES.superblocks) == []
        host.disk.capacity_bytes = None
        await group.create()
        await group.stop()

    simulate(main())


def test_a_replica_that_found_no_room_to_open_is_opened_when_there_is_room(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        host = group.hosts[0]
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of([(1, 1, None)]))
        await host.crash()
        host.disk.restart()
        full = host.disk.inject(Fault(Operation.WRITE, errno=28, path_contains="/wals/", times=None))
        await host.start()
        assert host.manager.replica(tablet_id).state is ReplicaState.FAILED
        assert await host.manager.reopen_for_room() == 0
        order = consensus_pb2.StartTabletCopyRequest(
            dest_uuid=host.uuid,
            tablet_id=tablet_id,
            caller_uuid=TABLET,
            caller_term=99,
            source_uuid=TABLET,
            source_address="elsewhere:7050",
        )
        assert (await refusal(host.manager.start_tablet_copy(order))).code is ErrorCode.DISK_FULL
        full.times = 0
        assert await host.manager.reopen_for_room() == 1
        replica = await group.leader(tablet_id)
        await replica.write_batch(batch_of([(2, 2, None)]))
        await group.stop()

    simulate(main())
