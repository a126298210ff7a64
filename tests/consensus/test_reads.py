"""Reads at the leader, and snapshots at any replica."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.core.model import Role
from kudu_py.testing.consensus_group import SimGroup


def test_a_read_at_the_leader_sees_what_was_acknowledged_before(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        done = leader.propose()
        await done.future
        assert await leader.raft.read_index() >= done.op_id.index
        reads = await asyncio.gather(*(leader.raft.read_index() for _ in range(50)))
        assert min(reads) >= done.op_id.index
        await group.stop()

    simulate(story())


def test_a_leader_that_was_cut_off_never_confirms_a_read(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        old = await group.leader()
        await group.settle()
        group.network.isolate(old.address)
        reading = asyncio.ensure_future(old.raft.read_index())
        await group.write(b"new", group.others(old))
        with pytest.raises(KuduError) as refused:
            await reading
        assert refused.value.code is ErrorCode.NOT_THE_LEADER
        group.network.heal()
        await group.stop()

    simulate(story())


def test_answers_to_messages_sent_before_the_read_do_not_confirm_it(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        old = await group.leader()
        await group.settle()
        # Requests get through, answers are held up: when they arrive, they are old.
        for other in group.others(old):
            group.network.cut(other.address, old.address, both_ways=False)
        old.propose()
        await asyncio.sleep(0.1)
        reading = asyncio.ensure_future(old.raft.read_index())
        for other in group.others(old):
            group.network.cut(old.address, other.address, both_ways=False)
            group.network.heal(other.address, old.address, both_ways=False)
        await asyncio.sleep(0.5)
        assert not reading.done()
        reading.cancel()
        await group.stop()

    simulate(story())


def test_an_idle_follower_becomes_safe_to_read_soon_after_any_timestamp(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        done = leader.propose()
        await done.future
        follower = group.others(leader)[0]
        wanted = leader.raft._time.now()
        await follower.raft.wait_safe_time(wanted, 2.0)
        assert follower.raft.safe_time >= wanted
        assert follower.raft.applied_index >= done.op_id.index
        assert leader.propose().timestamp > follower.raft.safe_time
        await group.stop()

    simulate(story())


def test_a_follower_that_hears_no_leader_says_that_the_snapshot_timed_out(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        follower = group.others(leader)[0]
        group.network.isolate(follower.address)
        await asyncio.sleep(1)
        with pytest.raises(KuduError) as late:
            await follower.raft.wait_safe_time(leader.raft._time.now(), 0.5)
        assert late.value.code is ErrorCode.TIMED_OUT
        await group.stop()

    simulate(story())


def test_a_later_leader_with_a_slow_clock_writes_above_what_was_safe(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        old = await group.leader()
        slow = group.others(old)[0]
        await group.write(b"w")
        group.clocks[group.servers.index(slow)].offset_s = -4.0
        await asyncio.sleep(5)
        safe = max(server.raft.safe_time for server in group.servers)
        await group.crash(old)
        witness = group.others(old, slow)[0]
        await group.wait_until(lambda: slow.raft.role is Role.LEADER or witness.raft.role is Role.LEADER)
        if witness.raft.role is Role.LEADER:
            await witness.raft.leader_step_down(slow.uuid)
        await group.wait_until(lambda: slow.raft.is_leader_ready())
        assert slow.propose().timestamp > safe
        await group.stop()

    simulate(story())


def test_a_snapshot_in_the_far_future_is_refused(simulate):
    async def story():
        group = SimGroup(size=1)
        await group.start()
        leader = await group.leader()
        now = leader.raft._time.now()
        with pytest.raises(KuduError) as refused:
            await leader.raft.wait_safe_time(now + (3600 * 10**6 << 12), 1.0)
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        await leader.raft.wait_safe_time(now + (2 * 10**6 << 12), 1.0)
        assert leader.propose().timestamp > now + (2 * 10**6 << 12)
        await group.stop()

    simulate(story())
