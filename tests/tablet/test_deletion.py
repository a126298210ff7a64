"""Deleting a replica, and taking back a copy of one, with the power cut at every step of the disk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kudu_py.common.ids import ServerId, TabletId, mint_id
from kudu_py.common.opid import OpId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.consensus.core.model import HardState, Member, MemberType, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord
from kudu_py.tablet import bootstrap, copy_install, deletion, metadata, quarantine
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.tablet_copy.client import FetchedReplica
from kudu_py.tablet.tablet_copy.landing import LandingDirectory
from kudu_py.testing.replica_group import SCHEMA
from kudu_py.testing.sim_disk import DiskCrashed, SimDisk

TABLET = TabletId("7" * 32)
VOTER = ServerId(mint_id(random.Random(1)))
SOURCE = ServerId("9" * 32)
CONFIG = RaftConfig(0, (Member(VOTER, MemberType.VOTER, "a:1"),))
REMOTE_CONFIG = RaftConfig(12, (Member(SOURCE, MemberType.VOTER, "b:1"), *CONFIG.members))
DIRECTORIES = ReplicaDirectories("/data")
LOG, ROWS = DIRECTORIES.log_directory(TABLET), DIRECTORIES.row_directory(TABLET)
VOTED = HardState(5, VOTER)
LAST = OpId(3, 9)
NOW = 1_700_000_000_000_000


def a_superblock(state: DataState = DataState.READY) -> Superblock:
    return Superblock(TABLET, "8" * 32, "table", SCHEMA, PartitionSchema(), Partition(), state)


def a_disk(seed: int) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_dir("/data")
    disk.sync_dir("/")
    DIRECTORIES.create(disk)
    return disk


def put(disk: SimDisk, path: str, content: bytes = b"content") -> None:
    file = disk.create(path)
    file.write(0, [content])
    file.sync()
    file.close()


def a_replica(disk: SimDisk) -> None:
    """A replica that has voted and has files."""
    bootstrap.create_files(disk, DIRECTORIES, a_superblock(), CONFIG)
    path = DIRECTORIES.consensus_metadata_path(TABLET)
    ConsensusMetadata.create(disk, path, ConsensusRecord(TABLET, VOTED, CONFIG))
    for directory in (LOG, ROWS):
        put(disk, f"{directory}/file")
        disk.sync_dir(directory)


def crash_at_each_step(
    prepare: Callable[[SimDisk], None], act: Callable[[SimDisk], object], disk_of: Callable[[int], SimDisk] = a_disk
) -> Iterator[tuple[int, SimDisk]]:
    """The disks that power cuts at each step of `act` leave, some for each step; each already in use again."""
    for seed in range(3):
        step = 0
        while True:
            step += 1
            disk = disk_of(1000 * seed + step)
            prepare(disk)
            disk.crash_at_step = disk.steps + step
            try:
                act(disk)
            except DiskCrashed:
                yield step, after_power_cut(disk)
            else:
                break
        assert step > 5, "there were steps to crash at"


def after_power_cut(disk: SimDisk) -> SimDisk:
    if not disk.is_crashed:
        disk.power_cut()
    disk.restart()
    return disk


def superblock_on(disk: SimDisk) -> Superblock | None:
    try:
        return metadata.read(disk, DIRECTORIES.superblock_path(TABLET), TABLET)
    except FileNotFoundError:
        return None


def promises_on(disk: SimDisk) -> ConsensusRecord:
    return ConsensusMetadata.load(disk, DIRECTORIES.consensus_metadata_path(TABLET), TABLET).durable


def start(disk: SimDisk) -> Superblock | None:
    """What the next start of the server makes of the replica."""
    bootstrap.require_promises(disk, DIRECTORIES)
    DIRECTORIES.create(disk)
    found = superblock_on(disk)
    return None if found is None else deletion.roll_forward(disk, DIRECTORIES, found)


def delete(disk: SimDisk) -> Superblock:
    return deletion.delete_files(disk, DIRECTORIES, a_superblock(), LAST, quarantined_at_micros=NOW)


def test_a_deletion_is_rolled_forward_from_its_point_of_no_return_at_every_step():
    states = set()
    for step, disk in crash_at_each_step(a_replica, delete):
        found = superblock_on(disk)
        assert found is not None, step
        after = start(disk)
        assert after == found, step
        states.add(after.data_state)
        after_power_cut(disk)
        assert superblock_on(disk) == after, "what a start brought to an end survives a power cut"
        assert promises_on(disk).hard_state == VOTED, "a vote is never forgotten"
        if after.data_state is DataState.READY:
            assert disk.list_dir(LOG) == ["file"], step
            assert disk.list_dir(ROWS) == ["file"], step
        else:
            assert after.tombstone_last_op_id == LAST
            assert not disk.exists(LOG), step
            assert not disk.exists(ROWS), step
            assert disk.exists(quarantine.path_of(DIRECTORIES, after.quarantine)), step
    assert states == {DataState.READY, DataState.DELETED}


def test_the_quarantine_holds_everything_that_the_replica_was():
    disk = a_disk(1)
    a_replica(disk)
    tombstone = delete(disk)
    directory = quarantine.path_of(DIRECTORIES, tombstone.quarantine)
    assert disk.list_dir(directory) == ["consensus-metadata", "data", "superblock", "wals"]
    assert metadata.read(disk, f"{directory}/superblock", TABLET) == a_superblock()
    assert ConsensusMetadata.load(disk, f"{directory}/consensus-metadata", TABLET).hard_state == VOTED
    assert disk.list_dir(f"{directory}/wals") == disk.list_dir(f"{directory}/data") == ["file"]


def test_a_killed_process_loses_nothing_of_what_goes_to_the_quarantine():
    """Without a power cut the cache lives on: at each step, log and rows are in one place or the other."""

    def disk_of(seed: int) -> SimDisk:
        disk = a_disk(seed)
        disk.power_cut = disk.kill
        return disk

    for step, disk in crash_at_each_step(a_replica, delete, disk_of):
        after = start(disk)
        assert after is not None
        if after.data_state is DataState.DELETED:
            directory = quarantine.path_of(DIRECTORIES, after.quarantine)
            assert disk.list_dir(f"{directory}/wals") == disk.list_dir(f"{directory}/data") == ["file"], step
            assert ConsensusMetadata.load(disk, f"{directory}/consensus-metadata", TABLET).hard_state == VOTED, step


def test_a_damaged_superblock_goes_to_the_quarantine_as_it_is():
    disk = a_disk(1)
    a_replica(disk)
    disk.corrupt(DIRECTORIES.superblock_path(TABLET), 30, b"rot")
    unknown = Superblock.unknown(TABLET, DataState.READY)
    tombstone = deletion.delete_files(disk, DIRECTORIES, unknown, None, quarantined_at_micros=NOW)
    assert superblock_on(disk) == tombstone
    assert disk.exists(f"{quarantine.path_of(DIRECTORIES, tombstone.quarantine)}/superblock")


def test_without_a_quarantine_the_files_are_removed():
    disk = a_disk(1)
    a_replica(disk)
    tombstone = deletion.delete_files(disk, DIRECTORIES, a_superblock(), LAST)
    assert tombstone.quarantine == ""
    assert disk.list_dir(DIRECTORIES.quarantine) == []
    assert (disk.exists(LOG), disk.exists(ROWS)) == (False, False)


def test_a_replica_that_is_forgotten_is_gone_altogether_or_still_a_tombstone_at_every_step():
    def forget(disk: SimDisk) -> None:
        deletion.delete_files(disk, DIRECTORIES, a_superblock(), LAST, quarantined_at_micros=NOW, is_forgotten=True)

    gone = set()
    for step, disk in crash_at_each_step(a_replica, forget):
        after = start(disk)
        gone.add(after is None)
        after_power_cut(disk)
        assert superblock_on(disk) == after, step
        if after is None:
            assert not disk.exists(DIRECTORIES.consensus_metadata_path(TABLET)), step
            assert (disk.exists(LOG), disk.exists(ROWS)) == (False, False), step
            bootstrap.create_files(disk, DIRECTORIES, a_superblock(), CONFIG)  # as if it had never been here
        else:
            assert after.data_state is DataState.READY, step
            assert promises_on(disk).hard_state == VOTED, step
    assert gone == {True, False}


def test_a_tombstone_is_forgotten_when_it_is_told_so():
    disk = a_disk(1)
    a_replica(disk)
    deletion.forget(disk, DIRECTORIES, delete(disk))
    assert superblock_on(disk) is None
    assert disk.list_dir(DIRECTORIES.consensus_metadata) == []


@pytest.mark.parametrize("forgotten", ["/data/tablet-meta", "/data/quarantine"])
def test_without_a_sync_a_deletion_is_seen_to_lose_what_it_promised(forgotten: str):
    """The superblock's directory: the log goes while the replica still looks alive. The quarantine's: its files are
    gone with it."""

    class Forgetful(SimDisk):
        def drops_sync(self, path: str) -> bool:
            return path == forgotten

    lost = False
    for seed in range(40):
        disk = Forgetful(random.Random(seed), survival=0.5)
        disk.make_dir("/data")
        disk.sync_dir("/")
        SimDisk.sync_dir(disk, "/data")
        DIRECTORIES.create(disk)
        a_replica(disk)
        for directory in ("/data/tablet-meta", "/data/quarantine"):
            disk._directory(directory).sync()
        tombstone = delete(disk)
        disk.power_cut()
        disk.restart()
        found = superblock_on(disk)
        if forgotten == "/data/tablet-meta":
            lost |= found is None or (found.data_state is DataState.READY and not disk.exists(LOG))
        else:
            lost |= not disk.exists(quarantine.path_of(DIRECTORIES, tombstone.quarantine))
    assert lost


# Copies.


def gathered_on(disk: SimDisk, copying: Superblock) -> LandingDirectory:
    return LandingDirectory(quarantine.path_of(DIRECTORIES, copying.quarantine), SOURCE)


def a_fetched_copy(disk: SimDisk) -> None:
    """A tombstone that is COPYING, and everything that was fetched for it."""
    a_replica(disk)
    copying = copy_install.begin_copying(disk, DIRECTORIES, delete(disk), SOURCE, NOW)
    gathered = gathered_on(disk, copying)
    for path in (gathered.path, gathered.rows, gathered.log):
        disk.make_dir(path)
        disk.sync_dir(path.rpartition("/")[0])
    for path in (gathered.rows, gathered.log):
        put(disk, f"{path}/fetched")
        disk.sync_dir(path)


def install(disk: SimDisk) -> None:
    found = superblock_on(disk)
    assert found is not None
    gathered = gathered_on(disk, found)
    remote = replace(a_superblock(), table_name="as the source has it")
    record = ConsensusRecord(TABLET, HardState(4, None), REMOTE_CONFIG)
    copy_install.put_in_place(
        disk,
        DIRECTORIES,
        promises_on(disk),
        FetchedReplica(remote, record, gathered.rows, gathered.log, "session"),
    )


def test_an_install_is_whole_or_undone_at_every_step():
    states = set()
    for step, disk in crash_at_each_step(a_fetched_copy, install):
        after = start(disk)
        assert after is not None
        states.add(after.data_state)
        after_power_cut(disk)
        assert superblock_on(disk) == after, step
        promises = promises_on(disk)
        assert promises.hard_state == VOTED, "the own term is higher: it stays, and with it the vote"
        if after.data_state is DataState.READY:
            assert after.table_name == "as the source has it"
            assert promises.config == REMOTE_CONFIG, step
            assert disk.list_dir(LOG) == disk.list_dir(ROWS) == ["fetched"], step
        else:
            assert (after.data_state, after.tombstone_last_op_id) == (DataState.DELETED, LAST)
            assert (disk.exists(LOG), disk.exists(ROWS)) == (False, False), step
    assert states == {DataState.READY, DataState.DELETED}


def test_what_was_fetched_waits_for_the_next_copy_when_a_process_is_killed_during_the_install():
    def disk_of(seed: int) -> SimDisk:
        disk = a_disk(seed)
        disk.power_cut = disk.kill
        return disk

    for step, disk in crash_at_each_step(a_fetched_copy, install, disk_of):
        after = start(disk)
        if after is not None and after.data_state is DataState.DELETED:
            copying = copy_install.begin_copying(disk, DIRECTORIES, after, SOURCE, NOW + 5)
            gathered = gathered_on(disk, copying)
            assert disk.list_dir(gathered.log) == disk.list_dir(gathered.rows) == ["fetched"], step


@pytest.mark.parametrize("forgotten", ["/data/data", "/data/wals", "/data/consensus-meta"])
def test_without_a_sync_an_install_is_seen_to_lose_what_it_promised(forgotten: str):
    class Forgetful(SimDisk):
        is_forgetting = False

        def drops_sync(self, path: str) -> bool:
            return self.is_forgetting and path == forgotten

    lost = False
    for seed in range(40):
        disk = Forgetful(random.Random(seed), survival=0.0)
        disk.make_dir("/data")
        disk.sync_dir("/")
        DIRECTORIES.create(disk)
        a_fetched_copy(disk)
        disk.is_forgetting = True
        install(disk)
        after_power_cut(disk)
        found = superblock_on(disk)
        assert found is not None
        assert found.data_state is DataState.READY
        lost |= not disk.exists(LOG) or not disk.exists(ROWS) or promises_on(disk).config != REMOTE_CONFIG
    assert lost


def test_the_beginning_of_a_copy_keeps_what_the_tombstone_knew_at_every_step():
    def begin(disk: SimDisk) -> None:
        found = superblock_on(disk)
        assert found is not None
        copy_install.begin_copying(disk, DIRECTORIES, found, SOURCE, NOW)

    def prepare(disk: SimDisk) -> None:
        a_replica(disk)
        delete(disk)

    for step, disk in crash_at_each_step(prepare, begin):
        after = start(disk)
        assert after is not None, step
        assert (after.data_state, after.tombstone_last_op_id) == (DataState.DELETED, LAST), step
        assert promises_on(disk).hard_state == VOTED, step


def test_a_first_copy_cut_short_leaves_nothing_or_a_tombstone_that_may_vote():
    def begin(disk: SimDisk) -> None:
        copy_install.begin_copying(disk, DIRECTORIES, copy_install.never_hosted(TABLET), SOURCE, NOW)

    seen = set()
    for step, disk in crash_at_each_step(lambda disk: None, begin):
        after = start(disk)
        seen.add(after is None)
        if after is not None:
            assert (after.data_state, after.tombstone_last_op_id) == (DataState.DELETED, OpId(0, 0)), step
            assert promises_on(disk).hard_state == HardState(0, None), step
        else:
            bootstrap.require_no_promises(disk, DIRECTORIES.consensus_metadata_path(TABLET), TABLET)
    assert seen == {True, False}
