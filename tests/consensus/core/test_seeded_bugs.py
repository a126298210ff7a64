"""Bugs that Raft implementations really had, put in on purpose: the rig and its observer must see each of them.

A test harness that finds nothing may be blind; these runs show that it is not. Each bug names where it was found first.
"""

from collections import deque
from functools import partial

import pytest

from kudu_py.common.opid import OpId
from kudu_py.consensus.core import election, membership, reconfiguration, replication
from kudu_py.consensus.core.model import EntryKind, Member, MemberType, RaftConfig, RaftOptions, Role
from kudu_py.consensus.core.state import OwnChange
from kudu_py.testing.core_rig import CoreRig, RigFaults, RigServer

OPTIONS = RaftOptions()
"""Without the machine's own invariants, so that the observer is what finds the bug."""


def run(seed: int) -> None:
    rig = CoreRig(seed, options=OPTIONS, faults=RigFaults(lose=0.1, double=0.1, delay_s=0.05, sync_s=0.1))
    rig.start()
    known: dict[str, int] = {}
    for _ in range(80):
        rig.run(rig.rng.random() * 0.8)
        server = rig.rng.choice(list(rig.servers.values()))
        dice = rig.rng.random()
        if server.raft is None:
            server.start(rig.config, known[server.uuid])
        elif dice < 0.5:
            for leader in rig.leaders:
                for _ in range(rig.rng.randint(1, 3)):
                    leader.ask(RigServer.propose)
                leader.ask(RigServer.read)
        elif dice < 0.6:
            known[server.uuid] = server.crash()
        elif dice < 0.7:
            rig.isolate(server.uuid)
        elif dice < 0.8:
            rig.pause(server.uuid, 5.0 * rig.rng.random())
        else:
            rig.heal()


def run_all(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)


def finds(seeds: int = 150) -> None:
    """Some seed fails an assertion."""
    with pytest.raises(AssertionError):
        run_all(seeds)


def test_without_a_bug_nothing_is_found() -> None:
    run_all(20)


def test_votes_that_leave_before_they_are_durable_are_found(monkeypatch) -> None:
    """PySyncObj #84."""
    honest = RigServer._hold

    def hasty(self, out):
        for reply in out.replies_after_durable:
            self._answer(reply)
        out.replies_after_durable = []
        honest(self, out)

    monkeypatch.setattr(RigServer, "_hold", hasty)
    finds()


def test_a_forgotten_sync_of_the_log_is_found(monkeypatch) -> None:
    """An acknowledgement means synced; this disk says so and has not."""
    honest = RigServer.crash

    def forgetful(self):
        self.log_queue = deque()
        known = honest(self)
        del self.disk.log[max(known, len(self.disk.log) - 1) :]
        return known

    monkeypatch.setattr(RigServer, "crash", forgetful)
    finds()


def test_votes_for_candidates_with_older_logs_are_found(monkeypatch) -> None:
    """Section 5.4.1 left out."""
    honest = election.on_vote_requested

    def credulous(state, now, event, out):
        trusted = type(event)(
            event.token,
            event.candidate,
            event.term,
            OpId(2**60, 2**60),
            event.is_pre_vote,
            event.ignore_live_leader,
        )
        honest(state, now, trusted, out)

    monkeypatch.setattr(election, "on_vote_requested", credulous)
    finds()


def test_a_follower_that_commits_more_than_the_message_proves_is_found(monkeypatch) -> None:
    """KUDU-639."""
    honest = replication.on_append_received

    def greedy(state, now, event, out):
        honest(state, now, event, out)
        wanted = min(event.commit_index, state.log.last.index)
        if event.term == state.term and wanted > state.log.committed_index:
            replication.commit(state, out, wanted)

    monkeypatch.setattr(replication, "on_append_received", greedy)
    finds()


def test_reads_without_confirmation_are_found(monkeypatch) -> None:
    """etcd and Consul, 2014: a deposed leader serves reads."""

    def trusting(state, now, out):
        out.reads_ready.extend(state.reads.close_round())

    monkeypatch.setattr(replication, "confirm_reads", trusting)
    finds()


def test_a_leader_that_counts_itself_before_its_disk_is_found(monkeypatch) -> None:
    """etcd #14370."""
    honest = replication.advance_commit

    def early(state, now, out):
        durable, state.log.durable_index = state.log.durable_index, state.log.last.index
        honest(state, now, out)
        state.log.durable_index = durable

    monkeypatch.setattr(replication, "advance_commit", early)
    finds()


def run_changes(seed: int) -> None:
    """A group whose members are changed all the time, by leaders that are cut off in the middle of it."""
    rig = CoreRig(
        seed,
        spares=2,
        options=RaftOptions(config_change_timeout_s=1.5),
        faults=RigFaults(lose=0.05, delay_s=0.05, sync_s=0.1),
    )
    rig.start()
    rig.run(1.0)
    known: dict[str, int] = {}
    for _ in range(30):
        rig.run(rig.rng.random() * 2.0)
        for leader in rig.leaders:
            members = {member.uuid: member for member in leader.raft.committed_config.members}
            uuid = rig.rng.choice(list(rig.servers))
            if members.pop(uuid, None) is None:
                members[uuid] = Member(uuid, MemberType.PRE_VOTER, f"{uuid}:7050", promote=True)
            leader.ask(partial(RigServer.change_config, new=RaftConfig(0, tuple(members.values()))))
            leader.ask(RigServer.propose)
        rig.run(rig.rng.random() * 0.1)
        server = rig.rng.choice(list(rig.servers.values()))
        dice = rig.rng.random()
        if server.raft is None:
            server.start(rig.config, known[server.uuid])
        elif dice < 0.2:
            known[server.uuid] = server.crash()
        elif dice < 0.7:
            left = rig.rng.sample(list(rig.servers), rig.rng.randint(1, 4))
            rig.separate(left, [uuid for uuid in rig.servers if uuid not in left])
        else:
            rig.heal()


def run_all_changes(seeds: int) -> None:
    for seed in range(seeds):
        run_changes(seed)


def finds_in_changes(seeds: int = 60) -> None:
    """Some seed fails an assertion."""
    with pytest.raises(AssertionError):
        run_all_changes(seeds)


def test_without_a_bug_nothing_is_found_in_changes() -> None:
    run_all_changes(20)


def change_twice_across_an_election() -> None:
    """The case of raft-dev, July 2015: a leader of four adds a fifth server, and reaches only that one. The next leader
    removes the first one; with three members, two hold that, and the one that does not is the first one's third of
    five."""
    rig = CoreRig(1, servers=4, spares=1, options=OPTIONS, faults=RigFaults(delay_s=0.001, sync_s=0.1))
    rig.start()
    rig.run_until(lambda: bool(rig.leaders) and rig.leader.raft.has_committed_in_own_term)
    rig.run(0.5)
    first, fifth, members = rig.leader, rig.servers["e"], rig.leader.raft.committed_config.members
    others = [member.uuid for member in members if member.uuid != first.uuid]
    rig.separate([first.uuid, fifth.uuid], others)
    first.change_config(RaftConfig(0, (*members, Member(fifth.uuid, MemberType.VOTER, "e:7050"))))
    rig.run_until(lambda: fifth.raft.last_op_id == first.raft.last_op_id)

    def voter_of_the_next() -> str:
        """Whose vote is durable, but has not arrived."""
        for uuid in others:
            state = rig.servers[uuid].disk.hard_state
            if state.term > first.raft.term and state.voted_for not in (None, uuid):
                return uuid
        return ""

    while not (voter := voter_of_the_next()):
        rig.run(0.0005)
    second = rig.servers[rig.servers[voter].disk.hard_state.voted_for]
    rig.cut.add((second.uuid, voter))
    while second.raft.role is not Role.LEADER:
        rig.run(0.0005)
    second.change_config(RaftConfig(0, tuple(member for member in members if member.uuid != first.uuid)))
    rig.run(0.8)
    rig.heal()
    rig.separate([first.uuid, fifth.uuid, voter], [uuid for uuid in others if uuid != voter])
    rig.run(10.0)
    rig.heal()
    rig.run(10.0)
    assert len({raft.raft.active_config for raft in rig.servers.values()}) <= 2, rig.describe()


def test_two_changes_across_an_election_do_no_harm() -> None:
    change_twice_across_an_election()


def test_a_change_before_an_own_entry_is_committed_is_found(monkeypatch) -> None:
    """Raft's single-server changes as first published; KUDU-872."""
    honest = membership.refusal_of_any_change

    def hasty(state, expected_config_index):
        own, state.own_term_index = state.own_term_index, min(1, state.own_term_index)
        error = honest(state, expected_config_index)
        state.own_term_index = own
        return error

    monkeypatch.setattr(membership, "refusal_of_any_change", hasty)
    monkeypatch.setattr(membership, "unable_to_commit", lambda *_: None)  # which alone would prevent it here
    with pytest.raises(AssertionError, match="without a committed entry"):
        change_twice_across_an_election()


def test_an_inherited_change_that_is_undone_is_found(monkeypatch) -> None:
    """A leader goes back to members from before a change that another one began."""
    honest = election.become_leader

    def meddling(state, now, out):
        honest(state, now, out)
        if len(state.pending_configs) == 1:
            inherited = OpId(state.term, state.pending_configs[0].config_index)
            state.own_change = OwnChange(inherited, state.committed_config, now)
            membership.follow_members(state, now, next_index=state.log.last.index)

    monkeypatch.setattr(election, "become_leader", meddling)
    finds_in_changes()


def test_an_undo_that_is_undone_is_found(monkeypatch) -> None:
    honest = reconfiguration.advance

    def wavering(state, now, out):
        change = state.own_change
        if change is not None and change.undo is not None and now > change.due_at + 2.0:
            change.due_at = now
            replication.append_own(state, now, EntryKind.CONFIG_CHANGE, out, state.pending_configs[0])
        honest(state, now, out)

    monkeypatch.setattr(reconfiguration, "advance", wavering)
    finds_in_changes()


def test_a_change_that_is_cut_off_instead_of_undone_is_found(monkeypatch) -> None:
    """Truncating one's own log in one's own term puts two entries under one OpId."""

    def cutting(state, now, change, reason, out):
        after = change.change.index - 1
        state.log.truncate_after(after)
        out.truncate_after = out.abort_after = after
        state.own_change = None
        membership.roll_back(state, now, out, after)
        for row in state.progress.values():
            row.match_index, row.next_index, row.in_flight = min(row.match_index, after), after + 1, 0
        replication.append_own(state, now, EntryKind.NO_OP, out)

    monkeypatch.setattr(reconfiguration, "_undo", cutting)
    finds_in_changes()


def test_members_that_are_in_force_only_once_committed_are_found(monkeypatch) -> None:
    """etcd #5004: the leader counts by the members from before."""
    honest = membership.read_members

    def late(state):
        honest(state)
        if state.role is Role.LEADER:
            state.voters = state.committed_config.voters

    monkeypatch.setattr(membership, "read_members", late)
    monkeypatch.setattr(
        membership,
        "followed_members",
        lambda state: [
            m.uuid for m in (*state.committed_config.members, *state.active_config.members) if m.uuid != state.uuid
        ],
    )
    honest_rows = membership.follow_members

    def by_the_old(state, now, *, next_index):
        honest_rows(state, now, next_index=next_index)
        state.voter_progress = [row for row in state.progress.values() if row.uuid in state.committed_config.voters]

    monkeypatch.setattr(membership, "follow_members", by_the_old)
    finds_in_changes()


def test_acknowledgements_of_pre_voters_that_count_are_found(monkeypatch) -> None:
    """YugaByte, 2019."""
    honest = membership.follow_members

    def generous(state, now, *, next_index):
        honest(state, now, next_index=next_index)
        state.voter_progress = list(state.progress.values())

    monkeypatch.setattr(membership, "follow_members", generous)
    finds_in_changes()


def demote_and_crash(seed: int) -> None:
    """One of two is demoted, and the leader crashes before, or after, its own disk has that."""
    rig = CoreRig(seed, servers=2, options=OPTIONS, faults=RigFaults(delay_s=0.002, sync_s=0.05))
    rig.start()
    rig.run_until(lambda: bool(rig.leaders) and rig.leader.raft.has_committed_in_own_term)
    rig.run(1.0)
    leader = rig.leader
    voters = rig.config.members
    demoted = [m if m.uuid == leader.uuid else Member(m.uuid, MemberType.PRE_VOTER, m.address) for m in voters]
    assert leader.change_config(RaftConfig(0, tuple(demoted))).accepted
    rig.run(rig.rng.random() * 0.1)
    known = leader.crash()
    rig.run(1.0)
    leader.start(rig.config, known)
    rig.run_until(lambda: bool(rig.leaders) and rig.leader.raft.has_committed_in_own_term, 20.0)


def demote_and_crash_all(seeds: int) -> None:
    for seed in range(seeds):
        demote_and_crash(seed)


def test_whoever_loses_its_vote_does_not_keep_the_others_from_electing() -> None:
    demote_and_crash_all(40)


def test_entries_that_reach_who_loses_its_vote_are_found(monkeypatch) -> None:
    """Dissertation section 4.2.2, figure 4.6: its log ends behind everybody's, and it is no voter by it."""
    monkeypatch.setattr(membership, "is_held_back", lambda state, uuid: state.active_config.member(uuid) is None)
    with pytest.raises(AssertionError, match="does not hold after 20"):
        demote_and_crash_all(40)
