"""Small builders of the Raft machine's values, and the few steps that most of its tests begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    AppendReceived,
    ClockAdvanced,
    EntriesDurable,
    HardStateDurable,
    VoteAnswered,
)
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import (
    EntryKind,
    HardState,
    LogEntry,
    Member,
    MemberType,
    RaftConfig,
    RaftOptions,
    Role,
)
from kudu_py.consensus.core.output import Output, SendAppend
from kudu_py.consensus.core.raft import Raft


@dataclass(frozen=True, slots=True)
class FixedChance:
    """An rng that always draws the same."""

    value: float = 0.5

    def random(self) -> float:
        """The value."""
        return self.value


def server(name: str) -> ServerId:
    """The server of this short name."""
    return ServerId(name)


def config_of(voters: str, pre_voters: str = "", promoted: str = "", *, config_index: int = 0) -> RaftConfig:
    """A config of servers named by one letter each; `promoted` are pre-voters that are to be voters."""
    members = [Member(server(name), MemberType.VOTER, f"{name}:7050") for name in voters]
    members += [Member(server(name), MemberType.PRE_VOTER, f"{name}:7050") for name in pre_voters]
    members += [Member(server(name), MemberType.PRE_VOTER, f"{name}:7050", promote=True) for name in promoted]
    return RaftConfig(config_index, tuple(sorted(members, key=lambda member: member.uuid)))


def log_of(terms: Sequence[int], *, committed: int = 0) -> LogView:
    """A durable log whose entries, from index 1, have these terms."""
    runs: list[tuple[int, int]] = []
    for index, term in enumerate(terms, start=1):
        if not runs or runs[-1][1] != term:
            runs.append((index, term))
    return LogView(runs=runs, last_index=len(terms), committed_index=committed)


def make_raft(
    uuid: str = "a",
    config: RaftConfig | None = None,
    *,
    terms: Sequence[int] = (),
    term: int | None = None,
    voted_for: str | None = None,
    committed: int = 0,
    log: LogView | None = None,
    pending_configs: Sequence[RaftConfig] = (),
    options: RaftOptions | None = None,
    chance: float = 0.5,
) -> Raft:
    """A replica as after a restart, invariants checked at each step; `term` is its last entry's if not given."""
    log = log or log_of(terms, committed=committed)
    return Raft(
        uuid=server(uuid),
        config=config or config_of("abc"),
        pending_configs=pending_configs,
        hard_state=HardState(log.last.term if term is None else term, server(voted_for) if voted_for else None),
        log=log,
        options=options or RaftOptions(check_invariants=True),
        rng=FixedChance(chance),
    )


def entries(*op_ids: tuple[int, int]) -> tuple[LogEntry, ...]:
    """Writes with these (term, index)."""
    return tuple(LogEntry(OpId(*op_id), EntryKind.WRITE) for op_id in op_ids)


def append_from(
    leader: str, term: int, preceding: tuple[int, int], *op_ids: tuple[int, int], commit: int = 0, token: int = 1
) -> AppendReceived:
    """UpdateConsensus with these writes."""
    return AppendReceived(token, server(leader), term, OpId(*preceding), entries(*op_ids), commit)


def campaign(raft: Raft, now: float = 100.0) -> Output:
    """Lets the replica's time run out and its pre-vote succeed; the output is that of becoming a candidate."""
    raft.step(now, ClockAdvanced())
    raft.step(now + 49.0, ClockAdvanced())
    out = raft.step(now + 50.0, ClockAdvanced())
    voters = raft.active_config.voters
    term = raft.term + 1
    for voter in voters:
        if raft.role is Role.CANDIDATE:
            break
        out = raft.step(now + 50.0, VoteAnswered(voter, raft.term, True, True, term))
    assert raft.role is Role.CANDIDATE, f"is {raft.role} after its pre-vote"
    return out


def elect(raft: Raft, now: float = 100.0) -> Output:
    """Makes the replica lead at `now + 50`; the output is that of winning: the no-op and the messages with it."""
    campaign(raft, now)
    out = raft.step(now + 50.0, HardStateDurable(raft.hard_state))
    for voter in raft.active_config.voters:
        if raft.role is Role.LEADER:
            break
        out = raft.step(now + 50.0, VoteAnswered(voter, raft.term, True, False, raft.term))
    assert raft.role is Role.LEADER, f"is {raft.role} after everybody voted for it"
    return out


def acknowledge(raft: Raft, now: float, message: SendAppend, *, last: tuple[int, int] | None = None) -> Output:
    """The follower takes all that this message carried."""
    last_received = OpId(*last) if last is not None else _op_id_at(raft, message.last_index)
    return raft.step(now, AppendAnswered(message.to, message.request, raft.term, True, last_received, 0))


def refuse(raft: Raft, now: float, message: SendAppend, hint: tuple[int, int], committed: int = 0) -> Output:
    """The follower does not have the entry before those of this message."""
    return raft.step(now, AppendAnswered(message.to, message.request, raft.term, False, OpId(*hint), committed))


def sync(raft: Raft, now: float) -> Output:
    """The replica's own disk catches up."""
    return raft.step(now, EntriesDurable(raft.last_op_id))


def appends(out: Output) -> dict[str, SendAppend]:
    """The appends of this output, by the follower they go to."""
    return {message.to: message for message in out.send if isinstance(message, SendAppend)}


def lead(raft: Raft, now: float = 100.0) -> float:
    """Makes the replica lead with its no-op committed and acknowledged by all; returns the time then."""
    out = elect(raft, now)
    sync(raft, now + 50.0)
    for message in appends(out).values():
        acknowledge(raft, now + 50.0, message)
    assert raft.has_committed_in_own_term, f"commit index {raft.commit_index}"
    return now + 50.0


def _op_id_at(raft: Raft, index: int) -> OpId:
    return raft.last_op_id if index == raft.last_op_id.index else OpId(raft.term, index)
