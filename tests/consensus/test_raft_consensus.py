"""Whole groups on virtual time, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import errno

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import EntryKind, MemberType, RaftConfig, Role
from kudu_py.consensus.raft_consensus import ConsensusOptions
from kudu_py.pb import consensus_pb2
from kudu_py.testing.consensus_group import TESTING_OPTIONS, SimGroup, group_config
from kudu_py.testing.sim_disk import Fault, Operation, SimDiskThreads
from kudu_py.testing.waiting import wait_until
from kudu_py.wal.options import WalOptions


def write(server, payload=b"x"):
    return server.raft.propose(EntryKind.WRITE, payload)


SMALL_SEGMENTS = WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=8192)


def full_disk(group, server):
    """From now on there is no room for another segment of the log."""
    return group.disks[group.servers.index(server)].inject(
        Fault(Operation.CREATE, errno.ENOSPC, path_contains="/wal/wal-", times=None)
    )


def others(group, *servers):
    return [server for server in group.servers if server not in servers]


class TestReplication:
    def test_three_replicas_elect_one_leader_and_commit(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            rounds = [write(leader, f"w{i}".encode()) for i in range(100)]
            results = await asyncio.gather(*(r.future for r in rounds))
            assert results == [r.op_id.index for r in rounds]
            await group.settle()
            for server in group.servers:
                assert server.machine.payloads == [f"w{i}".encode() for i in range(100)]
            assert [s.raft.role for s in group.servers].count(Role.LEADER) == 1
            await group.stop()
            assert all(server.fatal is None for server in group.servers)

        simulate(story())

    def test_timestamps_rise_with_the_index_across_leaders(self, simulate):
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

    def test_a_majority_is_enough_and_the_one_that_was_away_catches_up_from_the_log(self, simulate, link_options):
        async def story():
            # Nothing stays in the log's memory, so that the laggard is served from its files.
            group = SimGroup(link_options=link_options, wal_options=WalOptions(cache_bytes_max=0))
            await group.start()
            leader = await group.leader()
            away = others(group, leader)[0]
            await group.crash(away)
            for i in range(50):
                await write(leader, bytes([i]) * 3000).future
            await group.restart(away)
            await group.settle()
            assert away.machine.payloads == leader.machine.payloads
            await group.stop()

        simulate(story())

    def test_an_append_is_bounded_in_bytes_but_holds_at_least_one_entry(self, simulate, link_options):
        async def story():
            options = ConsensusOptions(raft=TESTING_OPTIONS.raft, append_bytes_max=1000)
            group = SimGroup(link_options=link_options, options=options)
            await group.start()
            leader = await group.leader()
            rounds = [write(leader, bytes([i % 256]) * (5000 if i % 7 == 0 else 300)) for i in range(40)]
            await asyncio.gather(*(r.future for r in rounds))
            await group.settle()
            assert group.servers[0].machine.payloads == group.servers[2].machine.payloads
            await group.stop()

        simulate(story())

    def test_entries_that_memory_has_no_room_for_are_applied_from_the_log(self, simulate):
        async def story():
            options = ConsensusOptions(raft=TESTING_OPTIONS.raft, kept_bytes_max=2000)
            group = SimGroup(options=options)
            await group.start()
            leader = await group.leader()
            rounds = [write(leader, bytes([i]) * 900) for i in range(30)]
            assert await asyncio.gather(*(r.future for r in rounds)) == [r.op_id.index for r in rounds]
            await group.settle()
            assert all(server.machine.payloads == leader.machine.payloads for server in group.servers)
            await group.stop()

        simulate(story())

    def test_a_single_replica_commits_once_its_own_disk_has_the_entry(self, simulate):
        async def story():
            group = SimGroup(size=1)
            await group.start()
            leader = await group.leader()
            leader.threads.hang()
            pending = write(leader)
            await asyncio.sleep(5)
            assert not pending.future.done()
            leader.threads.release()
            assert await pending.future == pending.op_id.index
            await group.stop()

        simulate(story())

    def test_all_acknowledged_writes_survive_a_power_cut_of_all(self, simulate, link_options):
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


class TestElections:
    def test_the_others_go_on_within_seconds_after_a_leader_died(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            old = await group.leader()
            await write(old, b"before").future
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

    def test_a_vote_is_durable_before_it_is_given(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            voter = others(group, leader)[0]
            candidate = others(group, leader, voter)[0]
            await group.settle()
            voter.threads.hang()
            request = consensus_pb2.RequestVoteRequest(
                candidate_uuid=candidate.uuid, candidate_term=leader.raft.term + 1, ignore_live_leader=True
            )
            request.last_op_id.term, request.last_op_id.index = candidate.raft.last_op_id
            vote = asyncio.ensure_future(voter.raft.handle_vote(request))
            await asyncio.sleep(2)
            assert not vote.done()
            voter.threads.release()
            response = await vote
            assert response.vote_granted
            assert voter.raft.metadata.durable.hard_state == (request.candidate_term, candidate.uuid)
            await group.stop()

        simulate(story())

    def test_a_vote_is_remembered_after_a_power_cut(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            await group.settle()
            voter, first = others(group, leader)
            term = leader.raft.term + 5
            request = consensus_pb2.RequestVoteRequest(candidate_term=term, ignore_live_leader=True)
            request.last_op_id.term, request.last_op_id.index = leader.raft.last_op_id
            request.candidate_uuid = first.uuid
            assert (await voter.raft.handle_vote(request)).vote_granted
            for server in others(group, voter):
                await group.crash(server)
            await group.crash(voter)
            await group.restart(voter)
            request.candidate_uuid = leader.uuid
            response = await voter.raft.handle_vote(request)
            assert not response.vote_granted
            assert response.reason == "ALREADY_VOTED"
            await group.stop()

        simulate(story())

    def test_entries_are_acknowledged_only_when_durable(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            await group.settle()
            for server in others(group, leader):
                server.threads.hang()
            pending = write(leader)
            await asyncio.sleep(1.0)
            assert not pending.future.done()
            assert leader.raft.role is Role.LEADER, "heartbeats are answered while the disks hang"
            others(group, leader)[0].threads.release()
            await pending.future
            others(group, leader)[1].threads.release()
            await group.stop()

        simulate(story())

    def test_a_leader_hands_over_to_the_chosen_successor(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            successor = others(group, leader)[1]
            await leader.raft.leader_step_down(successor.uuid)
            await group.wait_until(lambda: successor.raft.is_leader_ready())
            with pytest.raises(KuduError) as refused:
                write(leader)
            assert refused.value.code is ErrorCode.NOT_THE_LEADER
            assert refused.value.details["leader_uuid"] == successor.uuid
            assert refused.value.details["leader_address"] == successor.address
            await group.stop()

        simulate(story())

    def test_a_handover_of_another_term_is_refused(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            follower = others(group, leader)[0]
            with pytest.raises(KuduError):
                await follower.raft.run_election(leader.raft.term + 7)
            assert leader.raft.role is Role.LEADER
            await follower.raft.run_election()
            await group.wait_until(lambda: follower.raft.is_leader_ready())
            await group.stop()

        simulate(story())

    def test_a_new_leader_waits_until_its_clock_has_passed_its_predecessors(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            await group.write(b"first")
            fast = await group.leader()
            group.clocks[group.servers.index(fast)].offset_s = 5.0
            written = write(fast, b"from a fast clock")
            await written.future
            await group.settle()
            await group.crash(fast)
            rest = others(group, fast)
            await group.wait_until(lambda: any(s.raft.role is Role.LEADER for s in rest))
            new = next(s for s in rest if s.raft.role is Role.LEADER)
            await asyncio.sleep(0.5)
            with pytest.raises(KuduError) as refused:
                write(new)
            assert refused.value.verdict is Verdict.TRY_LATER
            await group.leader(rest)
            assert write(new).timestamp > written.timestamp
            assert new.clock.wall_micros() >= written.timestamp >> 12
            await group.stop()

        simulate(story())


class TestRounds:
    def test_an_overwritten_round_fails_and_a_deposed_leader_leaves_others_waiting(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            old = await group.leader()
            await group.settle()
            group.network.isolate(old.address)
            lost = write(old, b"lost")
            await group.wait_until(lambda: old.raft.role is not Role.LEADER)
            assert not lost.future.done(), "whether it was replicated is not known yet"
            await group.write(b"kept", others(group, old))
            group.network.heal()
            with pytest.raises(KuduError) as aborted:
                await lost.future
            assert aborted.value.code is ErrorCode.OPERATION_ABORTED
            assert aborted.value.verdict is Verdict.FAILED
            await group.settle()
            assert all(server.machine.payloads == [b"kept"] for server in group.servers)
            await group.stop()

        simulate(story())

    def test_cancelling_a_waiter_does_not_cancel_the_round(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()

            proposed = asyncio.Event()

            async def caller():
                pending = write(leader, b"abandoned")
                proposed.set()
                await pending.future

            waiting = asyncio.ensure_future(caller())
            await proposed.wait()
            waiting.cancel()
            await group.wait_until(lambda: b"abandoned" in leader.machine.payloads)
            await group.stop()

        simulate(story())

    def test_a_stop_leaves_the_outcome_of_waiting_rounds_unknown(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            pending = write(leader)
            await leader.raft.stop()
            with pytest.raises(KuduError) as stopped:
                await pending.future
            assert stopped.value.verdict is Verdict.UNKNOWN
            with pytest.raises(KuduError):
                write(leader)
            await group.stop()

        simulate(story())

    def test_more_than_may_be_in_flight_is_refused_before_anything_happens(self, simulate):
        async def story():
            options = ConsensusOptions(raft=TESTING_OPTIONS.raft, rounds_in_flight_max=10, bytes_in_flight_max=5000)
            group = SimGroup(options=options)
            await group.start()
            leader = await group.leader()
            accepted = [write(leader) for _ in range(10)]
            last = leader.raft.last_op_id
            with pytest.raises(KuduError) as refused:
                write(leader)
            assert refused.value.code is ErrorCode.SERVER_TOO_BUSY
            assert refused.value.verdict is Verdict.TRY_LATER
            assert leader.raft.last_op_id == last
            await asyncio.gather(*(r.future for r in accepted))
            large = write(leader, bytes(9000))  # alone it may exceed the bound: else it never could be written
            with pytest.raises(KuduError):
                write(leader)
            await large.future
            await write(leader).future
            await group.stop()

        simulate(story())

    def test_a_follower_refuses_a_proposal_with_the_leaders_address(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            await group.settle()
            with pytest.raises(KuduError) as refused:
                write(others(group, leader)[0])
            assert refused.value.details["leader_address"] == leader.address
            await group.stop()

        simulate(story())


class TestReads:
    def test_a_read_at_the_leader_sees_what_was_acknowledged_before(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            done = write(leader)
            await done.future
            assert await leader.raft.read_index() >= done.op_id.index
            reads = await asyncio.gather(*(leader.raft.read_index() for _ in range(50)))
            assert min(reads) >= done.op_id.index
            await group.stop()

        simulate(story())

    def test_a_leader_that_was_cut_off_never_confirms_a_read(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            old = await group.leader()
            await group.settle()
            group.network.isolate(old.address)
            reading = asyncio.ensure_future(old.raft.read_index())
            await group.write(b"new", others(group, old))
            with pytest.raises(KuduError) as refused:
                await reading
            assert refused.value.code is ErrorCode.NOT_THE_LEADER
            group.network.heal()
            await group.stop()

        simulate(story())

    def test_answers_to_messages_sent_before_the_read_do_not_confirm_it(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            old = await group.leader()
            await group.settle()
            # Requests get through, answers are held up: when they arrive, they are old.
            for other in others(group, old):
                group.network.cut(other.address, old.address, both_ways=False)
            write(old)
            await asyncio.sleep(0.1)
            reading = asyncio.ensure_future(old.raft.read_index())
            for other in others(group, old):
                group.network.cut(old.address, other.address, both_ways=False)
                group.network.heal(other.address, old.address, both_ways=False)
            await asyncio.sleep(0.5)
            assert not reading.done()
            reading.cancel()
            await group.stop()

        simulate(story())

    def test_an_idle_follower_becomes_safe_to_read_soon_after_any_timestamp(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            done = write(leader)
            await done.future
            follower = others(group, leader)[0]
            wanted = leader.raft._time.now()
            await follower.raft.wait_safe_time(wanted, 2.0)
            assert follower.raft.safe_time >= wanted
            assert follower.raft.applied_index >= done.op_id.index
            assert write(leader).timestamp > follower.raft.safe_time
            await group.stop()

        simulate(story())

    def test_a_follower_that_hears_no_leader_says_that_the_snapshot_timed_out(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            await group.settle()
            follower = others(group, leader)[0]
            group.network.isolate(follower.address)
            await asyncio.sleep(1)
            with pytest.raises(KuduError) as late:
                await follower.raft.wait_safe_time(leader.raft._time.now(), 0.5)
            assert late.value.code is ErrorCode.TIMED_OUT
            await group.stop()

        simulate(story())

    def test_a_later_leader_with_a_slow_clock_writes_above_what_was_safe(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            old = await group.leader()
            slow = others(group, old)[0]
            await group.write(b"w")
            group.clocks[group.servers.index(slow)].offset_s = -4.0
            await asyncio.sleep(5)
            safe = max(server.raft.safe_time for server in group.servers)
            await group.crash(old)
            witness = others(group, old, slow)[0]
            await group.wait_until(lambda: slow.raft.role is Role.LEADER or witness.raft.role is Role.LEADER)
            if witness.raft.role is Role.LEADER:
                await witness.raft.leader_step_down(slow.uuid)
            await group.wait_until(lambda: slow.raft.is_leader_ready())
            assert write(slow).timestamp > safe
            await group.stop()

        simulate(story())

    def test_a_snapshot_in_the_far_future_is_refused(self, simulate):
        async def story():
            group = SimGroup(size=1)
            await group.start()
            leader = await group.leader()
            now = leader.raft._time.now()
            with pytest.raises(KuduError) as refused:
                await leader.raft.wait_safe_time(now + (3600 * 10**6 << 12), 1.0)
            assert refused.value.code is ErrorCode.ILLEGAL_STATE
            await leader.raft.wait_safe_time(now + (2 * 10**6 << 12), 1.0)
            assert write(leader).timestamp > now + (2 * 10**6 << 12)
            await group.stop()

        simulate(story())


class TestFailures:
    @pytest.mark.parametrize("path", ["wal", "consensus-meta"])
    def test_a_failed_write_is_fatal_and_the_replica_falls_silent(self, simulate, path):
        async def story():
            group = SimGroup()
            await group.start()
            victim = await group.leader()
            await group.settle()
            group.disks[group.servers.index(victim)].inject(Fault(Operation.SYNC, errno.EIO, path))
            pending = write(victim)
            if path != "wal":
                await victim.raft.leader_step_down()
                await group.wait_until(lambda: victim.raft.role is not Role.LEADER)
            await group.wait_until(lambda: victim.fatal is not None)
            assert isinstance(victim.fatal, OSError)
            assert victim.raft.role is Role.NON_PARTICIPANT
            with pytest.raises(KuduError) as refused:
                await victim.raft.handle_vote(consensus_pb2.RequestVoteRequest())
            assert refused.value.code is ErrorCode.TABLET_FAILED
            if pending.future.done() and pending.future.exception() is not None:
                assert pending.future.exception().verdict is Verdict.UNKNOWN
            await group.write(b"the others go on", others(group, victim))
            await victim.halt()

        simulate(story())

    def test_a_failure_of_the_disk_while_the_replica_stops_is_fatal_too(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            victim = await group.leader()
            await group.settle()
            group.disks[group.servers.index(victim)].inject(Fault(Operation.SYNC, errno.EIO, "consensus-meta"))
            request = consensus_pb2.RequestVoteRequest(
                dest_uuid=victim.uuid,
                tablet_id=victim.tablet_id,
                candidate_uuid=others(group, victim)[0].uuid,
                candidate_term=victim.raft.term + 1,
                ignore_live_leader=True,
            )
            raft = victim.raft
            vote = asyncio.ensure_future(raft.handle_vote(request))
            await wait_until(lambda: not raft.metadata.is_durable, step_s=0)  # the moment between vote and flush
            await raft.stop()
            # Whoever deletes the replica waits for what it may have promised, which will never be durable.
            await group.wait_until(lambda: victim.fatal is not None, 5)
            assert not raft.metadata.is_durable
            await asyncio.gather(vote, return_exceptions=True)
            await group.crash(victim)
            await group.stop()

        simulate(story())

    def test_a_leader_whose_disk_does_not_answer_makes_way_for_another(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            stalled = await group.leader()
            await group.settle()
            stalled.threads.hang()
            pending = write(stalled, b"on two disks of three")
            await pending.future
            await group.leader(others(group, stalled))
            await group.wait_until(lambda: stalled.raft.role is not Role.LEADER, 1)
            await group.write(b"by another", others(group, stalled))
            await asyncio.sleep(20)
            assert stalled.raft.role is Role.FOLLOWER
            stalled.threads.release()
            await group.settle()
            assert stalled.machine.payloads == [b"on two disks of three", b"by another"]
            await group.stop()

        simulate(story())

    def test_a_leader_without_room_for_what_it_took_makes_way_for_another(self, simulate):
        async def story():
            group = SimGroup(wal_options=SMALL_SEGMENTS)
            await group.start()
            full = await group.leader()
            await group.settle()
            full_disk(group, full)
            for _ in range(20):
                with contextlib.suppress(KuduError):  # refused, once the log has found out
                    write(full, bytes(1500))
            await group.write(b"by another", others(group, full))
            assert full.fatal is None
            await group.stop()

        simulate(story())

    @pytest.mark.parametrize("seed", range(3))
    def test_a_group_started_on_full_disks_elects_a_leader_and_takes_writes_when_there_is_room(self, simulate, seed):
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
                write(leader, b"x" * 100)
            assert refused.value.code is ErrorCode.DISK_FULL
            # Others can lead as well: what was taken for the first leader's entry leaves room for theirs.
            for _ in range(5):
                await group.crash(leader)
                await group.leader(others(group, leader))
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

    def test_a_slow_disk_costs_no_leadership(self, simulate):
        async def story():
            group = SimGroup()
            for server in group.servers:
                server.threads = SimDiskThreads(server.threads.disk, group.rng, delay_s=(0.8, 1.0))
            await group.start()
            leader = await group.leader()
            for i in range(10):
                await write(leader, bytes([i])).future
            assert [server.raft.term for server in group.servers] == [leader.raft.term] * 3
            assert leader.raft.role is Role.LEADER
            await group.stop()

        simulate(story())

    def test_followers_without_room_still_hear_their_leader(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options, wal_options=SMALL_SEGMENTS)
            await group.start()
            leader = await group.leader()
            await group.settle()
            faults = [full_disk(group, server) for server in others(group, leader)]
            term = leader.raft.term
            pending = [write(leader, bytes(1500)) for _ in range(20)]
            await asyncio.sleep(20)
            assert [server.raft.term for server in group.servers] == [term] * 3
            assert leader.raft.role is Role.LEADER
            assert not pending[-1].future.done()
            for fault in faults:
                fault.times = 0
            await asyncio.gather(*(one.future for one in pending))
            await group.stop()

        simulate(story())

    def test_followers_short_of_memory_take_no_entries_and_still_hear_their_leader(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            await group.settle()
            term = leader.raft.term
            for server in others(group, leader):
                server.has_room = False
            pending = write(leader)
            await asyncio.sleep(10)
            assert [server.raft.term for server in group.servers] == [term] * 3
            assert not pending.future.done()
            assert all(server.raft.last_op_id < pending.op_id for server in others(group, leader))
            others(group, leader)[0].has_room = True
            await pending.future
            await group.stop()

        simulate(story())

    def test_an_entry_that_cannot_be_applied_is_fatal(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            victim = others(group, leader)[0]
            victim.machine.fail_at = leader.raft.last_op_id.index + 1
            await write(leader).future
            await group.wait_until(lambda: isinstance(victim.fatal, ValueError))
            await write(leader).future
            await group.stop()

        simulate(story())

    def test_a_follower_without_the_tablet_is_named_for_a_copy(self, simulate, link_options):
        async def story():
            group = SimGroup(link_options=link_options)
            await group.start()
            leader = await group.leader()
            lost = others(group, leader)[0]
            await lost.raft.stop()
            lost.replica = None  # its server answers TABLET_NOT_FOUND
            await group.wait_until(lambda: lost.uuid in leader.copies_wanted)
            await write(leader).future
            await group.stop()

        simulate(story())

    def test_messages_that_no_leader_sends_change_nothing(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            await group.settle()
            follower, other = others(group, leader)
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
                    await follower.raft.handle_update(bad)
                assert refused.value.code is code
            assert (await follower.raft.handle_update(good)).accepted
            with pytest.raises(KuduError):
                await leader.raft.handle_update(good)
            assert not any(server.fatal for server in group.servers)
            await group.stop()

        simulate(story())


class TestConfigChange:
    def test_a_change_is_committed_and_durable_in_the_metadata_of_all(self, simulate):
        async def story():
            group = SimGroup()
            await group.start()
            leader = await group.leader()
            await group.settle()
            removed = others(group, leader)[0]
            kept = tuple(m for m in leader.raft.committed_config.members if m.uuid != removed.uuid)
            change = leader.raft.change_config(RaftConfig(0, kept), expected_config_index=0)
            assert leader.raft.pending_config is not None
            await change.future
            assert leader.raft.committed_config.config_index == change.op_id.index
            staying = others(group, removed)
            await group.wait_until(lambda: all(s.raft.metadata.durable.config.members == kept for s in staying))
            with pytest.raises(KuduError) as refused:
                leader.raft.change_config(RaftConfig(0, kept), expected_config_index=0)
            assert refused.value.code is ErrorCode.CAS_FAILED
            await group.write(b"two are the group now", staying)
            await group.stop()

        simulate(story())

    def test_a_pre_voter_catches_up_and_can_be_promoted(self, simulate):
        async def story():
            group = SimGroup()
            newcomer = group.servers[2]
            full = group_config(group.servers)
            two = RaftConfig(0, tuple(m for m in full.members if m.uuid != newcomer.uuid))
            for server in group.servers:
                await server.create(two)
                await server.start()
            leader = await group.leader()
            await group.write(b"before")
            member = full.member(newcomer.uuid)
            learning = type(member)(member.uuid, MemberType.PRE_VOTER, member.address)
            await leader.raft.change_config(RaftConfig(0, (*two.members, learning))).future
            await group.wait_until(lambda: newcomer.machine.payloads == [b"before"])
            assert newcomer.raft.role is Role.LEARNER
            await group.stop()

        simulate(story())
