"""Followers: what they put off, what they cannot take, and messages that no leader sends."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.codec import op_id_from_pb
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.pb import consensus_pb2
from kudu_py.testing.consensus_group import TESTING_OPTIONS, SimGroup


def test_followers_short_of_memory_take_no_entries_and_still_hear_their_leader(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        await group.settle()
        term = leader.raft.term
        for server in group.others(leader):
            server.has_room = False
        pending = leader.propose()
        await asyncio.sleep(10)
        assert [server.raft.term for server in group.servers] == [term] * 3
        assert not pending.future.done()
        assert all(server.raft.last_op_id < pending.op_id for server in group.others(leader))
        group.others(leader)[0].has_room = True
        await pending.future
        await group.stop()

    simulate(story())


def test_a_follower_without_the_tablet_is_asked_to_copy_it_from_the_leader(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        lost = group.others(leader)[0]
        await lost.raft.stop()
        lost.replica = None  # its server answers TABLET_NOT_FOUND
        await group.wait_until(lambda: bool(lost.copies_asked))
        asked = lost.copies_asked[0]
        assert asked.expected_state == consensus_pb2.DOES_NOT_EXIST
        assert (asked.caller_uuid, asked.caller_term) == (leader.uuid, leader.raft.term)
        assert (asked.source_uuid, asked.source_address) == (leader.uuid, leader.address)
        assert op_id_from_pb(asked.committed_op_id) <= leader.raft.last_committed_op_id
        await leader.propose().future
        await group.stop()

    simulate(story())


def test_messages_that_no_leader_sends_change_nothing(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        follower, other = group.others(leader)
        term = leader.raft.term
        good = consensus_pb2.UpdateConsensusRequest(
            tablet_id=follower.tablet_id, caller_uuid=leader.uuid, caller_term=term
        )
        good.preceding_op_id.term, good.preceding_op_id.index = follower.raft.last_op_id
        for spoil, code in [
            (lambda r: setattr(r, "caller_uuid", other.uuid), ErrorCode.ILLEGAL_STATE),
            (lambda r: setattr(r, "caller_timestamp", 1 << 63), ErrorCode.ILLEGAL_STATE),
            (lambda r: setattr(r.preceding_op_id, "term", term + 1), ErrorCode.INVALID_ARGUMENT),
            (lambda r: r.entries.add(type=1), ErrorCode.INVALID_ARGUMENT),
        ]:
            bad = consensus_pb2.UpdateConsensusRequest()
            bad.CopyFrom(good)
            spoil(bad)
            with pytest.raises(KuduError) as refused:
                await follower.raft.peer_requests.handle_update(bad)
            assert refused.value.code is code
        assert (await follower.raft.peer_requests.handle_update(good)).accepted
        with pytest.raises(KuduError):
            await leader.raft.peer_requests.handle_update(good)
        assert not any(server.fatal for server in group.servers)
        await group.stop()

    simulate(story())


LAZY = ConsensusOptions(raft=TESTING_OPTIONS.raft, apply_lazy_s=20.0, apply_lazy_bytes_max=10_000)


async def put_off(group, payload):
    """A follower that knows of a committed write; the last index before that write."""
    await group.start()
    leader = await group.leader()
    follower = group.others(leader)[0]
    await follower.raft.wait_applied(leader.raft.last_op_id.index)
    before = follower.raft.applied_index
    await leader.propose(payload).future
    await group.wait_until(lambda: follower.raft.commit_index > before)
    return follower, before


def test_a_follower_puts_off_for_a_while_what_nobody_waits_for(simulate):
    async def story():
        group = SimGroup(options=LAZY)
        follower, before = await put_off(group, b"x")
        await asyncio.sleep(10)
        assert follower.raft.applied_index == before
        await asyncio.sleep(11)
        assert follower.raft.applied_index == before + 1
        await group.stop()

    simulate(story())


def test_a_follower_applies_at_once_what_somebody_waits_for(simulate):
    async def story():
        group = SimGroup(options=LAZY)
        follower, before = await put_off(group, b"x")
        assert follower.raft.applied_index == before
        asked = asyncio.get_running_loop().time()
        await follower.raft.wait_applied(before + 1)
        assert asyncio.get_running_loop().time() - asked < 0.01
        await group.stop()

    simulate(story())


def test_a_follower_puts_off_no_more_than_its_bound(simulate):
    async def story():
        group = SimGroup(options=LAZY)
        follower, before = await put_off(group, bytes(20_000))
        await asyncio.sleep(0.01)
        assert follower.raft.applied_index == before + 1
        await group.stop()

    simulate(story())


def test_a_follower_that_is_elected_applies_what_it_had_put_off(simulate):
    async def story():
        group = SimGroup(options=LAZY)
        follower, before = await put_off(group, b"x")
        leader = await group.leader()
        await leader.raft.leader_step_down(follower.uuid)
        await group.wait_until(follower.raft.is_leader_ready, timeout_s=5.0)
        assert follower.raft.applied_index > before
        assert follower.machine.payloads == [b"x"]
        await group.stop()

    simulate(story())
