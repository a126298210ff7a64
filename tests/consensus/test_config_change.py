"""Members come, are promoted and go."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig, Role
from kudu_py.testing.consensus_group import SimGroup, group_config


def test_a_change_is_committed_and_durable_in_the_metadata_of_all(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        removed = group.others(leader)[0]
        kept = tuple(m for m in leader.raft.committed_config.members if m.uuid != removed.uuid)
        gone = Member(removed.uuid, MemberType.VOTER)
        config = await leader.raft.change_config(ConfigChange.REMOVE_SERVER, gone, 0)
        assert config.members == kept
        assert leader.raft.committed_config == config
        staying = group.others(removed)
        await group.wait_until(lambda: all(s.raft.metadata.durable.config == config for s in staying))
        with pytest.raises(KuduError) as refused:
            await leader.raft.change_config(ConfigChange.REMOVE_SERVER, gone, 0)
        assert refused.value.code is ErrorCode.CAS_FAILED
        assert await leader.raft.change_config(ConfigChange.REMOVE_SERVER, gone, config.config_index) == config
        assert await leader.raft.change_config(ConfigChange.REMOVE_SERVER, gone) == config
        await group.write(b"two are the group now", staying)
        await group.stop()

    simulate(story())


async def group_and_newcomer():
    """A group of two, and a third server with an empty replica that is no member."""
    group = SimGroup()
    newcomer = group.servers[2]
    full = group_config(group.servers)
    two = RaftConfig(0, tuple(m for m in full.members if m.uuid != newcomer.uuid))
    for server in group.servers:
        await server.create(two)
        await server.start()
    leader = await group.leader()
    await group.write(b"before")
    return group, leader, newcomer


def test_a_pre_voter_catches_up_and_stays_one_unless_it_is_to_be_promoted(simulate):
    async def story():
        group, leader, newcomer = await group_and_newcomer()
        member = Member(newcomer.uuid, MemberType.PRE_VOTER, newcomer.address)
        await leader.raft.change_config(ConfigChange.ADD_SERVER, member)
        await group.wait_until(lambda: newcomer.machine.payloads == [b"before"])
        await group.write(b"after")
        assert newcomer.raft.role is Role.LEARNER
        assert newcomer.uuid not in leader.raft.active_config.voters
        await leader.raft.change_config(ConfigChange.CHANGE_ROLE, Member(newcomer.uuid, MemberType.VOTER))
        await group.wait_until(lambda: newcomer.uuid in leader.raft.committed_config.voters)
        await group.wait_until(lambda: newcomer.raft.role is Role.FOLLOWER)
        await group.stop()

    simulate(story())


def test_a_voter_joins_as_a_pre_voter_and_is_promoted_by_the_leader(simulate):
    async def story():
        group, leader, newcomer = await group_and_newcomer()
        joining = Member(newcomer.uuid, MemberType.VOTER, newcomer.address)
        config = await leader.raft.change_config(ConfigChange.ADD_SERVER, joining)
        assert config.member(newcomer.uuid) == Member(
            newcomer.uuid, MemberType.PRE_VOTER, newcomer.address, promote=True
        )
        await group.wait_until(lambda: newcomer.uuid in leader.raft.committed_config.voters)
        assert leader.raft.committed_config.member(newcomer.uuid) == joining
        again = await leader.raft.change_config(ConfigChange.ADD_SERVER, joining)
        assert again == leader.raft.committed_config
        await group.stop()

    simulate(story())
