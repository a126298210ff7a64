"""Members come, are promoted and go."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.core.model import MemberType, RaftConfig, Role
from kudu_py.testing.consensus_group import SimGroup, group_config


def test_a_change_is_committed_and_durable_in_the_metadata_of_all(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        removed = group.others(leader)[0]
        kept = tuple(m for m in leader.raft.committed_config.members if m.uuid != removed.uuid)
        change = leader.raft.change_config(RaftConfig(0, kept), expected_config_index=0)
        assert leader.raft.pending_config is not None
        await change.future
        assert leader.raft.committed_config.config_index == change.op_id.index
        staying = group.others(removed)
        await group.wait_until(lambda: all(s.raft.metadata.durable.config.members == kept for s in staying))
        with pytest.raises(KuduError) as refused:
            leader.raft.change_config(RaftConfig(0, kept), expected_config_index=0)
        assert refused.value.code is ErrorCode.CAS_FAILED
        await group.write(b"two are the group now", staying)
        await group.stop()

    simulate(story())


def test_a_pre_voter_catches_up_and_can_be_promoted(simulate):
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
