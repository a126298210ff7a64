"""Bugs that Raft implementations really had, put in on purpose: the rig and its observer must see each of them.

A test harness that finds nothing may be blind; these runs show that it is not. Each bug names where it was found first.
"""

from collections import deque

import pytest

from kudu_py.common.opid import OpId
from kudu_py.consensus.core import election, replication
from kudu_py.consensus.core.model import RaftOptions
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
