"""`Raft`: the machine. One door in, `step`; one value out, `Output`."""

from __future__ import annotations

from collections.abc import Sequence

from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core import election, invariants, membership, reconfiguration, replication
from kudu_py.consensus.core.events import (
    AppendAnswered,
    AppendReceived,
    ClockAdvanced,
    ConfigChangeAborted,
    ConfigChangeProposed,
    ConfigChangeRequested,
    ElectionRequested,
    EntriesDurable,
    EntryProposed,
    Event,
    FollowerBehindLog,
    FollowerLacksTablet,
    HandoverFailed,
    HardStateDurable,
    LogStalled,
    ReadIndexRequested,
    RequestFailed,
    RoundsApplied,
    StepDownRequested,
    UnsafeConfigForced,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import EntryKind, HardState, Member, RaftConfig, RaftOptions, Role
from kudu_py.consensus.core.output import Accepted, Output, Refused, RoleMark
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.state import NEVER, Chance, ReplicaState
from kudu_py.consensus.core.transitions import arm_election_timer, set_hard_state


class Raft:
    """One replica of one group: told what happened, it answers what to do.

    Nothing but `step` changes it. It neither waits nor reads a clock: `now` (seconds of any clock that does not go
    back) comes in, `Output.deadline` says when it wants to be called again. Feed it `ClockAdvanced` once to start it;
    until then no timer runs.
    """

    def __init__(
        self,
        *,
        uuid: ServerId,
        config: RaftConfig,
        hard_state: HardState,
        log: LogView,
        options: RaftOptions,
        rng: Chance,
        pending_configs: Sequence[RaftConfig] = (),
        group: str = "the tablet",
    ) -> None:
        """A replica as it is on disk: new, or after a restart.

        Args:
            uuid: of this server.
            config: the committed config in the consensus metadata.
            hard_state: term and vote in the consensus metadata. It may be behind the log, since both are written at the
                same time.
            log: the log's terms and marks; the machine owns it from here on.
            options: times and bounds.
            rng: draws the timeouts.
            pending_configs: configs of all CONFIG_CHANGE entries in the log, in log order. Those not above `config` are
                ignored; those at or below the committed index become committed with the first step.
            group: how errors name the group.
        """
        self._state = ReplicaState(
            uuid=uuid,
            group=group,
            options=options,
            chance=rng,
            log=log,
            committed_config=config,
            pending_configs=[pending for pending in pending_configs if pending.config_index > config.config_index],
            term=hard_state.term,
            voted_for=hard_state.voted_for,
        )
        membership.read_members(self._state)
        self._state.role = self._state.passive_role
        self._is_started = False
        self._reported_role: Role | None = None
        self._reported_term = -1
        self._reported_leader: ServerId | None = None

    def step(self, now: float, event: Event) -> Output:
        """Takes one fact and says what follows from it."""
        out = Output()
        if not self._is_started:
            self._start(now, out)
        self._dispatch(self._state, now, event, out)
        if self._state.own_change is not None or self._state.promotable:  # of a leader
            reconfiguration.advance(self._state, now, out)
        self._report(out)
        if self._state.options.check_invariants:
            invariants.check(self._state)
        return out

    # What the driver may look at between two steps.

    @property
    def role(self) -> Role:
        """What this replica is at the moment."""
        return self._state.role

    @property
    def term(self) -> int:
        """The latest term seen."""
        return self._state.term

    @property
    def hard_state(self) -> HardState:
        """Term and vote, which may still be on their way to the disk."""
        return self._state.hard_state

    @property
    def leader(self) -> ServerId | None:
        """Who leads the current term, if known."""
        return self._state.leader

    @property
    def active_config(self) -> RaftConfig:
        """The config in force: the last one in the log, committed or not."""
        return self._state.active_config

    @property
    def committed_config(self) -> RaftConfig:
        """The last committed config."""
        return self._state.committed_config

    @property
    def pending_config(self) -> RaftConfig | None:
        """The active config while it is not committed."""
        return self._state.pending_configs[-1] if self._state.pending_configs else None

    @property
    def commit_index(self) -> int:
        """Everything up to here is committed."""
        return self._state.log.committed_index

    @property
    def durable_index(self) -> int:
        """The own log is on disk up to here, in the state it has now."""
        return self._state.log.durable_index

    @property
    def committed_op_id(self) -> OpId:
        """The last entry known to be committed."""
        return self._state.log.op_id_at(self._state.log.committed_index)

    @property
    def last_op_id(self) -> OpId:
        """The last entry accepted into the log, durable or not."""
        return self._state.log.last

    @property
    def has_committed_in_own_term(self) -> bool:
        """Whether this replica leads and its no-op is committed."""
        return self._state.has_committed_in_own_term

    @property
    def followers(self) -> tuple[Progress, ...]:
        """What this leader knows of the other members; empty unless leading. For looking only."""
        return tuple(self._state.progress[member.uuid] for member in self._followed_members())

    def member(self, uuid: ServerId) -> Member | None:
        """The member of this uuid, also one that leaves by a change that is not committed yet."""
        return self._state.member(uuid)

    def needs_copy(self, uuid: ServerId) -> bool:
        """Whether this replica leads, and this member cannot be served from the log."""
        row = self._state.progress.get(uuid)
        return row is not None and row.needs_copy

    @property
    def replicated_index(self) -> int:
        """The log is needed from the next index on by the slowest member that this leader can still serve from it.

        The last index unless leading. Members that need a copy do not hold it back.
        """
        state = self._state
        served = [row.match_index for row in state.progress.values() if not row.needs_copy]
        return min(served, default=state.log.last.index)

    # Inside.

    def _followed_members(self) -> list[Member]:
        if self._state.role is not Role.LEADER:
            return []
        return [member for member in self._state.active_config.members if member.uuid != self._state.uuid]

    def _start(self, now: float, out: Output) -> None:
        """What a start has to put right, and the first timer.

        The log may be of a later term than the hard state, if the crash came between the two writes; no vote can have
        been given in that term then, since it would have waited for the hard state.
        """
        self._is_started = True
        state = self._state
        if state.log.last.term > state.term:
            set_hard_state(state, out, state.log.last.term, None)
        if state.pending_configs:
            membership.mark_config(state, out, persist=False)
            membership.note_committed(state, out)
        if not state.is_voter:
            return
        if state.voters == (state.uuid,):
            state.election_deadline = now
        elif state.log.last.index == 0:
            state.election_deadline = now + state.options.initial_election_timeout_s * (1.0 + state.chance.random())
        else:
            arm_election_timer(state, now)

    def _dispatch(self, state: ReplicaState, now: float, event: Event, out: Output) -> None:
        # The order is that of frequency: a match statement asks from the top.
        match event:
            case AppendAnswered():
                replication.on_append_answered(state, now, event, out)
            case EntriesDurable():
                replication.on_entries_durable(state, now, event, out)
            case AppendReceived():
                replication.on_append_received(state, now, event, out)
            case EntryProposed():
                self._on_entry_proposed(state, now, event, out)
            case RoundsApplied():
                state.log.mark_applied(event.index)
            case ClockAdvanced():
                if state.role is Role.LEADER:
                    replication.on_leader_clock(state, now, out)
                else:
                    election.on_election_clock(state, now, out)
            case ReadIndexRequested():
                self._on_read_index_requested(state, now, event, out)
            case HardStateDurable():
                election.on_hard_state_durable(state, now, event, out)
            case VoteRequested():
                election.on_vote_requested(state, now, event, out)
            case VoteAnswered():
                election.on_vote_answered(state, now, event, out)
            case RequestFailed():
                replication.on_request_failed(state, now, event)
            case FollowerLacksTablet() | FollowerBehindLog():
                replication.on_follower_needs_copy(state, now, event, out)
            case StepDownRequested():
                election.on_step_down_requested(state, now, event, out)
            case HandoverFailed():
                election.on_handover_failed(state, now, event, out)
            case ElectionRequested():
                election.on_election_requested(state, now, event, out)
            case ConfigChangeProposed():
                reconfiguration.propose_config(state, now, event, out)
            case ConfigChangeRequested():
                reconfiguration.on_config_change_requested(state, now, event, out)
            case ConfigChangeAborted():
                reconfiguration.on_config_change_aborted(state, now, event, out)
            case UnsafeConfigForced():
                reconfiguration.on_unsafe_config_forced(state, now, event, out)
            case LogStalled():
                election.on_log_stalled(state, now, out)

    def _on_entry_proposed(self, state: ReplicaState, now: float, event: EntryProposed, out: Output) -> None:
        assert event.kind is not EntryKind.CONFIG_CHANGE, "a config change is proposed as ConfigChangeProposed"
        if state.role is not Role.LEADER:
            out.refused.append(Refused(event.token, state.not_the_leader()))
        elif state.transfer is not None:
            out.refused.append(Refused(event.token, membership.stepping_down(state)))
        else:
            out.accepted.append(Accepted(event.token, replication.append_own(state, now, event.kind, out)))

    def _on_read_index_requested(self, state: ReplicaState, now: float, event: ReadIndexRequested, out: Output) -> None:
        if state.role is not Role.LEADER:
            out.refused.append(Refused(event.token, state.not_the_leader()))
            return
        state.reads.waiting.append(event.token)
        replication.start_read_round(state, now, out)

    def _report(self, out: Output) -> None:
        state = self._state
        if (
            state.role is not self._reported_role
            or state.term != self._reported_term
            or state.leader != self._reported_leader
        ):
            self._reported_role, self._reported_term, self._reported_leader = state.role, state.term, state.leader
            out.role = RoleMark(state.role, state.term, state.leader)
        deadline = state.election_deadline
        if state.role is Role.LEADER:
            deadline = state.quorum_check_at if state.voter_progress else NEVER
            for row in state.progress.values():
                if row.heartbeat_at < deadline:
                    deadline = row.heartbeat_at
            if state.transfer is not None and state.transfer.deadline < deadline:
                deadline = state.transfer.deadline
        out.deadline = None if deadline == NEVER else deadline
