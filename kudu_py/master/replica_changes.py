"""`ReplicaChanges`: an administrator's change of one tablet's members, carried through to its end.

One call, in this order, and why:

1. It waits for its turn at the tablet: the reconciler makes changes too, and two that rest on one config get in each
   other's way.
2. It asks the leader what the config is now. What is refused, is refused by that and not by a report of a second ago.
3. It stores how many voters the tablet is meant to have from now on, and that an administrator was here. This comes
   before the change: if the master stops in between, the policy ends what was begun. The other way round it would undo
   it.
4. It asks the leader for the change, with the index of the config it has seen. A leader that hands over (it is to
   remove itself), one that has been replaced, and an answer that was lost all lead back to step 2: the next look shows
   what has become of it.
5. It stores the config it was answered, as a report would.
6. If the change is refused in the end, the wanted number of step 3 is put back. If its outcome is unknown when the
   caller's time is over, it is found out afterwards.

The caller's going away ends nothing: the change goes on within its bound of time, so that step 6 is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import RandomBits, ServerId, TabletId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.change import NO_CHANGE, CatalogChange
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind
from kudu_py.master.catalog.entries import TabletEntry, TabletServerMode
from kudu_py.master.catalog.operation_ops import (
    require_member,
    require_no_member,
    require_placeable,
    require_running,
)
from kudu_py.master.catalog.replica_ops import ChangeKind, ConfigChange, voters_to_be
from kudu_py.master.catalog.report_ops import newer_config
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers
from kudu_py.master.consensus_client import ConsensusAdmin, GroupView
from kudu_py.master.tablet_leaders import TabletLeaders
from kudu_py.master.tablet_turns import TabletTurns

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_PENDING_PATIENCE_S = 2.0
"""A change that another has begun is usually committed within milliseconds; one that is not, is told of."""
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_CALL_TIMEOUT_S = 10.0
_FIND_OUT_S = 60.0
_FIND_OUT_PAUSE = 16
"""The longest pause there is: whoever asked is gone."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an administrator wants of one member.

    Attributes:
        what: for logs and people.
        check: refuses what cannot be, given the records and the tablet with the leader's config.
        is_reached: whether a committed config has it.
        change: the call that leads there.
        after: the config as it will be.
        sets_wanted_voters: whether the number of voters that the tablet is meant to have follows.
    """

    what: str
    check: Callable[[CatalogState, TabletEntry], None]
    is_reached: Callable[[RaftConfig], bool]
    change: Callable[[TabletEntry], ConfigChange]
    after: Callable[[RaftConfig], RaftConfig]
    sets_wanted_voters: bool = True


@dataclass(slots=True)
class _Intent:
    """What was stored before the call.

    Attributes:
        set_to: the wanted number of voters; None: it was left alone.
        before: what it was.
        is_begun: the call may have been made.
    """

    set_to: int | None = None
    before: int = 0
    is_begun: bool = False


class ReplicaChanges:
    """AddReplica, RemoveReplica, ChangeReplicaType and LeaderStepDown.

    Args:
        servers: the tablet servers of this moment.
        lost_voters: voters of a tablet that are being replaced because of their health.
        on_bug: told of an exception of a change that is no KuduError.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        leaders: TabletLeaders,
        admin: ConsensusAdmin,
        turns: TabletTurns,
        servers: Callable[[], Servers],
        lost_voters: Callable[[TabletEntry], Sequence[ServerId]],
        clock: Clock,
        rng: RandomBits,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._committer = committer
        self._leaders = leaders
        self._admin = admin
        self._turns = turns
        self._servers = servers
        self._lost_voters = lost_voters
        self._clock = clock
        self._rng = rng
        self._on_bug = on_bug
        self._tasks: set[asyncio.Task[Any]] = set()

    async def add(
        self,
        tablet_id: TabletId,
        server: ServerId,
        member_type: MemberType,
        *,
        expected_config_index: int | None,
        timeout_s: float,
    ) -> RaftConfig:
        """A new member, a VOTER to be or a PRE_VOTER that stays one; answers the committed config with it.

        Raises:
            KuduError: TABLET_NOT_FOUND, TABLET_SERVER_NOT_FOUND; ALREADY_PRESENT if it is a member; ILLEGAL_STATE for a
                server that may take none; CAS_FAILED, CONFIG_CHANGE_PENDING; TIMED_OUT.
        """
        address = ""

        def check(state: CatalogState, tablet: TabletEntry) -> None:
            nonlocal address
            require_no_member(tablet, server)
            address = require_placeable(state, self._servers(), server)

        def member() -> Member:
            return Member(server, MemberType.PRE_VOTER, address, promote=member_type is MemberType.VOTER)

        return await self._run(
            tablet_id,
            _Wanted(
                f"add {server} as {member_type.value}",
                check,
                lambda config: config.member(server) is not None,
                lambda tablet: _call(tablet, ChangeKind.ADD, member()),
                lambda config: _with(config, member()),
                sets_wanted_voters=member_type is MemberType.VOTER,
            ),
            expected_config_index,
            timeout_s,
        )

    async def remove(
        self, tablet_id: TabletId, server: ServerId, *, expected_config_index: int | None, timeout_s: float
    ) -> RaftConfig:
        """A member less; a leader hands over first. Answers the committed config without it.

        Raises:
            KuduError: TABLET_NOT_FOUND; NOT_FOUND if it is no member; ILLEGAL_STATE if it is the last voter, or if an
                operation moves a replica there; CAS_FAILED, CONFIG_CHANGE_PENDING; TIMED_OUT.
        """

        def check(state: CatalogState, tablet: TabletEntry) -> None:
            member = require_member(tablet, server)
            _require_not_last(tablet, member, "removed")
            _require_not_moving(state, tablet, server)

        def change(tablet: TabletEntry) -> ConfigChange:
            return _call(tablet, ChangeKind.REMOVE, require_member(tablet, server))

        return await self._run(
            tablet_id,
            _Wanted(
                f"remove {server}",
                check,
                lambda config: config.member(server) is None,
                change,
                lambda config: _without(config, server),
            ),
            expected_config_index,
            timeout_s,
        )

    async def change_type(
        self,
        tablet_id: TabletId,
        server: ServerId,
        member_type: MemberType,
        *,
        expected_config_index: int | None,
        timeout_s: float,
    ) -> RaftConfig:
        """A member of another type. A PRE_VOTER is marked to be promoted, and the leader does it once it has caught up;
        that is waited for.

        Raises:
            KuduError: as `remove`; ALREADY_PRESENT if it is of that type; TIMED_OUT with verdict UNKNOWN if it is
                marked and was not promoted in time.
        """

        def wanted_member(tablet: TabletEntry) -> Member:
            member = require_member(tablet, server)
            return replace(member, member_type=MemberType.PRE_VOTER, promote=member_type is MemberType.VOTER)

        def is_marked(config: RaftConfig) -> bool:
            member = config.member(server)
            if member is None:
                return False
            if member_type is MemberType.VOTER:
                return member.member_type is MemberType.VOTER or member.promote
            return member.member_type is MemberType.PRE_VOTER and not member.promote

        def check(state: CatalogState, tablet: TabletEntry) -> None:
            member = require_member(tablet, server)
            if member.member_type is member_type and not (member_type is MemberType.PRE_VOTER and member.promote):
                raise KuduError(
                    ErrorCode.ALREADY_PRESENT,
                    f"the replica of tablet {tablet.tablet_id} at {server} is a {member_type.value} already",
                    details={"tablet_id": tablet.tablet_id, "ts_uuid": server, "member_type": member_type.value},
                )
            _require_not_moving(state, tablet, server)
            if member_type is MemberType.PRE_VOTER:
                _require_not_last(tablet, member, "made a PRE_VOTER")

        deadline_s = self._clock.monotonic() + timeout_s
        config = await self._run(
            tablet_id,
            _Wanted(
                f"make {server} a {member_type.value}",
                check,
                is_marked,
                lambda tablet: _call(tablet, ChangeKind.CHANGE, wanted_member(tablet)),
                lambda config: (
                    _with(_without(config, server), replace(_member_of(config, server), promote=True))
                    if member_type is MemberType.VOTER
                    else _with(_without(config, server), Member(server, MemberType.PRE_VOTER))
                ),
            ),
            expected_config_index,
            timeout_s,
        )
        if member_type is MemberType.PRE_VOTER:
            return config
        return await self._until_voter(tablet_id, server, config, deadline_s)

    async def step_down(
        self, tablet_id: TabletId, successor: ServerId | None, *, timeout_s: float
    ) -> tuple[ServerId, int]:
        """Another leader, `successor` if one is named; answers who leads now, and its term.

        Raises:
            KuduError: TABLET_NOT_FOUND; NOT_FOUND if the successor is no member; ILLEGAL_STATE if it is no voter, or if
                there is no other voter; TIMED_OUT.
        """
        return await self._owned(self._step_down(tablet_id, successor, self._clock.monotonic() + timeout_s))

    async def close(self) -> None:
        """Gives up what is under way; what has become of it is read by the next reign."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One change.

    async def _run(
        self, tablet_id: TabletId, wanted: _Wanted, expected_config_index: int | None, timeout_s: float
    ) -> RaftConfig:
        deadline_s = self._clock.monotonic() + timeout_s
        return await self._owned(self._in_turn(tablet_id, wanted, expected_config_index, deadline_s))

    async def _in_turn(
        self, tablet_id: TabletId, wanted: _Wanted, expected_config_index: int | None, deadline_s: float
    ) -> RaftConfig:
        require_running(self._committer.require_reign().state.tablet(tablet_id))  # What is refused waits for no turn.
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns.turn(tablet_id))
            intent = _Intent()
            try:
                return await self._carry_out(tablet_id, wanted, expected_config_index, deadline_s, intent)
            except KuduError as error:
                if intent.set_to is not None and error.verdict is Verdict.UNKNOWN:
                    self._spawn(self._find_out(tablet_id, wanted, intent, turn.pop_all()))
                elif intent.set_to is not None:
                    await self._restore(tablet_id, intent)
                raise

    async def _find_out(self, tablet_id: TabletId, wanted: _Wanted, intent: _Intent, turn: AsyncExitStack) -> None:
        """After the caller was told that the outcome is unknown: keeps the wanted number or puts it back.

        A change that is not committed in time is undone by its leader, seconds later. The turn ends with this: whoever
        came in between would count on a number that may yet be put back.
        """
        async with turn:
            deadline_s = self._clock.monotonic() + _FIND_OUT_S
            while self._left_s(deadline_s) > 0:
                await self._pause(_FIND_OUT_PAUSE, deadline_s)
                tablet = self._committer.require_reign().state.tablet(tablet_id)
                try:
                    view = await self._leaders.find(tablet, timeout_s=self._left_s(deadline_s))
                except KuduError:
                    continue
                if wanted.is_reached(view.committed):
                    await self._reached(tablet_id, wanted, view.committed)
                    return
                if view.pending is None:
                    await self._restore(tablet_id, intent)
                    return

    async def _carry_out(
        self,
        tablet_id: TabletId,
        wanted: _Wanted,
        expected_config_index: int | None,
        deadline_s: float,
        intent: _Intent,
    ) -> RaftConfig:
        pending_since_s: float | None = None
        failures = 0
        last: KuduError | None = None
        while self._left_s(deadline_s) > 0:
            if last is not None:
                await self._pause(failures, deadline_s)
                failures += 1
            tablet = self._committer.require_reign().state.tablet(tablet_id)
            try:
                view = await self._leaders.find(tablet, timeout_s=self._left_s(deadline_s))
            except KuduError as error:
                if last is None or self._left_s(deadline_s) > 0:
                    last = error  # One that had no time left to be asked explains nothing.
                continue
            if intent.is_begun and wanted.is_reached(view.committed):
                return await self._reached(tablet_id, wanted, view.committed)
            tablet = self._checked(tablet_id, wanted, view, expected_config_index)
            if wanted.is_reached(view.committed):
                return view.committed
            if view.pending is not None:
                pending_since_s = pending_since_s or self._clock.monotonic()
                last = _pending(tablet, view.pending)
                if self._clock.monotonic() - pending_since_s >= _PENDING_PATIENCE_S:
                    raise last
                continue
            await self._store_intent(tablet_id, wanted, view.committed, intent)
            timeout_s = min(self._left_s(deadline_s), _CALL_TIMEOUT_S)
            try:
                config = await self._admin.change_config(view.at, wanted.change(tablet), timeout_s=timeout_s)
            except KuduError as error:
                if not _is_worth_another_look(error, expected_config_index):
                    raise
                last = error
            else:
                return await self._reached(tablet_id, wanted, config)
        raise _timed_out(tablet_id, wanted, last)

    def _checked(
        self, tablet_id: TabletId, wanted: _Wanted, view: GroupView, expected_config_index: int | None
    ) -> TabletEntry:
        """The tablet with the config that the leader has, if the change is a legal one there."""
        state = self._committer.require_reign().state
        tablet = replace(state.tablet(tablet_id), config=view.committed)
        if expected_config_index is not None and expected_config_index != view.committed.config_index:
            raise KuduError(
                ErrorCode.CAS_FAILED,
                f"the committed config of tablet {tablet_id} has index {view.committed.config_index}, not"
                f" {expected_config_index}; look at the tablet again",
                details={"tablet_id": tablet_id, "config_index": str(view.committed.config_index)},
            )
        wanted.check(state, tablet)
        return tablet

    async def _store_intent(self, tablet_id: TabletId, wanted: _Wanted, config: RaftConfig, intent: _Intent) -> None:
        now_micros = self._clock.wall_micros()

        def plan(state: CatalogState) -> CatalogChange:
            before = state.tablet(tablet_id)
            after = replace(newer_config(before, config), changed_by_admin_micros=now_micros)
            if wanted.sets_wanted_voters:
                if intent.set_to != before.wanted_voters:
                    intent.before = before.wanted_voters  # Not what was stored here, a try ago.
                meant = state.wanted_voters(replace(before, wanted_voters=intent.before))
                leaving = [*_moving_away(state, after), *self._lost_voters(replace(after, config=config))]
                intent.set_to = voters_to_be(
                    wanted.after(config), leaving, replacements=max(0, len(config.voters) - meant)
                )
                after = replace(after, wanted_voters=intent.set_to)
            return CatalogChange((after,))

        intent.is_begun = True
        await self._committer.commit([LockKey(LockKind.TABLET, tablet_id)], plan)

    async def _reached(self, tablet_id: TabletId, wanted: _Wanted, config: RaftConfig) -> RaftConfig:
        """Stores the config as a report would, and answers it."""

        def plan(state: CatalogState) -> CatalogChange:
            before = state.tablets[tablet_id]
            after = newer_config(before, config) if before.is_live else before
            return NO_CHANGE if after == before else CatalogChange((after,))

        try:
            await self._committer.commit([LockKey(LockKind.TABLET, tablet_id)], plan)
        except KuduError as error:
            # It is done all the same; the leader's report will tell.
            _log.info("config_not_stored", tablet=tablet_id, config_index=config.config_index, error=str(error))
        _log.info("replica_changed", tablet=tablet_id, change=wanted.what, config_index=config.config_index)
        return config

    async def _restore(self, tablet_id: TabletId, intent: _Intent) -> None:
        def plan(state: CatalogState) -> CatalogChange:
            tablet = state.tablets[tablet_id]
            if not tablet.is_live or tablet.wanted_voters != intent.set_to or intent.set_to == intent.before:
                return NO_CHANGE
            return CatalogChange((replace(tablet, wanted_voters=intent.before),))

        try:
            await self._committer.commit([LockKey(LockKind.TABLET, tablet_id)], plan)
        except KuduError as error:
            _log.warning("wanted_voters_not_restored", tablet=tablet_id, wanted_voters=intent.set_to, error=str(error))

    async def _until_voter(
        self, tablet_id: TabletId, server: ServerId, config: RaftConfig, deadline_s: float
    ) -> RaftConfig:
        while (member := config.member(server)) is None or member.member_type is not MemberType.VOTER:
            if member is None:
                raise KuduError(
                    ErrorCode.OPERATION_ABORTED,
                    f"the replica of tablet {tablet_id} at {server} was removed before it was promoted",
                )
            if not member.promote:
                raise KuduError(
                    ErrorCode.OPERATION_ABORTED,
                    f"another call has made the replica of tablet {tablet_id} at {server} one that is not to be"
                    " promoted; ask again if it is",
                )
            if self._left_s(deadline_s) <= 0:
                raise KuduError(
                    ErrorCode.TIMED_OUT,
                    f"the replica of tablet {tablet_id} at {server} is marked to be promoted and has not caught up yet;"
                    " the leader makes it a VOTER when it has",
                    verdict=Verdict.UNKNOWN,
                )
            await self._pause(2, deadline_s)
            tablet = self._committer.require_reign().state.tablet(tablet_id)
            try:
                found = (await self._leaders.find(tablet, timeout_s=self._left_s(deadline_s))).committed
            except KuduError as error:
                if error.verdict is Verdict.FAILED:
                    raise
            else:  # Who was leader before may still say so, and be behind.
                config = found if found.config_index > config.config_index else config
        return config

    # A new leader.

    async def _step_down(
        self, tablet_id: TabletId, successor: ServerId | None, deadline_s: float
    ) -> tuple[ServerId, int]:
        first: GroupView | None = None
        failures = 0
        last: KuduError | None = None
        while self._left_s(deadline_s) > 0:
            tablet = self._committer.require_reign().state.tablet(tablet_id)
            try:
                view = await self._leaders.find(tablet, timeout_s=self._left_s(deadline_s))
                first = first or view
                if view.at.uuid == successor or (view.at.uuid != first.at.uuid and successor is None):
                    return view.at.uuid, view.term
                _require_successor(replace(tablet, config=view.committed), view.at.uuid, successor)
                await self._admin.step_down(
                    view.at, tablet_id, successor, timeout_s=min(self._left_s(deadline_s), _CALL_TIMEOUT_S)
                )
            except KuduError as error:
                if error.verdict is Verdict.FAILED and error.code not in _LEADER_MOVED:
                    raise
                last = error
            await self._pause(failures, deadline_s)
            failures += 1
        reason = f"; {last}" if last is not None else ""
        raise KuduError(
            ErrorCode.TIMED_OUT,
            f"no other replica of tablet {tablet_id} has taken over in time{reason}",
            verdict=Verdict.UNKNOWN,
        )

    # What they share.

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - self._clock.monotonic())

    async def _pause(self, failures: int, deadline_s: float) -> None:
        bound_s = min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(failures, 16), self._left_s(deadline_s))
        await asyncio.sleep(bound_s * (0.5 + self._rng.getrandbits(16) / (1 << 17)))

    async def _owned(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work that goes on if the caller is cancelled."""
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name="replica change")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, KuduError):
            self._on_bug(error)


_LEADER_MOVED = frozenset({ErrorCode.NOT_THE_LEADER, ErrorCode.STEPPING_DOWN})


def _is_worth_another_look(error: KuduError, expected_config_index: int | None) -> bool:
    """Whether another look at the group may show that the change can be made, or was made."""
    if error.code is ErrorCode.CAS_FAILED:
        return expected_config_index is None
    return error.verdict is not Verdict.FAILED or error.code in _LEADER_MOVED


def _call(tablet: TabletEntry, kind: ChangeKind, member: Member) -> ConfigChange:
    return ConfigChange(
        tablet.tablet_id,
        kind,
        member.uuid,
        member.member_type,
        member.address,
        member.promote,
        member.replace,
        tablet.config.config_index,
        "an administrator asked for it",
    )


def _member_of(config: RaftConfig, server: ServerId) -> Member:
    member = config.member(server)
    assert member is not None, (config, server)
    return member


def _with(config: RaftConfig, member: Member) -> RaftConfig:
    return replace(config, members=tuple(sorted((*config.members, member), key=lambda each: each.uuid)))


def _without(config: RaftConfig, server: ServerId) -> RaftConfig:
    return replace(config, members=tuple(member for member in config.members if member.uuid != server))


def _moving_away(state: CatalogState, tablet: TabletEntry) -> list[ServerId]:
    """Members that a move or a retirement takes away."""
    move = state.move_of(tablet.tablet_id)
    retired = (TabletServerMode.RETIRING, TabletServerMode.RETIRED)
    leaving = [member.uuid for member in tablet.config.members if state.mode_of(member.uuid) in retired]
    return [*leaving, *([move.from_] if move is not None and move.from_ is not None else [])]


def _require_not_last(tablet: TabletEntry, member: Member, what: str) -> None:
    if tablet.config.voters == (member.uuid,):
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the replica at {member.uuid} is the last voter of tablet {tablet.tablet_id} and cannot be {what}; add"
            " another first, or delete the table",
            details={"tablet_id": tablet.tablet_id, "ts_uuid": member.uuid},
        )


def _require_not_moving(state: CatalogState, tablet: TabletEntry, server: ServerId) -> None:
    move = state.move_of(tablet.tablet_id)
    if move is not None and move.to == server:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"a replica of tablet {tablet.tablet_id} is being moved to {server} by operation {move.operation_id};"
            " cancel that instead",
            details={"operation_id": move.operation_id},
        )


def _require_successor(tablet: TabletEntry, leader: ServerId, successor: ServerId | None) -> None:
    if successor is not None and require_member(tablet, successor).member_type is not MemberType.VOTER:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the replica of tablet {tablet.tablet_id} at {successor} is no VOTER and cannot lead",
            details={"tablet_id": tablet.tablet_id, "ts_uuid": successor},
        )
    if not [voter for voter in tablet.config.voters if voter != leader]:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"tablet {tablet.tablet_id} has no other voter than its leader {leader}",
            details={"tablet_id": tablet.tablet_id, "ts_uuid": leader},
        )


def _pending(tablet: TabletEntry, pending: RaftConfig) -> KuduError:
    return KuduError(
        ErrorCode.CONFIG_CHANGE_PENDING,
        f"config {pending.config_index} of tablet {tablet.tablet_id} has not been committed for"
        f" {_PENDING_PATIENCE_S:g} s; one change at a time: wait, or abort it with ConsensusService/AbortConfigChange",
        verdict=Verdict.TRY_LATER,
        details={"tablet_id": tablet.tablet_id, "pending_config_index": str(pending.config_index)},
    )


def _timed_out(tablet_id: TabletId, wanted: _Wanted, last: KuduError | None) -> KuduError:
    why = f"; {last}" if last is not None else ""
    is_unknown = last is not None and last.verdict is Verdict.UNKNOWN
    return KuduError(
        ErrorCode.TIMED_OUT,
        f"tablet {tablet_id}: it took too long to {wanted.what}{why}",
        verdict=Verdict.UNKNOWN if is_unknown else Verdict.TRY_LATER,
        details=last.details if last is not None else None,
    )
