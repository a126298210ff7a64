"""One-at-a-time config change: what may be proposed, adoption on receipt, exact roll-back, commit.

The rules are those of seed 000 and of chapter 4 of the dissertation.
The members in force are always those of the last config in the log, committed or not. The consensus metadata holds the
last *committed* one; that a config entry was overwritten is therefore undone by forgetting it.
"""

from __future__ import annotations

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.model import MemberType, RaftConfig, Role
from kudu_py.consensus.core.output import ConfigMark, Output
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.quorum import has_majority, majority_value
from kudu_py.consensus.core.state import NEVER, OwnChange, ReplicaState
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
    if state.own_change is not None and state.own_change.last.index <= state.log.committed_index:
        state.own_change = None
        members = {member.uuid for member in state.active_config.members}
        state.progress = {uuid: row for uuid, row in state.progress.items() if uuid in members}
    for row in state.progress.values():
        row.is_held_back = is_held_back(state, row.uuid)


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


def followed_members(state: ReplicaState) -> list[ServerId]:
    """Whom a leader has to hear: the others of the active config, and while a change of its own is open, those that
    only the members before it have."""
    configs = [state.active_config]
    if state.own_change is not None:
        configs += [*reversed(state.pending_configs), state.committed_config]
    uuids = dict.fromkeys(member.uuid for config in configs for member in config.members)
    return [uuid for uuid in uuids if uuid != state.uuid]


def is_held_back(state: ReplicaState, uuid: ServerId) -> bool:
    """Whether this server loses its vote or its place by a change that is not committed; see `Progress`."""
    if uuid in state.voters:
        return False
    earlier = (state.committed_config, *state.pending_configs)
    return state.active_config.member(uuid) is None or any(uuid in config.voters for config in earlier)


def follow_members(state: ReplicaState, now: float, *, next_index: int) -> None:
    """Makes the leader's progress rows those of `followed_members`, keeping what is known of members that stay.

    Members without a row are sent `next_index` first.
    """
    rows: dict[ServerId, Progress] = {}
    for uuid in followed_members(state):
        row = state.progress.get(uuid)
        if row is None:
            row = Progress(
                uuid=uuid,
                is_voter=False,
                next_index=next_index,
                answered_at=now,
                heartbeat_at=now,
                contacted_at=now,
            )
        member = state.active_config.member(uuid)
        row.is_voter = member is not None and member.member_type is MemberType.VOTER
        row.is_to_be_promoted = member is not None and member.promote and not row.is_voter
        row.is_held_back = is_held_back(state, uuid)
        rows[uuid] = row
    state.progress = rows
    state.voter_progress = [row for row in rows.values() if row.is_voter]
    state.promotable = [row for row in rows.values() if row.is_to_be_promoted]


def mark_config(state: ReplicaState, out: Output, *, persist: bool) -> None:
    """Says in the output what the configs are now."""
    persist = persist or (out.config is not None and out.config.persist)
    out.config = ConfigMark(state.active_config, state.committed_config, persist)


def begin_own_change(state: ReplicaState, now: float, change: OpId) -> None:
    """A leader is about to append a change of members: the one that it may undo in this term."""
    assert not state.pending_configs, f"config {state.active_config.config_index} is pending already"
    assert state.own_change is None, f"{state.own_change} is open already"
    state.own_change = OwnChange(change, state.committed_config, now + state.options.config_change_timeout_s)


def quorum_heard_at(state: ReplicaState, now: float) -> float:
    """When this leader last heard from a majority of the voters, itself included.

    While a change of its own is open a majority of either config will do: a leader that gave up as soon as the new
    members do not answer could never go back to the old ones, and nobody else may.
    """
    configs = {state.voters}
    if state.own_change is not None:
        configs.add(state.own_change.previous.voters)
        configs.update(config.voters for config in state.pending_configs)
    return max(majority_value([_heard_at(state, now, uuid) for uuid in voters]) for voters in configs)


def _heard_at(state: ReplicaState, now: float, uuid: ServerId) -> float:
    return now if uuid == state.uuid else state.progress[uuid].answered_at


def refusal_of_any_change(state: ReplicaState, expected_config_index: int | None) -> KuduError | None:
    """Why no change may be proposed now, whatever it is; None if one may.

    In this order: only a leader, of which no handover is under way; only after an entry of its own term is committed
    (else two leaders' changes could form disjoint majorities: raft-dev, July 2015); one at a time; compare-and-set on
    the committed config.
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
    if expected_config_index is not None and expected_config_index != committed.config_index:
        return KuduError(
            ErrorCode.CAS_FAILED,
            f"the committed config of {state.group} is {committed.config_index}, not {expected_config_index}",
            details={"config_index": str(committed.config_index)},
        )
    return None


def refusal(state: ReplicaState, now: float, new: RaftConfig, expected_config_index: int | None) -> KuduError | None:
    """Why `new` may not be proposed now; None if it may: `refusal_of_any_change`, then what the change is, then whether
    the group could commit with it."""
    return (
        refusal_of_any_change(state, expected_config_index)
        or _invalid(state, new)
        or unable_to_commit(state, now, new, "the wanted config")
    )


def stepping_down(state: ReplicaState) -> KuduError:
    """The refusal of a leader that is handing over, with whoever is to lead next as a hint, if that is known yet."""
    details = {"term": str(state.term)}
    asked = None if state.transfer is None else state.transfer.asked or state.transfer.successor
    successor = state.member(asked) if asked is not None else None
    if successor is not None:
        details |= {"leader_uuid": successor.uuid, "leader_address": successor.address}
    next_one = f"ask {successor.uuid} at {successor.address}" if successor is not None else "find the new leader"
    return KuduError(
        ErrorCode.STEPPING_DOWN,
        f"the leader of {state.group} is handing over; {next_one} and try again",
        verdict=Verdict.TRY_LATER,
        details=details,
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


def unable_to_commit(state: ReplicaState, now: float, config: RaftConfig, what: str) -> KuduError | None:
    """The refusal of a config of which no majority answered this leader within the last election timeout."""
    since = now - state.options.election_timeout_s
    answering = [
        uuid
        for uuid in config.voters
        if uuid == state.uuid
        or ((row := state.progress.get(uuid)) is not None and row.has_answered and row.answered_at >= since)
    ]
    if has_majority(config.voters, answering):
        return None
    silent = [uuid for uuid in config.voters if uuid not in answering]
    return KuduError(
        ErrorCode.UNAVAILABLE,
        f"only {len(answering)} of the {len(config.voters)} voters of {what} of {state.group} answered lately; it could"
        f" not be committed. No answer from {', '.join(silent)}",
        verdict=Verdict.TRY_LATER,
    )
