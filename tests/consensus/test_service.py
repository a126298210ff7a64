"""The consensus service as an admin or another server calls it, over the simulated network."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, Role
from kudu_py.consensus.metrics import ConsensusCollector
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call
from kudu_py.testing.consensus_group import SimGroup, group_config


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
        ("ChangeConfig", consensus_pb2.ChangeConfigRequest),
        ("AbortConfigChange", consensus_pb2.AbortConfigChangeRequest),
        ("UnsafeChangeConfig", consensus_pb2.UnsafeChangeConfigRequest),
    ],
)
def test_a_request_for_another_server_or_tablet_is_refused_by_name(simulate, method, request_type):
    async def story():
        group, leader, stub = await group_and_stub()
        callers = {
            field: "e" * 32
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


@pytest.mark.parametrize("method", ["UpdateConsensus", "RequestVote"])
def test_nobody_speaks_to_a_server_in_its_own_name(simulate, method):
    async def story():
        group, leader, stub = await group_and_stub()
        last, term = leader.raft.last_op_id, leader.raft.term
        vote = consensus_pb2.RequestVoteRequest(
            candidate_uuid=leader.uuid, candidate_term=term, ignore_live_leader=True
        )
        vote.last_op_id.term, vote.last_op_id.index = last.term, last.index + 1
        append = consensus_pb2.UpdateConsensusRequest(caller_uuid=leader.uuid, caller_term=term + 1)
        request = {"RequestVote": vote, "UpdateConsensus": append}[method]
        request.dest_uuid, request.tablet_id = leader.uuid, leader.tablet_id
        with pytest.raises(KuduError) as refused:
            await call(getattr(stub, method)(request))
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        assert leader.uuid in refused.value.message
        assert (leader.raft.role, leader.raft.term) == (Role.LEADER, term)
        assert leader.fatal is None
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


def test_an_admin_changes_the_members_by_compare_and_set(simulate):
    async def story():
        group, leader, stub = await group_and_stub()
        gone = next(server for server in group.servers if server is not leader)

        def change(kind, expected=None, **server):
            return call(
                stub.ChangeConfig(
                    consensus_pb2.ChangeConfigRequest(
                        dest_uuid=leader.uuid,
                        tablet_id=leader.tablet_id,
                        type=kind,
                        server=consensus_pb2.Member(**server),
                        expected_config_index=expected,
                    )
                )
            )

        async def refusal(*args, **server):
            with pytest.raises(KuduError) as refused:
                await change(*args, **server)
            return refused.value.code

        removed = (await change(consensus_pb2.REMOVE_SERVER, 0, uuid=gone.uuid)).config
        assert gone.uuid not in [member.uuid for member in removed.members]
        assert removed.config_index == leader.raft.committed_config.config_index
        assert await refusal(consensus_pb2.ADD_SERVER, 0, uuid=gone.uuid, address=gone.address) is ErrorCode.CAS_FAILED
        assert await refusal(consensus_pb2.ADD_SERVER, uuid=gone.uuid) is ErrorCode.INVALID_ARGUMENT
        assert await refusal(consensus_pb2.ADD_SERVER, uuid="../x", address="a:1") is ErrorCode.INVALID_ARGUMENT
        assert await refusal(consensus_pb2.ADD_SERVER, uuid=gone.uuid, address="a/b") is ErrorCode.INVALID_ARGUMENT
        assert await refusal(consensus_pb2.CHANGE_ROLE, uuid=gone.uuid) is ErrorCode.INVALID_ARGUMENT
        assert await refusal(0, uuid=gone.uuid) is ErrorCode.INVALID_ARGUMENT
        # Without a type it joins as a pre-voter, and the leader makes it a voter.
        added = await change(consensus_pb2.ADD_SERVER, removed.config_index, uuid=gone.uuid, address=gone.address)
        (member,) = [member for member in added.config.members if member.uuid == gone.uuid]
        assert (member.member_type, member.promote) == (consensus_pb2.PRE_VOTER, True)
        await group.wait_until(lambda: gone.uuid in leader.raft.committed_config.voters)
        nothing = consensus_pb2.AbortConfigChangeRequest(dest_uuid=leader.uuid, tablet_id=leader.tablet_id)
        committed = (await call(stub.AbortConfigChange(nothing))).config
        assert committed.config_index == leader.raft.committed_config.config_index
        await group.stop()

    simulate(story())


def test_the_role_of_a_pre_voter_is_learner_and_that_of_a_stranger_non_participant(simulate):
    async def story():
        group = SimGroup()
        stranger = group.servers[2]
        two = group_config(group.servers[:2])
        for server in group.servers:
            await server.create(two)
            await server.start()
        leader = await group.leader()
        assert stranger.raft.consensus_state().role == consensus_pb2.NON_PARTICIPANT
        joining = Member(stranger.uuid, MemberType.PRE_VOTER, stranger.address)
        await leader.raft.change_config(ConfigChange.ADD_SERVER, joining)
        await group.wait_until(lambda: stranger.raft.consensus_state().role == consensus_pb2.LEARNER)
        await group.stop()

    simulate(story())


def test_a_request_to_copy_goes_to_whoever_hosts_replicas(simulate):
    async def story():
        group, leader, stub = await group_and_stub()
        request = consensus_pb2.StartTabletCopyRequest(dest_uuid=leader.uuid, tablet_id="f" * 32, caller_uuid="e" * 32)
        await call(stub.StartTabletCopy(request))
        assert leader.copies_asked == [request]
        request.tablet_id = "../x"
        with pytest.raises(KuduError) as refused:
            await call(stub.StartTabletCopy(request))
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        await group.stop()

    simulate(story())


def test_only_an_admin_who_names_members_forces_a_config(simulate):
    async def story():
        group, leader, stub = await group_and_stub()
        for server in group.others(leader):
            await group.crash(server)

        def force(*members):
            return call(
                stub.UnsafeChangeConfig(
                    consensus_pb2.UnsafeChangeConfigRequest(
                        dest_uuid=leader.uuid, tablet_id=leader.tablet_id, caller_id="admin", member_uuids=members
                    )
                )
            )

        await group.wait_until(lambda: leader.raft.role is Role.FOLLOWER)
        for members in ([], ["f" * 32], ["../x"], [group.others(leader)[0].uuid]):
            with pytest.raises(KuduError) as refused:
                await force(*members)
            assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        config = (await force(leader.uuid)).config
        assert [member.uuid for member in config.members] == [leader.uuid]
        await group.write(b"alone")
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
