"""Fetching a replica from another server: what must come, what may be used again, and how it can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.tablet import metadata
from kudu_py.tablet.directories import ReplicaDirectories, remove_tree
from kudu_py.tablet.tablet_copy.board import CopyProgress
from kudu_py.tablet.tablet_copy.client import FetchedReplica, fetch
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_replica import TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, batch_of, rows_of

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]

SMALL = TabletCopyOptions(chunk_bytes=1 << 10, piece_bytes=2 << 10, sync_bytes=4 << 10, bytes_per_s=0, burst_bytes=1)
OPTIONS = replace(TESTING_OPTIONS, copy=SMALL)
DIRECTORIES = ReplicaDirectories("/data")
TEXT = "x" * 200


@dataclass
class Rig:
    """A tablet on all hosts but the last, which copies it.

    Attributes:
        heard: the progress that was told.
    """

    group: ReplicaGroup
    tablet_id: TabletId
    heard: list[CopyProgress]

    @staticmethod
    async def start(*, sources: int = 1, seed: int = 1, options=OPTIONS) -> Rig:
        group = ReplicaGroup(seed, size=sources + 1, options=options)
        await group.start()
        new = group.new_tablet()
        members = tuple(m for m in new.config.members if m.uuid != group.hosts[-1].uuid)
        new = replace(new, config=RaftConfig(0, members))
        for host in group.hosts[:-1]:
            await host.manager.create_tablet(new)
        return Rig(group, new.tablet_id, [])

    @property
    def source(self) -> ReplicaHost:
        return self.group.hosts[0]

    @property
    def target(self) -> ReplicaHost:
        return self.group.hosts[-1]

    @property
    def replica(self) -> TabletReplica:
        return self.source.manager.replica(self.tablet_id)

    async def write(self, first: int, count: int, *, flush: bool = False) -> None:
        leader = await self.group.leader(self.tablet_id, self.group.hosts[:-1])
        await leader.write_batch(batch_of([(key, key * 2, TEXT) for key in range(first, first + count)]))
        if flush:
            await self.replica.checkpointer.flush()

    async def fetch(self, committed: OpId = MIN_OP_ID, source: ReplicaHost | None = None) -> FetchedReplica:
        source = source or self.source
        self.heard.clear()
        return await fetch(
            context=self.target.manager.context,
            dialer=self.group.network.dialer(self.target.address),
            tablet_id=self.tablet_id,
            source_uuid=source.uuid,
            source_address=source.address,
            committed_op_id=committed,
            directory=f"/data/{self.tablet_id}",
            on_progress=self.heard.append,
        )

    async def install(self, fetched: FetchedReplica) -> TabletReplica:
        """Puts what was fetched in place by hand, and opens it."""
        disk = self.target.disk
        await self.target.stop()
        for name in (DIRECTORIES.row_directory(self.tablet_id), DIRECTORIES.log_directory(self.tablet_id)):
            remove_tree(disk, name)
        disk.rename(fetched.rows_directory, DIRECTORIES.row_directory(self.tablet_id))
        disk.rename(fetched.log_directory, DIRECTORIES.log_directory(self.tablet_id))
        ConsensusMetadata.create(disk, DIRECTORIES.consensus_metadata_path(self.tablet_id), fetched.consensus)
        metadata.write(disk, DIRECTORIES.superblock_path(self.tablet_id), fetched.superblock)
        await self.target.start()
        return self.target.manager.replica(self.tablet_id)


def test_a_fetched_replica_has_the_rows_of_the_checkpoint_and_the_log_after_it(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(0, 100, flush=True)
        await rig.write(100, 50)
        fetched = await rig.fetch()
        copied = await rig.install(fetched)
        assert rows_of(copied) == [(key, key * 2, TEXT) for key in range(100)]
        assert copied.consensus.last_op_id == rig.replica.consensus.last_op_id
        assert copied.consensus.committed_config == rig.replica.consensus.committed_config
        assert fetched.consensus.hard_state.term == rig.replica.consensus.term
        assert fetched.consensus.hard_state.voted_for is None
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_never_took_a_write_can_be_fetched(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        copied = await rig.install(await rig.fetch())
        assert rows_of(copied) == []
        await rig.group.stop()

    simulate(main())


def test_a_source_that_lags_behind_what_is_committed_refuses(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
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
