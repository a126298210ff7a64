"""Creating, deleting and opening a replica, with the power cut at every step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId, mint_id
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.row_batch import RowOperation
from kudu_py.consensus.core.model import HardState, Member, MemberType, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord
from kudu_py.tablet import bootstrap, metadata
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import SCHEMA, ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.sim_disk import DiskCrashed, SimDisk

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
TABLET = TabletId("7" * 32)
CONFIG = RaftConfig(0, (Member(mint_id(random.Random(1)), MemberType.VOTER, "a:1"),))
DIRECTORIES = ReplicaDirectories("/data")


def a_superblock(state: DataState = DataState.READY) -> Superblock:
    return Superblock(TABLET, "8" * 32, "table", SCHEMA, PartitionSchema(), Partition(), state)


def a_disk(seed: int, survival: float | None = None) -> SimDisk:
    disk = SimDisk(random.Random(seed), survival=survival)
    disk.make_dir("/data")
    disk.sync_dir("/")
    DIRECTORIES.create(disk)
    return disk


def crash_at_each_step(prepare: Callable[[SimDisk], None], act: Callable[[SimDisk], None]) -> Any:
    """The disks that power cuts at each step of `act` leave, some for each step."""
    for seed in range(3):
        step = 0
        while True:
            step += 1
            disk = a_disk(1000 * seed + step)
            prepare(disk)
            disk.crash_at_step = disk.steps + step
            try:
                act(disk)
            except DiskCrashed:
                disk.power_cut()
                disk.restart()
                yield step, disk
            else:
                break
        assert step > 5, "there were steps to crash at"


def superblock_on(disk: SimDisk) -> Superblock | None:
    try:
        return metadata.read(disk, DIRECTORIES.superblock_path(TABLET), TABLET)
    except FileNotFoundError:
        return None


def test_a_creation_cut_short_leaves_nothing_or_a_whole_replica_and_can_be_repeated():
    def create(disk: SimDisk) -> None:
        bootstrap.create_files(disk, DIRECTORIES, a_superblock(), CONFIG)

    existed = set()
    for step, disk in crash_at_each_step(lambda disk: None, create):
        found = superblock_on(disk)
        existed.add(found is not None)
        if found is not None:
            assert_whole(disk, step)
        create(disk)
        disk.power_cut()
        disk.restart()
        assert superblock_on(disk) == a_superblock()
        assert_whole(disk, step)
    assert existed == {True, False}


def assert_whole(disk: SimDisk, step: int) -> None:
    record = ConsensusMetadata.load(disk, DIRECTORIES.consensus_metadata_path(TABLET), TABLET)
    assert record.hard_state == HardState(0, None), step
    assert record.committed_config == CONFIG, step
    assert disk.list_dir(DIRECTORIES.log_directory(TABLET)) == [], step
    assert disk.list_dir(DIRECTORIES.row_directory(TABLET)) == [], step


def test_what_an_unfinished_creation_left_does_not_get_into_the_next():
    disk = a_disk(1)
    for path in (DIRECTORIES.log_directory(TABLET), DIRECTORIES.row_directory(TABLET)):
        disk.make_dir(path)
        disk.create(f"{path}/old").close()
    bootstrap.create_files(disk, DIRECTORIES, a_superblock(), CONFIG)
    assert_whole(disk, 0)


@pytest.mark.parametrize("what", ["superblock", "vote"])
def test_what_a_start_has_seen_survives_a_power_cut(what: str):
    """A process killed between a rename and the sync of its directory leaves a name that only the cache has. Who starts
    next acts on it: removes files that it does not name, repeats a vote."""

    def write(disk: SimDisk, number: int) -> None:
        if what == "superblock":
            metadata.write(disk, DIRECTORIES.superblock_path(TABLET), replace(a_superblock(), table_name=str(number)))
        else:
            record = ConsensusRecord(TABLET, HardState(number, None), CONFIG)
            ConsensusMetadata.create(disk, DIRECTORIES.consensus_metadata_path(TABLET), record)

    def read(disk: SimDisk) -> object:
        if what == "superblock":
            return superblock_on(disk)
        path = DIRECTORIES.consensus_metadata_path(TABLET)
        return ConsensusMetadata.load(disk, path, TABLET).hard_state

    step = 0
    while True:
        step += 1
        disk = a_disk(step, survival=0.0)
        write(disk, 1)
        disk.crash_at_step, disk.power_cut = disk.steps + step, disk.kill
        try:
            write(disk, 2)
            break
        except DiskCrashed:
            del disk.power_cut
        disk.restart()
        DIRECTORIES.create(disk)
        seen = read(disk)
        disk.power_cut()
        disk.restart()
        assert read(disk) == seen, f"killed at step {step}"
    assert step > 4


def test_a_start_removes_empty_directories_of_creations_cut_short_and_no_others():
    disk = a_disk(1)
    for path in (DIRECTORIES.log_directory(TABLET), DIRECTORIES.row_directory(TABLET)):
        disk.make_dir(path)
    lost = TabletId("6" * 32)
    disk.make_dir(DIRECTORIES.log_directory(lost))
    disk.create(f"{DIRECTORIES.log_directory(lost)}/wal-000000001").close()
    disk.make_dir(f"{DIRECTORIES.logs}/not-ours")
    assert bootstrap.remove_unfinished_creations(disk, DIRECTORIES) == [DIRECTORIES.log_directory(lost)]
    assert disk.list_dir(DIRECTORIES.logs) == sorted([lost, "not-ours"])
    assert disk.list_dir(DIRECTORIES.rows) == []


def test_a_replica_is_not_created_where_votes_are_remembered():
    """Its superblock is lost: a new replica in its place would not know what the old one promised."""
    disk = a_disk(1)
    record = ConsensusRecord(TABLET, HardState(3, None), CONFIG)
    ConsensusMetadata.create(disk, DIRECTORIES.consensus_metadata_path(TABLET), record)
    with pytest.raises(KuduError) as refused:
        bootstrap.create_files(disk, DIRECTORIES, a_superblock(), CONFIG)
    assert refused.value.code is ErrorCode.CORRUPTION
    assert ConsensusMetadata.load(disk, DIRECTORIES.consensus_metadata_path(TABLET), TABLET).hard_state.term == 3


async def _with_rows(group: ReplicaGroup) -> tuple[ReplicaHost, TabletId]:
    await group.start()
    tablet_id = await group.create()
    await group.write(tablet_id, batch_of([(1, 1, "one")]))
    host = group.hosts[0]
    assert await host.manager.replica(tablet_id).checkpointer.flush()
    await host.stop()
    return host, tablet_id


@pytest.mark.parametrize("lost", ["log_directory", "row_directory", "consensus_metadata_path"])
def test_a_replica_that_lost_a_part_of_itself_is_refused_by_name(simulate: Simulate, lost: str):
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        await group.create()  # a server that lost this of all its replicas would not start
        await group.stop()
        host, tablet_id = await _with_rows(group)
        path = getattr(ReplicaDirectories("/data"), lost)(tablet_id)
        if lost == "consensus_metadata_path":
            host.disk.unlink(path)
        else:
            host.disk.rename(path, f"{path}-elsewhere")
        await host.restart()
        replica = host.manager.replica(tablet_id)
        assert replica.state is ReplicaState.FAILED
        assert isinstance(replica.error, KuduError)
        assert replica.error.code is ErrorCode.CORRUPTION
        assert path in str(replica.error)
        await group.stop()

    simulate(main())


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("lost", ["logs", "consensus_metadata"])
def test_a_server_that_lost_all_logs_or_all_votes_does_not_start_under_its_old_name(
    simulate: Simulate, lost: str, is_empty: bool
):
    """An unmounted file system, or a new disk in the place of a broken one."""

    async def main() -> None:
        group = ReplicaGroup()
        host, _ = await _with_rows(group)
        path = getattr(DIRECTORIES, lost)
        host.disk.rename(path, "/data/elsewhere")
        if is_empty:
            host.disk.make_dir(path)
        error = await refusal(host.restart())
        assert error.code is ErrorCode.CONFIGURATION_ERROR
        assert path in error.message
        assert "new uuid" in error.message
        assert is_empty or not host.disk.exists(path), "nothing was made in its place"

    simulate(main())


def test_a_server_with_nothing_but_tombstones_needs_no_logs(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        host, tablet_id = await _with_rows(group)
        await host.restart()
        await host.manager.delete_tablet(tablet_id)
        await host.stop()
        host.disk.remove_dir(DIRECTORIES.logs)
        await host.restart()
        assert len(host.manager.tombstones()) == 1
        await group.stop()

    simulate(main())


def test_a_start_removes_files_that_the_superblock_does_not_name(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup()
        host, tablet_id = await _with_rows(group)
        directory = ReplicaDirectories("/data").row_directory(tablet_id)
        named = host.disk.list_dir(directory)
        host.disk.create(f"{directory}/99.rows").close()
        await host.restart()
        assert host.disk.list_dir(directory) == named
        replica = await group.leader(tablet_id)
        assert rows_of(replica) == [(1, 1, "one")]
        await group.stop()

    simulate(main())


def test_a_power_cut_at_any_step_of_a_flush_loses_no_acknowledged_row(simulate: Simulate):
    """Crashes while a flush, and the writes beside it, are under way: what was acknowledged is there after a
    restart.
    """

    async def attempt(seed: int, step: int) -> bool:
        group = ReplicaGroup(seed)
        await group.start()
        tablet_id = await group.create()
        host = group.hosts[0]
        replica = await group.leader(tablet_id)
        rows = [(key, key, f"row {key}") for key in range(40)]
        await replica.write_batch(batch_of(rows[:20]))
        await replica.write_batch(batch_of([(5, 500, None)], RowOperation.UPSERT))
        rows[5] = (5, 500, None)
        acknowledged = rows[:20]
        flush = asyncio.ensure_future(replica.checkpointer.flush())
        host.disk.crash_at_step = host.disk.steps + step
        for row in rows[20:]:
            write = asyncio.ensure_future(replica.write_batch(batch_of([row])))
            await asyncio.wait((write,), timeout=1.0)
            if not write.done():
                write.cancel()
                break
            acknowledged = [*acknowledged, row]
        finished = flush.done() and not host.disk.is_crashed
        flush.cancel()
        await asyncio.gather(flush, return_exceptions=True)
        await host.crash()
        await host.restart()
        replica = await group.leader(tablet_id)
        found = rows_of(replica)
        assert found[: len(acknowledged)] == acknowledged, (seed, step)
        assert found in (acknowledged, rows[: len(acknowledged) + 1]), (seed, step)
        assert group.fatal() == []
        await group.stop()
        return finished

    step = 1
    while not simulate(attempt(step, step)):
        step += 1
    assert step > 20


@pytest.mark.parametrize("forgotten", ["/data/data/", "/data/tablet-meta"])
def test_without_a_sync_a_flush_is_seen_to_lose_what_it_promised(simulate: Simulate, forgotten: str):
    class Forgetful(SimDisk):
        def drops_sync(self, path: str) -> bool:
            return path.startswith(forgotten)

    async def survives(seed: int) -> bool:
        group = ReplicaGroup(seed)
        host = group.hosts[0]
        host.disk = Forgetful(random.Random(seed), survival=0.0)
        host.disk.make_dir("/data")
        host.disk.sync_dir("/")
        host, tablet_id = await _with_rows(group)
        host.disk.power_cut()
        await host.restart()
        try:
            replica = host.manager.replica(tablet_id)
        except KuduError:
            return False
        healthy = replica.state is ReplicaState.RUNNING and rows_of(replica) == [(1, 1, "one")]
        await group.stop()
        return healthy

    assert not simulate(survives(1))
