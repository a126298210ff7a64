"""`ReplicaState`: everything a replica's machine remembers.

It is explicit, so that elections, replication and membership are functions of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kudu_py.common.errors import KuduError, not_the_leader
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import HardState, Member, MemberType, RaftConfig, RaftOptions, Role
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.reads import ReadQueue

NEVER = float("inf")
"""A deadline that does not come."""


class Chance(Protocol):
    """The one method of `random.Random` that timeouts are drawn with: uniform in [0, 1)."""

    def random(self) -> float: ...


@dataclass(slots=True, eq=False)
class Campaign:
    """A round of questions to the voters.

    Attributes:
        term: the term campaigned for; the current one in an election, one above it in a pre-vote.
        is_pre_vote: whether votes are only asked about.
        granted: who said yes; the replica itself once its own vote is durable (in a pre-vote at once).
    """

    term: int
    is_pre_vote: bool
    granted: set[ServerId] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Transfer:
    """A leader's attempt to hand over (dissertation section 3.10). No proposals are taken meanwhile.

    Attributes:
        successor: who is to lead; None: whoever has all entries first.
        deadline: when the attempt is given up and the leader goes on.
        asked: who was told to campaign; None until somebody had all entries.
        failed: who was told in vain.
    """

    successor: ServerId | None
    deadline: float
    asked: ServerId | None = None
    failed: set[ServerId] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class OwnChange:
    """A config change that this leader appended, in the term that it leads, and that is not committed yet.

    Only for such a change may it go back to the previous members. A leader that finds another's change in its log
    cannot know whether that was committed, and a next one begun: members from before it and those of the next one need
    not have a server in common.

    Attributes:
        change: the entry.
        previous: the committed config from before it.
        due_at: when it is to be undone if it is not committed by then.
        undo: the entry that undoes it, once there is one. Change and undo commit together, and an undo is not undone.
    """

    change: OpId
    previous: RaftConfig
    due_at: float
    undo: OpId | None = None

    @property
    def last(self) -> OpId:
        """The entry that settles it."""
        return self.undo or self.change


@dataclass(slots=True, eq=False)
class ReplicaState:
    """The state of one replica between two steps; `invariants.check` says what always holds.

    Attributes:
        uuid: of this replica's server.
        group: how errors name the group, such as "tablet 3f…".
        term, voted_for: the hard state, as last handed out to be made durable; `voted_for` belongs to `term`.
        hard_state_durable: whether that is on disk. Nothing that promises something leaves before.
        role: what is reported; LEADER and CANDIDATE only for voters.
        leader: who leads `term`, if known.
        committed_config: the last config whose entry is committed.
        pending_configs: configs in the log above it, in log order. More than one only where a follower does not know
            yet that the first is committed. The last one, if any, is active.
        voters, is_voter: of the active config.
        election_deadline: when this replica campaigns; NEVER for leaders and non-voters.
        leader_contact_at: when a leader of this term was last heard.
        failed_pre_votes: in a row; each doubles the pause before the next.
        was_late: whether the last deadline was put off because this replica itself came late to it.
        campaign: questions out, if any.
        progress: by uuid, for each other member of the active config, in the config's order, and behind them for each
            that only the members before an own change have; empty unless leading.
        voter_progress: those that are counted.
        promotable: those that are to be promoted.
        own_change: what this leader has changed and not committed.
        own_term_index: index of the no-op this leadership began with; 0 unless leading.
        quorum_check_at: when check-quorum has to be looked at again.
        last_request: number of the last append or heartbeat sent to anybody, never reused in the life of the process.
            One counter for all followers, so that "sent after" is a comparison of numbers.
    """

    uuid: ServerId
    group: str
    options: RaftOptions
    chance: Chance
    log: LogView
    committed_config: RaftConfig
    pending_configs: list[RaftConfig]
    term: int
    voted_for: ServerId | None
    hard_state_durable: bool = True
    role: Role = Role.FOLLOWER
    leader: ServerId | None = None
    voters: tuple[ServerId, ...] = ()
    is_voter: bool = False
    election_deadline: float = NEVER
    leader_contact_at: float = -NEVER
    failed_pre_votes: int = 0
    was_late: bool = False
    campaign: Campaign | None = None
    progress: dict[ServerId, Progress] = field(default_factory=dict)
    voter_progress: list[Progress] = field(default_factory=list)
    promotable: list[Progress] = field(default_factory=list)
    own_change: OwnChange | None = None
    own_term_index: int = 0
    quorum_check_at: float = NEVER
    last_request: int = 0
    transfer: Transfer | None = None
    reads: ReadQueue = field(default_factory=ReadQueue)

    @property
    def hard_state(self) -> HardState:
        """Term and vote as one record."""
        return HardState(self.term, self.voted_for)

    @property
    def active_config(self) -> RaftConfig:
        """The config in force: the last one in the log, committed or not."""
        return self.pending_configs[-1] if self.pending_configs else self.committed_config

    @property
    def passive_role(self) -> Role:
        """What this replica is while it neither leads nor campaigns."""
        member = self.active_config.member(self.uuid)
        if member is None:
            return Role.NON_PARTICIPANT
        return Role.FOLLOWER if member.member_type is MemberType.VOTER else Role.LEARNER

    @property
    def has_committed_in_own_term(self) -> bool:
        """Whether this leader's no-op is committed, so that its commit index is not one of the past."""
        return 0 < self.own_term_index <= self.log.committed_index

    def member(self, uuid: ServerId) -> Member | None:
        """The member of this uuid by the active config, or by one before it that may yet come back."""
        for config in (*reversed(self.pending_configs), self.committed_config):
            if (member := config.member(uuid)) is not None:
                return member
        return None

    def hears_live_leader(self, now: float) -> bool:
        """Whether an election would disturb: it leads, or heard a leader within the shortest election timeout."""
        return self.role is Role.LEADER or now < self.leader_contact_at + self.options.election_timeout_s

    def not_the_leader(self) -> KuduError:
        """The refusal that names the leader, if this replica knows one other than itself."""
        leader = self.leader if self.leader != self.uuid else None
        member = self.active_config.member(leader) if leader is not None else None
        return not_the_leader(self.group, leader, member.address if member is not None else None, self.term)
