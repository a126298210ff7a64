"""An administrator's change, against a leader that answers what the test says."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    TableEntry,
    TableState,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.placement import Candidate
from kudu_py.master.catalog.replica_ops import ChangeKind, ConfigChange
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers
from kudu_py.master.consensus_client import Endpoint, GroupView
from kudu_py.master.replica_changes import ReplicaChanges
from kudu_py.master.tablet_leaders import TabletLeaders
from kudu_py.master.tablet_turns import TabletTurns
from kudu_py.master.ts_registry import TsRegistry
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_clock import SimClock

TABLE = TableId("ab" * 16)
TABLET = TabletId("7a" * 16)
SCHEMA = Schema((ColumnSchema("key", DataType.INT64, column_id=0),), key_count=1)


def server(n: int) -> ServerId:
    return ServerId(f"5e{n:030x}")


class ObedientStore:
    """Everything is durable at once."""

    async def write(self, change: CatalogChange) -> None:
        await asyncio.sleep(0)


@dataclass
class Group:
    """A tablet's group: the `ConsensusAdmin` of the test.

    Attributes:
        answers: what the next changes are answered with, in order, after (True) or instead of (False) taking effect.
    """

    config: RaftConfig
    leader: int = 1
    pending: RaftConfig | None = None
    answers: list[tuple[KuduError, bool]] = field(default_factory=list)
    asked: list[tuple[ServerId, ConfigChange]] = field(default_factory=list)

    async def view(self, at: Endpoint, tablet_id: TabletId, *, timeout_s: float) -> GroupView:
        role = Role.LEADER if at.uuid == server(self.leader) else Role.FOLLOWER
        return GroupView(at, role, 3, server(self.leader), self.config, self.pending)

    async def step_down(self, at: Endpoint, tablet_id: TabletId, successor, *, timeout_s: float) -> None:
        self.leader = int((successor or server(2))[2:], 16)

    async def change_config(self, at: Endpoint, change: ConfigChange, *, timeout_s: float) -> RaftConfig:
        self.asked.append((at.uuid, change))
        await asyncio.sleep(0.05)
        error, takes_effect = self.answers.pop(0) if self.answers else (None, True)
        if takes_effect:
            self.config = RaftConfig(self.config.config_index + 1, self._members(change))
        if error is not None:
            if error.code is ErrorCode.STEPPING_DOWN:
                self.leader += 1
            raise error
        return self.config

    def _members(self, change: ConfigChange) -> tuple[Member, ...]:
        assert change.expected_config_index == self.config.config_index
        members = [member for member in self.config.members if member.uuid != change.server]
        if change.kind is not ChangeKind.REMOVE:
            assert change.member_type is not None
            members.append(Member(change.server, change.member_type, change.address, change.promote))
        return tuple(sorted(members, key=lambda member: member.uuid))


class Rig:
    """A tablet on servers 1 to 3, led by 1, and servers 4 and 5."""

    def __init__(self) -> None:
        clock = SimClock()
        config = RaftConfig(5, tuple(Member(server(n), MemberType.VOTER, f"host{n}:7050") for n in (1, 2, 3)))
        self.group = Group(config)
        self.committer = Committer(ObedientStore(), on_published=lambda change: None, on_doubt=lambda term: None)
        table = TableEntry(TABLE, "t", TableState.RUNNING, SCHEMA, PartitionSchema(), 3, 1)
        tablet = TabletEntry(TABLET, TABLE, Partition(()), TabletState.RUNNING, config)
        self.committer.begin(1, CatalogState.build(None, [table], [tablet]))
        registry = TsRegistry(started_s=0.0, unresponsive_timeout_s=10.0, settle_s=0.0)
        live = tuple(Candidate(server(n), f"host{n}:7050") for n in range(1, 6))
        self.turns = TabletTurns()
        self.bugs: list[BaseException] = []
        self.changes = ReplicaChanges(
            committer=self.committer,
            leaders=TabletLeaders(registry=registry, admin=self.group, clock=clock),
            admin=self.group,
            turns=self.turns,
            servers=lambda: Servers(live, frozenset(candidate.uuid for candidate in live)),
            lost_voters=lambda tablet: (),
            clock=clock,
            rng=random.Random(1),
            on_bug=self.bugs.append,
        )

    @property
    def tablet(self) -> TabletEntry:
        return self.committer.require_reign().state.tablets[TABLET]

    async def add(self, n: int = 4, *, expected: int | None = None, timeout_s: float = 10.0) -> RaftConfig:
        return await self.changes.add(
            TABLET, server(n), MemberType.VOTER, expected_config_index=expected, timeout_s=timeout_s
        )

    async def remove(self, n: int, *, timeout_s: float = 10.0) -> RaftConfig:
        return await self.changes.remove(TABLET, server(n), expected_config_index=None, timeout_s=timeout_s)


async def refused(work, code: ErrorCode) -> KuduError:
    with pytest.raises(KuduError) as caught:
        await work
    assert caught.value.code is code, caught.value
    return caught.value


@pytest.fixture
def tell():
    def run(story) -> None:
        async def main() -> None:
            rig = Rig()
            await story(rig)
            assert not rig.bugs
            await rig.changes.close()

        sim_loop.run(main(), seed=1)

    return run


def test_the_wanted_number_is_stored_before_the_call_and_the_config_after_it(tell):
    async def story(rig):
        config = await rig.add()
        assert (config.config_index, rig.tablet.config) == (6, config)
        assert rig.tablet.wanted_voters == 4
        ((at, change),) = rig.group.asked
        assert (at, change.expected_config_index, change.promote) == (server(1), 5, True)

    tell(story)


def test_a_change_that_is_pending_for_long_is_told_of_and_nothing_is_changed(tell):
    async def story(rig):
        before = rig.tablet
        rig.group.pending = replace(rig.group.config, config_index=9)
        error = await refused(rig.add(), ErrorCode.CONFIG_CHANGE_PENDING)
        assert error.verdict is Verdict.TRY_LATER
        assert error.details["pending_config_index"] == "9"
        assert rig.tablet == before
        assert not rig.group.asked

    tell(story)


def test_a_change_that_is_pending_for_a_moment_is_waited_for(tell):
    async def story(rig):
        rig.group.pending = replace(rig.group.config, config_index=9)
        adding = asyncio.create_task(rig.add())
        await asyncio.sleep(1)
        rig.group.pending = None
        assert (await adding).config_index == 6

    tell(story)


def test_a_leader_that_hands_over_is_followed(tell):
    async def story(rig):
        handing_over = KuduError(ErrorCode.STEPPING_DOWN, "handing over", verdict=Verdict.TRY_LATER)
        rig.group.answers = [(handing_over, False)]
        config = await rig.remove(1)
        assert [at for at, _ in rig.group.asked] == [server(1), server(2)]
        assert config.member(server(1)) is None
        assert rig.tablet.wanted_voters == 2

    tell(story)


def test_a_lost_answer_is_made_up_for_by_another_look(tell):
    async def story(rig):
        rig.group.answers = [(KuduError(ErrorCode.UNAVAILABLE, "cut off", verdict=Verdict.UNKNOWN), True)]
        config = await rig.add()
        assert config.member(server(4)) is not None
        assert len(rig.group.asked) == 1

    tell(story)


def test_a_config_that_changed_in_between_is_looked_at_again_unless_one_was_expected(tell):
    async def story(rig):
        changed = KuduError(ErrorCode.CAS_FAILED, "another index")
        rig.group.answers = [(changed, False)]
        assert (await rig.add()).config_index == 6
        rig.group.answers = [(changed, False)]
        await refused(rig.add(5, expected=6), ErrorCode.CAS_FAILED)
        assert rig.tablet.wanted_voters == 4, "put back"

    tell(story)


def test_the_wanted_number_is_put_back_after_a_refusal(tell):
    async def story(rig):
        rig.group.answers = [(KuduError(ErrorCode.OPERATION_ABORTED, "undone"), False)]
        await refused(rig.add(), ErrorCode.OPERATION_ABORTED)
        assert rig.tablet.wanted_voters == 0

    tell(story)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_outcome_that_is_unknown_to_the_caller_is_found_out_after(tell, takes_effect):
    async def story(rig):
        lost = KuduError(ErrorCode.UNAVAILABLE, "cut off", verdict=Verdict.UNKNOWN)
        rig.group.answers = [(lost, False)] * 100
        error = await refused(rig.add(timeout_s=1.0), ErrorCode.TIMED_OUT)
        assert error.verdict is Verdict.UNKNOWN
        before, member = rig.group.config, Member(server(4), MemberType.PRE_VOTER, "host4:7050", promote=True)
        rig.group.pending = RaftConfig(6, (*before.members, member))
        await asyncio.sleep(15)
        assert rig.tablet.wanted_voters == 4, "it may yet take effect"
        rig.group.config = rig.group.pending if takes_effect else replace(before, config_index=7)
        rig.group.pending = None
        await asyncio.sleep(3)
        assert rig.tablet.wanted_voters == (4 if takes_effect else 0)

    tell(story)


def test_a_change_waits_until_the_outcome_of_the_one_before_is_known(tell):
    async def story(rig):
        lost = KuduError(ErrorCode.UNAVAILABLE, "cut off", verdict=Verdict.UNKNOWN)
        rig.group.answers = [(lost, False)] * 100
        adding = asyncio.create_task(rig.add(timeout_s=1.0))
        await asyncio.sleep(0.5)
        other = asyncio.create_task(rig.add(5))
        await refused(adding, ErrorCode.TIMED_OUT)
        rig.group.answers = []
        await other
        await asyncio.sleep(5)
        assert [member.uuid for member in rig.tablet.config.members] == [server(n) for n in (1, 2, 3, 5)]
        assert rig.tablet.wanted_voters == 4
        assert not rig.turns.is_taken(TABLET)

    tell(story)


def test_a_number_that_is_changed_while_a_change_is_tried_is_what_is_put_back(tell):
    async def story(rig):
        again = KuduError(ErrorCode.UNAVAILABLE, "not now", verdict=Verdict.TRY_LATER)
        rig.group.answers = [(again, False)] * 100
        adding = asyncio.create_task(rig.add(timeout_s=2.0))
        await asyncio.sleep(0.5)
        await rig.committer.commit([], lambda state: CatalogChange((replace(rig.tablet, wanted_voters=5),)))
        await refused(adding, ErrorCode.TIMED_OUT)
        assert rig.tablet.wanted_voters == 5

    tell(story)


@pytest.mark.parametrize(
    ("voters", "joining", "way"),
    [((1, 2, 3), (4,), "retire"), ((1, 2, 3, 4), (), "retire"), ((1, 2, 3, 4), (), "move")],
)
def test_a_replica_that_is_being_replaced_is_not_counted_beside_its_replacement(tell, voters, joining, way):
    async def story(rig):
        members = [Member(server(n), MemberType.VOTER, f"host{n}:7050") for n in voters]
        members += [Member(server(n), MemberType.PRE_VOTER, f"host{n}:7050", promote=True) for n in joining]
        rig.group.config = RaftConfig(6, tuple(members))
        if way == "retire":
            change = CatalogChange(servers=(TabletServerEntry(server(3), TabletServerMode.RETIRING),))
        else:
            move = OperationEntry(
                OperationId("0f" * 16), OperationKind.MOVE_REPLICA, tablet_id=TABLET, from_=server(3), to=server(4)
            )
            change = CatalogChange(operations=(move,))
        await rig.committer.commit([], lambda state: change)
        await rig.remove(2)
        assert rig.tablet.wanted_voters == 2
        await rig.add(2)
        assert rig.tablet.wanted_voters == 3

    tell(story)


def test_a_caller_that_goes_away_ends_nothing(tell):
    async def story(rig):
        adding = asyncio.create_task(rig.add())
        await asyncio.sleep(0.02)
        adding.cancel()
        await asyncio.sleep(1)
        assert adding.cancelled()
        assert rig.tablet.config.config_index == 6

    tell(story)


async def promoting(rig) -> asyncio.Task[RaftConfig]:
    """Server 4 is a PRE_VOTER that is made a VOTER; the leader has the mark in config 7."""
    await rig.changes.add(TABLET, server(4), MemberType.PRE_VOTER, expected_config_index=None, timeout_s=5.0)
    work = rig.changes.change_type(TABLET, server(4), MemberType.VOTER, expected_config_index=None, timeout_s=30.0)
    task = asyncio.create_task(work)
    await asyncio.sleep(0.2)
    assert rig.group.config.config_index == 7
    return task


def test_a_promotion_that_another_call_takes_back_is_not_waited_for(tell):
    async def story(rig):
        task = await promoting(rig)
        members = tuple(replace(member, promote=False) for member in rig.group.config.members)
        rig.group.config = RaftConfig(8, members)
        error = await refused(task, ErrorCode.OPERATION_ABORTED)
        assert server(4) in error.message

    tell(story)


def test_a_leader_of_before_that_knows_less_ends_no_promotion(tell):
    async def story(rig):
        task = await promoting(rig)
        marked, before = rig.group.config, rig.tablet.config
        rig.group.config = replace(before, config_index=5, members=before.members[:3])
        await asyncio.sleep(2)
        assert not task.done()
        members = tuple(replace(m, member_type=MemberType.VOTER, promote=False) for m in marked.members)
        rig.group.config = RaftConfig(8, members)
        assert await task == rig.group.config

    tell(story)


def test_two_changes_of_one_tablet_take_turns(tell):
    async def story(rig):
        first, second = await asyncio.gather(rig.add(4), rig.add(5))
        assert sorted((first.config_index, second.config_index)) == [6, 7]
        assert rig.tablet.wanted_voters == 5

    tell(story)


def test_the_end_of_the_reign_ends_a_change_with_a_reason(tell):
    async def story(rig):
        rig.group.pending = replace(rig.group.config, config_index=9)
        adding = asyncio.create_task(rig.add())
        await asyncio.sleep(0.5)
        rig.committer.end()
        await refused(adding, ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED)

    tell(story)


def test_a_leadership_goes_where_it_is_told_to(tell):
    async def story(rig):
        assert await rig.changes.step_down(TABLET, server(3), timeout_s=5.0) == (server(3), 3)
        assert await rig.changes.step_down(TABLET, server(3), timeout_s=5.0) == (server(3), 3), "it leads already"
        leader, _ = await rig.changes.step_down(TABLET, None, timeout_s=5.0)
        assert leader != server(3)

    tell(story)
