"""How a leader finds its members to be, and who is told when that changes."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.consensus.core.model import RaftOptions
from kudu_py.consensus.core.progress import Progress
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.peer_health import peer_status
from kudu_py.pb import consensus_pb2
from kudu_py.testing.consensus_group import SimGroup
from kudu_py.testing.core_builder import server

HEALTHY, UNREACHABLE = consensus_pb2.HEALTHY, consensus_pb2.UNREACHABLE
NEEDS_COPY, UNKNOWN = consensus_pb2.NEEDS_COPY, consensus_pb2.UNKNOWN_PEER_HEALTH
OPTIONS = ConsensusOptions(raft=RaftOptions(check_invariants=True), follower_unavailable_considered_failed_s=60.0)


@pytest.mark.parametrize(
    ("silent_s", "marks", "health"),
    [
        (0.0, {"has_answered": True}, HEALTHY),
        (0.0, {}, UNKNOWN),
        (2.0, {"has_answered": True, "is_paused": True}, UNKNOWN),
        (59.0, {"has_answered": True, "is_paused": True}, UNKNOWN),
        (60.0, {"has_answered": True, "is_paused": True}, UNREACHABLE),
        (60.0, {}, UNREACHABLE),
        (1.0, {"needs_copy": True, "is_paused": True}, NEEDS_COPY),
        (60.0, {"needs_copy": True}, UNREACHABLE),
    ],
)
def test_a_member_is_lost_only_after_a_long_silence_and_needs_a_copy_only_if_it_said_so(silent_s, marks, health):
    row = Progress(
        uuid=server("b"), is_voter=True, next_index=8, answered_at=0.0, heartbeat_at=0.0, contacted_at=5.0, **marks
    )
    row.match_index = 7
    status = peer_status(row, 5.0 + silent_s, failed_after_s=60.0)
    assert (status.uuid, status.health, status.match_index) == ("b", health, 7)
    assert status.millis_since_answer == silent_s * 1000


def healths(leader):
    return {status.uuid: status.health for status in leader.raft.consensus_state().peers}


def test_a_leader_tells_of_members_that_are_lost_and_come_back_and_only_of_changes(simulate):
    async def story():
        group = SimGroup(options=OPTIONS)
        await group.start()
        leader = await group.leader()
        await group.settle()
        lost, other = group.others(leader)
        await group.wait_until(lambda: healths(leader) == {lost.uuid: HEALTHY, other.uuid: HEALTHY})
        assert healths(lost) == {}
        await asyncio.sleep(2.0)
        told = leader.changes_told
        await asyncio.sleep(20.0)
        assert leader.changes_told == told
        group.network.isolate(lost.address)
        await group.wait_until(lambda: healths(leader)[lost.uuid] == UNKNOWN)
        await asyncio.sleep(50.0)
        assert healths(leader)[lost.uuid] == UNKNOWN
        await asyncio.sleep(20.0)
        assert healths(leader)[lost.uuid] == UNREACHABLE
        assert leader.changes_told == told + 2
        group.network.heal()
        await group.wait_until(lambda: healths(leader)[lost.uuid] == HEALTHY)
        await group.wait_until(lambda: leader.changes_told == told + 3)
        await group.stop()

    simulate(story())


def test_a_member_without_its_replica_needs_a_copy_however_long_that_takes(simulate):
    async def story():
        group = SimGroup(options=OPTIONS)
        await group.start()
        leader = await group.leader()
        await group.settle()
        lost = group.others(leader)[0]
        await lost.raft.stop()
        lost.replica = None
        await group.wait_until(lambda: healths(leader)[lost.uuid] == NEEDS_COPY)
        assert leader.raft.needs_copy(lost.uuid)
        assert not lost.copies_asked[0].HasField("last_op_id")
        await asyncio.sleep(100.0)
        assert healths(leader)[lost.uuid] == NEEDS_COPY
        await group.stop()

    simulate(story())
