"""Changes of term and role that both elections and replication need, and the timers that go with them."""

from __future__ import annotations

from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.model import HardState, Role
from kudu_py.consensus.core.output import Output, Refused, Reply
from kudu_py.consensus.core.state import NEVER, ReplicaState


def set_hard_state(state: ReplicaState, out: Output, term: int, voted_for: ServerId | None) -> None:
    """Moves to `term` with this vote: one record, and from now on nothing that promises leaves before it is durable."""
    assert term >= state.term, f"term cannot go from {state.term} back to {term}"
    assert term > state.term or state.voted_for in (None, voted_for), (
        f"vote of term {term} cannot go from {state.voted_for} to {voted_for}"
    )
    state.term, state.voted_for = term, voted_for
    state.hard_state_durable = False
    out.hard_state = HardState(term, voted_for)


def adopt_term(state: ReplicaState, now: float, out: Output, term: int) -> None:
    """A higher term was seen (section 5.1): moves to it as a follower without a leader.

    The leader heard last was one of an older term, so that hearing it is no reason any more to refuse others a vote.
    """
    assert term > state.term, f"term {term} is not above {state.term}"
    set_hard_state(state, out, term, None)
    become_follower(state, now, out, None)
    state.leader_contact_at = -NEVER


def become_follower(state: ReplicaState, now: float, out: Output, leader: ServerId | None) -> None:
    """Gives up leading or campaigning within the current term; the vote stays what it was.

    Entries proposed here stay in the log and may still commit; only reads are refused, since no one can confirm them
    now.
    """
    was_leader = state.role is Role.LEADER
    state.role = state.passive_role
    state.leader = leader
    state.campaign = None
    if was_leader:
        state.progress, state.voter_progress, state.promotable = {}, [], []
        state.own_change = None
        state.own_term_index = 0
        state.quorum_check_at = NEVER
        state.transfer = None
        refuse_reads(state, out)
        arm_election_timer(state, now)
    elif state.election_deadline == NEVER:
        arm_election_timer(state, now)


def arm_election_timer(state: ReplicaState, now: float) -> None:
    """Starts the wait for a leader anew: 1 to 2 election timeouts, so that few campaign at once (section 5.2)."""
    if state.is_voter and state.role is not Role.LEADER:
        state.election_deadline = now + state.options.election_timeout_s * (1.0 + state.chance.random())
    else:
        state.election_deadline = NEVER


def overslept(state: ReplicaState, now: float, deadline: float) -> bool:
    """Whether this replica comes so late to its own deadline that it should first hear what has arrived meanwhile.

    A process that was stopped, or whose loop was busy, finds its timers run out and the messages that would have
    prevented it still unread. Without this, one busy machine makes elections where no leader is missing. Only once in
    a row: who is always late must not wait for ever.
    """
    late = now - deadline > state.options.heartbeat_interval_s
    state.was_late = late and not state.was_late
    return state.was_late


def refuse_reads(state: ReplicaState, out: Output) -> None:
    """Refuses every read that waits for a confirmation."""
    error_of = state.not_the_leader
    out.refused.extend(Refused(token, error_of()) for token in state.reads.take_all())


def reply(state: ReplicaState, out: Output, answer: Reply, *, after_durable: bool) -> None:
    """Gives an answer; one that names a term which is not durable yet waits for it as well."""
    if after_durable or not state.hard_state_durable:
        out.replies_after_durable.append(answer)
    else:
        out.replies.append(answer)
