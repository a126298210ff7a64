"""Members come, are promoted and go."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig, RaftOptions, Role
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.testing.consensus_group import SimGroup, group_config
from kudu_py.testing.waiting import wait_until


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


def options(**raft):
    return ConsensusOptions(raft=RaftOptions(check_invariants=True, **raft))


async def three_and_a_promotion_without_majority():
    """A leader of three that has begun to promote a fourth, of which neither it nor another one answers."""
    group = SimGroup(size=4, options=options(config_change_timeout_s=2.0))
    fourth = group.servers[3]
    full = group_config(group.servers)
    learner = Member(fourth.uuid, MemberType.PRE_VOTER, fourth.address)
    config = RaftConfig(0, tuple(learner if m.uuid == fourth.uuid else m for m in full.members))
    for server in group.servers:
        await server.create(config)
        await server.start()
    leader = await group.leader()
    await group.settle()
    await leader.raft.change_config(ConfigChange.CHANGE_ROLE, Member(fourth.uuid, MemberType.VOTER))
    await wait_until(lambda: fourth.uuid in leader.raft.active_config.voters, step_s=0.0001)
    assert leader.raft.pending_config is not None
    lost = group.others(leader, fourth)[0]
    for server in (fourth, lost):
        group.network.isolate(server.address)
    return group, leader, fourth


def test_what_does_not_commit_in_time_is_undone_and_writes_go_on(simulate):
    async def story():
        group, leader, fourth = await three_and_a_promotion_without_majority()
        term, begun = leader.raft.term, leader.raft.pending_config.config_index
        write = leader.propose(b"meanwhile")
        await group.wait_until(lambda: leader.raft.committed_config.config_index > begun)
        assert leader.raft.committed_config.member(fourth.uuid).member_type is MemberType.PRE_VOTER
        await write.future
        assert leader.raft.term == term
        group.network.heal()
        await group.settle()
        await group.wait_until(lambda: fourth.uuid in leader.raft.committed_config.voters)
        await group.stop()

    simulate(story())


def test_who_waits_for_a_change_that_is_aborted_is_told_so(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        for server in group.others(leader):
            server.threads.hang()
        gone = Member(group.others(leader)[0].uuid, MemberType.VOTER)
        waiting = asyncio.ensure_future(leader.raft.change_config(ConfigChange.REMOVE_SERVER, gone))
        await asyncio.sleep(0.1)
        with pytest.raises(KuduError) as refused:
            await leader.raft.abort_config_change(99)
        assert refused.value.code is ErrorCode.CAS_FAILED
        aborting = [asyncio.ensure_future(leader.raft.abort_config_change()) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in [waiting, *aborting])
        for server in group.others(leader):
            server.threads.release()
        first, second = await asyncio.gather(*aborting)
        assert first == second == leader.raft.committed_config
        assert first.members == group_config(group.servers).members
        with pytest.raises(KuduError, match="was undone: it was aborted") as undone:
            await waiting
        assert undone.value.code is ErrorCode.OPERATION_ABORTED
        assert await leader.raft.abort_config_change() == first
        await group.stop()

    simulate(story())


def test_who_waits_for_a_change_is_told_that_it_holds_if_its_undo_was_overwritten(simulate):
    """The leader's undo reached nobody, and the next leader has the change and commits it."""

    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        others = group.others(leader)
        for server in others:
            group.network.cut(server.address, leader.address, both_ways=False)
        spare = Member(ServerId("e" * 32), MemberType.PRE_VOTER, "spare:7050")
        waiting = asyncio.ensure_future(leader.raft.change_config(ConfigChange.ADD_SERVER, spare))
        await group.wait_until(lambda: all(server.raft.pending_config is not None for server in others))
        aborting = asyncio.ensure_future(leader.raft.abort_config_change())
        await asyncio.sleep(0)
        await group.wait_until(lambda: any(server.raft.role is Role.LEADER for server in others))
        group.network.heal()
        config = await waiting
        assert config.member(spare.uuid) == spare
        with pytest.raises(KuduError) as overwritten:
            await aborting
        assert overwritten.value.code is ErrorCode.OPERATION_ABORTED
        assert leader.raft.committed_config == config
        await group.stop()

    simulate(story())


def test_a_leader_asked_to_remove_itself_hands_over_and_says_to_whom(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        with pytest.raises(KuduError) as refused:
            await leader.raft.change_config(ConfigChange.REMOVE_SERVER, Member(leader.uuid, MemberType.VOTER))
        assert refused.value.code is ErrorCode.STEPPING_DOWN
        successor = next(s for s in group.servers if s.uuid == refused.value.details["leader_uuid"])
        assert refused.value.details["leader_address"] == successor.address
        await group.wait_until(lambda: successor.raft.is_leader_ready())
        await group.settle()
        config = await successor.raft.change_config(
            ConfigChange.REMOVE_SERVER, Member(leader.uuid, MemberType.VOTER), 0
        )
        assert config.member(leader.uuid) is None
        await group.stop()

    simulate(story())


def test_a_removed_server_disturbs_nobody(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.settle()
        removed = group.others(leader)[0]
        await leader.raft.change_config(ConfigChange.REMOVE_SERVER, Member(removed.uuid, MemberType.VOTER))
        term = leader.raft.term
        await asyncio.sleep(30.0)
        assert [server.raft.term for server in group.servers] == [term] * 3
        assert removed.raft.role is Role.FOLLOWER  # it was not told, and asks in vain
        await group.stop()

    simulate(story())


def test_a_survivor_goes_on_without_the_majority_and_has_what_was_acknowledged(simulate):
    async def story():
        group = SimGroup()
        await group.start()
        leader = await group.leader()
        await group.write(b"acknowledged")
        await group.settle()
        survivor = group.others(leader)[0]
        with pytest.raises(KuduError) as refused:
            await survivor.raft.unsafe_change_config([survivor.uuid], "a test")
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        for server in group.others(survivor):
            await group.crash(server)
        await asyncio.sleep(3.0)
        config = await survivor.raft.unsafe_change_config([survivor.uuid], "a test")
        assert [member.uuid for member in config.members] == [survivor.uuid]
        await group.leader([survivor])
        await group.write(b"after", [survivor])
        assert survivor.machine.payloads == [b"acknowledged", b"after"]
        for server in group.others(survivor):  # those that were given up are back, and lead a group of their own
            await group.restart(server)
        await group.leader(group.others(survivor))
        await asyncio.sleep(10.0)
        assert survivor.raft.is_leader_ready()
        await survivor.propose(b"still").future
        assert survivor.machine.payloads == [b"acknowledged", b"after", b"still"]
        await group.crash(survivor)
        await group.restart(survivor)
        await group.leader([survivor])
        assert survivor.raft.committed_config.members == config.members
        await group.stop()

    simulate(story())


async def group_split_by_force():
    """The one that was behind has been told to go on with one that is ahead of it."""
    group = SimGroup()
    await group.start()
    leader = await group.leader()
    await group.settle()
    behind, ahead = group.others(leader)
    group.network.isolate(behind.address)
    await group.write(b"unknown to the one behind", [leader])
    await group.wait_until(lambda: ahead.machine.payloads == [b"unknown to the one behind"])
    await group.crash(leader)
    await asyncio.sleep(5.0)
    await behind.raft.unsafe_change_config([behind.uuid, ahead.uuid], "a test")
    return group, behind, ahead


def test_a_replica_that_committed_what_its_group_gave_up_falls_silent_and_is_not_copied_over(simulate):
    async def story():
        group, _, ahead = await group_split_by_force()
        group.network.heal()
        await group.wait_until(lambda: ahead.fatal is not None)
        assert isinstance(ahead.fatal, KuduError)
        assert ahead.fatal.code is ErrorCode.CORRUPTION
        assert "the group was split" in ahead.fatal.message
        assert ahead.machine.payloads == [b"unknown to the one behind"]
        await asyncio.sleep(20.0)
        assert ahead.copies_asked == []
        await group.stop()

    simulate(story())


def test_one_that_does_not_know_that_it_was_committed_follows(simulate):
    async def story():
        group, behind, ahead = await group_split_by_force()
        await group.crash(ahead)
        group.network.heal()
        await group.restart(ahead)
        await group.wait_until(lambda: behind.raft.is_leader_ready())
        await group.settle([behind, ahead])
        assert ahead.machine.payloads == behind.machine.payloads == []
        await group.stop()

    simulate(story())


def test_an_address_that_cannot_be_dialled_ends_nobody(simulate):
    """It may stand in a config from before anybody looked: whoever leads goes on with the others."""

    async def story():
        group, leader, _ = await group_and_newcomer()
        nowhere = Member(ServerId("e" * 32), MemberType.PRE_VOTER, "not an address")
        await leader.raft.change_config(ConfigChange.ADD_SERVER, nowhere)
        await group.write(b"after", group.servers[:2])
        await leader.raft.leader_step_down()
        await group.wait_until(lambda: leader.raft.role is not Role.LEADER)
        await group.leader()
        await group.write(b"and another leads", group.servers[:2])
        assert [server.fatal for server in group.servers] == [None] * 3
        await group.stop()

    simulate(story())
