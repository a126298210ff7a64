"""What a leader changes in its group's members, by request and of its own accord: changes, promotion, undo.

Why going back to the previous members is safe, when it is done like this:
 1. The undo is an entry behind the change, never a cut: a leader that cut its own log would write two different
    entries under one OpId.
 2. It is counted by the members that it brings back. Any majority of them shares a server with any majority of the
    changed ones, since the two differ in one voter; so nobody who has the change but not the undo can be elected once
    the undo is committed, and nobody commits the change in another term once that is so.
 3. Only the leader that appended the change does it, and in the same term. Another leader cannot know whether the
    change was committed and a next one begun, whose majorities need not meet those of the members before.
 4. An undo is not undone: three configs of which none is committed would be in force somewhere at the same time.
 5. Change and undo are committed together (`replication.advance_commit`).

The leader goes on while a majority of either config answers (`membership.quorum_heard_at`), and undoes a change only
while a majority of the previous members does: until then the change may still come true.
"""

from __future__ import annotations

from dataclasses import replace

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.config_request import requested_config
from kudu_py.consensus.core.election import start_transfer
from kudu_py.consensus.core.events import (
    ConfigChangeAborted,
    ConfigChangeProposed,
    ConfigChangeRequested,
    UnsafeConfigForced,
)
from kudu_py.consensus.core.membership import adopt, refusal, refusal_of_any_change, stepping_down, unable_to_commit
from kudu_py.consensus.core.model import EntryKind, LogEntry, MemberType, RaftConfig, Role
from kudu_py.consensus.core.output import Accepted, Done, Output, Refused, UndoMark
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.replication import append_own
from kudu_py.consensus.core.state import NEVER, OwnChange, ReplicaState
from kudu_py.consensus.core.transitions import become_follower, set_hard_state

# By request.


def on_config_change_requested(state: ReplicaState, now: float, event: ConfigChangeRequested, out: Output) -> None:
    """A caller wants one member changed. If it is so already, nothing is proposed."""
    error = refusal_of_any_change(state, event.expected_config_index)
    if error is None:
        try:
            new = requested_config(state.committed_config, event.change, event.member, group=state.group)
        except KuduError as refused:
            error = refused
    if error is not None:
        out.refused.append(Refused(event.token, error))
    elif new is state.committed_config:
        out.replies.append(Done(event.token))
    else:
        propose_config(state, now, ConfigChangeProposed(new, event.expected_config_index, event.token), out)


def propose_config(state: ReplicaState, now: float, event: ConfigChangeProposed, out: Output) -> None:
    """The wanted config becomes an entry, or is refused.

    A leader does not remove or demote itself: it hands over, and the caller asks the next one (seed 000).
    """
    error = refusal(state, now, event.new, event.expected_config_index)
    if error is None and state.uuid not in event.new.voters:
        start_transfer(state, now, None, out)
        error = stepping_down(state)
    if error is not None:
        out.refused.append(Refused(event.token, error))
        return
    out.accepted.append(Accepted(event.token, append_own(state, now, EntryKind.CONFIG_CHANGE, out, event.new)))


def on_config_change_aborted(state: ReplicaState, now: float, event: ConfigChangeAborted, out: Output) -> None:
    """A caller wants the open change undone."""
    error = _abort_refusal(state, now, event)
    if error is not None:
        out.refused.append(Refused(event.token, error))
        return
    change = state.own_change
    if change is None or change.undo is not None:
        out.replies.append(Done(event.token))
        return
    out.accepted.append(Accepted(event.token, _undo(state, now, change, "it was aborted", out)))


def _abort_refusal(state: ReplicaState, now: float, event: ConfigChangeAborted) -> KuduError | None:
    if state.role is not Role.LEADER:
        return state.not_the_leader()
    if state.transfer is not None:
        return stepping_down(state)
    if not state.pending_configs:
        return None
    change = state.own_change
    pending_index = state.active_config.config_index if change is None else change.change.index
    if event.pending_index not in (None, pending_index):
        return KuduError(
            ErrorCode.CAS_FAILED,
            f"the pending config of {state.group} is {pending_index}, not {event.pending_index}",
            details={"config_index": str(pending_index)},
        )
    if change is None:
        return KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"config {pending_index} of {state.group} was begun by an earlier leader, so it cannot be undone: it may"
            " have been committed. It is decided as soon as a majority of its voters answers",
            verdict=Verdict.TRY_LATER,
        )
    if change.undo is not None:
        return None
    return unable_to_commit(state, now, change.previous, "the previous config")


# Of its own accord.


def advance(state: ReplicaState, now: float, out: Output) -> None:
    """Between two facts: a leader undoes its change that takes too long, or promotes a member that has caught up."""
    assert state.role is Role.LEADER, f"{state.uuid} does not lead"
    if state.transfer is not None:
        return
    change = state.own_change
    if change is None:
        _promote_one(state, now, out)
    elif (
        change.undo is None
        and now >= change.due_at
        and unable_to_commit(state, now, change.previous, "the previous config") is None
    ):
        waited_s = state.options.config_change_timeout_s
        _undo(state, now, change, f"it was not committed within {waited_s:g} s", out)


def _undo(state: ReplicaState, now: float, change: OwnChange, reason: str, out: Output) -> OpId:
    """Brings the previous members back."""
    assert change.change.term == state.term, f"{change} is not of the own term {state.term}"
    assert [config.config_index for config in state.pending_configs] == [change.change.index], (
        f"{state.pending_configs} are open, not {change}"
    )
    changed = state.active_config
    # Before it is appended, which counts by it, and may commit it at once.
    undo = change.undo = OpId(state.term, state.log.last.index + 1)
    appended = append_own(state, now, EntryKind.CONFIG_CHANGE, out, change.previous)
    assert appended == undo, f"the undo became {appended} instead of {undo}"
    for row in state.promotable:
        member = changed.member(row.uuid)
        if member is not None and member.member_type is MemberType.VOTER:
            row.not_promoted_before = now + state.options.config_change_timeout_s
    out.undo = UndoMark(change.change, undo, reason)
    return undo


def _promote_one(state: ReplicaState, now: float, out: Output) -> None:
    """The first pre-voter that could replicate all it lacks within an election timeout becomes a voter (dissertation
    section 4.2.1); the next one once that is committed."""
    for row in state.promotable:
        if _has_caught_up(state, now, row):
            members = tuple(
                replace(member, member_type=MemberType.VOTER, promote=False) if member.uuid == row.uuid else member
                for member in state.active_config.members
            )
            new = RaftConfig(0, members)
            if refusal(state, now, new, None) is None:
                append_own(state, now, EntryKind.CONFIG_CHANGE, out, new)
            return


def _has_caught_up(state: ReplicaState, now: float, row: Progress) -> bool:
    """Whether it is up to date now, or was a short time ago and has kept the pace since."""
    timeout_s = state.options.election_timeout_s
    if not row.is_caught_up or row.needs_copy or row.is_paused or now < row.not_promoted_before:
        return False
    if now - row.answered_at >= timeout_s or (row.round_end and now - row.round_began_at >= timeout_s):
        return False
    return row.match_index == state.log.last.index or not row.in_flight or now - row.sent_at < timeout_s


# Without a majority.


def on_unsafe_config_forced(state: ReplicaState, now: float, event: UnsafeConfigForced, out: Output) -> None:
    """An operator gives up the members that are not named: as if the leader of a next term had appended this config
    here and died, this replica takes it, and campaigns among those that are left.

    What its log holds stays, for it may have been acknowledged. What the given-up members alone hold is lost.
    """
    error = _unsafe_refusal(state, now, event.members)
    if error is not None:
        out.refused.append(Refused(event.token, error))
        return
    set_hard_state(state, out, state.term + 1, state.uuid)  # with its vote, so that nobody leads that term with it
    become_follower(state, now, out, None)
    state.leader_contact_at = -NEVER
    op_id = OpId(state.term, state.log.last.index + 1)
    members = [member for uuid in sorted(set(event.members)) if (member := state.member(uuid)) is not None]
    config = RaftConfig(op_id.index, tuple(members))
    state.log.append(op_id)
    out.append.append(LogEntry(op_id, EntryKind.CONFIG_CHANGE, config))
    adopt(state, now, out, config)
    state.election_deadline = now
    out.replies_after_durable.append(Done(event.token))


def _unsafe_refusal(state: ReplicaState, now: float, members: tuple[ServerId, ...]) -> KuduError | None:
    strangers = [uuid for uuid in members if state.member(uuid) is None]
    own = state.member(state.uuid)
    if strangers:
        problem = f"{', '.join(strangers)}: not a member of {state.group}; only present members can stay"
    elif state.uuid not in members:
        problem = f"{state.uuid} itself is not among the members that are to stay"
    elif own is None or own.member_type is not MemberType.VOTER:
        problem = f"{state.uuid} is not a voter of {state.group}, so it cannot lead those that are to stay"
    elif state.hears_live_leader(now):
        return KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"{state.group} has a leader, {state.leader}, so it has not lost its majority; change its config instead",
            verdict=Verdict.TRY_LATER,
            details={"leader_uuid": state.leader or "", "term": str(state.term)},
        )
    else:
        return None
    return KuduError(ErrorCode.INVALID_ARGUMENT, problem)
