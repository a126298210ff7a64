"""Fetching from a source that lags, is damaged, falls silent, or leads no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.pb import tablet_copy_pb2
from kudu_py.tablet.tablet_copy.landing import require_sound
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.copy_rig import DIRECTORIES, OPTIONS, SMALL_PIECES, FetchRig, some_rows
from kudu_py.testing.replica_group import rows_of

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_source_that_lags_behind_what_is_committed_refuses(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
        await rig.write(0, 10)
        ahead = OpId(rig.replica.consensus.term, rig.replica.applied.index + 1)
        with pytest.raises(KuduError, match="could forget what it has acknowledged") as refused:
            await rig.fetch(committed=ahead)
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        assert refused.value.details["side"] == "source"
        assert len(rig.source.copy_sessions) == 0
        await asyncio.sleep(0)
        await rig.group.stop()

    simulate(main())


def test_a_file_that_is_damaged_at_the_source_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
        await rig.write(0, 100, flush=True)
        (largest, *_) = sorted(rig.replica.superblock.rows.files, key=lambda file: -file.size_bytes)
        rig.source.disk.corrupt(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}", 2000, b"\xff\xfe\xfd")
        with pytest.raises(KuduError, match=f"{largest.name} does not have the checksum") as damaged:
            await rig.fetch()
        assert damaged.value.code is ErrorCode.CORRUPTION
        assert damaged.value.details["side"] == "source"
        assert largest.name not in rig.target.disk.list_dir(f"{rig.landed}/rows")
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("what", ["damaged", "missing", "shortened"])
def test_a_source_that_finds_its_own_file_damaged_fails_and_another_leader_serves(simulate: Simulate, what: str):
    async def main() -> None:
        rig = await FetchRig.start(sources=3)
        hosts = rig.group.hosts[:-1]
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, hosts)
        source = next(host for host in hosts if host.uuid == leader.consensus.uuid)
        await leader.checkpointer.flush()
        (largest, *_) = sorted(leader.superblock.rows.files, key=lambda file: -file.size_bytes)
        path = f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}"
        if what == "damaged":
            source.disk.corrupt(path, 2000, b"\xff\xfe\xfd")
        elif what == "missing":
            source.disk.unlink(path)
        else:
            file = source.disk.open(path, writable=True)
            file.truncate(file.size() - 10)
            file.close()
        with pytest.raises(KuduError):
            await rig.fetch(source=source)
        await rig.group.wait_until(lambda: leader.state is ReplicaState.FAILED)
        assert largest.name in str(leader.error)
        others = [host for host in hosts if host is not source]
        successor = await rig.group.leader(rig.tablet_id, others)
        await rig.fetch(source=next(host for host in others if host.uuid == successor.consensus.uuid))
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_is_all_there_is_does_not_fail_for_what_a_copy_finds(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
        await rig.write(0, 100, flush=True)
        (largest, *_) = sorted(rig.replica.superblock.rows.files, key=lambda file: -file.size_bytes)
        rig.source.disk.corrupt(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{largest.name}", 2000, b"\xff\xfe\xfd")
        with pytest.raises(KuduError):
            await rig.fetch()
        await asyncio.sleep(1)
        assert rig.replica.state is ReplicaState.RUNNING
        await rig.group.stop()

    simulate(main())


def test_a_file_that_is_missing_at_the_source_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
        await rig.write(0, 100, flush=True)
        missing = rig.replica.superblock.rows.files[0]
        rig.source.disk.unlink(f"{DIRECTORIES.row_directory(rig.tablet_id)}/{missing.name}")
        with pytest.raises(KuduError, match=f"{missing.name} is missing at the source") as gone:
            await rig.fetch()
        assert gone.value.code is ErrorCode.NOT_FOUND
        assert gone.value.details["side"] == "source"
        await rig.group.stop()

    simulate(main())


def test_a_source_that_falls_silent_is_given_up(simulate: Simulate):
    async def main() -> None:
        silent = replace(SMALL_PIECES, stall_timeout_s=0.5)
        rig = await FetchRig.start(options=replace(OPTIONS, copy=silent))
        await rig.write(0, 200, flush=True)
        task = await rig.fetch_until(lambda: rig.progress.bytes_done > 0)
        rig.group.network.cut(rig.source.address, rig.target.address, both_ways=False)
        with pytest.raises(KuduError, match="sent nothing for") as gave_up:
            await task
        assert gave_up.value.code is ErrorCode.UNAVAILABLE
        await rig.group.stop()

    simulate(main())


def test_a_source_that_is_not_there_is_named(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start()
        await rig.source.stop()
        with pytest.raises(KuduError, match=f"from server {rig.source.uuid} at {rig.source.address}") as gone:
            await rig.fetch()
        assert gone.value.code is ErrorCode.UNAVAILABLE
        await rig.group.stop()

    simulate(main())


def test_a_copy_outlives_a_change_of_the_leader(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start(sources=3)
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, rig.group.hosts[:-1])
        source = next(host for host in rig.group.hosts if host.uuid == leader.consensus.uuid)
        await leader.checkpointer.flush()
        task = asyncio.create_task(rig.fetch(committed=leader.applied, source=source))
        await rig.group.wait_until(lambda: bool(rig.heard) and rig.progress.bytes_done > 0)
        await leader.consensus.leader_step_down()
        await rig.group.wait_until(lambda: not leader.is_leader)
        copied = await rig.install(await task)
        assert rows_of(copied) == some_rows(0, 100)
        await rig.group.stop()

    simulate(main())


def test_a_follower_that_has_applied_what_is_committed_is_as_good_a_source(simulate: Simulate):
    async def main() -> None:
        rig = await FetchRig.start(sources=3)
        await rig.write(0, 100)
        leader = await rig.group.leader(rig.tablet_id, rig.group.hosts[:-1])
        follower = next(host for host in rig.group.hosts[:-1] if host.uuid != leader.consensus.uuid)
        replica = follower.manager.replica(rig.tablet_id)
        await rig.group.wait_until(lambda: replica.applied == leader.applied)
        await replica.checkpointer.flush()
        fetched = await rig.fetch(committed=leader.applied, source=follower)
        copied = await rig.install(fetched)
        assert rows_of(copied) == some_rows(0, 100)
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".hidden", "x.part", "wal-1\n", "x" * 200])
def test_a_source_cannot_make_files_outside_of_where_they_belong(name: str):
    with pytest.raises(KuduError, match="none of a replica's"):
        require_sound([tablet_copy_pb2.CopyFile(kind=tablet_copy_pb2.CopyFile.ROWS, name=name)])
