"""Term, vote and config on disk."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import HardState, Member, MemberType, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord, merge
from kudu_py.testing.sim_disk import Fault, Operation, SimDisk, SimDiskThreads

TABLET = TabletId("a" * 32)
A, B, C = (ServerId(letter * 32) for letter in "abc")
PATH = "/meta/tablet"


def config(index, *uuids):
    return RaftConfig(index, tuple(Member(uuid, MemberType.VOTER, f"{uuid[0]}:1") for uuid in uuids))


def record(term=0, voted_for=None, members=None):
    return ConsensusRecord(TABLET, HardState(term, voted_for), members or config(0, A, B, C))


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(1))
    disk.make_dir("/meta")
    disk.sync_dir("/")
    return disk


def attached(disk, *, threads=None):
    metadata = ConsensusMetadata.create(disk, PATH, record())
    threads = threads or SimDiskThreads(disk, random.Random(1))
    durable, failures = [], []
    metadata.attach(threads, on_durable=durable.append, on_failure=failures.append)
    return metadata, threads, durable, failures


class TestFile:
    def test_what_was_created_is_loaded(self, disk):
        wanted = record(7, B, config(12, A, B))
        ConsensusMetadata.create(disk, PATH, wanted)
        disk.power_cut()
        disk.restart()
        assert ConsensusMetadata.load(disk, PATH, TABLET).durable == wanted

    def test_a_file_of_another_tablet_is_refused_by_name(self, disk):
        ConsensusMetadata.create(disk, PATH, record())
        with pytest.raises(KuduError, match=PATH) as refused:
            ConsensusMetadata.load(disk, PATH, TabletId("b" * 32))
        assert refused.value.code is ErrorCode.CORRUPTION

    def test_a_damaged_file_is_refused_by_name(self, disk):
        ConsensusMetadata.create(disk, PATH, record(7, B))
        disk.corrupt(PATH, 30, b"\xff")
        with pytest.raises(KuduError, match=PATH) as refused:
            ConsensusMetadata.load(disk, PATH, TABLET)
        assert refused.value.code is ErrorCode.CORRUPTION

    @pytest.mark.parametrize("step", range(6))
    def test_a_crash_at_any_step_leaves_the_old_or_the_new_record_whole(self, disk, step):
        old, new = record(3, A), record(4, B)
        ConsensusMetadata.create(disk, PATH, old)
        operations = [Operation.CREATE, Operation.WRITE, Operation.SYNC, Operation.RENAME, Operation.SYNC_DIR]
        if step < len(operations):
            disk.inject(Fault(operations[step], errno.EIO))
            with pytest.raises(OSError, match="Input/output"):
                ConsensusMetadata.create(disk, PATH, new)
        else:
            ConsensusMetadata.create(disk, PATH, new)
        disk.power_cut()
        disk.restart()
        found = ConsensusMetadata.load(disk, PATH, TABLET).durable
        assert found == new if step == len(operations) else found in (old, new)


class TestFlush:
    def test_what_is_reported_durable_is_what_was_written(self, disk, simulate):
        async def story():
            metadata, threads, durable, _ = attached(disk)
            threads.hang()
            metadata.set_hard_state(HardState(1, A))
            metadata.set_hard_state(HardState(2, None))
            metadata.set_hard_state(HardState(3, B))
            assert metadata.hard_state == HardState(3, B)
            assert durable == []
            threads.release()
            await asyncio.sleep(1)
            assert durable == [HardState(1, A), HardState(3, B)], "changes during a flush share the next"
            assert (metadata.hard_states_wanted, metadata.hard_states_durable) == (3, 3)

        simulate(story())

    def test_a_config_alone_reports_no_hard_state(self, disk, simulate):
        async def story():
            metadata, _, durable, _ = attached(disk)
            metadata.set_config(config(5, A, B))
            woken = []
            metadata.when_durable(lambda: woken.append(metadata.durable.config.config_index))
            await asyncio.sleep(1)
            assert durable == []
            assert woken == [5]
            assert metadata.is_durable

        simulate(story())

    def test_nothing_is_written_or_reported_after_a_failure(self, disk, simulate):
        async def story():
            metadata, _, durable, failures = attached(disk)
            disk.inject(Fault(Operation.SYNC, errno.EIO))
            metadata.set_hard_state(HardState(1, A))
            metadata.set_hard_state(HardState(2, B))
            await asyncio.sleep(1)
            metadata.set_hard_state(HardState(3, B))
            await asyncio.sleep(1)
            assert durable == []
            assert [error.errno for error in failures] == [errno.EIO]

        simulate(story())

    def test_a_vote_never_changes_within_a_term_and_the_term_never_falls(self, disk, simulate):
        async def story():
            metadata, *_ = attached(disk)
            metadata.set_hard_state(HardState(2, A))
            for forgetful in (HardState(2, B), HardState(2, None), HardState(1, None)):
                with pytest.raises(AssertionError):
                    metadata.set_hard_state(forgetful)
            await asyncio.sleep(1)

        simulate(story())


class TestMerge:
    """Seed 002, "Consensus metadata merge"."""

    def test_a_new_replica_takes_term_and_config_but_no_vote(self):
        merged = merge(None, record(4, B, config(9, A, B)))
        assert merged == record(4, None, config(9, A, B))

    def test_the_highest_term_is_adopted_without_the_remotes_vote(self):
        merged = merge(record(3, C), record(5, B, config(9, A, B)))
        assert merged == record(5, None, config(9, A, B))

    @pytest.mark.parametrize("remote_term", [1, 7])
    def test_the_own_vote_is_kept_if_the_remote_term_is_not_higher(self, remote_term):
        merged = merge(record(7, C), record(remote_term, B, config(9, A, B)))
        assert merged == record(7, C, config(9, A, B))
