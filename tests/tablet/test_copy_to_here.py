"""A replica that is copied to this server: what is refused, how it comes to life, and how it goes back when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.manager import DeleteType
from kudu_py.tablet.metadata import DataState
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.sim_disk import Fault, Operation

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
DIRECTORIES = ReplicaDirectories("/data")
OPTIONS = replace(
    TESTING_OPTIONS,
    copy=TabletCopyOptions(chunk_bytes=1 << 10, piece_bytes=2 << 10, sync_bytes=4 << 10, bytes_per_s=0, burst_bytes=1),
)
ROWS = [(key, key, "x" * 200) for key in range(50)]


@dataclass
class Rig:
    """A tablet on the first hosts; the last one copies it."""

    group: ReplicaGroup
    tablet_id: TabletId

    @staticmethod
    async def start(*, sources: int = 1, options: Any = OPTIONS, seed: int = 1) -> Rig:
        group = ReplicaGroup(seed, size=sources + 1, options=options)
        await group.start()
        new = group.new_tablet()
        members = tuple(member for member in new.config.members if member.uuid != group.hosts[-1].uuid)
        new = replace(new, config=RaftConfig(0, members))
        for host in group.hosts[:-1]:
            await host.manager.create_tablet(new)
        rig = Rig(group, new.tablet_id)
        await (await rig.leader()).write_batch(batch_of(ROWS[:25]))
        await (await rig.leader()).checkpointer.flush()
        await (await rig.leader()).write_batch(batch_of(ROWS[25:]))
        return rig

    @property
    def source(self) -> ReplicaHost:
        return self.group.hosts[0]

    @property
    def target(self) -> ReplicaHost:
        return self.group.hosts[-1]

    async def leader(self) -> TabletReplica:
        return await self.group.leader(self.tablet_id, self.group.hosts[:-1])

    async def request(self, **fields: Any) -> consensus_pb2.StartTabletCopyRequest:
        leader = await self.leader()
        host = next(host for host in self.group.hosts if host.uuid == leader.consensus.uuid)
        values = {
            "dest_uuid": self.target.uuid,
            "tablet_id": self.tablet_id,
            "caller_uuid": host.uuid,
            "caller_term": leader.consensus.term,
            "source_uuid": host.uuid,
            "source_address": host.address,
        }
        return consensus_pb2.StartTabletCopyRequest(**(values | fields))

    async def begin(self, **fields: Any) -> None:
        await self.target.manager.start_tablet_copy(await self.request(**fields))

    async def rest(self) -> None:
        """Waits until no copy is under way."""
        await self.group.wait_until(lambda: not self.target.manager._copies)

    @property
    def copied(self) -> TabletReplica:
        return self.target.manager.replica(self.tablet_id)

    def tombstone(self) -> Any:
        (tombstone,) = self.target.manager.tombstones()
        return tombstone

    def promises(self) -> ConsensusMetadata:
        return ConsensusMetadata.load(
            self.target.disk, DIRECTORIES.consensus_metadata_path(self.tablet_id), self.tablet_id
        )

    def assert_copied(self) -> None:
        assert self.copied.state is ReplicaState.RUNNING
        replica = self.source.manager.replica(self.tablet_id)
        assert self.copied.consensus.last_op_id == replica.consensus.last_op_id
        assert self.copied.superblock.rows == replica.superblock.rows
        assert self.copied.superblock.quarantine == ""
        assert self.target.fatal == []


def test_a_server_that_never_had_the_tablet_gets_it(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.begin(expected_state=consensus_pb2.DOES_NOT_EXIST)
        await rig.rest()
        rig.assert_copied()
        await rig.target.crash()
        await rig.target.restart()
        rig.assert_copied()
        assert rig.promises().hard_state.voted_for is None
        assert rows_of(rig.copied) == ROWS[:25], "of the checkpoint; the rest follows when the leader says it is committed"
        await rig.group.stop()

    simulate(main())
