"""Everything that can happen to a replica: facts in the past tense, one frozen class each.

A *token* is the driver's handle for an answer; the machine only carries it from event to output. An event brings what
the decision needs and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.model import ConfigChange, EntryKind, HardState, LogEntry, Member, RaftConfig

Token = int


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """The deadline of the last output has passed (or the driver just wants the machine to look at the clock)."""


@dataclass(frozen=True, slots=True)
class LogStalled:
    """As `ClockAdvanced`, and the own log has not taken what it was given for so long that another had better lead.

    A leader whose disk hangs or is full would otherwise go on for ever: heartbeats need no disk.
    """


@dataclass(frozen=True, slots=True)
class EntryProposed:
    """A client operation arrived for the leader. If it does not lead, `Output.refused` carries the token."""

    kind: EntryKind
    token: Token


@dataclass(frozen=True, slots=True)
class ConfigChangeProposed:
    """A change of members arrived for the leader: the wanted config.

    It differs in at most one voter from the committed one.
    `expected_config_index` is compared with the committed config's (None: not checked). `new.config_index` is ignored.
    """

    new: RaftConfig
    expected_config_index: int | None
    token: Token


@dataclass(frozen=True, slots=True)
class ConfigChangeRequested:
    """A caller wants one member added, removed or changed; see `config_request.requested_config`.

    Taken up as `ConfigChangeProposed` with the config that this makes of the committed one. `Output.replies` answers
    the token with `Done` if there is nothing to change.
    """

    change: ConfigChange
    member: Member
    expected_config_index: int | None
    token: Token


@dataclass(frozen=True, slots=True)
class ConfigChangeAborted:
    """A caller wants the change undone that the leader has not committed yet; only if it is the one at
    `pending_index` (None: whichever it is).

    The undo is accepted as a proposal of `token`. `Done` if nothing is pending, or is being undone already.
    """

    pending_index: int | None
    token: Token


@dataclass(frozen=True, slots=True)
class UnsafeConfigForced:
    """An operator has given up all members but these: a group that has lost its majority is to go on with them.

    Answered by `Done` once the new config is durable here. Acknowledged writes may be lost by it.
    """

    members: tuple[ServerId, ...]
    token: Token


@dataclass(frozen=True, slots=True)
class AppendReceived:
    """UpdateConsensus arrived.

    Attributes:
        leader: who sent it. term: the sender's term.
        preceding: OpId of the entry before the first of `entries`, on the leader.
        entries: contiguous from `preceding.index + 1` with terms that do not fall (whoever decodes the message checks
            it), maybe empty (heartbeat).
        commit_index: the leader's; capped by what this message proves.
    """

    token: Token
    leader: ServerId
    term: int
    preceding: OpId
    entries: tuple[LogEntry, ...]
    commit_index: int


@dataclass(frozen=True, slots=True)
class VoteRequested:
    """RequestVote arrived. A pre-vote asks whether the vote would be given and changes nothing."""

    token: Token
    candidate: ServerId
    term: int
    last_op_id: OpId
    is_pre_vote: bool
    ignore_live_leader: bool = False


@dataclass(frozen=True, slots=True)
class AppendAnswered:
    """A follower answered append `request`.

    Attributes:
        request: the number given in `SendAppend.request`; an answer to another request than the one in flight only
            brings news of term and liveness.
        term: the follower's term.
        accepted: whether `preceding` matched and the entries (as many as were sent) are durable there.
        last_received: if accepted, the last OpId that is known to match the leader's log and is durable. Otherwise
            where a match may be: the last OpId in the follower's log at or below `preceding.index` whose term is not
            above `preceding.term`.
        last_committed_index: the follower's commit index; the logs match up to it, so that the search never goes below.
    """

    follower: ServerId
    request: int
    term: int
    accepted: bool
    last_received: OpId
    last_committed_index: int


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    """A voter answered: `term` is its own, `is_pre_vote` and `election_term` say which question."""

    voter: ServerId
    term: int
    granted: bool
    is_pre_vote: bool
    election_term: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer came to append `request` (network error, timeout, server busy).

    `is_alive`: the server did answer, only its replica could not, since it starts or is being copied.
    """

    follower: ServerId
    request: int
    is_alive: bool = False


@dataclass(frozen=True, slots=True)
class FollowerLacksTablet:
    """The server answered that it does not have the tablet, has it deleted, or that its replica has failed: it must be
    copied there."""

    follower: ServerId
    request: int


@dataclass(frozen=True, slots=True)
class FollowerBehindLog:
    """The driver cannot read the range of append `request`: the log no longer holds it. The follower must be copied."""

    follower: ServerId
    request: int


@dataclass(frozen=True, slots=True)
class EntriesDurable:
    """The own log is synced up to this OpId, in the order the outputs asked for it.

    The term guards against a late completion for an entry that was overwritten meanwhile.
    """

    op_id: OpId


@dataclass(frozen=True, slots=True)
class HardStateDurable:
    """This term and vote are on disk."""

    state: HardState


@dataclass(frozen=True, slots=True)
class RoundsApplied:
    """The state machine has applied everything up to `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class StepDownRequested:
    """An operator or the process on its way out asks the leader to give up; `successor` is preferred if given.

    Graceful: proposals stop, the most up-to-date follower is told to campaign at once. `Output.replies` answers the
        token.
    """

    token: Token
    successor: ServerId | None = None


@dataclass(frozen=True, slots=True)
class HandoverFailed:
    """The follower that was told to campaign, by the leader of `term`, was not reached or would not."""

    peer: ServerId
    term: int


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """A leader hands over (or an operator forces): campaign now, without pre-vote, whether or not a leader is alive.

    `term` is the term of the leader that hands over; in another term the request is stale and refused. None: not
    checked.
    """

    token: Token
    term: int | None = None


@dataclass(frozen=True, slots=True)
class ReadIndexRequested:
    """A linearizable read wants to know from which applied index it may be served.

    Answered by `Output.reads_ready` once the own term has a committed entry and a majority has confirmed the term by
    answers to messages sent after this event (batched), or by `Output.refused` when it does not lead.
    """

    token: Token


Event = (
    ClockAdvanced
    | LogStalled
    | EntryProposed
    | ConfigChangeProposed
    | ConfigChangeRequested
    | ConfigChangeAborted
    | UnsafeConfigForced
    | AppendReceived
    | VoteRequested
    | AppendAnswered
    | VoteAnswered
    | RequestFailed
    | FollowerLacksTablet
    | FollowerBehindLog
    | EntriesDurable
    | HardStateDurable
    | RoundsApplied
    | StepDownRequested
    | HandoverFailed
    | ElectionRequested
    | ReadIndexRequested
)
