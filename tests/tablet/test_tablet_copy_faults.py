"""Copies while writes, flushes and compactions go on and everything happens to both servers; a seed is a story."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field, replace

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import TabletId
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing import sim_loop
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, Row, batch_of, rows_of
from kudu_py.testing.sim_network import SimNetworkOptions
from kudu_py.testing.tablet_rig import EAGER
from kudu_py.testing.waiting import wait_until
from kudu_py.wal.options import WalOptions

OPTIONS = replace(
    TESTING_OPTIONS,
    copy=TabletCopyOptions(
        chunk_bytes=1 << 10,
        piece_bytes=2 << 10,
        sync_bytes=4 << 10,
        bytes_per_s=150_000,
        burst_bytes=4000,
        idle_timeout_s=5.0,
        stall_timeout_s=2.0,
        handover_timeout_s=10.0,
    ),
    wal=WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=8192),
    tablet=TabletOptions(compaction=EAGER.compaction),
)
FAULTS = ("crash target", "crash source", "stop target", "cut", "cancel", "damage", "full disk", "delete")
TEXT = "0123456789abcdef" * 12


@dataclass
class Story:
    """Two servers, of which the second is to become a member, and a writer at the first.

    Attributes:
        acknowledged: what must be there in the end.
    """

    group: ReplicaGroup
    tablet_id: TabletId
    rng: random.Random
    acknowledged: dict[int, Row] = field(default_factory=dict)
    is_over: bool = False

    @staticmethod
    async def begin(seed: int) -> Story:
        network = SimNetworkOptions(duplicate_chance=0.1)
        group = ReplicaGroup(seed, size=2, options=OPTIONS, network_options=network)
        await group.start()
        new = replace(group.new_tablet(), config=RaftConfig(0, (group.hosts[0].member,)))
        await group.hosts[0].manager.create_tablet(new)
        return Story(group, new.tablet_id, random.Random(seed))

    @property
    def source(self) -> ReplicaHost:
        return self.group.hosts[0]

    @property
    def target(self) -> ReplicaHost:
        return self.group.hosts[1]

    def leader(self) -> TabletReplica | None:
        if self.source.running is None:
            return None
        with contextlib.suppress(KuduError):
            replica = self.source.manager.replica(self.tablet_id)
            return replica if replica.is_leader and replica.consensus.is_leader_ready() else None
        return None

    def joined(self, lag_max: int) -> TabletReplica | None:
        """The new replica, once it has all but so many of the entries that the leader has applied."""
        leader = self.leader()
        if leader is None or self.target.running is None:
            return None
        with contextlib.suppress(KuduError):
            replica = self.target.manager.replica(self.tablet_id)
            if replica.state is ReplicaState.RUNNING and replica.applied.index >= leader.applied.index - lag_max:
                return replica
        return None

    async def write_some(self) -> None:
        """Writes, flushes and compacts at the leader, until the story is over."""
        key = 0
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            leader = self.leader()
            if leader is None:
                continue
            rows: list[Row] = [(key + i, self.rng.getrandbits(30), TEXT[self.rng.randrange(150) :]) for i in range(8)]
            # A process that lost its disk never answers.
            with contextlib.suppress(KuduError, TimeoutError):
                async with asyncio.timeout(20.0):
                    await leader.write_batch(batch_of(rows))
                    self.acknowledged.update({row[0]: row for row in rows})
                    if self.rng.random() < 0.1:
                        await leader.checkpointer.flush()
                    if self.rng.random() < 0.1:
                        await leader.checkpointer.compact()
            key += 8

    async def happen(self, fault: str) -> None:
        """One fault, mended before it returns."""
        target, source, rng = self.target, self.source, self.rng
        pause_s = rng.uniform(0.01, 4.0)
        if fault == "crash target":
            await target.crash()
            await asyncio.sleep(pause_s)
            await target.restart()
        elif fault == "crash source":
            await source.crash()
            await asyncio.sleep(pause_s)
            await source.restart()
        elif fault == "stop target":
            await target.stop()
            await asyncio.sleep(pause_s)
            await target.start()
        elif fault == "cut":
            self.group.network.cut(source.address, target.address, both_ways=rng.random() < 0.5)
            await asyncio.sleep(pause_s)
            self.group.network.heal()
        elif fault == "cancel":
            with contextlib.suppress(KuduError):
                await target.manager.cancel_copy(self.tablet_id)
        elif fault == "delete":  # and the leader has it copied again
            with contextlib.suppress(KuduError):
                await target.manager.delete_tablet(self.tablet_id)
        elif fault == "damage":
            self._damage()
        elif fault == "full disk":
            target.disk.capacity_bytes = OPTIONS.wal.disk_reserved_bytes
            await asyncio.sleep(pause_s)
            target.disk.capacity_bytes = None

    def _damage(self) -> None:
        """Rots a byte of what an interrupted copy has left on the target."""
        disk = self.target.disk
        sizes = {path: len(disk.durable_content(path) or b"") for path in files_below(disk, "/data/quarantine")}
        found = [path for path, size in sizes.items() if 0 < size <= disk.size(path)]
        if found and not self.target.manager.context.copies.copies_to_here():
            path = self.rng.choice(found)
            disk.corrupt(path, self.rng.randrange(sizes[path]), bytes([self.rng.randrange(256)]))


def files_below(disk, path: str) -> list[str]:
    if not disk.exists(path):
        return []
    found: list[str] = []
    for name in disk.list_dir(path):
        try:
            found.extend(files_below(disk, f"{path}/{name}"))
        except NotADirectoryError:
            found.append(f"{path}/{name}")
    return found


async def tell(seed: int) -> tuple[int, int]:
    story = await Story.begin(seed)
    group, rng = story.group, story.rng
    writing = asyncio.create_task(story.write_some())
    await wait_until(lambda: len(story.acknowledged) > 100)
    joining = story.target
    member = Member(joining.uuid, MemberType.PRE_VOTER, joining.address)
    while True:  # the answer may be lost with the source; asked again, it is answered alike
        await wait_until(lambda: story.leader() is not None)
        leader = story.leader()
        assert leader is not None
        with contextlib.suppress(KuduError):
            await leader.consensus.change_config(ConfigChange.ADD_SERVER, member)
            break
    for _ in range(rng.randint(3, 6)):
        await asyncio.sleep(rng.uniform(0.0, 0.8))
        await story.happen(rng.choice(FAULTS))
    await wait_until(lambda: story.joined(20), timeout_s=120)
    story.is_over = True
    await writing
    await wait_until(lambda: story.joined(0), timeout_s=120)
    joined, leader = story.joined(0), story.leader()
    assert joined is not None
    assert leader is not None
    assert rows_of(joined) == rows_of(leader)
    there = {row[0]: row for row in rows_of(joined)}
    assert {key: there.get(key) for key in story.acknowledged} == story.acknowledged
    # Nothing is held any more for copies that have ended.
    await asyncio.sleep(OPTIONS.copy.handover_timeout_s + OPTIONS.copy.idle_timeout_s)
    assert leader.log.anchors.lowest() is None
    assert len(leader.checkpointer.pins) == 0
    named = {file.name for file in leader.superblock.rows.files}
    assert set(story.source.disk.list_dir(f"/data/data/{story.tablet_id}")) == named
    assert group.fatal() == []
    copies = joining.manager.context.copies
    await group.stop()
    return copies.bytes_fetched, copies.bytes_resumed


@pytest.mark.parametrize("seed", range(12))
def test_a_new_replica_has_every_acknowledged_row_whatever_happens_while_it_is_copied(seed: int):
    sim_loop.run(tell(seed), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 250))
def test_a_new_replica_has_every_acknowledged_row_over_many_seeds(seed: int):
    sim_loop.run(tell(seed), seed=seed)
