"""Disks that fail, hang or are full, and entries that cannot be applied."""

from __future__ import annotations

import asyncio
import contextlib
import errno

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import Role
from kudu_py.pb import consensus_pb2
from kudu_py.testing.consensus_group import SimGroup
from kudu_py.testing.sim_disk import Fault, Operation, SimDiskThreads
from kudu_py.testing.waiting import wait_until
from kudu_py.wal.options import WalOptions

SMALL_SEGMENTS = WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=8192)


@pytest.mark.parametrize("path", ["wal", "consensus-meta"])
def test_a_failed_write_is_fatal_and_the_replica_falls_silent(simulate, path):
    async def story():
        group = SimGroup()
        await group.start()
        victim = await group.leader()
        await group.settle()
        group.disks[group.servers.index(victim)].inject(Fault(Operation.SYNC, errno.EIO, path))
        pending = victim.propose()
        if path != "wal":
            await victim.raft.leader_step_down()
            await group.wait_until(lambda: victim.raft.role is not Role.LEADER)
        await group.wait_until(lambda: victim.fatal is not None)
        assert isinstance(victim.fatal, OSError)
        assert victim.raft.role is Role.NON_PARTICIPANT
        with pytest.raises(KuduError) as refused:
            await victim.raft.peer_requests.handle_vote(consensus_pb2.RequestVoteRequest())
        assert refused.value.code is ErrorCode.TABLET_FAILED
        if pending.future.done() and pending.future.exception() is not None:
            assert pending.future.exception().verdict is Verdict.UNKNOWN
        await group.write(b"the others go on", group.others(victim))
        await victim.halt()

    simulate(story())


def test_a_failure_of_the_disk_while_the_replica_stops_is_fatal_too(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        victim = await group.leader()
        await group.settle()
        group.disks[group.servers.index(victim)].inject(Fault(Operation.SYNC, errno.EIO, "consensus-meta"))
        request = consensus_pb2.RequestVoteRequest(
            dest_uuid=victim.uuid,
            tablet_id=victim.tablet_id,
            candidate_uuid=group.others(victim)[0].uuid,
            candidate_term=victim.raft.term + 1,
            ignore_live_leader=True,
        )
        raft = victim.raft
        vote = asyncio.ensure_future(raft.peer_requests.handle_vote(request))
        await wait_until(lambda: not raft.metadata.is_durable, step_s=0)  # the moment between vote and flush
        await raft.stop()
        # Whoever deletes the replica waits for what it may have promised, which will never be durable.
        await group.wait_until(lambda: victim.fatal is not None, 5)
        assert not raft.metadata.is_durable
        await asyncio.gather(vote, return_exceptions=True)
        await group.crash(victim)
        await group.stop()

    simulate(story())


def test_a_leader_whose_disk_does_not_answer_makes_way_for_another(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        stalled = await group.leader()
        await group.settle()
        stalled.threads.hang()
        pending = stalled.propose(b"on two disks of three")
        await pending.future
        await group.leader(group.others(stalled))
        await group.wait_until(lambda: stalled.raft.role is not Role.LEADER, 1)
        await group.write(b"by another", group.others(stalled))
        await asyncio.sleep(20)
        assert stalled.raft.role is Role.FOLLOWER
        stalled.threads.release()
        await group.settle()
        assert stalled.machine.payloads == [b"on two disks of three", b"by another"]
        await group.stop()

    simulate(story())


def test_a_leader_without_room_for_what_it_took_makes_way_for_another(simulate):
    async def story():
        group = SimGroup(wal_options=SMALL_SEGMENTS)
        await group.start()
        full = await group.leader()
        await group.settle()
        group.fill_disk(full)
        for _ in range(20):
            with contextlib.suppress(KuduError):  # refused, once the log has found out
                full.propose(bytes(1500))
        await group.write(b"by another", group.others(full))
        assert full.fatal is None
        await group.stop()

    simulate(story())


@pytest.mark.parametrize("seed", range(3))
def test_a_group_started_on_full_disks_elects_a_leader_and_takes_writes_when_there_is_room(simulate, seed):
    async def story():
        group = SimGroup(seed)
        await group.start()
        await group.write(b"before")
        await group.settle()
        await group.stop()
        for disk in group.disks:
            disk.capacity_bytes = 1 << 20  # far less than what is kept free
        for server in group.servers:
            await server.start()
        leader = await group.leader()
        await leader.raft.read_index()
        with pytest.raises(KuduError) as refused:
            leader.propose(b"x" * 100)
        assert refused.value.code is ErrorCode.DISK_FULL
        # Others can lead as well: what was taken for the first leader's entry leaves room for theirs.
        for _ in range(5):
            await group.crash(leader)
            await group.leader(group.others(leader))
            await group.restart(leader)
            leader = await group.leader()
        await group.settle()
        for disk in group.disks:
            disk.capacity_bytes = None
        await group.write(b"after")
        await group.settle()
        assert [server.machine.payloads for server in group.servers] == [[b"before", b"after"]] * 3
        await group.stop()

    simulate(story())


def test_a_slow_disk_costs_no_leadership(simulate):
    async def story():
        group = SimGroup()
        for server in group.servers:
            server.threads = SimDiskThreads(server.threads.disk, group.rng, delay_s=(0.8, 1.0))
        await group.start()
        leader = await group.leader()
        for i in range(10):
            await leader.propose(bytes([i])).future
        assert [server.raft.term for server in group.servers] == [leader.raft.term] * 3
        assert leader.raft.role is Role.LEADER
        await group.stop()

    simulate(story())


def test_followers_without_room_still_hear_their_leader(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options, wal_options=SMALL_SEGMENTS)
        await group.start()
        leader = await group.leader()
        await group.settle()
        faults = [group.fill_disk(server) for server in group.others(leader)]
        term = leader.raft.term
        pending = [leader.propose(bytes(1500)) for _ in range(20)]
        await asyncio.sleep(20)
        assert [server.raft.term for server in group.servers] == [term] * 3
        assert leader.raft.role is Role.LEADER
        assert not pending[-1].future.done()
        for fault in faults:
            fault.times = 0
        await asyncio.gather(*(one.future for one in pending))
        await group.stop()

    simulate(story())


def test_an_entry_that_cannot_be_applied_is_fatal(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        victim = group.others(leader)[0]
        victim.machine.fail_at = leader.raft.last_op_id.index + 1
        await leader.propose().future
        await group.wait_until(lambda: isinstance(victim.fatal, ValueError))
        await leader.propose().future
        await group.stop()

    simulate(story())
