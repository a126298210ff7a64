"""`RaftConsensus`: feeds events to the machine, performs its outputs, owns the timer and the waiting rounds.

There is one door, `_step`, and it is synchronous: no `await` stands between a fact and its consequences, so there is no
lock. The order in which an output is performed, and why:

 1. Rounds that were overwritten make way before others take their indexes; what is committed there decides them.
 2. The log is cut before it is appended to. Entries are handed to the log and to the applier in one breath, so that the
    two never disagree about what an index means.
 3. Term and vote go to the disk beside them; the files are different and do not wait for each other.
 4. What promises nothing leaves now. In particular a leader's appends leave before its own disk has them: the
    followers' syncs overlap with its own.
 5. What promises something joins `Promises`, behind all earlier promises.
 6. Commits are only noted: applying happens, in slices (`Applier`), when nothing waits to leave.

Facts that come up while an output is performed (a link that refuses a message at once) wait in line until it is done.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict, not_the_leader
from kudu_py.common.futures import settle
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.appender import Appender, Proposal
from kudu_py.consensus.applier import Applier, MemoryAccount, NoAccount, StateMachine
from kudu_py.consensus.bootstrap import BootstrapResult
from kudu_py.consensus.codec import (
    config_to_pb,
    op_id_to_pb,
    role_to_pb,
)
from kudu_py.consensus.config_changes import ConfigChanges
from kudu_py.consensus.copy_calls import CopyCalls
from kudu_py.consensus.core.events import (
    AppendReceived,
    ClockAdvanced,
    ConfigChangeAborted,
    ConfigChangeRequested,
    ElectionRequested,
    EntriesDurable,
    EntryProposed,
    Event,
    HardStateDurable,
    LogStalled,
    RoundsApplied,
    StepDownRequested,
    Token,
    UnsafeConfigForced,
)
from kudu_py.consensus.core.model import ConfigChange, EntryKind, HardState, Member, RaftConfig, Role
from kudu_py.consensus.core.output import (
    ConfigMark,
    Divergence,
    Done,
    Message,
    Output,
    Refused,
    Reply,
    RoleMark,
)
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.election_calls import ElectionCalls
from kudu_py.consensus.entry import Entry
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.outbox import Outbox
from kudu_py.consensus.peer_health import peer_status
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.peer_requests import PeerRequests, Waiter
from kudu_py.consensus.peers import DIVERGED, PeerContext
from kudu_py.consensus.promises import Promise, Promises
from kudu_py.consensus.reads import Reads
from kudu_py.consensus.rounds import Round, Rounds
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.deadline import DeadlineTimer
from kudu_py.env.disk import DiskThreads
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.retry import Backoff
from kudu_py.wal.log import Log

_log = structlog.get_logger()
_NO_ACCOUNT = NoAccount()


class RaftConsensus:
    """One replica of one tablet's group.

    All methods are for the event loop that it was created on. Those that are not `async` do not wait.

    Attributes:
        peer_requests: takes what other replicas of the group ask of this one.
    """

    def __init__(
        self,
        *,
        uuid: ServerId,
        tablet_id: TabletId,
        address: str,
        metadata: ConsensusMetadata,
        log: Log,
        threads: DiskThreads,
        clock: Clock,
        hybrid_clock: HybridClock,
        rng: Chance,
        links: PeerLinks,
        options: ConsensusOptions,
        state_machine: StateMachine,
        bootstrap: BootstrapResult,
        on_role_change: Callable[[RoleMark], None],
        on_fatal: Callable[[BaseException], None],
        on_members_change: Callable[[], None] = lambda: None,
        has_room: Callable[[], bool] = lambda: True,
        memory: MemoryAccount = _NO_ACCOUNT,
    ) -> None:
        """A replica that does nothing yet; see `start`.

        Args:
            uuid: of this server. address: where its own services are.
            log: opened, and read into `bootstrap`. Its owner passes what it reports to `entries_durable` and
                `log_failed`.
            state_machine: holds everything up to the checkpoint of `bootstrap`.
            on_role_change: told of changes of role, term or leader, soon after, never from within a call to this
                object.
            on_fatal: told, once, that the replica can no longer be trusted: the log or the metadata could not be
                written, an entry not applied, or an assertion failed. The process has to end.
            on_members_change: told, as of roles, that the active or committed config has changed, or of a leader how it
                finds a member to be.
            has_room: whether a leader's entries may be taken; false where memory is short.
            memory: what entries that wait to be applied take is accounted for there.
        """
        self.uuid, self.tablet_id, self.address = uuid, tablet_id, address
        self.metadata, self.log, self.options = metadata, log, options
        self._threads, self._clock = threads, clock
        self._on_role_change, self._on_fatal, self._on_members_change = on_role_change, on_fatal, on_members_change
        self._loop = asyncio.get_running_loop()
        self._logger = _log.bind(tablet=tablet_id, server=uuid)
        self._raft = Raft(
            uuid=uuid,
            config=metadata.committed_config,
            hard_state=metadata.hard_state,
            log=bootstrap.log_view(),
            options=options.raft,
            rng=rng,
            pending_configs=bootstrap.configs,
            group=f"tablet {tablet_id}",
        )
        self._time = TimeManager(
            clock,
            hybrid_clock,
            last_timestamp=bootstrap.last_timestamp,
            clock_skew_max_s=options.clock_skew_max_s,
        )
        self._time.note_applied(bootstrap.applied.index, bootstrap.applied_timestamp)
        self._rounds = Rounds()
        self._applier = Applier(
            state_machine=state_machine,
            log=log,
            clock=clock,
            rounds=self._rounds,
            applied_index=bootstrap.applied.index,
            slice_s=options.apply_slice_s,
            lazy_s=options.apply_lazy_s,
            lazy_bytes_max=options.apply_lazy_bytes_max,
            kept_bytes_max=options.kept_bytes_max,
            on_applied=self._note_applied,
            on_slice=self._note_slice_applied,
            on_failure=self._fail,
            spawn=self._spawn,
            memory=memory,
        )
        self._promises = Promises(self._release)
        self._appender = Appender(log=log, applier=self._applier, rounds=self._rounds, time=self._time)
        peers = PeerContext(
            tablet_id=tablet_id,
            uuid=uuid,
            address=address,
            log=log,
            time=self._time,
            append_bytes_max=options.append_bytes_max,
            post=self._step,
            leads=lambda term: self._raft.role is Role.LEADER and self._raft.term == term,
            spawn=self._spawn,
        )
        calls = ElectionCalls(
            tablet_id=tablet_id,
            uuid=uuid,
            links=links,
            time=self._time,
            timeout_s=options.vote_timeout_s,
            post=self._step,
            logger=self._logger,
        )
        self._outbox = Outbox(
            raft=self._raft,
            applier=self._applier,
            context=peers,
            calls=calls,
            copies=CopyCalls(
                tablet_id=tablet_id,
                uuid=uuid,
                address=address,
                links=links,
                clock=clock,
                rng=rng,
                timeout_s=options.copy_request_timeout_s,
                backoff=Backoff(initial_s=options.copy_retry_min_s, max_s=options.copy_retry_max_s),
                spawn=self._spawn,
                logger=self._logger,
            ),
            links=links,
        )
        starting = KuduError(ErrorCode.TABLET_NOT_RUNNING, f"tablet {tablet_id} is starting", verdict=Verdict.TRY_LATER)
        self._stop_reason: KuduError | None = starting
        self._tokens = itertools.count(1)
        self._waiters: dict[Token, Waiter] = {}
        self._reads = Reads(
            tablet_id=tablet_id,
            raft=self._raft,
            time=self._time,
            applier=self._applier,
            tokens=self._tokens,
            post=self._step,
            require_running=self._require_running,
            not_the_leader=self._not_the_leader,
        )
        self.peer_requests = PeerRequests(
            uuid=uuid,
            tablet_id=tablet_id,
            raft=self._raft,
            time=self._time,
            appender=self._appender,
            reads=self._reads,
            tokens=self._tokens,
            waiters=self._waiters,
            post=self._step,
            ask=self._ask,
            has_room=lambda size_bytes: has_room() and log.has_room(size_bytes),
            why_closed=starting,
        )
        self._inbox: deque[Event] = deque()
        self._is_stepping = self._has_left_work = False
        self._facts: deque[tuple[float, Event]] = deque(maxlen=options.facts_kept)
        self._timer = DeadlineTimer(clock, self._on_deadline)
        self._is_stalled = False
        self._changes = ConfigChanges(
            tablet_id=tablet_id,
            raft=self._raft,
            log=log,
            propose=lambda event: self._propose_or_done(Proposal(b"", None), event),
            wait_applied=self.wait_applied,
            read_index=self.read_index,
            logger=self._logger,
        )
        self._healths: tuple[int, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self.elections_started = 0
        self.elections_won = 0

    # Life.

    async def start(self) -> None:
        """Begins to take part in the group."""
        self._stop_reason = self.peer_requests.why_closed = None
        self.metadata.attach(self._threads, on_durable=self._note_hard_state_durable, on_failure=self._disk_failed)
        self._step(ClockAdvanced())

    async def stop(self) -> None:
        """Takes no further part. Rounds that wait are told that their outcome is unknown. Log and metadata stay
        open."""
        self._shut(
            KuduError(ErrorCode.TABLET_NOT_RUNNING, f"tablet {self.tablet_id} is stopped", verdict=Verdict.TRY_LATER)
        )
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def entries_durable(self, op_id: OpId) -> None:
        """The log is synced up to this entry; to be called with what `Log` reports, in order."""
        appends = self._appender.durable_appends(op_id)
        if appends is not None:
            self._promises.note_appends_durable(appends)
        if self._stop_reason is None:
            self._promises.release_due()
        self._step(EntriesDurable(op_id))

    def log_failed(self, error: BaseException) -> None:
        """The log could not be written."""
        self._disk_failed(error)

    def fail(self, error: BaseException) -> None:
        """What the replica stands on was found damaged: it falls silent, as after an entry that cannot be applied."""
        self._fail(error)

    # What it is.

    @property
    def role(self) -> Role:
        """What this replica is at the moment; NON_PARTICIPANT once it has stopped or failed."""
        return self._raft.role if self._stop_reason is None else Role.NON_PARTICIPANT

    @property
    def term(self) -> int:
        """The latest term it knows."""
        return self._raft.term

    @property
    def leader(self) -> ServerId | None:
        """Who leads the group, if known; maybe itself."""
        return self._raft.leader

    @property
    def leader_address(self) -> str | None:
        """Where the leader's services are, if known."""
        leader = self._raft.leader
        if leader is None:
            return None
        if leader == self.uuid:
            return self.address
        known = self.peer_requests.heard_leader
        if known is not None and known[0] == leader and known[1]:
            return known[1]
        member = self._raft.active_config.member(leader)
        return member.address if member is not None and member.address else None

    @property
    def active_config(self) -> RaftConfig:
        """The config in force, committed or not."""
        return self._raft.active_config

    @property
    def committed_config(self) -> RaftConfig:
        """The last committed config."""
        return self._raft.committed_config

    @property
    def pending_config(self) -> RaftConfig | None:
        """The active config while it is not committed."""
        return self._raft.pending_config

    @property
    def last_op_id(self) -> OpId:
        """The last entry of the log, durable or not."""
        return self._raft.last_op_id

    @property
    def last_committed_op_id(self) -> OpId:
        """The last entry known to be committed."""
        return self._raft.committed_op_id

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return self._raft.commit_index

    @property
    def applied_index(self) -> int:
        """The last entry that the state machine has."""
        return self._applier.applied_index

    @property
    def replicated_index(self) -> int:
        """Every follower that can still be served from the log has everything up to here; the log above it is
        needed."""
        return self._raft.replicated_index

    @property
    def safe_time(self) -> HybridTime:
        """A snapshot at this timestamp or before is complete here and stays as it is."""
        return self._time.safe_time

    @property
    def rounds_in_flight(self) -> int:
        """Own proposals that are not applied yet."""
        return len(self._rounds)

    def is_leader_ready(self) -> bool:
        """Whether writes are taken: it leads, has applied its own no-op, and its clock has passed earlier leaders'."""
        return self._why_not_ready() is None

    def consensus_state(self) -> consensus_pb2.ConsensusState:
        """What this replica knows of its group."""
        state = consensus_pb2.ConsensusState(
            term=self.term,
            leader_uuid=self.leader or "",
            committed_config=config_to_pb(self.committed_config),
            role=role_to_pb(self.role),
            last_op_id=op_id_to_pb(self.last_op_id),
            committed_index=self.commit_index,
            applied_index=self.applied_index,
        )
        if self.pending_config is not None:
            state.pending_config.CopyFrom(config_to_pb(self.pending_config))
        state.peers.extend(self.peer_statuses())
        return state

    def peer_statuses(self) -> list[consensus_pb2.PeerStatus]:
        """How this leader finds the other members to be; empty unless leading."""
        if self.role is not Role.LEADER:
            return []
        now, failed_after_s = self._clock.monotonic(), self.options.follower_unavailable_considered_failed_s
        return [peer_status(row, now, failed_after_s=failed_after_s) for row in self._raft.followers]

    def needs_copy(self, follower: ServerId) -> bool:
        """Whether this replica leads, and the follower cannot be served from its log. Until it can, and is seen to
        answer, nothing but an anchor holds the log for it; from then on `replicated_index` does."""
        return self._stop_reason is None and self._raft.needs_copy(follower)

    # Writes.

    def check_room(self, size_bytes: int) -> None:
        """Refuses a proposal that would exceed what may be in flight.

        Raises:
            KuduError: SERVER_TOO_BUSY; DISK_FULL or the like where the log has no room.
        """
        rounds = self._rounds
        if len(rounds) >= self.options.rounds_in_flight_max or (
            len(rounds) > 0 and rounds.size_bytes + size_bytes > self.options.bytes_in_flight_max
        ):
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"tablet {self.tablet_id} has {len(rounds)} operations of {rounds.size_bytes} bytes in flight",
                verdict=Verdict.TRY_LATER,
            )
        self.log.check_room(size_bytes)

    def propose(self, kind: EntryKind, payload: bytes, prepared: object = None) -> Round:
        """Makes an operation the next entry of the log, and starts to replicate it.

        Args:
            kind: WRITE or ALTER_SCHEMA.
            payload: the serialised operation.
            prepared: handed to the state machine as `Entry.prepared`, if it stays in memory.

        Returns:
            the round, whose future resolves with what the state machine answers.

        Raises:
            KuduError: NOT_THE_LEADER, UNAVAILABLE while a new leader is not ready, STEPPING_DOWN, SERVER_TOO_BUSY;
                nothing has happened then.
        """
        if (why_not := self._why_not_ready()) is not None:
            raise why_not
        self.check_room(len(payload))
        return self._propose(Proposal(payload, prepared), lambda token: EntryProposed(kind, token))

    # Members.

    async def change_config(
        self, change: ConfigChange, member: Member, expected_config_index: int | None = None
    ) -> RaftConfig:
        """Adds, removes or changes one member; the change is committed on return, and durable on a majority.

        Cancelling ends the waiting, not the change.

        Args:
            change, member: see `config_request.requested_config`. That a VOTER joins is done when it has joined as a
                PRE_VOTER that is to be promoted.
            expected_config_index: of the committed config that the caller has in mind; None: not checked.

        Returns:
            the committed config; at once if what is wanted is so already.

        Raises:
            KuduError: with nothing changed: NOT_THE_LEADER, STEPPING_DOWN (also of a leader that is to remove itself),
                CAS_FAILED, CONFIG_CHANGE_PENDING, UNAVAILABLE while too few of the new voters answer, INVALID_CONFIG,
                ALREADY_PRESENT, NOT_FOUND. OPERATION_ABORTED if it was undone, or another leader's entry came in its
                place. The replica stopped, outcome unknown.
        """
        self._require_running()
        return await self._changes.decide(
            lambda token: ConfigChangeRequested(change, member, expected_config_index, token)
        )

    async def abort_config_change(self, pending_index: int | None = None) -> RaftConfig:
        """Undoes the change that is not committed, if this leader began it; a config is committed on return.

        Args:
            pending_index: of the config that the caller has in mind; None: whichever is pending.

        Returns:
            the committed config: with the members from before the change, or with the change if it was committed
            meanwhile, or had been.

        Raises:
            KuduError: with nothing changed: NOT_THE_LEADER, STEPPING_DOWN, CAS_FAILED, UNAVAILABLE while too few of the
                previous voters answer, ILLEGAL_STATE for a change that an earlier leader began. OPERATION_ABORTED if
                another leader's entry came in the place of the undo: the change may hold.
        """
        self._require_running()
        return await self._changes.decide(lambda token: ConfigChangeAborted(pending_index, token))

    async def unsafe_change_config(self, member_uuids: Sequence[ServerId], caller_id: str) -> RaftConfig:
        """Gives up all members but these, without asking anybody; durable here on return. This replica campaigns among
        those that are left.

        For a group that has lost its majority for good. Acknowledged writes may be lost; and if a member that was
        given up comes back with others, two groups live on.

        Raises:
            KuduError: INVALID_ARGUMENT for somebody who is no member, or without this replica, which must be a voter;
                ILLEGAL_STATE while a leader is alive.
        """
        self._logger.warning("unsafe_config_asked", members=list(member_uuids), caller=caller_id)
        await self._ask(lambda token: UnsafeConfigForced(tuple(member_uuids), token))
        return self.active_config

    # Reads.

    async def read_index(self) -> int:
        """Waits until a read here sees everything that was acknowledged, by any leader, before this call.

        Returns:
            an index that is applied.

        Raises:
            KuduError: NOT_THE_LEADER, also if leadership was lost meanwhile.
        """
        return await self._reads.read_index()

    async def wait_applied(self, index: int) -> None:
        """Waits until the entry at `index`, which must be committed or become so, is applied.

        Raises:
            KuduError: the replica stopped.
        """
        await self._reads.wait_applied(index)

    async def wait_safe_time(self, timestamp: HybridTime, timeout_s: float) -> None:
        """Waits until a snapshot at `timestamp` is complete here.

        A leader moves its clock there and has its leadership confirmed; a follower waits for the leader's messages.

        Raises:
            KuduError: TIMED_OUT; ILLEGAL_STATE if the timestamp is too far in the future; NOT_THE_LEADER if leadership
                was lost meanwhile.
        """
        await self._reads.wait_safe_time(timestamp, timeout_s)

    # Leadership.

    async def run_election(self, term: int | None = None) -> None:
        """Campaigns now, whether or not a leader is alive; returns when that is taken up.

        Args:
            term: the term of the leader that hands over; in another term the request is stale. None: not checked.

        Raises:
            KuduError: the request is stale, or this replica may not lead.
        """
        await self._ask(lambda token: ElectionRequested(token, term))

    async def leader_step_down(self, successor: ServerId | None = None) -> None:
        """Starts to hand over to `successor`, or to the most up-to-date follower; returns when that is taken up.

        Raises:
            KuduError: NOT_THE_LEADER; INVALID_ARGUMENT for a successor that is no voter.
        """
        await self._ask(lambda token: StepDownRequested(token, successor))

    # The door.

    def _step(self, event: Event) -> None:
        """Tells the machine a fact and does what follows."""
        if self._stop_reason is not None:
            return
        inbox = self._inbox
        inbox.append(event)
        if self._is_stepping:
            assert not isinstance(event, AppendReceived), "a message from within a step"
            return
        self._is_stepping = True
        self._has_left_work = False
        try:
            while inbox and self._stop_reason is None:
                fact = inbox.popleft()
                now = self._clock.monotonic()
                self._facts.append((now, fact))
                self._perform(self._raft.step(now, fact))
        except Exception as error:
            # An assertion: the machine's state is not to be believed any more.
            self._logger.exception("consensus_broken", facts=[f"{at:.6f} {fact}" for at, fact in self._facts])
            self._fail(error)
        finally:
            self._is_stepping = False
        if not self._has_left_work:
            # Nothing waits for the loop's next turn in order to leave, so whoever waits for an entry need not either.
            self._applier.apply_now()

    def _perform(self, out: Output) -> None:
        """The order is explained at the head of this module."""
        if out.abort_after is not None:
            self._rounds.overwrite_after(out.abort_after)
        if out.truncate_after is not None:
            self.log.truncate_after(out.truncate_after)
            self._applier.drop_after(out.truncate_after)
        if out.divergence is not None:
            self._note_divergence(out.divergence)
            return
        if out.role is not None:
            self._note_role(out.role)
        if out.append:
            self._appender.append(out.append, out.accepted, hold=bool(out.send))
            self._has_left_work = True  # the disk wants its turn first
        if out.hard_state is not None:
            self.metadata.set_hard_state(out.hard_state)
        if out.config is not None:
            self._note_config(out.config)
        if out.undo is not None:
            self._changes.note_undo(out.undo)
        for message in out.send:
            self._has_left_work = True
            self._outbox.send(message)
        if out.append and out.send:
            # Behind the messages, which leave at the loop's next turn: the followers' way is the longer one.
            self._loop.call_soon(self.log.start)
        for reply in out.replies:
            self._reply(reply)
        if out.send_after_durable or out.replies_after_durable:
            self._promises.hold(
                Promise(
                    self._appender.appends,
                    self.metadata.hard_states_wanted,
                    out.send_after_durable,
                    out.replies_after_durable,
                )
            )
        for refused in out.refused:
            self._refuse(refused)
        for ready in out.reads_ready:
            self._reads.note_ready(ready)
        if out.commit_to is not None:
            is_awaited = self._raft.role is Role.LEADER or self._reads.are_waiting()
            self._applier.commit_to(out.commit_to, is_awaited=is_awaited)
        for follower in out.copy_to:
            self._outbox.ask_for_copy(follower)
        self._timer.set(out.deadline)

    # Consequences.

    def _propose(self, proposal: Proposal, event: Callable[[Token], Event]) -> Round:
        pending = self._propose_or_done(proposal, event)
        assert pending is not None, "a write has nothing to be done already"
        return pending

    def _propose_or_done(self, proposal: Proposal, event: Callable[[Token], Event]) -> Round | None:
        """The round that the proposal became; None if what it asks for is so already."""
        assert not self._is_stepping, "a proposal from within a step"
        token = next(self._tokens)
        done: list[Reply | KuduError] = []
        self._waiters[token] = done.append
        self._appender.expect_proposal(token, proposal)
        self._step(event(token))
        self._appender.forget_proposal(token)
        self._waiters.pop(token, None)
        if proposal.accepted is not None:
            return proposal.accepted
        if done and isinstance(done[0], Done):
            return None
        raise proposal.refused or self._stop_reason or self._not_the_leader()

    def _reply(self, reply: Reply) -> None:
        waiter = self._waiters.pop(reply.token, None)
        if waiter is not None:
            waiter(reply)

    def _release(self, messages: Sequence[Message], replies: Sequence[Reply]) -> None:
        for message in messages:
            self._outbox.send(message)
        for reply in replies:
            self._reply(reply)

    def _refuse(self, refused: Refused) -> None:
        error = refused.error
        if error.code is ErrorCode.NOT_THE_LEADER:
            error = self._not_the_leader()
        if self._appender.refuse_proposal(refused.token, error):
            return
        if self._reads.refuse(refused.token, error):
            return
        waiter = self._waiters.pop(refused.token, None)
        if waiter is not None:
            waiter(error)

    def _note_role(self, mark: RoleMark) -> None:
        if mark.role is Role.LEADER:
            if self._appender.own_no_op is None or self._appender.own_no_op.term != mark.term:
                self.elections_won += 1
                self._time.begin_leadership()
                self._applier.hurry()  # its own first entry comes behind all that, and writes behind that
        else:
            self._appender.own_no_op = None
            self._outbox.clear()
            if mark.role is Role.CANDIDATE:
                self.elections_started += 1
        self._logger.info("role_changed", role=mark.role.value, term=mark.term, leader=mark.leader)
        self._loop.call_soon(self._tell_role, mark)

    def _tell_role(self, mark: RoleMark) -> None:
        if self._stop_reason is None:
            self._on_role_change(mark)

    def _note_config(self, mark: ConfigMark) -> None:
        self._logger.info(
            "config_changed",
            config_index=mark.active.config_index,
            committed_index=mark.committed.config_index,
            members=[f"{member.uuid} {member.member_type.value}" for member in mark.active.members],
        )
        if mark.persist:
            self.metadata.set_config(mark.committed)
        self._outbox.note_config()
        self._loop.call_soon(self._tell_members)

    def _tell_members(self) -> None:
        if self._stop_reason is None:
            self._on_members_change()

    def _note_divergence(self, found: Divergence) -> None:
        """Two groups have come of one: to go on would mix them. Which of them is to live, and whose acknowledged writes
        are given up, is for an administrator to say; so nobody copies over this replica by himself either."""
        self._fail(
            KuduError(
                ErrorCode.CORRUPTION,
                f"tablet {self.tablet_id} has committed {found.committed} where its leader has {found.received}: the"
                " group was split, by an unsafe config change or by files that were put back. Decide which part is to"
                " live, and delete the replicas of the other",
                details={DIVERGED: str(found.committed)},
            )
        )

    def _watch_healths(self) -> None:
        """Whoever reports is told when the leader finds a member to be other than before."""
        healths = tuple(status.health for status in self.peer_statuses())
        if healths != self._healths:
            self._healths = healths
            self._loop.call_soon(self._tell_members)

    def _note_hard_state_durable(self, state: HardState) -> None:
        self._promises.note_hard_states_durable(self.metadata.hard_states_durable)
        if self._stop_reason is None:
            self._promises.release_due()
        self._step(HardStateDurable(state))

    def _note_applied(self, entry: Entry) -> None:
        self._time.note_applied(entry.op_id.index, entry.timestamp)

    def _note_slice_applied(self, index: int) -> None:
        self._step(RoundsApplied(index))
        # Whoever is served from the log's memory has these; a follower far behind is served from the disk.
        self.log.release_cache(min(index, self._raft.replicated_index))
        self._reads.note_applied(index)

    def _on_deadline(self) -> None:
        if self._stop_reason is None:
            self._step(LogStalled() if self._is_log_stalled() else ClockAdvanced())
            self._watch_healths()

    def _is_log_stalled(self) -> bool:
        """Whether the log was found stalled twice in a row: a process that was stopped finds its own timers first, and
        the disk's answer a moment later."""
        was_stalled, self._is_stalled = self._is_stalled, self.log.stalled_s > self.options.log_stall_max_s
        if self._is_stalled and was_stalled and self._raft.role is Role.LEADER:
            self._logger.error("log_stalled", stalled_s=round(self.log.stalled_s, 1), last=str(self.last_op_id))
        return self._is_stalled and was_stalled

    # Waiting.

    def _require_running(self) -> None:
        if self._stop_reason is not None:
            raise self._stop_reason

    async def _ask(self, event: Callable[[Token], Event]) -> Reply:
        self._require_running()
        answered: asyncio.Future[Reply] = self._loop.create_future()
        token = next(self._tokens)
        self._waiters[token] = lambda reply: settle(answered, reply)
        self._step(event(token))
        return await answered

    # Refusals and the end.

    def _why_not_ready(self) -> KuduError | None:
        if self._stop_reason is not None:
            return self._stop_reason
        if self._raft.role is not Role.LEADER:
            return self._not_the_leader()
        no_op = self._appender.own_no_op
        wait_s = self._time.wait_before_writes_s()
        if no_op is None or no_op.index > self.applied_index or wait_s > 0:
            return KuduError(
                ErrorCode.UNAVAILABLE,
                f"the leader of tablet {self.tablet_id} is not ready yet"
                + (f"; its clock is {wait_s:.3f} s behind an earlier leader's" if wait_s > 0 else ""),
                verdict=Verdict.TRY_LATER,
            )
        return None

    def _not_the_leader(self) -> KuduError:
        leader = self.leader if self.leader != self.uuid else None
        return not_the_leader(
            f"tablet {self.tablet_id}", leader, self.leader_address if leader is not None else None, self.term
        )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self._loop.create_task(self._guard(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:
            self._logger.exception("consensus_task_died")
            self._fail(error)

    def _disk_failed(self, error: BaseException) -> None:
        """A write or sync failed. Fatal also while the replica stops: what it promised may never be durable."""
        reason = self._stop_reason
        if reason is None or reason.code is ErrorCode.TABLET_FAILED:
            self._fail(error)
        else:
            self._logger.error("consensus_failed", error=repr(error))
            self._on_fatal(error)

    def _fail(self, error: BaseException) -> None:
        """The replica cannot be trusted any more: it falls silent, and the process is told."""
        if self._stop_reason is not None:
            return
        self._logger.error("consensus_failed", error=repr(error))
        details = dict(error.details) if isinstance(error, KuduError) else None
        self._shut(KuduError(ErrorCode.TABLET_FAILED, f"tablet {self.tablet_id} has failed: {error}", details=details))
        self._on_fatal(error)

    def _shut(self, reason: KuduError) -> None:
        if self._stop_reason is not None and self._stop_reason.code is ErrorCode.TABLET_FAILED:
            return
        self._stop_reason = self.peer_requests.why_closed = reason
        self._applier.stop()
        self._inbox.clear()
        self._outbox.clear()
        self._timer.cancel()
        self._rounds.fail_all(f"{reason.message}; the outcome of the operation is unknown")
        waiters = list(self._waiters.values())
        self._waiters.clear()
        for waiter in waiters:
            waiter(reason)
        self._reads.fail_all(reason)
