"""Groups on virtual time replicate: whatever a majority has, all come to have."""

from __future__ import annotations

import asyncio

from kudu_py.consensus.core.model import Role
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.testing.consensus_group import TESTING_OPTIONS, SimGroup
from kudu_py.wal.options import WalOptions


def test_three_replicas_elect_one_leader_and_commit(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        rounds = [leader.propose(f"w{i}".encode()) for i in range(100)]
        results = await asyncio.gather(*(r.future for r in rounds))
        assert results == [r.op_id.index for r in rounds]
        await group.settle()
        for server in group.servers:
            assert server.machine.payloads == [f"w{i}".encode() for i in range(100)]
        assert [s.raft.role for s in group.servers].count(Role.LEADER) == 1
        await group.stop()
        assert all(server.fatal is None for server in group.servers)

    simulate(story())


def test_timestamps_rise_with_the_index_across_leaders(simulate):
    async def story():
        group = SimGroup()
        group.clocks[1].offset_s, group.clocks[2].offset_s = -3.0, 2.0
        await group.start()
        for i in range(6):
            leader = await group.write(f"w{i}".encode())
            await leader.raft.leader_step_down()
            await group.wait_until(lambda leader=leader: leader.raft.role is not Role.LEADER)
        await group.settle()  # JournalMachine asserts the rule for each entry
        assert all(len(server.machine.payloads) == 6 for server in group.servers)
        await group.stop()

    simulate(story())


def test_a_majority_is_enough_and_the_one_that_was_away_catches_up_from_the_log(simulate, link_options):
    async def story():
        # Nothing stays in the log's memory, so that the laggard is served from its files.
        group = SimGroup(link_options=link_options, wal_options=WalOptions(cache_bytes_max=0))
        await group.start()
        leader = await group.leader()
        away = group.others(leader)[0]
        await group.crash(away)
        for i in range(50):
            await leader.propose(bytes([i]) * 3000).future
        await group.restart(away)
        await group.settle()
        assert away.machine.payloads == leader.machine.payloads
        await group.stop()

    simulate(story())


def test_an_append_is_bounded_in_bytes_but_holds_at_least_one_entry(simulate, link_options):
    async def story():
        options = ConsensusOptions(raft=TESTING_OPTIONS.raft, append_bytes_max=1000)
        group = SimGroup(link_options=link_options, options=options)
        await group.start()
        leader = await group.leader()
        rounds = [leader.propose(bytes([i % 256]) * (5000 if i % 7 == 0 else 300)) for i in range(40)]
        await asyncio.gather(*(r.future for r in rounds))
        await group.settle()
        assert group.servers[0].machine.payloads == group.servers[2].machine.payloads
        await group.stop()

    simulate(story())


def test_entries_that_memory_has_no_room_for_are_applied_from_the_log(simulate):
    async def story():
        options = ConsensusOptions(raft=TESTING_OPTIONS.raft, kept_bytes_max=2000)
        group = SimGroup(options=options)
        await group.start()
        leader = await group.leader()
        rounds = [leader.propose(bytes([i]) * 900) for i in range(30)]
        assert await asyncio.gather(*(r.future for r in rounds)) == [r.op_id.index for r in rounds]
        await group.settle()
        assert all(server.machine.payloads == leader.machine.payloads for server in group.servers)
        await group.stop()

    simulate(story())


def test_a_single_replica_commits_once_its_own_disk_has_the_entry(simulate):
    async def story():
        group = SimGroup(size=1)
        await group.start()
        leader = await group.leader()
        leader.threads.hang()
        pending = leader.propose()
        await asyncio.sleep(5)
        assert not pending.future.done()
        leader.threads.release()
        assert await pending.future == pending.op_id.index
        await group.stop()

    simulate(story())


def test_all_acknowledged_writes_survive_a_power_cut_of_all(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        for i in range(20):
            await group.write(f"w{i}".encode())
        for server in group.servers:
            await group.crash(server)
        for server in group.servers:
            await group.restart(server)
        await group.write(b"after")
        await group.settle()
        for server in group.servers:
            assert server.machine.payloads == [*(f"w{i}".encode() for i in range(20)), b"after"]
        await group.stop()

    simulate(story())


def test_entries_are_acknowledged_only_when_durable(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        await group.settle()
        for server in group.others(leader):
            server.threads.hang()
        pending = leader.propose()
        await asyncio.sleep(1.0)
        assert not pending.future.done()
        assert leader.raft.role is Role.LEADER, "heartbeats are answered while the disks hang"
        group.others(leader)[0].threads.release()
        await pending.future
        group.others(leader)[1].threads.release()
        await group.stop()

    simulate(story())
