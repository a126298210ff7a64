"""`Output`: what must be done next.

The ordering rules, which the driver keeps and the machine relies on:

1. `truncate_after` before `append`; both are handed to the log in the order of the outputs. The log reports
   `EntriesDurable` in that order.
2. `hard_state` and `append` may go to disk at the same time; they are different files.
3. `send` and `replies` may leave at once: they promise nothing that is not on disk already.
4. `send_after_durable` and `replies_after_durable` leave only once `append` and `hard_state` of this **and all
   earlier** outputs are durable. A vote, an acknowledgement of entries and a request for votes are such promises.
   Count outputs, not OpIds: an OpId may be cut off and appended again, and a report then means the first time at least.
5. `commit_to` may be applied at once, even before the own log is durable: a majority is. (A *checkpoint* waits for the
   own log.)
6. `abort_after` fails rounds before the same output's `append` puts others in their place.
7. `deadline`: call `step` with `ClockAdvanced` no later than this (seconds of the clock passed in); None means never.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import Token
from kudu_py.consensus.core.model import HardState, LogEntry, RaftConfig, Role


@dataclass(frozen=True, slots=True)
class SendAppend:
    """UpdateConsensus to `to`: entries `preceding.index + 1 ..= last_index` of the log.

    There are none if `last_index` equals `preceding.index`.

    `request` numbers the append per follower; the answer brings it back. At most one append with entries is in flight
    to a follower; `is_heartbeat` messages carry no entries and may leave beside it. The driver may send fewer entries
    (bounded by bytes) and then sets the commit index as given here. `commit_index` is the leader's.
    """

    to: ServerId
    request: int
    term: int
    preceding: OpId
    last_index: int
    commit_index: int
    is_heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class SendVoteRequest:
    """RequestVote to `to`."""

    to: ServerId
    term: int
    last_op_id: OpId
    is_pre_vote: bool
    ignore_live_leader: bool = False


@dataclass(frozen=True, slots=True)
class SendRunElection:
    """RunLeaderElection to `to`: campaign at once (leadership transfer).

    `term` comes back as `ElectionRequested.term`, so that a late duplicate starts nothing.
    """

    to: ServerId
    term: int


Message = SendAppend | SendVoteRequest | SendRunElection


@dataclass(frozen=True, slots=True)
class AppendReply:
    """Answer to `AppendReceived`; the fields of `AppendAnswered`."""

    token: Token
    term: int
    accepted: bool
    last_received: OpId
    last_committed_index: int


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to `VoteRequested`; `reason` is empty if granted, else an upstream `ConsensusErrorPB` code name."""

    token: Token
    term: int
    granted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A request without a result of its own (step-down, election) was taken up."""

    token: Token


Reply = AppendReply | VoteReply | Done


@dataclass(frozen=True, slots=True)
class Accepted:
    """The proposal of `token` became the entry `op_id` (in `append` of the same output)."""

    token: Token
    op_id: OpId


@dataclass(frozen=True, slots=True)
class Refused:
    """The proposal, read or request of `token` was refused; nothing happened."""

    token: Token
    error: KuduError


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read of `token` may be served once `index` is applied."""

    token: Token
    index: int


@dataclass(frozen=True, slots=True)
class ConfigMark:
    """The active config changed: `active` is in force now; `committed` is what the consensus metadata must hold.

    `persist` is true when `committed` changed: flush it (together with term and vote).
    """

    active: RaftConfig
    committed: RaftConfig
    persist: bool


@dataclass(frozen=True, slots=True)
class UndoMark:
    """This leader undoes its change `change`: the members from before it are in force again, by the entry `undo`.

    The two commit together. Whoever waits for the change is told `reason`, once that is so.
    """

    change: OpId
    undo: OpId
    reason: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The leader's log differs from this one at an entry that is committed here: there are two groups.

    That cannot come of the protocol, only of an unsafe config change or of files that were put back. This replica must
    be silent from now on: an administrator says which of the two is to live.
    """

    committed: OpId
    received: OpId


@dataclass(frozen=True, slots=True)
class RoleMark:
    """Role, term or known leader changed; the driver logs, counts and tells the heartbeater."""

    role: Role
    term: int
    leader: ServerId | None


@dataclass(slots=True)
class Output:
    """What one step decided; see the module's head for the order. Mutable only while the step builds it."""

    truncate_after: int | None = None
    append: list[LogEntry] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    hard_state: HardState | None = None
    config: ConfigMark | None = None
    undo: UndoMark | None = None
    divergence: Divergence | None = None
    send: list[SendAppend | SendVoteRequest | SendRunElection] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    send_after_durable: list[SendAppend | SendVoteRequest | SendRunElection] = field(default_factory=list)
    replies_after_durable: list[Reply] = field(default_factory=list)
    reads_ready: list[ReadReady] = field(default_factory=list)
    commit_to: int | None = None
    abort_after: int | None = None
    copy_to: list[ServerId] = field(default_factory=list)
    role: RoleMark | None = None
    deadline: float | None = None
