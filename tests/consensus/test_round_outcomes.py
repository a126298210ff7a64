"""What becomes of a round, and which ones are not begun."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import Role
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.testing.consensus_group import TESTING_OPTIONS, SimGroup


def test_an_overwritten_round_fails_and_a_deposed_leader_leaves_others_waiting(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        old = await group.leader()
        await group.settle()
        group.network.isolate(old.address)
        lost = old.propose(b"lost")
        await group.wait_until(lambda: old.raft.role is not Role.LEADER)
        assert not lost.future.done(), "whether it was replicated is not known yet"
        await group.write(b"kept", group.others(old))
        group.network.heal()
        with pytest.raises(KuduError) as aborted:
            await lost.future
        assert aborted.value.code is ErrorCode.OPERATION_ABORTED
        assert aborted.value.verdict is Verdict.FAILED
        await group.settle()
        assert all(server.machine.payloads == [b"kept"] for server in group.servers)
        await group.stop()

    simulate(story())


def test_cancelling_a_waiter_does_not_cancel_the_round(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()

        proposed = asyncio.Event()

        async def caller():
            pending = leader.propose(b"abandoned")
            proposed.set()
            await pending.future

        waiting = asyncio.ensure_future(caller())
        await proposed.wait()
        waiting.cancel()
        await group.wait_until(lambda: b"abandoned" in leader.machine.payloads)
        await group.stop()

    simulate(story())


def test_a_stop_leaves_the_outcome_of_waiting_rounds_unknown(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        pending = leader.propose()
        await leader.raft.stop()
        with pytest.raises(KuduError) as stopped:
            await pending.future
        assert stopped.value.verdict is Verdict.UNKNOWN
        with pytest.raises(KuduError):
            leader.propose()
        await group.stop()

    simulate(story())


def test_more_than_may_be_in_flight_is_refused_before_anything_happens(simulate):
    async def story():
        options = ConsensusOptions(raft=TESTING_OPTIONS.raft, rounds_in_flight_max=10, bytes_in_flight_max=5000)
        group = SimGroup(options=options)
        await group.start()
        leader = await group.leader()
        accepted = [leader.propose() for _ in range(10)]
        last = leader.raft.last_op_id
        with pytest.raises(KuduError) as refused:
            leader.propose()
        assert refused.value.code is ErrorCode.SERVER_TOO_BUSY
        assert refused.value.verdict is Verdict.TRY_LATER
        assert leader.raft.last_op_id == last
        await asyncio.gather(*(r.future for r in accepted))
        large = leader.propose(bytes(9000))  # alone it may exceed the bound: else it never could be written
        with pytest.raises(KuduError):
            leader.propose()
        await large.future
        await leader.propose().future
        await group.stop()

    simulate(story())


def test_a_follower_refuses_a_proposal_with_the_leaders_address(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        with pytest.raises(KuduError) as refused:
            group.others(leader)[0].propose()
        assert refused.value.details["leader_address"] == leader.address
        await group.stop()

    simulate(story())
