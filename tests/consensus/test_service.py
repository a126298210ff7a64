"""The consensus service as an admin or another server calls it, over the simulated network."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.metrics import ConsensusCollector
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call
from kudu_py.testing.consensus_group import SimGroup


async def group_and_stub():
    group = SimGroup()
    await group.start()
    leader = await group.leader()
    await group.settle()
    stub = ConsensusServiceStub(group.network.dialer("admin:1").channel(leader.address))
    return group, leader, stub


def test_a_replica_tells_its_state_and_the_ends_of_its_log(simulate):
    async def story():
        group, leader, stub = await group_and_stub()
        await group.write(b"x")
        state = await call(stub.GetConsensusState(consensus_pb2.GetConsensusStateRequest(dest_uuid=leader.uuid)))
        (tablet,) = state.tablets
        assert tablet.tablet_id == leader.tablet_id
        assert tablet.state.leader_uuid == leader.uuid
        assert tablet.state.role == consensus_pb2.LEADER
        assert len(tablet.state.committed_config.members) == 3
        last = await call(
            stub.GetLastOpId(consensus_pb2.GetLastOpIdRequest(dest_uuid=leader.uuid, tablet_id=leader.tablet_id))
        )
        assert last.last_received.index == last.last_committed.index == leader.raft.last_op_id.index
        await group.stop()

    simulate(story())


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("UpdateConsensus", consensus_pb2.UpdateConsensusRequest),
        ("RequestVote", consensus_pb2.RequestVoteRequest),
        ("RunLeaderElection", consensus_pb2.RunLeaderElectionRequest),
        ("LeaderStepDown", consensus_pb2.LeaderStepDownRequest),
        ("GetLastOpId", consensus_pb2.GetLastOpIdRequest),
    ],
)
def test_a_request_for_another_server_or_tablet_is_refused_by_name(simulate, method, request_type):
    async def story():
        group, leader, stub = await group_and_stub()
        callers = {
            field: leader.uuid
            for field in ("caller_uuid", "candidate_uuid")
            if field in request_type.DESCRIPTOR.fields_by_name
        }

        async def refusal(**fields):
            with pytest.raises(KuduError) as refused:
                await call(getattr(stub, method)(request_type(**fields, **callers)))
            return refused.value.code

        good = {"dest_uuid": leader.uuid, "tablet_id": leader.tablet_id}
        assert await refusal(**{**good, "dest_uuid": ""}) is ErrorCode.WRONG_SERVER_UUID
        assert await refusal(**{**good, "dest_uuid": "f" * 32}) is ErrorCode.WRONG_SERVER_UUID
        assert await refusal(**{**good, "tablet_id": "../../x"}) is ErrorCode.INVALID_ARGUMENT
        assert await refusal(**{**good, "tablet_id": "f" * 32}) is ErrorCode.TABLET_NOT_FOUND
        await group.stop()

    simulate(story())


def test_an_admin_moves_leadership(simulate):
    async def story():
        group, leader, stub = await group_and_stub()
        successor = next(server for server in group.servers if server is not leader)
        request = consensus_pb2.LeaderStepDownRequest(
            dest_uuid=leader.uuid, tablet_id=leader.tablet_id, new_leader_uuid=successor.uuid
        )
        await call(stub.LeaderStepDown(request))
        await group.wait_until(lambda: successor.raft.is_leader_ready())
        with pytest.raises(KuduError) as refused:
            await call(stub.LeaderStepDown(request))
        assert refused.value.code is ErrorCode.NOT_THE_LEADER
        await group.stop()

    simulate(story())


def test_metrics_are_read_from_the_replicas_when_asked_for(simulate):
    async def story():
        group, leader, _ = await group_and_stub()
        samples = {
            sample.name: sample.value for metric in ConsensusCollector(leader).collect() for sample in metric.samples
        }
        assert samples["kudu_raft_term_max"] == leader.raft.term
        assert samples["kudu_raft_commit_lag_entries_max"] == 0
        assert samples["kudu_raft_elections_won_total"] == 1
        await group.stop()

    simulate(story())
