"""One-at-a-time config change: what may be proposed, adoption on receipt, exact roll-back, commit.

The rules are those of seed 000 and of chapter 4 of the dissertation.
The members in force are always those of the last config in the log, committed or not. The consensus metadata holds the
last *committed* one; that a config entry was overwritten is therefore undone by forgetting it.
"""

from __future__ import annotations

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.events import ConfigChangeProposed
from kudu_py.consensus.core.model import RaftConfig, Role
from kudu_py.consensus.core.output import ConfigMark, Output
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.quorum import majority
from kudu_py.consensus.core.state import NEVER, ReplicaState
from kudu_py.consensus.core.transitions import arm_election_timer


def adopt(state: ReplicaState, now: float, out: Output, config: RaftConfig) -> None:
    """The log took this config: it is in force at once (dissertation section 4.1).

    The consensus metadata may be ahead of the log after a crash or a copy; a config it already knows as committed is no
    news.
    """
    if config.config_index <= state.committed_config.config_index:
        return
    assert config.config_index > state.active_config.config_index, (
        f"config {config.config_index} does not follow {state.active_config.config_index}"
    )
    state.pending_configs.append(config)
    put_in_force(state, now, out)


def roll_back(state: ReplicaState, now: float, out: Output, after_index: int) -> None:
    """The log was cut after this index: configs above it never were."""
    if not state.pending_configs or state.pending_configs[-1].config_index <= after_index:
        return
    state.pending_configs = [config for config in state.pending_configs if config.config_index <= after_index]
    put_in_force(state, now, out)


def note_committed(state: ReplicaState, out: Output) -> None:
    """The commit index moved: the last config at or below it is the one to keep in the consensus metadata."""
    while state.pending_configs and state.pending_configs[0].config_index <= state.log.committed_index:
        state.committed_config = state.pending_configs.pop(0)
        mark_config(state, out, persist=True)


def put_in_force(state: ReplicaState, now: float, out: Output) -> None:
    """Recomputes all that depends on the active config."""
    read_members(state)
    mark_config(state, out, persist=False)
    if state.role is Role.LEADER:
        # A new member is offered the config entry itself; by its answer the leader learns what it lacks.
        follow_members(state, now, next_index=state.log.last.index)
        return
    if state.role is not Role.CANDIDATE or not state.is_voter:
        state.role = state.passive_role
    if not state.is_voter:
        state.campaign = None
        state.election_deadline = NEVER
    elif state.election_deadline == NEVER:
        arm_election_timer(state, now)


def read_members(state: ReplicaState) -> None:
    """Keeps the voters of the active config at hand."""
    state.voters = state.active_config.voters
    state.is_voter = state.uuid in state.voters


def follow_members(state: ReplicaState, now: float, *, next_index: int) -> None:
    """Makes the leader's progress rows those of the active config, keeping what is known of members that stay.

    Members without a row are sent `next_index` first.
    """
    rows: dict[ServerId, Progress] = {}
    for member in state.active_config.members:
        if member.uuid == state.uuid:
            continue
        row = state.progress.get(member.uuid)
        if row is None:
            row = Progress(
                uuid=member.uuid,
                is_voter=member.uuid in state.voters,
                next_index=next_index,
                answered_at=now,
                heartbeat_at=now,
            )
        row.is_voter = member.uuid in state.voters
        rows[member.uuid] = row
    state.progress = rows
    state.voter_progress = [row for row in rows.values() if row.is_voter]


def mark_config(state: ReplicaState, out: Output, *, persist: bool) -> None:
    """Says in the output what the configs are now."""
    persist = persist or (out.config is not None and out.config.persist)
    out.config = ConfigMark(state.active_config, state.committed_config, persist)


def refusal(state: ReplicaState, now: float, event: ConfigChangeProposed) -> KuduError | None:
    """Why this change may not be proposed now; None if it may.

    In this order: only a leader, of which no handover is under way; only after an entry of its own term is committed
    (else two leaders' changes could form disjoint majorities: raft-dev, July 2015); one at a time; compare-and-set on
    the committed config; what the change is; whether the group could still commit with it.
    """
    if state.role is not Role.LEADER:
        return state.not_the_leader()
    if state.transfer is not None:
        return stepping_down(state)
    if not state.has_committed_in_own_term:
        return KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the leader of {state.group} has not committed an entry of its own term {state.term} yet; try again soon",
            verdict=Verdict.TRY_LATER,
        )
    if state.pending_configs:
        return KuduError(
            ErrorCode.CONFIG_CHANGE_PENDING,
            f"config {state.active_config.config_index} of {state.group} is not committed yet; one change at a time",
            verdict=Verdict.TRY_LATER,
        )
    committed = state.committed_config
    if event.expected_config_index is not None and event.expected_config_index != committed.config_index:
        return KuduError(
            ErrorCode.CAS_FAILED,
            f"the committed config of {state.group} is {committed.config_index}, not {event.expected_config_index}",
            details={"config_index": str(committed.config_index)},
        )
    return _invalid(state, event.new) or _unable_to_commit(state, now, event.new)


def stepping_down(state: ReplicaState) -> KuduError:
    """The refusal of a leader that is handing over."""
    return KuduError(
        ErrorCode.STEPPING_DOWN,
        f"the leader of {state.group} is handing over; find the new leader and try again",
        verdict=Verdict.TRY_LATER,
        details={"term": str(state.term)},
    )


def _invalid(state: ReplicaState, new: RaftConfig) -> KuduError | None:
    committed = state.committed_config
    uuids = [member.uuid for member in new.members]
    changed_voters = set(committed.voters) ^ set(new.voters)
    if len(set(uuids)) != len(uuids):
        problem = f"names a server twice: {', '.join(uuids)}"
    elif not new.voters:
        problem = "has no voter"
    elif len(changed_voters) > 1:
        problem = (
            f"changes {len(changed_voters)} voters at once ({', '.join(sorted(changed_voters))}); change one at a time"
        )
    elif sorted(new.members, key=lambda member: member.uuid) == sorted(
        committed.members, key=lambda member: member.uuid
    ):
        problem = "changes nothing"
    else:
        return None
    return KuduError(ErrorCode.INVALID_CONFIG, f"the wanted config of {state.group} {problem}")


def _unable_to_commit(state: ReplicaState, now: float, new: RaftConfig) -> KuduError | None:
    since = now - state.options.election_timeout_s
    answering = [
        uuid
        for uuid in new.voters
        if uuid == state.uuid
        or ((row := state.progress.get(uuid)) is not None and row.has_answered and row.answered_at >= since)
    ]
    if len(answering) >= majority(len(new.voters)):
        return None
    silent = [uuid for uuid in new.voters if uuid not in answering]
    return KuduError(
        ErrorCode.UNAVAILABLE,
        f"only {len(answering)} of the {len(new.voters)} voters that the wanted config of {state.group} would have"
        f" answered lately; it could not be committed. No answer from {', '.join(silent)}",
        verdict=Verdict.TRY_LATER,
    )
