"""The driver of balance: real catalog, real registry; moves and hand-overs are noted, and end when the test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.env.workers import InlineWorkers, Workers
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TableEntry,
    TableState,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.consensus_client import Endpoint
from kudu_py.master.rebalancer import Rebalancer, RebalancerOptions
from kudu_py.master.ts_registry import Heartbeat, Registration, Report, TsRegistry
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_clock import SimClock

TABLE = TableId("ab" * 16)
OPTIONS = RebalancerOptions(interval_s=30.0, moves_per_server_max=1, cooldown_s=300.0)


def server_id(n: int) -> ServerId:
    return ServerId(f"5e{n:030x}")


def tablet_id(n: int) -> TabletId:
    return TabletId(f"7a{n:030x}")


class Store:
    """Makes every change durable at once."""

    async def write(self, change: CatalogChange) -> None:
        pass


class BusyWorkers(InlineWorkers):
    """Have other work first."""

    def __init__(self) -> None:
        self.waiting = 0
        self.may_go = asyncio.Event()

    async def run(self, fn, /, *args, **kwargs):
        self.waiting += 1
        await self.may_go.wait()
        return await super().run(fn, *args, **kwargs)


@dataclass(eq=False)
class Rig:
    """A master's catalog and registry, servers that beat, and a rebalancer over them."""

    options: RebalancerOptions = OPTIONS
    moves: list[tuple[TabletId, ServerId, ServerId]] = field(default_factory=list)
    handovers: list[tuple[TabletId, ServerId, ServerId]] = field(default_factory=list)
    refuses: bool = False
    obeys: bool = True
    silent: set[int] = field(default_factory=set)
    workers: Workers = field(default_factory=InlineWorkers)
    refusing: set[ServerId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clock = SimClock()
        self.registry = TsRegistry(started_s=0.0, unresponsive_timeout_s=60.0, settle_s=2.0)
        self.committer = Committer(Store(), on_published=lambda change: None, on_doubt=lambda term: None)
        self.rebalancer = Rebalancer(
            committer=self.committer, registry=self.registry, mover=self, consensus=self, workers=self.workers,
            refusing_copies=lambda: self.refusing,
            clock=self.clock, options=self.options,
        )  # fmt: skip
        self.leaders: dict[TabletId, ServerId] = {}
        self.count = 0
        self.sequence = 0

    @property
    def state(self) -> CatalogState:
        return self.committer.require_reign().state

    def begin(self, servers: int, tablets: Iterable[Sequence[int]], *, num_replicas: int = 3) -> None:
        """A reign over servers and tablets; the first member of each leads."""
        schema = Schema((ColumnSchema("key", DataType.INT64),), 1)
        table = TableEntry(TABLE, "metrics", TableState.RUNNING, schema, PartitionSchema(()), num_replicas, 1)
        entries = []
        for n, members in enumerate(tablets):
            config = RaftConfig(0, tuple(Member(server_id(m), MemberType.VOTER, f"host{m}:1") for m in sorted(members)))
            entries.append(TabletEntry(tablet_id(n), TABLE, Partition((n,)), TabletState.RUNNING, config))
            self.leaders[tablet_id(n)] = server_id(members[0])
        self.count = servers
        self.committer.begin(1, CatalogState.build(None, [table], entries))
        self.beat()

    def beat(self) -> None:
        """Every server but the silent ones reports in full."""
        self.sequence += 1
        for n in range(self.count):
            if n in self.silent:
                continue
            heartbeat = Heartbeat(server_id(n), 1, Registration(f"host{n}:7050", fault_domain=f"d{n}"))
            server = self.registry.take_heartbeat(heartbeat, self.clock.monotonic())
            assert server is not None
            self.registry.take_report(server, Report(False, self.sequence, self.report_of(server_id(n))))

    def report_of(self, server: ServerId) -> list[ReportedReplica]:
        return [
            ReportedReplica(
                entry.tablet_id, ReplicaState.RUNNING, term=1, leader=self.leaders[entry.tablet_id],
                role=Role.LEADER if self.leaders[entry.tablet_id] == server else Role.FOLLOWER,
                committed_config=entry.config,
            )
            for entry in self.state.tablets_of(TABLE)
            if entry.config.member(server) is not None
        ]  # fmt: skip

    async def commit(self, **parts: Any) -> None:
        await self.committer.commit([], lambda state: CatalogChange(**parts))

    async def run(self, seconds: float) -> None:
        """Servers beat and the rebalancer runs for so long."""
        running = asyncio.create_task(self.rebalancer.run())
        try:
            for _ in range(int(seconds)):
                self.beat()
                await asyncio.sleep(1.0)
                assert not running.done(), running.exception()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    # What the rebalancer asks others to do.

    async def move_replica(self, tablet_id: TabletId, from_: ServerId, to: ServerId, *, by_admin: bool) -> OperationId:
        assert not by_admin
        self.moves.append((tablet_id, from_, to))
        if self.refuses:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "no")
        operation = OperationEntry(
            OperationId(f"{len(self.moves):032x}"), OperationKind.MOVE_REPLICA, tablet_id=tablet_id, from_=from_,
            to=to, by_admin=False, created_micros=self.clock.wall_micros(),
        )  # fmt: skip
        await self.commit(operations=(operation,))
        if self.obeys:
            asyncio.get_running_loop().call_later(3.0, lambda: asyncio.ensure_future(self.end(operation)))
        return operation.operation_id

    async def end(self, operation: OperationEntry, state: OperationState = OperationState.DONE) -> None:
        ended = operation.ended(state, now_micros=self.clock.wall_micros())
        assert operation.tablet_id is not None
        entry = self.state.tablets[operation.tablet_id]
        if state is OperationState.DONE:
            assert operation.to is not None
            kept = [m for m in entry.config.members if m.uuid != operation.from_]
            members = sorted([*kept, Member(operation.to, MemberType.VOTER, "host:1")], key=lambda m: m.uuid)
            entry = replace(entry, config=RaftConfig(entry.config.config_index + 1, tuple(members)))
            if self.leaders[entry.tablet_id] == operation.from_:
                self.leaders[entry.tablet_id] = kept[0].uuid
        await self.commit(operations=(ended,), tablets=(entry,))

    async def step_down(
        self, at: Endpoint, tablet_id: TabletId, successor: ServerId | None, *, timeout_s: float
    ) -> None:
        assert successor is not None
        assert self.leaders[tablet_id] == at.uuid
        self.handovers.append((tablet_id, at.uuid, successor))
        if self.refuses:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "no")
        if self.obeys:
            self.leaders[tablet_id] = successor


Story = Callable[[Rig], Coroutine[Any, Any, None]]


def play(story: Story, **given: Any) -> None:
    async def main() -> None:
        rig = Rig(**given)
        await story(rig)
        await rig.committer.close()

    sim_loop.run(main(), seed=1)


def replicas(rig: Rig) -> Counter[ServerId]:
    return Counter(m.uuid for entry in rig.state.tablets_of(TABLE) for m in entry.config.members)


def test_an_even_cluster_is_left_alone():
    async def story(rig):
        rig.begin(3, [(n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(9)])
        await rig.run(500)
        assert rig.moves == rig.handovers == []
        assert not (await rig.rebalancer.balance()).steps

    play(story)


def test_an_empty_fourth_server_is_filled_one_replica_at_a_time():
    async def story(rig):
        rig.begin(4, [(n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(12)])
        most = 0
        running = asyncio.create_task(rig.run(90))
        while not running.done():
            most = max(most, len(rig.state.open_operations))
            await asyncio.sleep(0.25)
        await running
        assert most == 1
        assert set(replicas(rig).values()) == {9}
        assert len(rig.moves) == 9

    play(story)


def test_moves_under_way_count_against_the_limit_of_their_servers():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 12)
        await rig.run(300)
        assert len(rig.moves) == 1
        assert len(rig.state.open_operations) == 1

    play(story, obeys=False)


def test_leaders_move_when_replicas_lie_well_and_have_led_for_the_cooldown():
    async def story(rig):
        rig.begin(3, [(0, 1, 2)] * 9)
        await rig.run(320)
        assert rig.rebalancer.skews == (0, 9)
        assert rig.handovers == [], "nobody has been seen to lead for 300 s after an interval"
        await rig.run(60)
        assert Counter(rig.leaders.values()) == {server_id(n): 3 for n in range(3)}
        assert len(rig.handovers) == 6, "none too many, although reports come late"
        assert rig.moves == []
        assert rig.rebalancer.skews == (0, 0)

    play(story)


def test_a_leader_that_was_just_made_stays():
    """An administrator has asked for it, or another server has failed."""

    async def story(rig):
        rig.begin(3, [(n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(9)])
        await rig.run(400)
        for n in range(9):
            rig.leaders[tablet_id(n)] = server_id(0)
        await rig.run(250)
        moved = [each for each, _, _ in rig.handovers]
        assert set(moved) <= {tablet_id(n) for n in (0, 3, 6)}, "those that have led all the while"

    play(story)


def test_a_leader_that_does_not_hand_over_is_not_asked_again_at_once():
    async def story(rig):
        rig.begin(3, [(0, 1, 2)] * 3)
        await rig.run(600)
        assert len(rig.handovers) == len({tablet for tablet, _, _ in rig.handovers}) == 3

    play(story, obeys=False)


def test_a_tablet_that_an_administrator_changed_is_left_alone_for_the_cooldown():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 4)
        changed = [replace(t, changed_by_admin_micros=rig.clock.wall_micros()) for t in rig.state.tablets_of(TABLE)]
        await rig.commit(tablets=tuple(changed))
        await rig.run(290)
        assert rig.moves == []
        await rig.run(100)
        assert set(replicas(rig).values()) == {3}

    play(story)


@pytest.mark.parametrize("state", [OperationState.FAILED, OperationState.CANCELLED])
def test_a_move_that_did_not_end_well_is_not_repeated_at_once(state):
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 2)
        await rig.run(40)
        (operation,) = rig.state.open_operations
        await rig.end(operation, state)
        await rig.run(40)
        first, second = rig.moves
        assert first[0] != second[0], "the other tablet's turn"

    play(story, obeys=False)


def test_a_refusal_is_no_reason_to_ask_again_at_once():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 3)
        await rig.run(200)
        assert len(rig.moves) == len({tablet for tablet, _, _ in rig.moves})

    play(story, refuses=True)


async def nothing_is_moved_because(rig: Rig, *reasons: str) -> None:
    await rig.run(90)
    assert rig.moves == rig.handovers == []
    holds = list((await rig.rebalancer.balance()).holds)
    assert len(holds) == len(reasons), holds
    assert rig.rebalancer.is_held
    for hold, reason in zip(holds, reasons, strict=True):
        assert reason in hold
    assert not (await rig.rebalancer.balance()).steps


class TestNothingIsMovedWhile:
    def test_a_server_with_replicas_is_silent(self):
        async def story(rig):
            rig.begin(4, [(0, 1, 2)] * 8)
            rig.silent.add(1)
            await rig.run(20)
            await nothing_is_moved_because(rig, f"{server_id(1)} with 8 replicas is silent", "8 tablets")

        play(story)

    def test_a_member_has_not_been_heard_of_since_the_master_started(self):
        async def story(rig):
            rig.silent.add(1)
            rig.begin(4, [(0, 1, 2)] * 8)
            await nothing_is_moved_because(rig, f"{server_id(1)} with 8 replicas is silent", "8 tablets")

        play(story)

    def test_a_tablet_lacks_a_voter(self):
        async def story(rig):
            rig.begin(4, [*([(0, 1, 2)] * 7), (0, 1)])
            await nothing_is_moved_because(
                rig, f"{tablet_id(7)} is not healthy: it has 2 voters and is meant to have 3"
            )

        play(story)

    def test_a_server_is_being_retired(self):
        async def story(rig):
            rig.begin(4, [(0, 1, 2)] * 8)
            retiring = OperationEntry(OperationId("9" * 32), OperationKind.RETIRE_TABLET_SERVER, server=server_id(0))
            await rig.commit(operations=(retiring,))
            await nothing_is_moved_because(rig, "RETIRE_TABLET_SERVER")

        play(story)

    def test_it_is_switched_off_but_it_can_be_asked(self):
        async def story(rig):
            rig.begin(4, [(0, 1, 2)] * 8)
            await rig.run(600)
            assert rig.moves == rig.handovers == []
            balance = await rig.rebalancer.balance()
            assert not balance.enabled
            assert [step.leadership_only for step in balance.steps if not step.leadership_only] == [False] * 6

        play(story, options=replace(OPTIONS, enabled=False))

    def test_this_master_does_not_reign(self):
        async def story(rig):
            rig.begin(4, [(0, 1, 2)] * 8)
            rig.committer.end()
            running = asyncio.create_task(rig.rebalancer.run())
            await asyncio.sleep(100)
            running.cancel()
            assert rig.moves == []

        play(story)


def test_a_dead_server_that_has_lost_all_its_replicas_holds_nothing_up():
    async def story(rig):
        rig.begin(5, [(0, 1, 2)] * 8)
        await rig.run(1)
        rig.silent.add(4)
        await rig.run(120)
        assert set(replicas(rig).values()) == {6}
        assert server_id(4) not in replicas(rig)

    play(story)


def test_nothing_moves_to_a_server_that_takes_no_copies_until_it_does():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 8)
        rig.refusing.add(server_id(3))
        await rig.run(120)
        assert rig.moves == []
        rig.refusing.clear()
        await rig.run(60)
        assert rig.moves

    play(story)


@pytest.mark.parametrize("mode", [TabletServerMode.MAINTENANCE, TabletServerMode.RETIRING, TabletServerMode.RETIRED])
def test_a_server_in_another_mode_gets_nothing(mode):
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 8)
        await rig.commit(servers=(TabletServerEntry(server_id(3), mode),))
        await rig.run(120)
        assert rig.moves == []
        assert (await rig.rebalancer.balance()).servers[3].mode != (await rig.rebalancer.balance()).servers[0].mode

    play(story)


def test_the_balance_tells_shares_and_steps():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 4)
        rig.clock.offset_s = 10.0
        await rig.run(5)
        balance = await rig.rebalancer.balance()
        assert [(s.replicas, s.leaders, s.is_live, s.fault_domain) for s in balance.servers] == [
            (4, 4, True, "d0"), (4, 0, True, "d1"), (4, 0, True, "d2"), (0, 0, True, "d3"),
        ]  # fmt: skip
        assert {step.to_ts_uuid for step in balance.steps if not step.leadership_only} == {server_id(3)}
        assert all(step.table_name == "metrics" and step.reason for step in balance.steps)
        assert any(step.leadership_only for step in balance.steps)

    play(story)


def test_the_whole_plan_is_made_off_the_loop_for_one_caller_at_a_time():
    async def story(rig):
        rig.begin(4, [(0, 1, 2)] * 4)
        await rig.run(5)
        asked = [asyncio.create_task(rig.rebalancer.balance()) for _ in range(2)]
        await asyncio.sleep(1)
        assert rig.workers.waiting == 1
        await rig.commit(servers=(TabletServerEntry(server_id(3), TabletServerMode.MAINTENANCE),))
        rig.workers.may_go.set()
        first, second = await asyncio.gather(*asked)
        assert {step.to_ts_uuid for step in first.steps if not step.leadership_only} == {server_id(3)}
        assert not [step for step in second.steps if not step.leadership_only], "it looks when its turn comes"

    play(story, workers=BusyWorkers())


def test_options_are_checked():
    with pytest.raises(KuduError, match="interval_s must be positive"):
        RebalancerOptions(interval_s=0)
