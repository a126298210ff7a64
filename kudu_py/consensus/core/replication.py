"""Replication: the follower's log matching, the leader's progress of each follower, the advance of the commit index.

To each follower one append with entries is in flight, and everything that came meanwhile goes with the next. A message
without entries (*heartbeat*) may leave beside it: liveness, check-quorum and reads do not wait for a follower's disk.

Why an answer moves the marks only if it is the one that is waited for: answers that come late, twice or out of order
would otherwise lower what is known, or count an entry for another.
"""

from __future__ import annotations

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    AppendReceived,
    EntriesDurable,
    FollowerBehindLog,
    FollowerLacksTablet,
    RequestFailed,
)
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.membership import adopt, begin_own_change, note_committed, quorum_heard_at, roll_back
from kudu_py.consensus.core.model import EntryKind, LogEntry, RaftConfig, Role
from kudu_py.consensus.core.output import AppendReply, Divergence, Output, Refused, SendAppend, SendRunElection
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.quorum import majority_value
from kudu_py.consensus.core.state import ReplicaState
from kudu_py.consensus.core.transitions import adopt_term, arm_election_timer, become_follower, overslept, reply

# The follower.


def on_append_received(state: ReplicaState, now: float, event: AppendReceived, out: Output) -> None:
    """Takes what a leader sent.

    1. An older term is refused; it must not reset the timer, or a deposed leader could put off an election.
    2. Nothing is taken from a stranger while a leader is alive: members that were given up by an unsafe config change,
       and are back, must not depose those that went on. One whose config is only not known here yet is heard as soon as
       the leader before it falls silent. Nor is anything taken from one that differs where this log is committed.
    3. The sender leads this term, whatever else is true of the message: the timer starts anew.
    4. Nothing is taken unless the entry before matches; then everything up to it does (log matching, section 5.3).
    5. Entries that are there already are skipped, never cut: the message may be an old, shorter one that was late.
    6. The first that conflicts cuts the log, and only a conflict does.
    7. The commit index goes no further than this message proves: what lies behind may be another leader's.
    """
    if event.term < state.term:
        _refuse_append(state, event, out)
        return
    assert state.role is not Role.LEADER or event.term > state.term, (
        f"{event.leader} leads term {event.term}, which is led by {state.uuid} itself"
    )
    assert event.term > state.term or state.leader in (None, event.leader), (
        f"{event.leader} leads term {event.term}, which is led by {state.leader}"
    )
    if event.term > state.term and state.hears_live_leader(now) and state.member(event.leader) is None:
        _refuse_stranger(state, event, f"and {state.leader} leads it", out)
        return
    diverged = None if event.preceding.index > state.log.committed_index else _divergence(state.log, event)
    if diverged is not None and state.member(event.leader) is None:
        _refuse_stranger(state, event, f"and has {diverged.received} where {diverged.committed} is committed", out)
        return
    if diverged is not None:
        out.divergence = diverged
        return
    if event.term > state.term:
        adopt_term(state, now, out, event.term)
    if state.leader is None:
        become_follower(state, now, out, event.leader)
    state.leader_contact_at = now
    state.failed_pre_votes = 0
    arm_election_timer(state, now)

    log, preceding = state.log, event.preceding
    # Committed entries match those of any leader (leader completeness), also where the log that tells their terms was
    # collected.
    if preceding.index > log.committed_index and not log.holds(preceding):
        _refuse_append(state, event, out)
        return
    fresh = _take_entries(state, now, event.entries, out)
    proven = preceding.index + len(event.entries)
    if event.commit_index > log.committed_index and proven > log.committed_index:
        commit(state, out, min(event.commit_index, proven))
    if fresh or (event.entries and proven > log.durable_index):
        last_received = event.entries[-1].op_id
        out.replies_after_durable.append(AppendReply(event.token, state.term, True, last_received, log.committed_index))
        return
    # Nothing new: the answer need not wait for entries that are on their way to the disk, if it claims none of them.
    claim = preceding if not event.entries else event.entries[-1].op_id
    if claim.index > log.durable_index:
        claim = log.op_id_at(log.durable_index)
    reply(state, out, AppendReply(event.token, state.term, True, claim, log.committed_index), after_durable=False)


def _divergence(log: LogView, event: AppendReceived) -> Divergence | None:
    """Where the leader's log differs at or below the commit index, as far as the message and the own log tell.

    The entry before the first of the message is not above that index.
    """
    received = event.preceding
    for entry in event.entries:
        if _differs(log, received) or entry.op_id.index > log.committed_index:
            break
        received = entry.op_id
    if not _differs(log, received):
        return None
    return Divergence(log.op_id_at(received.index), received)


def _refuse_stranger(state: ReplicaState, event: AppendReceived, why: str, out: Output) -> None:
    message = (
        f"{event.leader} is not a member of {state.group}, {why}; if it was given up by an unsafe config change, delete"
        " its replica"
    )
    out.refused.append(Refused(event.token, KuduError(ErrorCode.ILLEGAL_STATE, message)))


def _differs(log: LogView, op_id: OpId) -> bool:
    return log.term_at(op_id.index) not in (None, op_id.term)


def _take_entries(state: ReplicaState, now: float, entries: tuple[LogEntry, ...], out: Output) -> bool:
    """Appends the entries that the log does not hold; whether there were any."""
    log = state.log
    skipped = 0
    if entries and entries[0].op_id.index <= log.last.index:
        for entry in entries:
            index = entry.op_id.index
            if index > log.last.index:
                break
            if index > log.committed_index and not log.holds(entry.op_id):
                _cut(state, now, index - 1, out)
                break
            skipped += 1
    fresh = entries[skipped:] if skipped else entries
    for entry in fresh:
        log.append(entry.op_id)
        if entry.kind is EntryKind.CONFIG_CHANGE:
            assert entry.config is not None, f"config entry {entry.op_id} without a config"
            adopt(state, now, out, entry.config)
    out.append.extend(fresh)
    return bool(fresh)


def _cut(state: ReplicaState, now: float, after_index: int, out: Output) -> None:
    state.log.truncate_after(after_index)
    out.truncate_after = out.abort_after = after_index
    roll_back(state, now, out, after_index)


def _refuse_append(state: ReplicaState, event: AppendReceived, out: Output) -> None:
    log, preceding = state.log, event.preceding
    hint = log.last_at_or_below(preceding.index, preceding.term)
    if hint.index < log.committed_index:
        hint = log.op_id_at(log.committed_index)
    reply(state, out, AppendReply(event.token, state.term, False, hint, log.committed_index), after_durable=False)


# The leader: own log.


def append_own(state: ReplicaState, now: float, kind: EntryKind, out: Output, config: RaftConfig | None = None) -> OpId:
    """Appends an entry of the own term and sends it to every follower that waits for nothing."""
    op_id = OpId(state.term, state.log.last.index + 1)
    if config is not None:
        config = RaftConfig(op_id.index, tuple(sorted(config.members, key=lambda member: member.uuid)))
        if state.own_change is None:
            begin_own_change(state, now, op_id)
    state.log.append(op_id)
    out.append.append(LogEntry(op_id, kind, config))
    if config is not None:
        adopt(state, now, out, config)
    for row in state.progress.values():
        send_entries(state, now, row, out)
    if config is not None:
        confirm_reads(state, now, out)  # whoever it waited for may just have been removed
    return op_id


def on_entries_durable(state: ReplicaState, now: float, event: EntriesDurable, out: Output) -> None:
    """The own disk has caught up; a leader counts itself only this far."""
    state.log.mark_durable(event.op_id)
    if state.role is Role.LEADER:
        advance_commit(state, now, out)


def advance_commit(state: ReplicaState, now: float, out: Output) -> None:
    """Commits what is durable on a majority of the voters, if that reaches an entry of the own term.

    Entries of older terms are never committed by counting (section 5.4.2, figure 8), only with one of the own term
    behind them.
    """
    log = state.log
    held = [row.match_index for row in state.voter_progress]
    held.append(log.durable_index)
    index = majority_value(held)
    change = state.own_change
    if change is not None and change.undo is not None and index < change.undo.index:
        # A change that is undone never stands alone as the committed config: whoever asked for it would be told so.
        index = min(index, change.change.index - 1)
    if index <= log.committed_index or index < state.own_term_index:
        return
    assert log.term_at(index) == state.term, (
        f"entry {index} is of term {log.term_at(index)}, not of the own term {state.term}"
    )
    was_ready = state.has_committed_in_own_term
    commit(state, out, index)
    if not was_ready:
        start_read_round(state, now, out)


def commit(state: ReplicaState, out: Output, index: int) -> None:
    """Everything up to `index` is committed."""
    state.log.commit(index)
    out.commit_to = index
    if state.pending_configs:
        note_committed(state, out)


# The leader: followers.


def send_entries(state: ReplicaState, now: float, row: Progress, out: Output) -> None:
    """Sends the next range, unless an answer is waited for, the last attempt failed, or there is nothing to send."""
    if row.in_flight or row.is_paused or row.needs_copy or row.is_held_back:
        return
    last = state.log.last.index
    if row.next_index <= last:
        _send_range(state, now, row, min(last, row.next_index - 1 + state.options.entries_per_append_max), out)


def send_contact(state: ReplicaState, now: float, row: Progress, out: Output) -> None:
    """Lets the follower hear something now: the next range if one may be sent, else a message without entries.

    A follower that failed or needs a copy gets its one attempt here; an append that was never answered is given up.
    """
    if row.in_flight and now - row.sent_at >= state.options.request_timeout_s:
        row.in_flight, row.is_paused = 0, True
    if row.in_flight or row.is_held_back:
        _send_heartbeat(state, now, row, out)
    elif row.needs_copy:
        _send_range(state, now, row, row.next_index - 1, out)
    elif row.next_index <= state.log.last.index:
        row.is_paused = False
        send_entries(state, now, row, out)
    else:
        _send_heartbeat(state, now, row, out)


def _send_range(state: ReplicaState, now: float, row: Progress, last_index: int, out: Output) -> None:
    log = state.log
    if row.next_index <= log.preceding.index:
        # What it needs was collected before this process started. The probe still tells when a copy has arrived there.
        _have_copied(state, row, out)
        last_index = log.last.index
    state.last_request += 1
    row.in_flight, row.in_flight_preceding, row.in_flight_last = state.last_request, row.next_index - 1, last_index
    row.sent_at = now
    row.heartbeat_at = now + state.options.heartbeat_interval_s
    out.send.append(
        SendAppend(
            row.uuid, row.in_flight, state.term, log.op_id_at(row.next_index - 1), last_index, log.committed_index
        )
    )


def _send_heartbeat(state: ReplicaState, now: float, row: Progress, out: Output) -> None:
    """A message without entries after an entry that the follower is known to have, so that it is accepted."""
    log = state.log
    state.last_request += 1
    row.heartbeat_at = now + state.options.heartbeat_interval_s
    preceding = log.op_id_at(row.match_index) if row.match_index >= log.preceding.index else log.preceding
    out.send.append(
        SendAppend(
            row.uuid, state.last_request, state.term, preceding, preceding.index, log.committed_index, is_heartbeat=True
        )
    )


def on_append_answered(state: ReplicaState, now: float, event: AppendAnswered, out: Output) -> None:
    """A follower answered: news of its term, of its life, and, if it answers the append in flight, of its log."""
    if event.term > state.term:
        adopt_term(state, now, out, event.term)
        return
    if state.role is not Role.LEADER or event.term < state.term:
        return
    row = state.progress.get(event.follower)
    if row is None or event.request > state.last_request:
        return
    row.answered_at, row.has_answered, row.is_paused = now, True, False
    row.contacted_at = now
    if event.request > row.confirmed_request:
        row.confirmed_request = event.request
    if event.request == row.in_flight:
        row.in_flight = 0
        if event.accepted:
            _note_match(state, now, row, event, out)
        else:
            _back_off(state, row, event, out)
    elif not (event.accepted or row.in_flight or row.is_held_back) and row.next_index > state.log.last.index:
        # It does not even have what it acknowledged (its disk was replaced): find out what it has, without waiting for
        # a write.
        _send_range(state, now, row, row.next_index - 1, out)
    confirm_reads(state, now, out)
    send_entries(state, now, row, out)


def _note_match(state: ReplicaState, now: float, row: Progress, event: AppendAnswered, out: Output) -> None:
    match = min(event.last_received.index, row.in_flight_last)
    row.needs_copy = False
    if match > row.match_index:
        row.match_index = match
        if row.is_voter:
            advance_commit(state, now, out)
        if state.transfer is not None:
            advance_transfer(state, now, out)
    elif row.in_flight_last > row.in_flight_preceding:
        # Entries were sent, and it has no more than before: try again with the next heartbeat, not in a tight loop.
        row.is_paused = True
    row.next_index = row.match_index + 1
    if row.is_to_be_promoted:
        row.note_round(now, state.log.last.index, state.options.election_timeout_s)


def _back_off(state: ReplicaState, row: Progress, event: AppendAnswered, out: Output) -> None:
    """Finds where the logs may match, skipping whole terms at a time on both sides (end of section 5.3).

    The follower named its last entry of a term not above that of the refused one; the last own entry of a term not
    above *that* is the next guess. Up to the follower's commit index the logs match for certain.
    """
    log = state.log
    hint = event.last_received
    bound = min(hint.index, row.in_flight_preceding - 1, log.last.index)
    known = min(event.last_committed_index, log.last.index)
    row.next_index = max(log.last_at_or_below(bound, hint.term).index, known) + 1
    if row.match_index >= row.next_index:
        # It had acknowledged more than it has now. It is counted by what it has.
        row.match_index = min(known, row.match_index)
    row.needs_copy = max(bound, known) < log.preceding.index
    if row.needs_copy:
        _have_copied(state, row, out)


def _have_copied(state: ReplicaState, row: Progress, out: Output) -> None:
    """It cannot be served from the log. Probes without entries go on and tell when a copy has arrived.

    One that is held back is not copied; what it needs is seen when it is sent entries again, if it stays.
    """
    row.needs_copy = True
    row.next_index = state.log.last.index + 1
    row.forget_rounds()
    if not row.is_held_back:
        out.copy_to.append(row.uuid)


def on_request_failed(state: ReplicaState, now: float, event: RequestFailed) -> None:
    """No answer: the next attempt is the next heartbeat's, lest a dead server be called in a tight loop."""
    row = state.progress.get(event.follower)
    if row is None or event.request > state.last_request:
        return
    if event.is_alive:
        row.contacted_at = now
    if event.request == row.in_flight:
        row.in_flight = 0
    if event.request > row.confirmed_request and not row.in_flight:
        row.is_paused = True


def on_follower_needs_copy(
    state: ReplicaState, now: float, event: FollowerLacksTablet | FollowerBehindLog, out: Output
) -> None:
    """It has no replica, or the own log no longer has what it needs.

    What it had acknowledged it may not have any more. Probes without entries go on at heartbeat pace and tell when a
    copy has arrived; each one that fails in this way names it again in `copy_to`.
    """
    row = state.progress.get(event.follower)
    if row is None or event.request > state.last_request:
        return
    if event.request == row.in_flight:
        row.in_flight = 0
    elif isinstance(event, FollowerBehindLog):
        return
    if isinstance(event, FollowerLacksTablet):
        row.match_index = 0
        row.contacted_at = now
    _have_copied(state, row, out)


def advance_transfer(state: ReplicaState, now: float, out: Output) -> None:
    """Tells the successor to campaign once it has all entries, so that it can win.

    Of several the one that answered last: one that has just died still looks alive, and to ask it first costs the whole
    time that a handover has.
    """
    transfer = state.transfer
    assert transfer is not None, "no handover is under way"
    if transfer.asked is not None:
        return
    last = state.log.last.index
    able = [
        row
        for row in state.voter_progress
        if row.match_index == last
        and transfer.successor in (None, row.uuid)
        and row.uuid not in transfer.failed
        and not row.is_paused
        and row.has_answered
        and row.answered_at + state.options.election_timeout_s >= now
    ]
    if able:
        transfer.asked = max(able, key=lambda row: row.answered_at).uuid
        out.send.append(SendRunElection(transfer.asked, state.term))


# The leader: reads and time.


def start_read_round(state: ReplicaState, now: float, out: Output) -> None:
    """Starts to confirm all waiting reads, if none are being confirmed and the commit index is not one of the past."""
    reads = state.reads
    if not reads.waiting or reads.confirming or not state.has_committed_in_own_term:
        return
    reads.open_round(commit_index=state.log.committed_index, last_request=state.last_request)
    for row in state.voter_progress:
        if not row.is_paused:
            send_contact(state, now, row, out)
    confirm_reads(state, now, out)


def confirm_reads(state: ReplicaState, now: float, out: Output) -> None:
    """Lets the round's reads go once a majority has answered messages that were sent after its start."""
    reads = state.reads
    if not reads.confirming:
        return
    answered = [row.confirmed_request for row in state.voter_progress]
    answered.append(state.last_request + 1)
    if majority_value(answered) > reads.after:
        out.reads_ready.extend(reads.close_round())
        start_read_round(state, now, out)


def on_leader_clock(state: ReplicaState, now: float, out: Output) -> None:
    """Check-quorum, the end of a handover, heartbeats that are due."""
    if now >= state.quorum_check_at:
        if overslept(state, now, state.quorum_check_at):
            state.quorum_check_at = now + state.options.heartbeat_interval_s
        else:
            state.quorum_check_at = quorum_heard_at(state, now) + state.options.election_timeout_s
        if now >= state.quorum_check_at:
            become_follower(state, now, out, None)
            return
    if state.transfer is not None and now >= state.transfer.deadline:
        state.transfer = None
    for row in state.progress.values():
        if now >= row.heartbeat_at:
            send_contact(state, now, row, out)
