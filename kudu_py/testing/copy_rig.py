"""`CopyRig`: a tablet on some simulated servers, and one server more that copies it; fetched by hand, or by order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from kudu_py.common.ids import TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.pb import consensus_pb2
from kudu_py.tablet import metadata
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.directories import ReplicaDirectories, remove_tree
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.tablet_copy.board import CopyProgress
from kudu_py.tablet.tablet_copy.client import FetchedReplica, fetch
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, Row, batch_of
from kudu_py.testing.waiting import wait_until

DIRECTORIES: Final = ReplicaDirectories("/data")
SMALL_PIECES: Final = TabletCopyOptions(
    chunk_bytes=1 << 10, piece_bytes=2 << 10, sync_bytes=4 << 10, bytes_per_s=0, burst_bytes=1
)
OPTIONS: Final = replace(TESTING_OPTIONS, copy=SMALL_PIECES)
"""Some kilobytes make a copy of many pieces."""
ROWS: Final[list[Row]] = [(key, key, "x" * 200) for key in range(50)]
"""What is there to be copied by order: half of it in files, half in the log."""


def some_rows(first: int, count: int) -> list[Row]:
    """Rows that no encoding makes small."""
    return [(key, key * 2, f"{random.Random(key).getrandbits(800):0200x}") for key in range(first, first + count)]


@dataclass
class CopyRig:
    """A tablet on all servers but the last, which copies it."""

    group: ReplicaGroup
    tablet_id: TabletId

    @classmethod
    async def start(cls, *, sources: int = 1, seed: int = 1, options: ReplicaOptions = OPTIONS) -> Self:
        """Started servers, and an empty tablet on the first ones."""
        group = ReplicaGroup(seed, size=sources + 1, options=options)
        await group.start()
        new = group.new_tablet()
        members = tuple(member for member in new.config.members if member.uuid != group.hosts[-1].uuid)
        new = replace(new, config=RaftConfig(0, members))
        for host in group.hosts[:-1]:
            await host.manager.create_tablet(new)
        return cls(group, new.tablet_id)

    @property
    def source(self) -> ReplicaHost:
        """The first server."""
        return self.group.hosts[0]

    @property
    def target(self) -> ReplicaHost:
        """The last server."""
        return self.group.hosts[-1]

    @property
    def replica(self) -> TabletReplica:
        """The first server's."""
        return self.source.manager.replica(self.tablet_id)

    async def leader(self) -> TabletReplica:
        """Waits for a leader that takes writes."""
        return await self.group.leader(self.tablet_id, self.group.hosts[:-1])


@dataclass
class FetchRig(CopyRig):
    """The target fetches the files of a replica and puts them in place by hand.

    Attributes:
        heard: the progress that was told.
    """

    heard: list[CopyProgress] = field(default_factory=list)

    async def write(self, first: int, count: int, *, flush: bool = False) -> None:
        """Has some rows written, and the first server flush them."""
        await (await self.leader()).write_batch(batch_of(some_rows(first, count)))
        if flush:
            await self.replica.checkpointer.flush()

    async def fetch(self, committed: OpId = MIN_OP_ID, source: ReplicaHost | None = None) -> FetchedReplica:
        """Fetches from the first server, or another."""
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

    @property
    def progress(self) -> CopyProgress:
        """What was told last."""
        return self.heard[-1]

    @property
    def landed(self) -> str:
        """Where files of the source are on the target."""
        return f"/data/{self.tablet_id}/{self.source.uuid}"

    def fetched_bytes(self) -> int:
        """By all fetches of the target's process."""
        return self.target.manager.context.copies.bytes_fetched

    async def fetch_until(self, holds: Callable[[], bool]) -> asyncio.Task[FetchedReplica]:
        """A fetch that is under way and has come to a point."""
        task = asyncio.create_task(self.fetch())
        await self.group.wait_until(lambda: task.done() or (bool(self.heard) and holds()))
        assert not task.done(), "it ended before"
        return task

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


@dataclass
class OrderRig(CopyRig):
    """The target's server is ordered to copy a tablet that holds `ROWS`."""

    @classmethod
    async def start(cls, *, sources: int = 1, seed: int = 1, options: ReplicaOptions = OPTIONS) -> Self:
        rig = await super().start(sources=sources, seed=seed, options=options)
        await (await rig.leader()).write_batch(batch_of(ROWS[:25]))
        await (await rig.leader()).checkpointer.flush()
        await (await rig.leader()).write_batch(batch_of(ROWS[25:]))
        return rig

    async def request(self, **fields: Any) -> consensus_pb2.StartTabletCopyRequest:
        """The order of who leads to copy from there, but for `fields`."""
        leader = await self.leader()
        host = next(host for host in self.group.hosts if host.uuid == leader.consensus.uuid)
        values: dict[str, Any] = {
            "dest_uuid": self.target.uuid,
            "tablet_id": self.tablet_id,
            "caller_uuid": host.uuid,
            "caller_term": leader.consensus.term,
            "source_uuid": host.uuid,
            "source_address": host.address,
        }
        return consensus_pb2.StartTabletCopyRequest(**(values | fields))

    async def begin(self, **fields: Any) -> None:
        """Gives that order; the copy has begun on return."""
        await self.target.manager.start_tablet_copy(await self.request(**fields))

    async def begin_and_lose_source(self) -> None:
        """A copy whose source stops once the target has given up what it had."""
        await self.begin()
        await wait_until(
            lambda: [replica.state for replica in self.target.manager.replicas()] == [ReplicaState.COPYING],
            step_s=0.0001,
        )
        await self.source.stop()
        await self.rest()

    async def rest(self) -> None:
        """Waits until no copy is under way."""
        await self.group.wait_until(lambda: not self.target.manager._copies._targets)

    @property
    def copied(self) -> TabletReplica:
        """The target's."""
        return self.target.manager.replica(self.tablet_id)

    def tombstone(self) -> Superblock:
        """The only one at the target."""
        (tombstone,) = self.target.manager.tombstones()
        return tombstone

    def promises(self) -> ConsensusMetadata:
        """What the target's disk remembers of term, vote and config."""
        return ConsensusMetadata.load(
            self.target.disk, DIRECTORIES.consensus_metadata_path(self.tablet_id), self.tablet_id
        )

    def vote_request(self, term: int, last: OpId) -> consensus_pb2.RequestVoteRequest:
        """The first server's, as a candidate, to the target."""
        request = consensus_pb2.RequestVoteRequest(
            dest_uuid=self.target.uuid, tablet_id=self.tablet_id, candidate_uuid=self.source.uuid, candidate_term=term
        )
        request.last_op_id.term, request.last_op_id.index = last
        return request

    def assert_copied(self) -> None:
        """The target runs what the source has."""
        assert self.copied.state is ReplicaState.RUNNING
        assert self.copied.consensus.last_op_id == self.replica.consensus.last_op_id
        if len(self.group.hosts) == 2:
            assert self.copied.superblock.rows == self.replica.superblock.rows
        assert self.copied.superblock.quarantine == ""
        assert self.target.fatal == []
