"""Tablets that have lost the majority of their voters: which replica is left to go on with, and what would be lost.

Pure: judges what `majority_recovery` has seen. The rules, in the order in which they are asked:

1. A tablet whose voters can still elect a leader is left alone, also if it has none at the moment. A deleted replica
   that remembers the end of its log votes, but for no candidate whose log ends before that.
2. Nothing is given up while a voter may come back: its server is heard of by the masters, or starts, or is expected
   back from maintenance, or the masters have just started themselves. It may hold what the others lack.
3. Of the voters that run, the one whose log ends last goes on (Raft's own order: term, then index), and the other
   ones stay members: they are sent what they lack. That log holds all that the others know to be committed, unless
   one of them learnt it in a later term than the log ends in: then each may hold what the other lacks, and a person
   has to choose.

Up to when nothing can be lost is the survivor's safe time: it has applied every write up to then, and no leader that a
majority could have elected writes at or below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kudu_py.cli.amounts import duration_text, instant_text
from kudu_py.common.counted import counted
from kudu_py.common.opid import MIN_OP_ID, OpId


class Standing(Enum):
    """What a member can still do for its tablet."""

    RUNS = "runs"
    """It has its rows, and votes."""
    VOTES = "votes"
    """It was deleted, and votes from memory."""
    AWAY = "away"
    """It does neither now, and may do so again."""
    GONE = "gone"
    """It does neither."""


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """One member of a tablet.

    Attributes:
        uuid, address: of its server.
        is_voter: whether it is counted.
        standing: what it can still do.
        why: for people, why it does not run; empty if it does.
        term: the latest it knows.
        last_op_id: where its log ends; None if nobody can say.
        committed_index: up to where it knows entries to be committed.
        complete_through_micros: it has every write up to this wall time; 0: not known.
        row_count: of one that runs.
    """

    uuid: str
    address: str
    is_voter: bool
    standing: Standing
    why: str = ""
    term: int = 0
    last_op_id: OpId | None = None
    committed_index: int = 0
    complete_through_micros: int = 0
    row_count: int = 0


@dataclass(frozen=True, slots=True)
class TabletSeen:
    """A tablet, with the members of the newest committed config that a master or a replica knows.

    Attributes:
        config_index: of that config.
        replicas: its members.
        wanted_voters: how many the tablet is meant to have.
    """

    tablet_id: str
    table_name: str
    config_index: int
    replicas: tuple[ReplicaSeen, ...]
    wanted_voters: int

    @property
    def voters(self) -> tuple[ReplicaSeen, ...]:
        """Those that are counted."""
        return tuple(replica for replica in self.replicas if replica.is_voter)

    def replica(self, uuid: str) -> ReplicaSeen | None:
        """The member on that server."""
        return next((replica for replica in self.replicas if replica.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class Loss:
    """A tablet that cannot elect a leader, and what to do about it.

    Attributes:
        tablet: as it was seen.
        kept: the members of the new config, the one to go on with first; empty: nothing can be done.
        refusal: why nothing is done; empty if `kept` is not.
    """

    tablet: TabletSeen
    kept: tuple[ReplicaSeen, ...]
    refusal: str = ""

    @property
    def survivor(self) -> ReplicaSeen:
        """The replica that the others are copied from."""
        assert self.kept, self.refusal
        return self.kept[0]

    @property
    def given_up(self) -> tuple[ReplicaSeen, ...]:
        """The voters that are no members any more."""
        return tuple(replica for replica in self.tablet.voters if replica not in self.kept)

    @property
    def known_lost_entries(self) -> int:
        """How many entries the memory of a deleted replica shows to have been in a log that is gone, at least."""
        remembered = max((replica.last_op_id or MIN_OP_ID for replica in self.given_up), default=MIN_OP_ID)
        own = self.survivor.last_op_id or MIN_OP_ID
        return max(remembered.index - own.index, 1) if remembered > own else 0


def assess(tablet: TabletSeen) -> Loss | None:
    """The loss of a majority; None if there is none."""
    if can_elect(tablet.voters):
        return None
    away = [replica for replica in tablet.voters if replica.standing is Standing.AWAY]
    if away:
        return Loss(tablet, (), f"{counted(len(away), 'voter')} may come back yet, and may hold more than what is left")
    running = by_log([replica for replica in tablet.voters if replica.standing is Standing.RUNS])
    if not running:
        learners = [replica for replica in tablet.replicas if replica.standing is Standing.RUNS]
        return Loss(
            tablet,
            (),
            f"no voter of it is left, only {counted(len(learners), 'PRE_VOTER')}, which may lack anything"
            if learners
            else "no replica of it is left that runs: its rows are gone unless a server comes back",
        )
    rival = next((replica for replica in running[1:] if _may_hold_what_is_lacking(running[0], replica)), None)
    if rival is not None:
        return Loss(
            tablet,
            (),
            f"{running[0].uuid} has the later log and {rival.uuid} knows of later commits, so each may hold what the "
            "other lacks; choose one of them with `tablet unsafe_replace_config`",
        )
    return Loss(tablet, tuple(running))


def _may_hold_what_is_lacking(survivor: ReplicaSeen, other: ReplicaSeen) -> bool:
    """Whether `other`, whose log ends before, may know an entry to be committed that the survivor has overwritten."""
    end, other_end = survivor.last_op_id or MIN_OP_ID, other.last_op_id or MIN_OP_ID
    return other.committed_index > survivor.committed_index and other_end.term < end.term and other.term > end.term


def can_elect(voters: Sequence[ReplicaSeen]) -> bool:
    """Whether some voter that runs would get the votes of a majority."""
    needed = len(voters) // 2 + 1
    ends = [
        replica.last_op_id
        for replica in voters
        if replica.standing in (Standing.RUNS, Standing.VOTES) and replica.last_op_id is not None
    ]
    return any(
        sum(end <= candidate.last_op_id for end in ends) >= needed
        for candidate in voters
        if candidate.standing is Standing.RUNS and candidate.last_op_id is not None
    )


def by_log(replicas: Sequence[ReplicaSeen]) -> list[ReplicaSeen]:
    """The replicas, the one with the most in its log first."""
    return sorted(
        replicas,
        key=lambda replica: (
            replica.last_op_id or MIN_OP_ID,
            replica.committed_index,
            replica.complete_through_micros,
            replica.uuid,
        ),
        reverse=True,
    )


def loss_lines(loss: Loss, now_micros: int) -> list[str]:
    """What is left of a tablet, what is given up, and what that means, for people."""
    tablet = loss.tablet
    lines = [f"tablet {tablet.tablet_id} of table {tablet.table_name}, config {tablet.config_index}"]
    if loss.refusal:
        lines.append(f"  nothing is done: {loss.refusal}")
        lines += [f"  voter  {_place(replica)}: {_standing_text(replica, now_micros)}" for replica in tablet.voters]
        return lines
    lines += [f"  keep   {_place(replica)}: {_standing_text(replica, now_micros)}" for replica in loss.kept]
    lines += [f"  lost   {_place(replica)}: {_standing_text(replica, now_micros)}" for replica in loss.given_up]
    lines.append(f"  {may_be_lost_text(loss, now_micros)}")
    return lines


def may_be_lost_text(loss: Loss, now_micros: int) -> str:
    """What goes on with this replica may have lost."""
    through = loss.survivor.complete_through_micros
    since = (
        f"Acknowledged writes since {instant_text(through)} ({_ago(through, now_micros)}) may be lost; earlier ones "
        f"are all in {loss.survivor.uuid}."
        if through
        else "Acknowledged writes may be lost, and nobody can say since when."
    )
    known = loss.known_lost_entries
    if known:
        since += f" At least {known:,} {'entry was' if known == 1 else 'entries were'} written to logs that are gone."
    return since


def loss_json(loss: Loss) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "tablet": loss.tablet.tablet_id,
        "table": loss.tablet.table_name,
        "config_index": loss.tablet.config_index,
        "survivor": loss.survivor.uuid if loss.kept else None,
        "refusal": loss.refusal,
        "keep": [_replica_json(replica) for replica in loss.kept],
        "lost": [_replica_json(replica) for replica in loss.given_up],
        "complete_through_micros": (loss.survivor.complete_through_micros or None) if loss.kept else None,
        "known_lost_entries": loss.known_lost_entries if loss.kept else None,
    }


def _replica_json(replica: ReplicaSeen) -> dict[str, object]:
    return {
        "uuid": replica.uuid,
        "address": replica.address,
        "standing": replica.standing.name,
        "why": replica.why,
        "term": replica.term,
        "last_op_id": str(replica.last_op_id) if replica.last_op_id is not None else None,
        "committed_index": replica.committed_index,
        "complete_through_micros": replica.complete_through_micros or None,
        "rows": replica.row_count,
    }


def _place(replica: ReplicaSeen) -> str:
    return f"{replica.uuid} at {replica.address}"


def _standing_text(replica: ReplicaSeen, now_micros: int) -> str:
    if replica.standing is not Standing.RUNS:
        end = f"; its log ended at {replica.last_op_id}" if replica.last_op_id is not None else ""
        return f"{replica.why}{end}"
    text = f"last entry {replica.last_op_id}, committed through {replica.committed_index}"
    through = replica.complete_through_micros
    complete = f", complete up to {instant_text(through)} ({_ago(through, now_micros)})" if through else ""
    return f"{text}{complete}, {counted(replica.row_count, 'row')}"


def _ago(micros: int, now_micros: int) -> str:
    return f"{duration_text((now_micros - micros) / 1e6)} ago"
