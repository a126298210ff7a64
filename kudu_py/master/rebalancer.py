"""`Rebalancer`: keeps replicas and leaders evenly spread, a little at a time, while this master reigns.

A look derives a view from records and reports (`catalog/balance_view`), plans on it (`catalog/balance`) and starts what
the limits let. Moves of replicas are operations like an administrator's: they outlive this master, can be watched and
cancelled, and those under way are found in the catalog. So nothing needs to be remembered but which leaders were asked
to hand over lately, and since when each leads.

It is in no hurry. The first steps of a reign are taken an interval after its begin. A leader is moved only after it has
led for the cooldown: one that an administrator, or a failure, has just made leader stays. Leaders move when replicas
lie well. While there is something to do, looks follow each other quickly, so that a slot that has become free is used;
limits are by server, so that a server that is being filled takes one replica at a time.

Whoever asks for the balance is told the whole plan. That is a thousand steps at most and takes half a second for 10,000
tablets, ten times what a look takes: it is made off the loop, on a view that nobody changes, and for one caller at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.env.clock import Clock
from kudu_py.env.workers import Workers
from kudu_py.master import codec
from kudu_py.master.catalog.balance import (
    BalanceStep,
    BalanceTablet,
    MoveLimits,
    Skews,
    after,
    plan_leader_moves,
    plan_replica_moves,
    skews_of,
    unlimited,
)
from kudu_py.master.catalog.balance_view import BalanceView, ServerSeen, TabletSeen, view_of
from kudu_py.master.catalog.committer import Committer, Reign
from kudu_py.master.catalog.entries import OperationId
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.consensus_client import ConsensusAdmin, Endpoint
from kudu_py.master.ts_registry import TsRegistry
from kudu_py.pb import master_pb2

_log = structlog.get_logger(__name__)

_BUSY_PAUSE_S = 1.0
"""Between two looks while there is something to do: reports take about as long to show what was done."""
_LOOP_SHARE_MAX = 0.05
"""Of the master's time: where a look at thousands of tablets takes long, looks are rarer."""
_QUIET_S = 10.0
"""A server not heard of for so long may be about to be taken for dead; until it is clear nothing is moved."""
_STEP_DOWN_TIMEOUT_S = 5.0
_REPORT_PATIENCE_S = 5.0
"""For so long a leader that was asked to hand over counts as having done so, whatever is reported."""
_REPORTED_STEPS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class RebalancerOptions:
    """When and how much.

    Attributes:
        enabled: without it nothing is moved; the balance can be asked for all the same.
        interval_s: between looks at a cluster that is even.
        moves_per_server_max: replicas that a server gives or takes at once, an administrator's moves included; as many
            leaders change in one look.
        cooldown_s: after an administrator's change a tablet is left alone for so long, and so is one whose leader is
            new, or whose move failed.
    """

    enabled: bool = True
    interval_s: float = 30.0
    moves_per_server_max: int = 1
    cooldown_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("interval_s", "moves_per_server_max"):
            if getattr(self, name) <= 0:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must be positive, not {getattr(self, name)}")
        if self.cooldown_s < 0:
            raise KuduError(ErrorCode.CONFIGURATION_ERROR, "cooldown_s must not be negative")


class ReplicaMover(Protocol):
    """Who moves replicas."""

    async def move_replica(self, tablet_id: TabletId, from_: ServerId, to: ServerId, *, by_admin: bool) -> OperationId:
        """Begins a move; it is durable on return and goes on after. Raises KuduError, and then nothing has begun."""


@dataclass(slots=True)
class _Led:
    """Since when a tablet has its leader, as far as this reign has seen."""

    leader: ServerId | None
    since_s: float


@dataclass(frozen=True, slots=True)
class _HandedOver:
    """A leader was asked to hand over; reports do not show it at once."""

    source: ServerId
    target: ServerId
    until_s: float


class Rebalancer:
    """Watches over the balance while this master reigns; does nothing otherwise.

    Args:
        refusing_copies: servers to which copies came to nothing lately; nothing is moved there.

    Attributes:
        skews: as of the last look of this reign.
        is_held: whether something else had to be done first at the last look.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        registry: TsRegistry,
        mover: ReplicaMover,
        consensus: ConsensusAdmin,
        refusing_copies: Callable[[], Set[ServerId]],
        workers: Workers,
        clock: Clock,
        options: RebalancerOptions,
    ) -> None:
        self._committer = committer
        self._registry = registry
        self._mover = mover
        self._consensus = consensus
        self._refusing_copies = refusing_copies
        self._workers = workers
        self._clock = clock
        self._options = options
        self._reign: Reign | None = None
        self._next_look_s = 0.0
        self._busy_until_s = 0.0
        self._led: dict[TabletId, _Led] = {}
        self._handed_over: dict[TabletId, _HandedOver] = {}
        self._refused_until_s: dict[TabletId, float] = {}
        self._whole_plan = asyncio.Lock()
        self.skews = Skews(0, 0)
        self.is_held = False

    async def run(self) -> None:
        """Until cancelled: looks at intervals, more often while there is something to do."""
        while True:
            await asyncio.sleep(min(_BUSY_PAUSE_S, self._options.interval_s))
            reign, now_s = self._committer.reign, self._clock.monotonic()
            if reign is not self._reign:
                self._forget()
                self._reign = reign
                self._next_look_s = now_s + self._options.interval_s
            if reign is not None and now_s >= self._next_look_s:
                is_busy = await self._look(reign, now_s)
                if is_busy:
                    self._busy_until_s = now_s + self._options.interval_s
                took_s = self._clock.monotonic() - now_s
                pause_s = 0.0 if now_s < self._busy_until_s else self._options.interval_s
                self._next_look_s = now_s + max(pause_s, took_s / _LOOP_SHARE_MAX)

    async def _look(self, reign: Reign, now_s: float) -> bool:
        """One look: starts the steps that are due. Refusals are logged, and their tablets left alone for a while.

        Returns:
            Whether something is under way.
        """
        view = self._view(reign.state)
        self._note_leaders(view.tablets, now_s)
        self.skews = skews_of(view.servers, view.tablets)
        if not self._options.enabled:
            return False
        self._note_holds(view.holds)
        steps = self._due(view, now_s) if not view.holds else []
        for step in steps:
            if self._committer.reign is reign:
                await self._take(step)
        return bool(steps or view.under_way)

    async def balance(self) -> master_pb2.GetBalanceResponse:
        """How replicas and leaders are spread, and all there is to do, whatever the limits and however new leaders are.

        Raises:
            KuduError: CATALOG_MANAGER_NOT_INITIALIZED if this master does not reign.
        """
        async with self._whole_plan:
            state = self._committer.require_reign().state
            view = self._view(state)
            answer = master_pb2.GetBalanceResponse(enabled=self._options.enabled, holds=view.holds)
            self._add_shares(answer, state)
            if not view.holds:
                steps = await self._workers.run(_all_steps, view)
                answer.steps.extend(_step_to_pb(state, step) for step in steps)
            return answer

    def _forget(self) -> None:
        self._busy_until_s = 0.0
        self._led.clear()
        self._handed_over.clear()
        self._refused_until_s.clear()
        self.skews = Skews(0, 0)
        self.is_held = False

    def _view(self, state: CatalogState) -> BalanceView:
        now_s = self._clock.monotonic()
        registry, refusing = self._registry, self._refusing_copies()
        return view_of(
            state,
            [
                ServerSeen(
                    s.as_candidate,
                    is_live=registry.is_live(s.uuid, now_s) and now_s - s.last_heartbeat_s < _QUIET_S,
                    has_reported=s.report_sequence is not None,
                    refuses_copies=s.uuid in refusing,
                )
                for s in registry.servers
            ],
            lambda tablet_id: TabletSeen(registry.hosts(tablet_id), self._leader_of(tablet_id, now_s)),
            now_micros=self._clock.wall_micros(),
            cooldown_micros=int(self._options.cooldown_s * 1e6),
            is_settling=registry.is_settling(now_s),
        )

    def _leader_of(self, tablet_id: TabletId, now_s: float) -> ServerId | None:
        reported = self._registry.leader_of(tablet_id)
        handed_over = self._handed_over.get(tablet_id)
        if handed_over is not None and reported == handed_over.source and now_s < handed_over.until_s:
            return handed_over.target
        return reported

    def _due(self, view: BalanceView, now_s: float) -> list[BalanceStep]:
        """The steps to take now: moves of replicas; of leaders only if no replica has to move, or is moving."""
        limit = self._options.moves_per_server_max
        tablets = self._free_at(view.tablets, now_s)
        limits = MoveLimits(len(view.servers) * limit, limit, view.under_way)
        moves = plan_replica_moves(view.servers, tablets, limits)
        if moves or view.under_way:
            return moves
        return plan_leader_moves(view.servers, self._led_long(tablets, now_s), limits)

    def _free_at(self, tablets: Sequence[BalanceTablet], now_s: float) -> list[BalanceTablet]:
        """The tablets, those held that somebody refused to move lately."""
        refused = self._refused_until_s
        return [replace(t, is_held=True) if now_s < refused.get(t.tablet_id, now_s) else t for t in tablets]

    def _led_long(self, tablets: Sequence[BalanceTablet], now_s: float) -> list[BalanceTablet]:
        """The tablets, those held whose leader has not led for long."""
        return [t if self._has_led_long(t, now_s) else replace(t, is_held=True) for t in tablets]

    def _has_led_long(self, tablet: BalanceTablet, now_s: float) -> bool:
        led = self._led.get(tablet.tablet_id)
        return led is not None and led.leader == tablet.leader and now_s - led.since_s >= self._options.cooldown_s

    def _note_leaders(self, tablets: Sequence[BalanceTablet], now_s: float) -> None:
        before, self._led = self._led, {}
        for tablet in tablets:
            led = before.get(tablet.tablet_id)
            is_same = led is not None and led.leader == tablet.leader
            self._led[tablet.tablet_id] = led if led is not None and is_same else _Led(tablet.leader, now_s)
        self._refused_until_s = {t: until_s for t, until_s in self._refused_until_s.items() if now_s < until_s}
        self._handed_over = {t: asked for t, asked in self._handed_over.items() if now_s < asked.until_s}

    def _note_holds(self, holds: tuple[str, ...]) -> None:
        if holds and not self.is_held:
            _log.info("rebalancing_held", reasons=holds[:3], count=len(holds))
        elif self.is_held and not holds:
            _log.info("rebalancing_resumed")
        self.is_held = bool(holds)

    async def _take(self, step: BalanceStep) -> None:
        _log.info(
            "rebalancing_step_begun",
            tablet=step.tablet_id,
            source=step.source,
            target=step.target,
            leadership_only=step.leadership_only,
            reason=step.reason,
        )
        try:
            if step.leadership_only:
                await self._hand_over(step)
            else:
                await self._mover.move_replica(step.tablet_id, step.source, step.target, by_admin=False)
        except KuduError as error:
            _log.warning("rebalancing_step_refused", tablet=step.tablet_id, error=str(error))
            self._leave_alone(step.tablet_id)

    async def _hand_over(self, step: BalanceStep) -> None:
        server = self._registry.get(step.source)
        if server is None:
            return
        # Asked once: if it does not come about, others are at work on the tablet.
        self._leave_alone(step.tablet_id)
        at = Endpoint(step.source, server.registration.rpc_address)
        await self._consensus.step_down(at, step.tablet_id, step.target, timeout_s=_STEP_DOWN_TIMEOUT_S)
        until_s = self._clock.monotonic() + _REPORT_PATIENCE_S
        self._handed_over[step.tablet_id] = _HandedOver(step.source, step.target, until_s)

    def _leave_alone(self, tablet_id: TabletId) -> None:
        self._refused_until_s[tablet_id] = self._clock.monotonic() + self._options.cooldown_s

    def _add_shares(self, answer: master_pb2.GetBalanceResponse, state: CatalogState) -> None:
        leaders: dict[ServerId, int] = {}
        for table_id in state.tablets_by_table:
            for tablet in state.tablets_of(table_id):
                leader = self._registry.leader_of(tablet.tablet_id)
                if leader is not None:
                    leaders[leader] = leaders.get(leader, 0) + 1
        now_s = self._clock.monotonic()
        for server in self._registry.servers:
            answer.servers.add(
                ts_uuid=server.uuid,
                fault_domain=server.as_candidate.domain,
                mode=codec.mode_to_pb(state.mode_of(server.uuid)),
                is_live=self._registry.is_live(server.uuid, now_s),
                replicas=state.replica_counts.get(server.uuid, 0),
                leaders=leaders.get(server.uuid, 0),
            )


def _all_steps(view: BalanceView) -> list[BalanceStep]:
    limits = unlimited(_REPORTED_STEPS_MAX)
    moves = plan_replica_moves(view.servers, view.tablets, limits)
    return [*moves, *plan_leader_moves(view.servers, after(view.tablets, moves), limits)]


def _step_to_pb(state: CatalogState, step: BalanceStep) -> master_pb2.GetBalanceResponse.Step:
    return master_pb2.GetBalanceResponse.Step(
        tablet_id=step.tablet_id,
        table_name=state.tables[step.table_id].name,
        from_ts_uuid=step.source,
        to_ts_uuid=step.target,
        leadership_only=step.leadership_only,
        reason=step.reason,
    )
