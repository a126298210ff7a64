"""`MemberPolicy`: keeps the members of tablets what they are meant to be, one ChangeConfig at a time.

What to do is for `catalog/replica_ops` to say, and is derived afresh each time from records and the leaders' reports.
Kept here is only what those cannot tell, and what may be lost with the process: how long this master has been
listening, how long a replica has been stuck, which call is under way, and which servers a replica was just taken from.

Nothing is done because of what this master has missed:

* A server counts as gone only if it has been silent for the whole patience *while this master listened*: since it was
  elected, and since it was last paused (a loop that comes late by seconds has heard nothing meanwhile).
* After either, a few heartbeats are waited for before the first step.
* A leader's report of an earlier reign is forgotten; a step rests on the newest config that is known, or is not taken.

A server to which a copy came to nothing is left alone, longer each time: by the tablet whose copy it was in any case,
by others as long as there is another server for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, TabletId
from kudu_py.consensus.core.model import MemberType
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.change import NO_CHANGE, CatalogChange
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind, Reign
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TabletEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.operation_ops import plan_ends
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.placement import Candidate, Placer, least_sharing
from kudu_py.master.catalog.replica_ops import (
    Add,
    Blocked,
    ChangeKind,
    ConfigChange,
    Evict,
    Health,
    LeaderReport,
    Surroundings,
    health_of,
    is_lost,
    is_well,
    joining_voters,
    leader_report,
    next_step,
)
from kudu_py.master.catalog.report_ops import PeerHealth, ReplicaState, newer_config
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.consensus_client import ConsensusAdmin, Endpoint
from kudu_py.master.copy_refusals import CopyRefusals
from kudu_py.master.tablet_turns import TabletTurns
from kudu_py.master.ts_registry import TsRegistry

_log = structlog.get_logger(__name__)

_PAUSE_MIN_S = 5.0
"""A sweep that comes later than this was not merely slow: the process, or its machine, stood still."""
_SETTLE_HEARTBEATS = 3
_BACKOFF_INITIAL_S = 0.2
_BACKOFF_MAX_S = 30.0
_BLOCKED_PAUSE_S = 2.0
_REPORT_PATIENCE_S = 5.0
_SHUNNED_FOR_PATIENCES = 2.0


@dataclass(slots=True)
class _Stuck:
    """A member that needs a copy.

    Attributes:
        for_s: how long it has needed one without getting anywhere, queues not counted.
        seen_s: monotonic time at which `for_s` was added to last.
        bytes_done: the most that a copy has reached.
    """

    seen_s: float
    for_s: float = 0.0
    bytes_done: int = 0


@dataclass(slots=True)
class _Care:
    """What is known of one tablet.

    Attributes:
        not_before_s: monotonic time before which no step is taken.
        failures: of steps in a row.
        stuck: members that need a copy.
        shunned: servers that a replica was taken from, until when: another is chosen if there is one.
        refusals: servers to which this tablet could not be copied.
        blocked: why nothing can be done; logged once.
    """

    refusals: CopyRefusals
    not_before_s: float = 0.0
    failures: int = 0
    stuck: dict[ServerId, _Stuck] = field(default_factory=dict)
    shunned: dict[ServerId, float] = field(default_factory=dict)
    blocked: str = ""


class MemberPolicy:
    """Takes the next step of each tablet that it is shown, and ends operations that are done."""

    def __init__(
        self,
        *,
        committer: Committer,
        registry: TsRegistry,
        admin: ConsensusAdmin,
        turns: TabletTurns,
        clock: Clock,
        rng: RandomBits,
        options: CatalogOptions,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._committer = committer
        self._registry = registry
        self._admin = admin
        self._turns = turns
        self._clock = clock
        self._rng = rng
        self._options = options
        self._on_bug = on_bug
        self._care: dict[TabletId, _Care] = {}
        self._listening_since_s = clock.monotonic()
        self._swept_s = self._listening_since_s
        self._gone: frozenset[ServerId] = frozenset()
        self._copies: Counter[ServerId] | None = None
        self._modes: Mapping[ServerId, TabletServerMode] = {}
        self._domains: Mapping[ServerId, str] = {}
        self._undone: Mapping[TabletId, ServerId] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._refusals = CopyRefusals(self.patience_s)
        self._tried: set[tuple[ServerId, TabletId]] = set()
        """Copies to servers that have refused some, to see whether these succeed."""

    @property
    def blocked_count(self) -> int:
        """Tablets that ought to get or lose a replica and cannot, for now."""
        return sum(bool(care.blocked) for care in self._care.values())

    def blocked_reason(self, tablet_id: TabletId) -> str:
        """Why a tablet does not get or lose the replica that it ought to, for now; empty: nothing is in the way."""
        care = self._care.get(tablet_id)
        return "" if care is None else care.blocked

    def refusing_copies(self) -> frozenset[ServerId]:
        """Servers to which copies came to nothing lately: others are better asked first."""
        return self._refusals.left_alone(self._clock.monotonic())

    @property
    def patience_s(self) -> float:
        """How long a server may be silent, or a replica stuck, before it is replaced."""
        return self._options.follower_unavailable_considered_failed_s

    def reign_began(self) -> None:
        """Listens from now on."""
        self.reign_ended()
        self._gone = frozenset()
        self._listening_since_s = self._swept_s = self._clock.monotonic()

    def reign_ended(self) -> None:
        """Forgets everything; calls that are under way are left to end, they are safe."""
        self._care.clear()
        self._refusals = CopyRefusals(self.patience_s)
        self._tried.clear()

    def begin_sweep(self, reign: Reign, now_s: float) -> list[TabletId]:
        """Before a sweep: notices pauses and servers that have gone or come back; answers the tablets to look at."""
        if now_s - self._swept_s > max(_PAUSE_MIN_S, 5 * self._options.nudge_interval_s):
            _log.warning("master_was_paused", pause_s=round(now_s - self._swept_s, 1))
            self._listening_since_s = now_s
        self._swept_s = now_s
        self._copies = None
        self._modes = {
            uuid: entry.mode for uuid, entry in reign.state.servers.items() if entry.mode is not TabletServerMode.NORMAL
        }
        self._domains = {server.uuid: server.as_candidate.domain for server in self._registry.servers}
        self._undone = _undone_moves(reign.state)
        self._note_successes(reign.state)
        before, self._gone = self._gone, self._gone_servers(reign.state, now_s)
        changed = before ^ self._gone
        for server in sorted(self._gone - before):
            _log.warning("tablet_server_gone", server=server, silent_for_s_min=self.patience_s)
        if not changed:
            return []
        return [
            tablet.tablet_id
            for tablet in reign.state.tablets.values()
            if tablet.is_live and any(member.uuid in changed for member in tablet.config.members)
        ]

    def look(self, reign: Reign, tablet: TabletEntry, now_s: float) -> bool:
        """Starts the next step of a tablet if one is due. False: there is nothing to do until something is reported."""
        if tablet.state is not TabletState.RUNNING:
            self._care.pop(tablet.tablet_id, None)
            return False
        if not self._is_settled(now_s):
            return True
        report = leader_report(self._registry.hosts(tablet.tablet_id))
        if report is None:
            return False
        wanted = reign.state.wanted_voters(tablet)
        move = reign.state.move_of(tablet.tablet_id)
        is_quiet = move is None and not any(member.uuid in self._modes for member in tablet.config.members)
        if is_quiet and is_well(tablet.config, report, wanted):
            self._care.pop(tablet.tablet_id, None)
            return False
        care = self._care.get(tablet.tablet_id)
        if care is None:
            care = self._care[tablet.tablet_id] = _Care(CopyRefusals(self.patience_s))
        if now_s < care.not_before_s or self._turns.is_taken(tablet.tablet_id):
            return True
        self._note_stuck(care, tablet, report, now_s)
        step = next_step(
            tablet.config,
            report,
            wanted=wanted,
            around=self._around(reign.state, self._past_help(tablet.tablet_id)),
            move=move,
            undone=self._undone.get(tablet.tablet_id),
        )
        care.shunned = {uuid: until_s for uuid, until_s in care.shunned.items() if now_s < until_s}
        if step is None:
            care.failures = 0
            care.blocked = ""
            if not care.stuck and not care.shunned and not care.refusals:
                del self._care[tablet.tablet_id]
            return bool(care.stuck)
        if isinstance(step, Blocked):
            self._note_blocked(care, tablet, step.reason)
            care.not_before_s = now_s + _BLOCKED_PAUSE_S
        elif isinstance(step, Evict):
            self._evict(reign, tablet, report, care, step, now_s)
        else:
            self._add(reign, tablet, report, care, step, now_s)
        return True

    def lost_voters(self, tablet: TabletEntry) -> list[ServerId]:
        """Voters of a tablet that are to be replaced because of their health."""
        report = leader_report(self._registry.hosts(tablet.tablet_id))
        reign = self._committer.reign
        if report is None or reign is None:
            return []
        around = self._around(reign.state, self._past_help(tablet.tablet_id))
        return [
            member.uuid
            for member in tablet.config.members
            if member.member_type is MemberType.VOTER
            and is_lost(member, health_of(member.uuid, report, around), around)
        ]

    async def end_operations(self, reign: Reign) -> None:
        """Stores the end of operations that are done or have failed."""
        if not reign.state.open_operations or not self._is_settled(self._clock.monotonic()):
            return
        ended = [operation.operation_id for operation in self._ends(reign.state).operations]
        if not ended:
            return
        locks = [LockKey(LockKind.OPERATION, operation_id) for operation_id in ended]
        locks += [
            LockKey(LockKind.SERVER, server)
            for server in {reign.state.operations[operation_id].server for operation_id in ended}
            if server is not None
        ]
        try:
            change = await self._committer.commit(locks, lambda state: self._ends(state, only=ended))
        except KuduError as error:
            _log.warning("operations_not_ended", count=len(ended), error=str(error))
            return
        for operation in change.operations:
            _log.info(
                "operation_ended",
                operation=operation.operation_id,
                kind=operation.kind.value,
                state=operation.state.value,
                error=operation.error,
            )

    async def close(self) -> None:
        """Gives up the calls under way; they are safe."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    # What is known.

    def _is_settled(self, now_s: float) -> bool:
        waited_s = now_s - self._listening_since_s
        return waited_s >= _SETTLE_HEARTBEATS * self._options.heartbeat_interval_s and not self._registry.is_settling(
            now_s
        )

    def _gone_servers(self, state: CatalogState, now_s: float) -> frozenset[ServerId]:
        heard = {server.uuid: server.last_heartbeat_s for server in self._registry.servers}
        return frozenset(
            server
            for server in state.replica_counts.keys() | heard.keys()
            if now_s - max(heard.get(server, self._listening_since_s), self._listening_since_s) > self.patience_s
        )

    def _around(self, state: CatalogState, past_help: frozenset[ServerId]) -> Surroundings:
        return Surroundings(self._gone, self._modes, past_help, state.replica_counts, self._domains)

    def _past_help(self, tablet_id: TabletId) -> frozenset[ServerId]:
        """Members that have needed a copy for longer than the patience."""
        care = self._care.get(tablet_id)
        stuck = care.stuck if care is not None else {}
        return frozenset(uuid for uuid, each in stuck.items() if each.for_s > self.patience_s)

    def _note_stuck(self, care: _Care, tablet: TabletEntry, report: LeaderReport, now_s: float) -> None:
        """Adds up how long members have needed a copy without getting anywhere."""
        hosts = self._registry.hosts(tablet.tablet_id)
        needing = {peer.uuid for peer in report.replica.peers if peer.health is PeerHealth.NEEDS_COPY}
        care.stuck = {uuid: stuck for uuid, stuck in care.stuck.items() if uuid in needing}
        for uuid in sorted(needing):
            stuck = care.stuck.setdefault(uuid, _Stuck(now_s))
            # Not the time in which this master heard nothing.
            since_s = max(stuck.seen_s, self._listening_since_s)
            stuck.seen_s = now_s
            replica = hosts.get(uuid)
            done = replica.copy.bytes_done if replica is not None and replica.copy is not None else 0
            if done > stuck.bytes_done:
                stuck.bytes_done, stuck.for_s = done, 0.0
            elif replica is None or replica.state is not ReplicaState.COPYING or done > 0:
                stuck.for_s += now_s - since_s

    def _note_successes(self, state: CatalogState) -> None:
        for server, tablet_id in sorted(self._tried):
            member = state.tablets[tablet_id].config.member(server)
            if member is not None and member.member_type is MemberType.VOTER:
                self._refusals.forgive(server)
            if member is None or member.member_type is MemberType.VOTER:
                self._tried.discard((server, tablet_id))

    def _ends(self, state: CatalogState, only: Sequence[OperationId] | None = None) -> CatalogChange:
        def lost(tablet_id: TabletId, server: ServerId) -> str | None:
            if server in self._gone:
                return f"tablet server {server} has not been heard of for {self.patience_s:g} s"
            mode = state.mode_of(server)
            if mode is not TabletServerMode.NORMAL:
                return f"tablet server {server} is in mode {mode.value} and gets no replicas"
            if server in self._past_help(tablet_id):
                return f"the replica could not be copied to {server} within {self.patience_s:g} s"
            report = leader_report(self._registry.hosts(tablet_id))
            if report is not None and health_of(server, report, Surroundings()) is Health.FAILED:
                return f"tablet server {server} has not answered the tablet's leader {report.leader} for too long"
            return None

        change = plan_ends(state, lost=lost, now_micros=self._clock.wall_micros())
        if only is None:
            return change
        kept = tuple(operation for operation in change.operations if operation.operation_id in only)
        retired = {operation.server for operation in kept}
        servers = tuple(server for server in change.servers if server.uuid in retired)
        return CatalogChange(servers=servers, operations=kept) if kept else NO_CHANGE

    # Steps.

    def _evict(
        self, reign: Reign, tablet: TabletEntry, report: LeaderReport, care: _Care, step: Evict, now_s: float
    ) -> None:
        care.shunned[step.server] = now_s + _SHUNNED_FOR_PATIENCES * self.patience_s
        change = ConfigChange(
            tablet.tablet_id,
            ChangeKind.REMOVE,
            step.server,
            expected_config_index=tablet.config.config_index,
            reason=step.reason,
        )
        # Of a voter whose own replica was lost it says nothing: a new one may well be copied to the same server.
        has_refused = step.server in self._past_help(tablet.tablet_id) and step.server not in tablet.config.voters
        self._start(reign, tablet, report, care, change, has_refused=has_refused)

    def _add(
        self, reign: Reign, tablet: TabletEntry, report: LeaderReport, care: _Care, step: Add, now_s: float
    ) -> None:
        copies = self._copies_by_server(reign.state)
        limit = self._options.copies_per_server_max
        care.not_before_s = now_s + _BLOCKED_PAUSE_S
        if copies[report.leader] >= limit:
            return  # Its leader gives enough already; it is looked at again.
        free = self._placeable(reign.state, tablet, now_s)
        if step.server is not None:
            free = [candidate for candidate in free if candidate.uuid == step.server]
        if not free:
            where = step.server or "any tablet server that may take one"
            self._note_blocked(care, tablet, f"no replica can be added at {where}: {step.reason}")
            return
        if step.server is None:  # Whoever named one is told how it went: the operation fails.
            refusing = care.refusals.left_alone(now_s)
            asked = [candidate.uuid for candidate in free if candidate.uuid in refusing]
            free = [candidate for candidate in free if candidate.uuid not in refusing]
            if not free:
                self._note_blocked(care, tablet, _refused_text(asked, care.refusals, step.reason))
                return
        doubtful = care.shunned.keys() | self._refusals.left_alone(now_s)
        trusted = [candidate for candidate in free if candidate.uuid not in doubtful] or free
        staying = self._staying(reign.state, tablet)
        # A server that has enough copies on their way is waited for, if all others share a fault domain.
        able = [candidate for candidate in least_sharing(trusted, staying) if copies[candidate.uuid] < limit]
        if not able:
            return
        placer = Placer.over(reign.state, able, rng=self._rng, tables=(tablet.table_id,))
        (chosen,) = placer.choose(1, table_id=tablet.table_id, existing=staying)
        copies.update([chosen.uuid, report.leader])
        change = ConfigChange(
            tablet.tablet_id,
            ChangeKind.ADD,
            chosen.uuid,
            MemberType.PRE_VOTER,
            chosen.address,
            promote=True,
            expected_config_index=tablet.config.config_index,
            reason=step.reason,
        )
        self._start(reign, tablet, report, care, change)

    def _placeable(self, state: CatalogState, tablet: TabletEntry, now_s: float) -> list[Candidate]:
        return [
            server.as_candidate
            for server in self._registry.servers
            if self._registry.is_live(server.uuid, now_s)
            and state.mode_of(server.uuid) is TabletServerMode.NORMAL
            and tablet.config.member(server.uuid) is None
        ]

    def _staying(self, state: CatalogState, tablet: TabletEntry) -> list[Candidate]:
        """Members whose fault domains the new one is to avoid."""
        move = state.move_of(tablet.tablet_id)
        leaving = {member.uuid for member in tablet.config.members if member.replace or member.uuid in self._gone}
        if move is not None and move.from_ is not None:
            leaving.add(move.from_)
        staying = []
        for member in tablet.config.members:
            if member.uuid in leaving or state.mode_of(member.uuid) in _ON_THE_WAY_OUT:
                continue
            server = self._registry.get(member.uuid)
            staying.append(server.as_candidate if server is not None else Candidate(member.uuid, member.address))
        return staying

    def _copies_by_server(self, state: CatalogState) -> Counter[ServerId]:
        """Replicas on their way, by server that takes or gives them; counted once a sweep."""
        if self._copies is None:
            self._copies = Counter()
            for tablet in state.tablets.values():
                joining = joining_voters(tablet.config) if tablet.is_live else ()
                if joining:
                    self._copies.update(member.uuid for member in joining)
                    leader = self._registry.leader_of(tablet.tablet_id)
                    if leader is not None:
                        self._copies[leader] += len(joining)
        return self._copies

    def _note_blocked(self, care: _Care, tablet: TabletEntry, reason: str) -> None:
        if care.blocked != reason:
            care.blocked = reason
            _log.warning("tablet_not_repaired", tablet=tablet.tablet_id, reason=reason)

    def _start(
        self,
        reign: Reign,
        tablet: TabletEntry,
        report: LeaderReport,
        care: _Care,
        change: ConfigChange,
        *,
        has_refused: bool = False,
    ) -> None:
        server = self._registry.get(report.leader)
        if server is None or len(self._calls) >= self._options.nudges_in_flight_max:
            return
        care.blocked = ""
        at = Endpoint(report.leader, server.registration.rpc_address)
        task = asyncio.get_running_loop().create_task(
            self._take(reign, at, care, change, has_refused=has_refused),
            name=f"{change.kind.value} {change.server} of {tablet.tablet_id}",
        )
        self._calls.add(task)
        task.add_done_callback(self._call_done)
        # Until the task has its turn: nothing else may be begun for this tablet in the same sweep.
        care.not_before_s = self._clock.monotonic() + self._options.nudge_interval_s

    async def _take(self, reign: Reign, at: Endpoint, care: _Care, change: ConfigChange, *, has_refused: bool) -> None:
        if self._turns.is_taken(change.tablet_id):
            return
        async with self._turns.turn(change.tablet_id):
            if self._committer.reign is not reign:
                return
            try:
                config = await self._admin.change_config(at, change, timeout_s=self._options.nudge_timeout_s)
            except KuduError as error:
                self._note_failed(at, care, change, error)
                return
            _log.info(
                "replica_added" if change.kind is ChangeKind.ADD else "replica_evicted",
                tablet=change.tablet_id,
                server=change.server,
                config_index=config.config_index,
                reason=change.reason,
            )
            care.failures = 0
            care.not_before_s = self._clock.monotonic() + _REPORT_PATIENCE_S
            if has_refused:
                self._note_refused(care, change)
            elif change.kind is ChangeKind.ADD and self._refusals.count(change.server):
                self._tried.add((change.server, change.tablet_id))

            def plan(state: CatalogState) -> CatalogChange:
                before = state.tablets[change.tablet_id]
                after = newer_config(before, config) if before.is_live else before
                return NO_CHANGE if after == before else CatalogChange((after,))

            try:
                await self._committer.commit([LockKey(LockKind.TABLET, change.tablet_id)], plan)
            except KuduError as error:
                _log.info("config_not_stored", tablet=change.tablet_id, error=str(error))
            # The next step rests on this config, which the leader will have reported.
            care.not_before_s = 0.0

    def _note_refused(self, care: _Care, change: ConfigChange) -> None:
        now_s = self._clock.monotonic()
        self._refusals.note(change.server, now_s)
        left_alone_s = care.refusals.note(change.server, now_s)
        _log.warning(
            "copy_came_to_nothing",
            tablet=change.tablet_id,
            server=change.server,
            failures=care.refusals.count(change.server),
            failures_of_server=self._refusals.count(change.server),
            left_alone_for_s=round(left_alone_s),
        )

    def _note_failed(self, at: Endpoint, care: _Care, change: ConfigChange, error: KuduError) -> None:
        bound_s = min(_BACKOFF_MAX_S, _BACKOFF_INITIAL_S * 2.0 ** min(care.failures, 16))
        care.failures += 1
        care.not_before_s = self._clock.monotonic() + bound_s * (0.5 + self._rng.getrandbits(16) / (1 << 17))
        is_normal = error.code in (ErrorCode.STEPPING_DOWN, ErrorCode.NOT_THE_LEADER, ErrorCode.CAS_FAILED)
        if care.failures in (3, 10) or (care.failures == 1 and not is_normal):
            _log.warning(
                "replica_not_changed",
                tablet=change.tablet_id,
                leader=at.uuid,
                change=f"{change.kind.value} {change.server}",
                failures=care.failures,
                error=str(error),
            )

    def _call_done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._on_bug(bug)


_ON_THE_WAY_OUT = frozenset({TabletServerMode.RETIRING, TabletServerMode.RETIRED})


def _refused_text(servers: Sequence[ServerId], refusals: CopyRefusals, reason: str) -> str:
    times = ", ".join(f"{server} ({counted(refusals.count(server), 'failure')} in a row)" for server in servers)
    return (
        f"it could not be copied to {times}, which will be asked again after a while, longer each time, and no other"
        f" tablet server may take a replica: {reason}"
    )


def _undone_moves(state: CatalogState) -> dict[TabletId, ServerId]:
    """Where the last move of a tablet would have led, for those that were cancelled or have failed."""
    last: dict[TabletId, OperationEntry] = {}
    for operation in sorted(state.operations.values(), key=lambda each: (each.created_micros, each.operation_id)):
        if operation.tablet_id is not None and operation.kind is OperationKind.MOVE_REPLICA:
            last[operation.tablet_id] = operation
    return {
        tablet_id: move.to
        for tablet_id, move in last.items()
        if move.to is not None and move.state in (OperationState.CANCELLED, OperationState.FAILED)
    }
