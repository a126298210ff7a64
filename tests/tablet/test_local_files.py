"""Offline tools: what is found in a stopped server's directory, and what is changed in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.local_files import LocalFiles
from kudu_py.tablet.metadata import DataState
from kudu_py.tablet.tablet_copy.board import CopyProgress
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.sim_disk import SimDiskThreads

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
DIRECTORIES = ReplicaDirectories("/data")
UNKNOWN = TabletId("d" * 32)


def files_of(host: ReplicaHost) -> LocalFiles:
    return LocalFiles(host.disk, DIRECTORIES, host.uuid)


async def stopped(size: int = 1) -> tuple[ReplicaGroup, TabletId, OpId]:
    """A group whose first host is stopped, its tablet, and where that host's log ends."""
    group = ReplicaGroup(size=size)
    await group.start()
    tablet_id = await group.create()
    await group.write(tablet_id, batch_of([(1, 1, "one")]))
    await group.settle(tablet_id)
    last = group.hosts[0].manager.replica(tablet_id).consensus.last_op_id
    await group.hosts[0].stop()
    return group, tablet_id, last


def test_replicas_are_listed_with_what_is_wrong_with_them(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, last = await stopped()
        host = group.hosts[0]
        (found,) = files_of(host).replicas()
        assert (found.tablet_id, found.error) == (tablet_id, "")
        assert found.superblock is not None
        assert found.superblock.table_name == "table"
        assert found.consensus is not None
        assert found.consensus.config.voters == (host.uuid,)
        assert found.log_bytes > 0
        assert files_of(host).last_op_id(tablet_id) == last
        host.disk.rename(DIRECTORIES.row_directory(tablet_id), "/data/elsewhere")
        (found,) = files_of(host).replicas()
        assert "is missing" in found.error

    simulate(main())


def test_a_replica_deleted_offline_votes_when_the_server_starts(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, last = await stopped(3)
        host = group.hosts[0]
        tombstone = files_of(host).delete(tablet_id, now_micros=1_800_000_000_000_000)
        assert (tombstone.data_state, tombstone.tombstone_last_op_id) == (DataState.DELETED, last)
        assert files_of(host).delete(tablet_id, now_micros=1) == tombstone, "once is enough"
        assert len(files_of(host).quarantine()) == 1
        await host.restart()
        assert [found.tablet_id for found in host.manager.tombstones()] == [tablet_id]
        await group.stop()

    simulate(main())


def test_a_replica_deleted_completely_offline_is_gone(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, _ = await stopped()
        host = group.hosts[0]
        files_of(host).delete(tablet_id, now_micros=1_800_000_000_000_000)
        files_of(host).delete(tablet_id, now_micros=1_800_000_000_000_000, is_forgotten=True)
        assert files_of(host).replicas() == []
        with pytest.raises(KuduError) as refused:
            files_of(host).delete(tablet_id, now_micros=1)
        assert refused.value.code is ErrorCode.TABLET_NOT_FOUND

    simulate(main())


def test_the_quarantine_is_purged_of_one_tablet_or_of_all(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, _ = await stopped()
        files = files_of(group.hosts[0])
        files.delete(tablet_id, now_micros=1_800_000_000_000_000)
        assert files.purge_quarantine(UNKNOWN) == []
        (purged,) = files.purge_quarantine(tablet_id)
        assert purged.name.tablet_id == tablet_id
        assert files.quarantine() == []

    simulate(main())


def test_a_rewritten_config_lets_the_last_replica_carry_on(simulate: Simulate):
    """Two of three are gone for good; the third has all that was acknowledged, and leads alone."""

    async def main() -> None:
        group, tablet_id, last = await stopped(3)
        host = group.hosts[0]
        for other in group.hosts[1:]:
            await other.stop()
        rewritten = files_of(host).rewrite_raft_config(tablet_id, [host.member])
        assert rewritten.config == RaftConfig(last.index, (host.member,))
        assert files_of(host).consensus(tablet_id) == rewritten
        await host.restart()
        replica = await group.leader(tablet_id, [host])
        await replica.write_batch(batch_of([(2, 2, None)]))
        assert rows_of(replica) == [(1, 1, "one"), (2, 2, None)]
        assert replica.consensus.committed_config.voters == (host.uuid,)
        await group.stop()

    simulate(main())


def test_a_config_that_nobody_can_lead_is_refused(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, _ = await stopped()
        host = group.hosts[0]
        files = files_of(host)
        learner = Member(host.uuid, MemberType.PRE_VOTER, host.address)
        for members in ([], [learner], [host.member, host.member]):
            with pytest.raises(KuduError) as refused:
                files.rewrite_raft_config(tablet_id, members)
            assert refused.value.code is ErrorCode.INVALID_CONFIG
        files.delete(tablet_id, now_micros=1_800_000_000_000_000)
        with pytest.raises(KuduError) as refused:
            files.rewrite_raft_config(tablet_id, [host.member])
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        for tablet in ("../x", "", "Z" * 32):
            with pytest.raises(KuduError) as refused:
                files.rewrite_raft_config(tablet, [host.member])
            assert refused.value.code is ErrorCode.INVALID_ARGUMENT

    simulate(main())


async def copy(host: ReplicaHost, source: ReplicaHost, tablet_id: str) -> None:
    heard: list[CopyProgress] = []
    await files_of(host).copy_from_remote(
        tablet_id,
        source_uuid=source.uuid,
        source_address=source.address,
        threads=SimDiskThreads(host.disk, host.rng),
        dialer=host.network.dialer(host.address),
        clock=host.clock,
        options=host.options,
        on_progress=heard.append,
    )
    assert heard


def test_a_replica_is_copied_from_a_server_that_runs(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, _ = await stopped(3)
        host = group.hosts[0]
        leader = await group.leader(tablet_id, group.hosts[1:])
        source = next(other for other in group.hosts if other.uuid == leader.consensus.uuid)
        assert (await refusal(copy(host, source, tablet_id))).code is ErrorCode.ALREADY_PRESENT
        assert (await refusal(copy(host, host, tablet_id))).code is ErrorCode.INVALID_ARGUMENT
        files_of(host).delete(tablet_id, now_micros=1_800_000_000_000_000)
        await copy(host, source, tablet_id)
        await host.restart()
        assert host.manager.replica(tablet_id).state is ReplicaState.RUNNING
        await group.settle(tablet_id)
        await asyncio.sleep(5)
        assert rows_of(host.manager.replica(tablet_id)) == [(1, 1, "one")]
        await group.stop()

    simulate(main())


def test_a_copy_that_fails_offline_leaves_the_tombstone(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, last = await stopped(3)
        host, source = group.hosts[:2]
        tombstone = files_of(host).delete(tablet_id, now_micros=1_800_000_000_000_000)
        await source.stop()
        error = await refusal(copy(host, source, tablet_id))
        assert error.code is ErrorCode.UNAVAILABLE
        (found,) = files_of(host).replicas()
        assert found.superblock == replace(tombstone, quarantine="")
        assert found.superblock.tombstone_last_op_id == last
        await group.stop()

    simulate(main())


def test_what_a_crash_interrupted_is_brought_to_an_end_first(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, _ = await stopped()
        host = group.hosts[0]
        for step in (3, 9, 14):
            files = files_of(host)
            host.disk.crash_at_step = host.disk.steps + step
            with pytest.raises(BaseException):  # noqa: B017, PT011  # the simulated process ends
                files.delete(tablet_id, now_micros=1_800_000_000_000_000)
            host.disk.restart()
            (found,) = files_of(host).replicas()
            assert found.error == ""

    simulate(main())


def test_the_uuid_is_of_the_directory(simulate: Simulate):
    async def main() -> None:
        group, _, _ = await stopped()
        files = files_of(group.hosts[0])
        with pytest.raises(KuduError) as refused:
            files.consensus(UNKNOWN)
        assert refused.value.code is ErrorCode.TABLET_NOT_FOUND
        assert ServerId(group.hosts[0].uuid) == group.hosts[0].uuid

    simulate(main())
