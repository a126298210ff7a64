"""When the next step of a tablet is taken, and when not: against a leader that does, or does not do, as it is told."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.catalog.entries import TableEntry, TableState, TabletEntry, TabletState
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.replica_ops import ChangeKind, ConfigChange
from kudu_py.master.catalog.report_ops import CopyProgress, PeerHealth, PeerStatus, ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.consensus_client import Endpoint, GroupView
from kudu_py.master.member_policy import MemberPolicy
from kudu_py.master.tablet_turns import TabletTurns
from kudu_py.master.ts_registry import Heartbeat, Registration, Report, TsRegistry
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_clock import SimClock

PATIENCE_S = 30.0
TABLE = TableId("ab" * 16)
SCHEMA = Schema((ColumnSchema("key", DataType.INT64, column_id=0),), key_count=1)


def server(n: int) -> ServerId:
    return ServerId(f"5e{n:030x}")


def tablet_id(n: int) -> TabletId:
    return TabletId(f"7a{n:030x}")


class ObedientStore:
    """Everything is durable at once."""

    async def write(self, change: CatalogChange) -> None:
        await asyncio.sleep(0)


@dataclass
class Leaders:
    """The `ConsensusAdmin` of the test: notes what it is asked for, and refuses if it is told to."""

    rig: Rig
    asked: list[tuple[float, ServerId, ConfigChange]] = field(default_factory=list)
    refusal: KuduError | None = None

    async def view(self, at: Endpoint, tablet_id: TabletId, *, timeout_s: float) -> GroupView:
        raise AssertionError("the policy rests on reports")

    async def step_down(self, at: Endpoint, tablet_id: TabletId, successor, *, timeout_s: float) -> None:
        raise AssertionError("a leader hands over when it is told to remove itself")

    async def change_config(self, at: Endpoint, change: ConfigChange, *, timeout_s: float) -> RaftConfig:
        self.asked.append((asyncio.get_running_loop().time(), at.uuid, change))
        await asyncio.sleep(0.01)
        if self.refusal is not None:
            raise self.refusal
        config = self.rig.state.tablets[change.tablet_id].config
        assert change.expected_config_index == config.config_index
        members = [member for member in config.members if member.uuid != change.server]
        if change.kind is ChangeKind.ADD:
            members.append(Member(change.server, MemberType.PRE_VOTER, change.address, promote=change.promote))
        return RaftConfig(config.config_index + 1, tuple(sorted(members, key=lambda member: member.uuid)))


class Rig:
    """Tablets on servers 1 to 3, led by server 1, and a master that hears of servers 1 to 5."""

    def __init__(self, *, tablets: int = 1, **options) -> None:
        self.clock = SimClock()
        self.options = CatalogOptions(follower_unavailable_considered_failed_s=PATIENCE_S, **options)
        now_s = self.clock.monotonic()
        self.registry = TsRegistry(started_s=now_s, unresponsive_timeout_s=10.0, settle_s=2.0)
        self.committer = Committer(ObedientStore(), on_published=lambda change: None, on_doubt=lambda term: None)
        self.leaders = Leaders(self)
        self.turns = TabletTurns()
        self.bugs: list[BaseException] = []
        self.policy = MemberPolicy(
            committer=self.committer,
            registry=self.registry,
            admin=self.leaders,
            turns=self.turns,
            clock=self.clock,
            rng=random.Random(1),
            options=self.options,
            on_bug=self.bugs.append,
        )
        config = RaftConfig(5, tuple(Member(server(n), MemberType.VOTER, f"host{n}:7050") for n in (1, 2, 3)))
        self.health = {2: PeerHealth.HEALTHY, 3: PeerHealth.HEALTHY}
        self.silent: set[int] = set()
        self.copy: ReportedReplica | None = None
        table = TableEntry(TABLE, "t", TableState.RUNNING, SCHEMA, PartitionSchema(), 3, 1)
        entries = [
            TabletEntry(tablet_id(n), TABLE, Partition((n,)), TabletState.RUNNING, config) for n in range(tablets)
        ]
        self.committer.begin(1, CatalogState.build(None, [table], entries))
        self.policy.reign_began()

    @property
    def state(self) -> CatalogState:
        return self.committer.require_reign().state

    @property
    def changes(self) -> list[ConfigChange]:
        return [change for _, _, change in self.leaders.asked]

    def report(self) -> None:
        """Heartbeats of all that are not silent, with the leader's word on its peers."""
        now_s = self.clock.monotonic()
        for n in range(1, 6):
            if n in self.silent:
                continue
            heard = self.registry.take_heartbeat(Heartbeat(server(n), 1, Registration(f"host{n}:7050")), now_s)
            assert heard is not None
            if n == 1:
                replicas = [self._leader(entry) for entry in self.state.tablets.values()]
                self.registry.take_report(heard, Report(False, 1, replicas))
            if n == 3 and self.copy is not None:
                self.registry.take_report(heard, Report(False, 1, [self.copy]))

    def _leader(self, entry: TabletEntry) -> ReportedReplica:
        peers = tuple(
            PeerStatus(member.uuid, self.health.get(int(member.uuid[2:], 16), PeerHealth.UNKNOWN))
            for member in entry.config.members
        )
        return ReportedReplica(
            entry.tablet_id, ReplicaState.RUNNING, Role.LEADER, 1, server(1), entry.config, peers=peers
        )

    async def run(self, seconds: float, *, step_s: float = 1.0) -> None:
        """Reports and sweeps, once a second."""
        for _ in range(round(seconds / step_s)):
            self.report()
            self.sweep()
            await asyncio.sleep(step_s)
        assert not self.bugs

    def sweep(self) -> None:
        reign, now_s = self.committer.require_reign(), self.clock.monotonic()
        self.policy.begin_sweep(reign, now_s)
        for entry in reign.state.tablets.values():
            self.policy.look(reign, entry, now_s)


@pytest.fixture
def tell():
    def run(story, **given) -> None:
        async def main() -> None:
            rig = Rig(**given)
            await story(rig)
            await rig.policy.close()

        sim_loop.run(main(), seed=1)

    return run


def test_a_step_is_asked_of_the_leader_with_the_config_index_that_was_seen(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        await rig.run(8)
        ((_, at, change),) = rig.leaders.asked
        assert at == server(1)
        assert (change.kind, change.expected_config_index) == (ChangeKind.ADD, 5)
        assert (change.member_type, change.promote) == (MemberType.PRE_VOTER, True)
        assert change.server in (server(4), server(5))
        assert rig.state.tablets[tablet_id(0)].config.config_index == 6

    tell(story)


def test_nothing_is_done_before_servers_had_the_time_to_be_heard(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        await rig.run(3)
        assert not rig.changes

    tell(story)


def test_a_silent_server_is_gone_after_the_patience(tell):
    async def story(rig):
        rig.health[3], rig.silent = PeerHealth.UNKNOWN, {3}
        await rig.run(PATIENCE_S)
        assert not rig.changes
        await rig.run(3)
        assert [change.kind for change in rig.changes] == [ChangeKind.ADD]

    tell(story)


def test_a_pause_of_the_master_is_not_a_silence_of_servers(tell):
    async def story(rig):
        rig.health = {}
        await rig.run(5)
        await asyncio.sleep(10 * PATIENCE_S)
        rig.sweep()
        await asyncio.sleep(1)
        rig.sweep()
        await rig.run(5)
        assert not rig.changes

    tell(story)


def test_a_replica_that_could_not_be_copied_for_long_is_past_help(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.NEEDS_COPY
        await rig.run(PATIENCE_S)
        assert not rig.changes
        await rig.run(8)
        assert (rig.changes[0].kind, rig.changes[0].server) == (ChangeKind.REMOVE, server(3))
        assert rig.changes[1].kind is ChangeKind.ADD
        assert rig.changes[1].server != server(3), "another is tried first"

    tell(story)


def test_a_copy_that_gets_on_is_waited_for_however_long_it_takes(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.NEEDS_COPY
        for done in range(1, 8):
            progress = CopyProgress(server(1), 1000, done)
            rig.copy = ReportedReplica(tablet_id(0), ReplicaState.COPYING, copy=progress)
            await rig.run(PATIENCE_S - 5)
        assert not rig.changes
        await rig.run(PATIENCE_S + 5)
        assert rig.changes[0].server == server(3), "it got stuck"

    tell(story)


def test_a_copy_that_waits_in_a_queue_is_waited_for(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.NEEDS_COPY
        rig.copy = ReportedReplica(tablet_id(0), ReplicaState.COPYING, copy=CopyProgress(server(1), 0, 0))
        await rig.run(3 * PATIENCE_S)
        assert not rig.changes

    tell(story)


def test_copies_to_and_from_a_server_are_bounded(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        await rig.run(10)
        assert len(rig.changes) == 2, "the leader of all may give two at once"
        done = rig.changes[0].tablet_id
        entry = rig.state.tablets[done]
        promoted = tuple(
            replace(member, member_type=MemberType.VOTER, promote=False) for member in entry.config.members
        )
        rig.health |= {int(change.server[2:], 16): PeerHealth.HEALTHY for change in rig.changes}
        await rig.committer.commit([], lambda state: CatalogChange((replace(entry, config=RaftConfig(9, promoted)),)))
        await rig.run(5)
        added = [change.tablet_id for change in rig.changes if change.kind is ChangeKind.ADD]
        assert len(added) == 3
        assert len(set(added)) == 3

    tell(story, tablets=6, copies_per_server_max=2)


def test_a_refused_step_is_repeated_less_and_less_often(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        rig.leaders.refusal = KuduError(ErrorCode.UNAVAILABLE, "no", verdict=Verdict.TRY_LATER)
        await rig.run(120)
        times = [at for at, _, _ in rig.leaders.asked]
        assert 6 <= len(times) <= 30
        assert times[-1] - times[-2] > 5 * (times[1] - times[0])
        rig.leaders.refusal = None
        await rig.run(40)
        assert rig.state.tablets[tablet_id(0)].config.config_index == 6

    tell(story)


def added_at(rig) -> list[float]:
    return [at for at, _, change in rig.leaders.asked if change.kind is ChangeKind.ADD]


def test_the_only_server_there_is_is_asked_less_and_less_often_if_it_takes_no_copy_and_people_can_see_it(tell):
    async def story(rig):
        rig.silent = {4}
        rig.health |= {3: PeerHealth.UNREACHABLE, 5: PeerHealth.NEEDS_COPY}
        await rig.run(32 * PATIENCE_S)
        times = added_at(rig)
        pauses = [round((later - earlier) / PATIENCE_S) for earlier, later in pairwise(times)]
        assert pauses == [2, 3, 5, 9, 9], "a patience each for the copy, and one, two, four, eight in between"
        assert {change.server for change in rig.changes} == {server(5)}
        assert f"{server(5)} (6 failures in a row)" in rig.policy.blocked_reason(tablet_id(0))
        assert rig.policy.blocked_count == 1

    tell(story)


def test_a_tablet_that_one_server_does_not_take_is_copied_to_another_as_soon_as_there_is_one(tell):
    async def story(rig):
        rig.silent = {4}
        rig.health |= {3: PeerHealth.UNREACHABLE, 4: PeerHealth.HEALTHY, 5: PeerHealth.NEEDS_COPY}
        await rig.run(PATIENCE_S + 10)
        assert "in a row" in rig.policy.blocked_reason(tablet_id(0))
        rig.silent = set()
        await rig.run(5)
        assert rig.changes[-1].server == server(4)
        assert not rig.policy.blocked_reason(tablet_id(0))

    tell(story)


def test_other_tablets_choose_another_server_than_one_that_took_no_copy_lately(tell):
    async def story(rig):
        rig.silent = {4}
        rig.health |= {3: PeerHealth.UNREACHABLE, 4: PeerHealth.HEALTHY, 5: PeerHealth.NEEDS_COPY}
        await rig.run(PATIENCE_S + 10)
        rig.silent = set()
        await rig.run(5)
        assert rig.policy.refusing_copies() == {server(5)}
        another = replace(rig.state.tablets[tablet_id(0)], tablet_id=tablet_id(7), partition=Partition((7,)))
        config = RaftConfig(5, tuple(Member(server(n), MemberType.VOTER, f"host{n}:7050") for n in (1, 2, 3)))
        await rig.committer.commit([], lambda state: CatalogChange((replace(another, config=config),)))
        await rig.run(5)
        assert (rig.changes[-1].tablet_id, rig.changes[-1].server) == (tablet_id(7), server(4)), "the fuller one"

    tell(story)


def test_a_server_that_has_taken_a_copy_again_is_like_any_other(tell):
    async def story(rig):
        rig.silent = {4}
        rig.health |= {3: PeerHealth.UNREACHABLE, 5: PeerHealth.NEEDS_COPY}
        await rig.run(PATIENCE_S + 10)
        rig.health[5] = PeerHealth.HEALTHY
        await rig.run(PATIENCE_S)
        assert len(added_at(rig)) == 2
        (entry,) = rig.state.tablets.values()
        voters = tuple(replace(member, member_type=MemberType.VOTER, promote=False) for member in entry.config.members)
        await rig.committer.commit([], lambda state: CatalogChange((replace(entry, config=RaftConfig(19, voters)),)))
        rig.health[5] = PeerHealth.NEEDS_COPY
        await rig.run(1)
        assert rig.policy.refusing_copies() == frozenset()

    tell(story)


def test_an_administrators_turn_is_not_interrupted(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        async with rig.turns.turn(tablet_id(0)):
            await rig.run(10)
            assert not rig.changes
        await rig.run(5)
        assert rig.changes

    tell(story)


def test_a_reign_that_has_ended_makes_no_change(tell):
    async def story(rig):
        rig.health[3] = PeerHealth.UNREACHABLE
        await rig.run(3)
        rig.report()
        rig.sweep()
        rig.committer.end()
        await asyncio.sleep(1)
        assert not rig.changes

    tell(story)


def test_a_tablet_that_was_deleted_is_not_counted_as_blocked_any_more(tell):
    async def story(rig):
        rig.silent = {2, 3, 4, 5}
        rig.health = {2: PeerHealth.UNREACHABLE, 3: PeerHealth.UNREACHABLE}
        await rig.run(PATIENCE_S + 5)
        assert rig.policy.blocked_count == 1
        (entry,) = rig.state.tablets.values()
        table = replace(rig.state.tables[TABLE], state=TableState.REMOVED)
        gone = CatalogChange((entry.moved_to(TabletState.DELETED, "dropped"),), (table,))
        await rig.committer.commit([], lambda state: gone)
        await rig.run(1)
        assert rig.policy.blocked_count == 0

    tell(story)
