"""Elections: pre-vote, vote granting, candidacy, becoming leader, leadership transfer.

A replica whose timer ran out first asks the voters whether they have heard a leader lately and would vote for it; only
with a majority of yes does it raise the term. So a server that was cut off, or removed, or sees a leader that others
see too, disturbs nobody (seeds 000 and 001; dissertation sections 4.2.3 and 9.6). Its counterpart is check-quorum: a
leader that a majority does not answer gives up, so that those who can see each other are free to elect.

Who votes: every replica, also one that is not a voter by its own config, since its config may be the older one. Who is
counted: the voters of the *candidate's* active config. Who campaigns: only a voter of its own active config.
"""

from __future__ import annotations

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.events import (
    ElectionRequested,
    HandoverFailed,
    HardStateDurable,
    StepDownRequested,
    Token,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.membership import follow_members, stepping_down
from kudu_py.consensus.core.model import EntryKind, Role
from kudu_py.consensus.core.output import Done, Output, Refused, SendVoteRequest, VoteReply
from kudu_py.consensus.core.quorum import has_majority
from kudu_py.consensus.core.replication import advance_transfer, append_own, on_leader_clock
from kudu_py.consensus.core.state import NEVER, Campaign, ReplicaState, Transfer
from kudu_py.consensus.core.transitions import (
    adopt_term,
    arm_election_timer,
    become_follower,
    overslept,
    reply,
    set_hard_state,
)

# Campaigning.


def on_election_clock(state: ReplicaState, now: float, out: Output) -> None:
    """No leader was heard for too long, or a campaign came to nothing."""
    if now < state.election_deadline:
        return
    assert state.is_voter, f"{state.uuid} has an election timer but is no voter of {state.active_config}"
    if overslept(state, now, state.election_deadline):
        state.election_deadline = now + state.options.heartbeat_interval_s
        return
    if not state.hard_state_durable:
        # The disk is slower than the timer. Another term would only pile up behind the one that waits (KUDU-2149).
        arm_election_timer(state, now)
        return
    start_pre_vote(state, now, out)


def on_log_stalled(state: ReplicaState, now: float, out: Output) -> None:
    """The own disk does not keep up at all. A leader gives up if another voter could take its place; nobody campaigns.

    What was proposed stays in the log and may commit: the others may have it.
    """
    if state.role is not Role.LEADER:
        if now >= state.election_deadline:
            arm_election_timer(state, now)
    elif len(state.voters) > 1:
        become_follower(state, now, out, None)
    else:
        on_leader_clock(state, now, out)


def start_pre_vote(state: ReplicaState, now: float, out: Output) -> None:
    """Asks whether an election is wanted. Changes neither term nor vote, and may be asked again soon."""
    become_follower(state, now, out, None)
    state.campaign = Campaign(state.term + 1, is_pre_vote=True, granted={state.uuid})
    if has_majority(state.voters, state.campaign.granted):
        start_election(state, now, out, ignore_live_leader=False)
        return
    _arm_pre_vote_retry(state, now)
    state.failed_pre_votes += 1
    out.send.extend(_vote_requests(state, state.campaign, ignore_live_leader=False))


def start_election(state: ReplicaState, now: float, out: Output, *, ignore_live_leader: bool) -> None:
    """Raises the term, votes for itself and asks for votes once both are durable (section 5.2)."""
    assert state.is_voter, f"{state.uuid} campaigns but is no voter of {state.active_config}"
    assert state.role is not Role.LEADER, f"{state.uuid} leads term {state.term} and campaigns"
    set_hard_state(state, out, state.term + 1, state.uuid)
    state.role, state.leader = Role.CANDIDATE, None
    state.campaign = Campaign(state.term, is_pre_vote=False)
    arm_election_timer(state, now)
    out.send_after_durable.extend(_vote_requests(state, state.campaign, ignore_live_leader=ignore_live_leader))


def _vote_requests(state: ReplicaState, campaign: Campaign, *, ignore_live_leader: bool) -> list[SendVoteRequest]:
    return [
        SendVoteRequest(uuid, campaign.term, state.log.last, campaign.is_pre_vote, ignore_live_leader)
        for uuid in state.voters
        if uuid != state.uuid
    ]


def _arm_pre_vote_retry(state: ReplicaState, now: float) -> None:
    """A failed pre-vote did no harm, so the next is soon: often the other voters' timers have just not run out yet."""
    options = state.options
    base = options.initial_election_timeout_s if state.log.last.index == 0 else options.election_timeout_s / 4
    pause = min(base * 2 ** min(state.failed_pre_votes, 16), options.election_timeout_s)
    state.election_deadline = now + pause * (1.0 + state.chance.random())


def on_vote_answered(state: ReplicaState, now: float, event: VoteAnswered, out: Output) -> None:
    """Counts a vote, once, if it answers the question that is open and comes from a voter.

    Who grants a pre-vote may be in a higher term already, the one it was asked for; only a refusal teaches the term.
    """
    if event.term > state.term and not event.granted:
        adopt_term(state, now, out, event.term)
        return
    campaign = state.campaign
    if campaign is None or (event.is_pre_vote, event.election_term) != (campaign.is_pre_vote, campaign.term):
        return
    if event.granted:
        campaign.granted.add(event.voter)
        _conclude(state, now, out)


def on_hard_state_durable(state: ReplicaState, now: float, event: HardStateDurable, out: Output) -> None:
    """Term and vote are on disk. A candidate's own vote counts from here on.

    A vote given to another starts the timer anew: on a slow disk the candidate only now gets it (KUDU-1057).
    """
    if event.state != state.hard_state:
        return
    state.hard_state_durable = True
    if state.campaign is not None and not state.campaign.is_pre_vote:
        state.campaign.granted.add(state.uuid)
        _conclude(state, now, out)
    elif state.voted_for not in (None, state.uuid) and state.election_deadline != NEVER and state.campaign is None:
        arm_election_timer(state, now)


def _conclude(state: ReplicaState, now: float, out: Output) -> None:
    campaign = state.campaign
    assert campaign is not None, "no campaign to conclude"
    if not has_majority(state.voters, campaign.granted):
        return
    if campaign.is_pre_vote:
        start_election(state, now, out, ignore_live_leader=False)
    elif state.hard_state_durable:
        become_leader(state, now, out)


def become_leader(state: ReplicaState, now: float, out: Output) -> None:
    """Won: announces itself with a no-op of its own term, which commits all before it (sections 5.2, 5.4.2, 8)."""
    assert state.voted_for == state.uuid, f"leads term {state.term}, in which it voted for {state.voted_for}"
    assert state.hard_state_durable, f"leads term {state.term}, which is not durable"
    state.role, state.leader = Role.LEADER, state.uuid
    state.campaign = None
    state.election_deadline = NEVER
    state.failed_pre_votes = 0
    state.quorum_check_at = now + state.options.election_timeout_s
    state.own_term_index = state.log.last.index + 1
    follow_members(state, now, next_index=state.own_term_index)
    append_own(state, now, EntryKind.NO_OP, out)


# Voting.


def on_vote_requested(state: ReplicaState, now: float, event: VoteRequested, out: Output) -> None:
    """Answers a candidate.

    A live leader comes first: a request that would depose it does not even teach the term (dissertation section 4.2.3),
    unless it is the leader's own successor that asks. A pre-vote gets the answer a vote would get, and leaves term,
    vote and timers alone.
    """
    if not event.ignore_live_leader and state.hears_live_leader(now):
        _refuse_vote(state, event.token, "LEADER_IS_ALIVE", out)
        return
    if event.term < state.term:
        _refuse_vote(state, event.token, "INVALID_TERM", out)
        return
    if event.term > state.term and not event.is_pre_vote:
        adopt_term(state, now, out, event.term)
    if event.term == state.term and state.voted_for not in (None, event.candidate):
        _refuse_vote(state, event.token, "ALREADY_VOTED", out)
    elif event.last_op_id < state.log.last:
        _refuse_vote(state, event.token, "LAST_OPID_TOO_OLD", out)
    elif event.is_pre_vote:
        reply(state, out, VoteReply(event.token, state.term, True), after_durable=False)
    else:
        _grant_vote(state, now, event.token, event.candidate, out)


def _refuse_vote(state: ReplicaState, token: Token, reason: str, out: Output) -> None:
    reply(state, out, VoteReply(token, state.term, False, reason), after_durable=False)


def _grant_vote(state: ReplicaState, now: float, token: Token, candidate: ServerId, out: Output) -> None:
    assert state.role is not Role.LEADER, f"{state.uuid} leads term {state.term} and votes for {candidate}"
    if state.voted_for is None:
        set_hard_state(state, out, state.term, candidate)
    arm_election_timer(state, now)
    reply(state, out, VoteReply(token, state.term, True), after_durable=True)


# Handing over.


def on_step_down_requested(state: ReplicaState, now: float, event: StepDownRequested, out: Output) -> None:
    """A leader is asked to give up: it starts a handover, or says why it cannot."""
    error = _handover_refusal(state, event.successor)
    if error is not None:
        out.refused.append(Refused(event.token, error))
        return
    start_transfer(state, now, event.successor, out)
    out.replies.append(Done(event.token))


def start_transfer(state: ReplicaState, now: float, successor: ServerId | None, out: Output) -> None:
    """Takes no more proposals and tells the successor to campaign as soon as it has every entry.

    If nobody has taken over within an election timeout, the leader goes on as before.
    """
    assert state.role is Role.LEADER, f"{state.uuid} hands over but does not lead"
    state.transfer = Transfer(successor, now + state.options.election_timeout_s)
    advance_transfer(state, now, out)


def on_handover_failed(state: ReplicaState, now: float, event: HandoverFailed, out: Output) -> None:
    """Whoever was told to campaign will not: somebody else is."""
    transfer = state.transfer
    if transfer is None or event.term != state.term or event.peer != transfer.asked:
        return
    transfer.failed.add(event.peer)
    transfer.asked = None
    advance_transfer(state, now, out)


def _handover_refusal(state: ReplicaState, successor: ServerId | None) -> KuduError | None:
    if state.role is not Role.LEADER:
        return state.not_the_leader()
    if state.transfer is not None:
        return stepping_down(state)
    if successor is not None and (successor == state.uuid or successor not in state.voters):
        return KuduError(ErrorCode.INVALID_ARGUMENT, f"{successor} is not another voter of {state.group}")
    if len(state.voters) == 1:
        return KuduError(ErrorCode.ILLEGAL_STATE, f"{state.group} has no other voter that could lead")
    return None


def on_election_requested(state: ReplicaState, now: float, event: ElectionRequested, out: Output) -> None:
    """Told to campaign at once, by the leader that hands over or by an operator."""
    if event.term is not None and event.term != state.term:
        message = f"the request to campaign is of term {event.term}; {state.group} is in term {state.term}"
        out.refused.append(Refused(event.token, KuduError(ErrorCode.INVALID_TERM, message)))
    elif not state.is_voter:
        message = f"{state.uuid} is not a voter of {state.group}, so it cannot campaign"
        out.refused.append(Refused(event.token, KuduError(ErrorCode.ILLEGAL_STATE, message)))
    else:
        if state.role is not Role.LEADER:
            start_election(state, now, out, ignore_live_leader=True)
        out.replies.append(Done(event.token))
