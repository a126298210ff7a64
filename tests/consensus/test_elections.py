"""Who leads: votes, handovers, and what a new leader waits for."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import Role
from kudu_py.pb import consensus_pb2
from kudu_py.testing.consensus_group import SimGroup


def test_the_others_go_on_within_seconds_after_a_leader_died(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        old = await group.leader()
        await old.propose(b"before").future
        await group.crash(old)
        died_at = asyncio.get_running_loop().time()
        new = await group.write(b"after")
        assert new is not old
        assert asyncio.get_running_loop().time() - died_at < 3.0
        await group.restart(old)
        await group.settle()
        assert old.machine.payloads == [b"before", b"after"]
        await group.stop()

    simulate(story())


def test_a_vote_is_durable_before_it_is_given(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        voter = group.others(leader)[0]
        candidate = group.others(leader, voter)[0]
        await group.settle()
        voter.threads.hang()
        request = consensus_pb2.RequestVoteRequest(
            candidate_uuid=candidate.uuid, candidate_term=leader.raft.term + 1, ignore_live_leader=True
        )
        request.last_op_id.term, request.last_op_id.index = candidate.raft.last_op_id
        vote = asyncio.ensure_future(voter.raft.peer_requests.handle_vote(request))
        await asyncio.sleep(2)
        assert not vote.done()
        voter.threads.release()
        response = await vote
        assert response.vote_granted
        assert voter.raft.metadata.durable.hard_state == (request.candidate_term, candidate.uuid)
        await group.stop()

    simulate(story())


def test_a_vote_is_remembered_after_a_power_cut(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        voter, first = group.others(leader)
        term = leader.raft.term + 5
        request = consensus_pb2.RequestVoteRequest(candidate_term=term, ignore_live_leader=True)
        request.last_op_id.term, request.last_op_id.index = leader.raft.last_op_id
        request.candidate_uuid = first.uuid
        assert (await voter.raft.peer_requests.handle_vote(request)).vote_granted
        for server in group.others(voter):
            await group.crash(server)
        await group.crash(voter)
        await group.restart(voter)
        request.candidate_uuid = leader.uuid
        response = await voter.raft.peer_requests.handle_vote(request)
        assert not response.vote_granted
        assert response.reason == "ALREADY_VOTED"
        await group.stop()

    simulate(story())


def test_a_leader_hands_over_to_the_chosen_successor(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        successor = group.others(leader)[1]
        await leader.raft.leader_step_down(successor.uuid)
        await group.wait_until(lambda: successor.raft.is_leader_ready())
        with pytest.raises(KuduError) as refused:
            leader.propose()
        assert refused.value.code is ErrorCode.NOT_THE_LEADER
        assert refused.value.details["leader_uuid"] == successor.uuid
        assert refused.value.details["leader_address"] == successor.address
        await group.stop()

    simulate(story())


@pytest.mark.parametrize("number", range(2))
def test_a_leader_hands_over_at_once_although_another_has_just_died(simulate, number):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        dead = group.others(leader)[number]
        await group.crash(dead)
        started = asyncio.get_running_loop().time()
        await leader.raft.leader_step_down()
        await group.leader(group.others(leader, dead))
        assert asyncio.get_running_loop().time() - started < 0.2
        await group.stop()

    simulate(story())


def test_a_handover_of_another_term_is_refused(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        follower = group.others(leader)[0]
        with pytest.raises(KuduError):
            await follower.raft.run_election(leader.raft.term + 7)
        assert leader.raft.role is Role.LEADER
        await follower.raft.run_election()
        await group.wait_until(lambda: follower.raft.is_leader_ready())
        await group.stop()

    simulate(story())


def test_a_new_leader_waits_until_its_clock_has_passed_its_predecessors(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        await group.write(b"first")
        fast = await group.leader()
        group.clocks[group.servers.index(fast)].offset_s = 5.0
        written = fast.propose(b"from a fast clock")
        await written.future
        await group.settle()
        await group.crash(fast)
        rest = group.others(fast)
        await group.wait_until(lambda: any(s.raft.role is Role.LEADER for s in rest))
        new = next(s for s in rest if s.raft.role is Role.LEADER)
        await asyncio.sleep(0.5)
        with pytest.raises(KuduError) as refused:
            new.propose()
        assert refused.value.verdict is Verdict.TRY_LATER
        await group.leader(rest)
        assert new.propose().timestamp > written.timestamp
        assert new.clock.wall_micros() >= written.timestamp >> 12
        await group.stop()

    simulate(story())


def test_a_voter_that_does_not_answer_is_told_of_once_until_it_has_answered(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        other, *_ = others = group.others(leader)
        for server in (leader, others[1]):
            await group.crash(server)
        await asyncio.sleep(60)  # it asks again and again
        await group.restart(leader)
        await group.leader()
        await group.crash(leader)
        await asyncio.sleep(60)
        await group.stop()
        return other.uuid, [leader.uuid, others[1].uuid]

    with structlog.testing.capture_logs() as events:
        asks, (came_back, stayed_away) = simulate(story())
    told = [event["voter"] for event in events if event["event"] == "vote_not_answered" and event["server"] == asks]
    assert sorted(told) == sorted([came_back, stayed_away, came_back])
