"""`check(state)`: every property of one replica that must hold between any two steps.

Properties of a group (election safety, log matching, leader completeness) cannot be seen from one replica; they are
checked by the observers under `testing`.
"""

from __future__ import annotations

from kudu_py.consensus.core.membership import followed_members, is_held_back
from kudu_py.consensus.core.model import Role
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.core.state import NEVER, ReplicaState


def check(state: ReplicaState) -> None:
    """Asserts all of them, with the values that break them."""
    state.log.check()
    _check_term(state)
    _check_configs(state)
    _check_role(state)
    _check_timers(state)
    if state.role is Role.LEADER:
        _check_leader(state)


def _check_term(state: ReplicaState) -> None:
    assert state.log.last.term <= state.term, f"log ends at {state.log.last}, in term {state.term}"


def _check_configs(state: ReplicaState) -> None:
    indexes = [config.config_index for config in (state.committed_config, *state.pending_configs)]
    assert indexes == sorted(set(indexes)), f"configs out of order: {indexes}"
    for config in state.pending_configs:
        assert state.log.committed_index < config.config_index <= state.log.last.index, (
            f"pending config {config.config_index} is outside of ({state.log.committed_index}, {state.log.last.index}]"
        )
    assert state.voters == state.active_config.voters, (
        f"counts {state.voters}, active config has {state.active_config.voters}"
    )
    assert state.is_voter == (state.uuid in state.voters), (
        f"is_voter {state.is_voter} of {state.uuid} in {state.voters}"
    )


def _check_role(state: ReplicaState) -> None:
    role = state.role
    if role in (Role.LEADER, Role.CANDIDATE):
        assert state.is_voter, f"{role.value} but not a voter of {state.active_config}"
        assert state.voted_for == state.uuid, f"{role.value} of term {state.term}, voted for {state.voted_for}"
    else:
        assert role is state.passive_role, f"{role.value} instead of {state.passive_role.value}"
    assert (state.leader == state.uuid) == (role is Role.LEADER), f"{role.value}, leader {state.leader}"
    if state.campaign is not None:
        assert state.is_voter, f"campaigns but is no voter of {state.active_config}"
        assert role is not Role.LEADER, f"leads term {state.term} with a campaign open"
        assert state.leader is None, f"campaigns, knows leader {state.leader}"
        expected = state.term + 1 if state.campaign.is_pre_vote else state.term
        assert state.campaign.term == expected, f"campaign for {state.campaign.term}, term {state.term}"
    assert (role is Role.CANDIDATE) == (state.campaign is not None and not state.campaign.is_pre_vote), (
        f"{role.value}, campaign {state.campaign}"
    )


def _check_timers(state: ReplicaState) -> None:
    waits = state.is_voter and state.role is not Role.LEADER
    assert (state.election_deadline != NEVER) == waits, (
        f"{state.role.value}, election deadline {state.election_deadline}"
    )


def _check_leader(state: ReplicaState) -> None:
    log = state.log
    assert state.hard_state_durable, f"leads term {state.term}, which is not durable"
    assert log.term_at(state.own_term_index) == state.term, f"no own entry at {state.own_term_index} in {log.runs}"
    expected = followed_members(state)
    assert list(state.progress) == expected, f"follows {list(state.progress)}, members are {expected}"
    _check_own_change(state)
    assert state.voter_progress == [row for row in state.progress.values() if row.is_voter], (
        "voters counted are not those followed"
    )
    for row in state.progress.values():
        _check_progress(state, row)
    reads = state.reads
    assert not reads.confirming or reads.after <= state.last_request, (
        f"round after {reads.after} of {state.last_request}"
    )


def _check_own_change(state: ReplicaState) -> None:
    change = state.own_change
    own = [config.config_index for config in state.pending_configs if config.config_index > state.own_term_index]
    if change is None:
        assert not own, f"configs {own} are open, and this leader does not know that it appended them"
        return
    marks = [change.change] if change.undo is None else [change.change, change.undo]
    pending = [config.config_index for config in state.pending_configs]
    assert pending == [mark.index for mark in marks], f"{change} is open, pending are {pending}"
    assert all(mark.term == state.term for mark in marks), f"{change} is not of the own term {state.term}"
    assert state.log.committed_index >= state.own_term_index, f"{change} came before an own entry was committed"
    assert len(set(state.voters) ^ set(change.previous.voters)) <= (1 if change.undo is None else 0), (
        f"counts {state.voters} after {change}"
    )


def _check_progress(state: ReplicaState, row: Progress) -> None:
    assert row.is_voter == (row.uuid in state.voters), f"{row.uuid}: is_voter {row.is_voter}"
    member = state.active_config.member(row.uuid)
    assert row.is_held_back == is_held_back(state, row.uuid), f"{row.uuid}: is_held_back {row.is_held_back}, {member}"
    assert member is not None or state.own_change is not None, f"{row.uuid} is followed, is no member, and none leaves"
    assert (row in state.promotable) == (member is not None and member.promote and not row.is_voter), (
        f"{row.uuid}: to be promoted is {member}"
    )
    assert 0 <= row.match_index < row.next_index <= state.log.last.index + 1, (
        f"{row.uuid}: match {row.match_index}, next {row.next_index}, log ends at {state.log.last}"
    )
    assert row.confirmed_request <= state.last_request, (
        f"{row.uuid}: confirmed {row.confirmed_request} of {state.last_request}"
    )
    if row.in_flight:
        assert row.in_flight <= state.last_request, f"{row.uuid}: {row.in_flight} in flight of {state.last_request}"
        assert row.in_flight_preceding <= row.in_flight_last <= state.log.last.index, (
            f"{row.uuid}: ({row.in_flight_preceding}, {row.in_flight_last}] in flight, log ends at {state.log.last}"
        )
