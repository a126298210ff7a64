"""Members of tablets on whole simulated clusters: administrators' changes, long operations, and what masters repair."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import MemberType, RaftConfig
from kudu_py.master.catalog.entries import TabletEntry
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import consensus_pb2, master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.testing import sim_loop
from kudu_py.testing.replica_group import TESTING_OPTIONS
from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_tserver import SimTabletServer

PATIENCE_S = 20.0
ENDED = (master_pb2.Operation.DONE, master_pb2.Operation.FAILED, master_pb2.Operation.CANCELLED)


class Story:
    """A cluster with a table of one tablet, and an administrator."""

    def __init__(self, cluster: SimCluster, tablet_id: str) -> None:
        self.cluster = cluster
        self.tablet_id = tablet_id

    async def ask(self, method: str, *, timeout_s: float = 20.0, **fields):
        request = getattr(master_pb2, f"{method}Request")(**fields)
        address = self.cluster.masters[0].address
        channel = self.cluster.network.dialer("admin:1").channel(address)
        stub = master_pb2_grpc.MasterServiceStub(channel)
        return await call(getattr(stub, method)(request, timeout=timeout_s), address=address, wrote=True)

    async def refused(self, code: ErrorCode, method: str, **fields) -> KuduError:
        with pytest.raises(KuduError) as caught:
            await self.ask(method, **fields)
        assert caught.value.code is code, caught.value
        return caught.value

    @property
    def entry(self) -> TabletEntry:
        return self.cluster.masters[0].process.committer.require_reign().state.tablets[self.tablet_id]

    @property
    def wanted(self) -> int:
        return self.cluster.masters[0].process.committer.require_reign().state.wanted_voters(self.entry)

    @property
    def leader(self) -> SimTabletServer:
        leader = self.cluster.leader_of(self.tablet_id)
        assert leader is not None
        return leader

    @property
    def config(self) -> RaftConfig:
        return self.leader.process.manager.replica(self.tablet_id).consensus.committed_config

    @property
    def followers(self) -> list[SimTabletServer]:
        return [ts for ts in self.cluster.tservers if ts.uuid in self.config.voters and ts is not self.leader]

    @property
    def free(self) -> SimTabletServer:
        """A server without a replica."""
        return next(ts for ts in self.cluster.tservers if self.config.member(ts.uuid) is None and ts.running)

    def has_voters(self, count: int) -> bool:
        """Whether the tablet has a leader, so many voters and no other member."""
        if self.cluster.leader_of(self.tablet_id) is None:
            return False
        return len(self.config.voters) == len(self.config.members) == count

    async def until(self, holds: Callable[[], object], timeout_s: float = 120.0) -> None:
        await self.cluster.wait_until(holds, timeout_s)

    async def operation(self, operation_id: str) -> master_pb2.Operation:
        return (await self.ask("GetOperation", operation_id=operation_id)).operation

    async def ended(self, operation_id: str) -> master_pb2.Operation:
        for _ in range(600):
            operation = await self.operation(operation_id)
            if operation.state in ENDED:
                return operation
            await asyncio.sleep(0.2)
        raise AssertionError(operation)


@pytest.fixture
def tell():
    """Runs a story."""

    def run(story, *, tservers: int = 4, replicas: int = 3, seed: int = 1) -> None:
        async def main() -> None:
            catalog = CatalogOptions(
                follower_unavailable_considered_failed_s=PATIENCE_S, tserver_unresponsive_timeout_s=5.0
            )
            cluster = SimCluster(seed, tservers=tservers, catalog=catalog)
            await cluster.start()
            async with cluster.client() as client:
                table = await cluster.create_table(client, "t", buckets=1, replicas=replicas)
                (tablet,) = await table.tablets()
                await cluster.settle([tablet.tablet_id], replicas)
                await story(Story(cluster, tablet.tablet_id))
            assert not cluster.fatal()
            await cluster.stop()

        sim_loop.run(main(), seed=seed)

    return run


# One replica.


def test_an_added_replica_is_copied_promoted_and_stays(tell):
    async def story(s):
        new = s.free
        answer = await s.ask("AddReplica", tablet_id=s.tablet_id, ts_uuid=new.uuid)
        assert [m.uuid for m in answer.config.members if m.member_type == consensus_pb2.PRE_VOTER] == [new.uuid]
        assert s.entry.config.config_index == answer.config.config_index, "the catalog has it when it is answered"
        await s.until(lambda: s.has_voters(4))
        await asyncio.sleep(3 * PATIENCE_S)
        assert s.has_voters(4), "it is what was wanted"
        assert s.wanted == 4
        assert s.entry.changed_by_admin_micros > 0

    tell(story)


def test_a_learner_stays_one_and_changes_no_wanted_number(tell):
    async def story(s):
        new = s.free
        await s.ask("AddReplica", tablet_id=s.tablet_id, ts_uuid=new.uuid, member_type=consensus_pb2.PRE_VOTER)
        await asyncio.sleep(PATIENCE_S)
        member = s.config.member(new.uuid)
        assert (member.member_type, member.promote) == (MemberType.PRE_VOTER, False)
        assert s.wanted == 3
        answer = await s.ask(
            "ChangeReplicaType", tablet_id=s.tablet_id, ts_uuid=new.uuid, member_type=consensus_pb2.VOTER
        )
        assert new.uuid in [m.uuid for m in answer.config.members if m.member_type == consensus_pb2.VOTER]
        assert s.wanted == 4
        await s.ask("ChangeReplicaType", tablet_id=s.tablet_id, ts_uuid=new.uuid, member_type=consensus_pb2.PRE_VOTER)
        assert s.wanted == 3
        assert len(s.config.voters) == 3

    tell(story)


def test_a_leader_that_is_removed_hands_over_first_and_ends_as_a_tombstone(tell):
    async def story(s):
        old = s.leader
        answer = await s.ask("RemoveReplica", tablet_id=s.tablet_id, ts_uuid=old.uuid)
        assert old.uuid not in [m.uuid for m in answer.config.members]
        assert s.wanted == 2
        await s.until(lambda: s.tablet_id in [t.tablet_id for t in old.process.manager.tombstones()])
        await asyncio.sleep(PATIENCE_S)
        assert s.has_voters(2)

    tell(story)


def test_a_change_rests_on_the_config_index_that_was_expected(tell):
    async def story(s):
        new = s.free
        error = await s.refused(
            ErrorCode.CAS_FAILED, "AddReplica", tablet_id=s.tablet_id, ts_uuid=new.uuid, expected_config_index=77
        )
        assert error.details["config_index"] == "0"
        added = await s.ask("AddReplica", tablet_id=s.tablet_id, ts_uuid=new.uuid, expected_config_index=0)
        await s.until(lambda: s.has_voters(4))
        error = await s.refused(
            ErrorCode.CAS_FAILED,
            "RemoveReplica",
            tablet_id=s.tablet_id,
            ts_uuid=new.uuid,
            expected_config_index=added.config.config_index,
        )
        await s.ask(
            "RemoveReplica",
            tablet_id=s.tablet_id,
            ts_uuid=new.uuid,
            expected_config_index=int(error.details["config_index"]),
        )

    tell(story)


def test_what_cannot_be_is_refused_exactly_and_changes_nothing(tell):
    async def story(s):
        nobody, tablet_id, member, free = "f" * 32, s.tablet_id, s.followers[0], s.free
        for method in ("AddReplica", "RemoveReplica"):
            await s.refused(ErrorCode.TABLET_NOT_FOUND, method, tablet_id=nobody, ts_uuid=free.uuid)
            await s.refused(ErrorCode.INVALID_ARGUMENT, method, tablet_id="../x", ts_uuid=free.uuid)
            await s.refused(ErrorCode.INVALID_ARGUMENT, method, tablet_id=tablet_id, ts_uuid="../x")
        await s.refused(ErrorCode.TABLET_SERVER_NOT_FOUND, "AddReplica", tablet_id=tablet_id, ts_uuid=nobody)
        error = await s.refused(ErrorCode.ALREADY_PRESENT, "AddReplica", tablet_id=tablet_id, ts_uuid=member.uuid)
        assert error.details["member_type"] == "VOTER"
        await s.refused(ErrorCode.NOT_FOUND, "RemoveReplica", tablet_id=tablet_id, ts_uuid=free.uuid)
        await s.refused(
            ErrorCode.ALREADY_PRESENT,
            "ChangeReplicaType",
            tablet_id=tablet_id,
            ts_uuid=member.uuid,
            member_type=consensus_pb2.VOTER,
        )
        await s.refused(ErrorCode.INVALID_ARGUMENT, "ChangeReplicaType", tablet_id=tablet_id, ts_uuid=member.uuid)
        await s.refused(ErrorCode.NOT_FOUND, "LeaderStepDown", tablet_id=tablet_id, new_leader_uuid=free.uuid)
        await s.refused(ErrorCode.NOT_FOUND, "GetOperation", operation_id=nobody)
        await s.refused(ErrorCode.NOT_FOUND, "CancelOperation", operation_id=nobody)
        await s.refused(ErrorCode.INVALID_ARGUMENT, "ChangeVotingReplicaCount", count=3)
        await s.refused(ErrorCode.TABLE_NOT_FOUND, "ChangeVotingReplicaCount", table_name="nope", count=3)
        await free.crash()
        await asyncio.sleep(6)
        error = await s.refused(ErrorCode.ILLEGAL_STATE, "AddReplica", tablet_id=tablet_id, ts_uuid=free.uuid)
        assert "is dead" in error.message
        assert s.config.config_index == 0
        assert s.wanted == 3
        assert not (await s.ask("ListOperations", include_ended=True)).operations

    tell(story)


def test_the_last_voter_is_not_removed(tell):
    async def story(s):
        last = s.leader
        error = await s.refused(ErrorCode.ILLEGAL_STATE, "RemoveReplica", tablet_id=s.tablet_id, ts_uuid=last.uuid)
        assert "last voter" in error.message
        await s.refused(ErrorCode.ILLEGAL_STATE, "LeaderStepDown", tablet_id=s.tablet_id)

    tell(story, replicas=1)


def test_a_wanted_number_is_put_back_when_the_change_is_refused(tell):
    async def story(s):
        away, here = s.followers
        await away.crash()
        await asyncio.sleep(3)
        error = await s.refused(
            ErrorCode.TIMED_OUT, "RemoveReplica", tablet_id=s.tablet_id, ts_uuid=here.uuid, timeout_s=5.0
        )
        assert error.verdict is Verdict.TRY_LATER
        assert "could not be committed" in error.message
        assert s.wanted == 3
        assert s.config.config_index == 0

    tell(story)


@pytest.mark.parametrize("named", [True, False])
def test_a_leader_steps_down_for_the_one_that_was_named_or_any(tell, named):
    async def story(s):
        before, successor = s.leader, s.followers[0]
        fields = {"new_leader_uuid": successor.uuid} if named else {}
        answer = await s.ask("LeaderStepDown", tablet_id=s.tablet_id, **fields)
        assert answer.leader_uuid == s.leader.uuid != before.uuid
        if named:
            assert answer.leader_uuid == successor.uuid

    tell(story)


# Long operations.


def test_a_move_survives_the_master_and_leaves_the_number_of_voters_alone(tell):
    async def story(s):
        (master,) = s.cluster.masters
        source, target = s.followers[0], s.free
        begun = await s.ask("MoveReplica", tablet_id=s.tablet_id, from_ts_uuid=source.uuid, to_ts_uuid=target.uuid)
        await master.crash()
        await asyncio.sleep(1)
        await master.restart()
        await s.until(lambda: master.process.committer.reign is not None)
        operation = await s.ended(begun.operation_id)
        assert operation.state == master_pb2.Operation.DONE
        assert (operation.steps_done, operation.steps_total) == (3, 3)
        assert target.uuid in s.config.voters
        assert s.config.member(source.uuid) is None
        assert s.wanted == 3

    tell(story)


def test_a_leaders_replica_moves(tell):
    async def story(s):
        source, target = s.leader, s.free
        begun = await s.ask("MoveReplica", tablet_id=s.tablet_id, from_ts_uuid=source.uuid, to_ts_uuid=target.uuid)
        assert (await s.ended(begun.operation_id)).state == master_pb2.Operation.DONE
        assert s.config.member(source.uuid) is None

    tell(story)


def test_a_cancelled_move_is_put_back(tell):
    async def story(s):
        source, target = s.followers[0], s.free
        before = s.config.members
        begun = await s.ask("MoveReplica", tablet_id=s.tablet_id, from_ts_uuid=source.uuid, to_ts_uuid=target.uuid)
        await s.until(lambda: s.config.member(target.uuid) is not None)
        cancelled = (await s.ask("CancelOperation", operation_id=begun.operation_id)).operation
        assert cancelled.state == master_pb2.Operation.CANCELLED
        await s.until(lambda: s.has_voters(3))
        assert [m.uuid for m in s.config.members] == [m.uuid for m in before]
        again = (await s.ask("CancelOperation", operation_id=begun.operation_id)).operation
        assert again.state == master_pb2.Operation.CANCELLED

    tell(story)


def test_the_target_of_a_move_is_not_removed_by_another_call(tell):
    async def story(s):
        source, target = s.followers[0], s.free
        await source.crash()
        begun = await s.ask("MoveReplica", tablet_id=s.tablet_id, from_ts_uuid=source.uuid, to_ts_uuid=target.uuid)
        await s.until(lambda: s.config.member(target.uuid) is not None)
        if (await s.operation(begun.operation_id)).state not in ENDED:
            error = await s.refused(
                ErrorCode.ILLEGAL_STATE, "RemoveReplica", tablet_id=s.tablet_id, ts_uuid=target.uuid
            )
            assert error.details["operation_id"] == begun.operation_id
        assert (await s.ended(begun.operation_id)).state == master_pb2.Operation.DONE

    tell(story)


def test_a_move_fails_when_its_target_dies_and_what_it_began_is_put_back(tell):
    async def story(s):
        source, target = s.followers[0], s.free
        s.cluster.network.cut(target.address, s.leader.address)
        begun = await s.ask("MoveReplica", tablet_id=s.tablet_id, from_ts_uuid=source.uuid, to_ts_uuid=target.uuid)
        await s.until(lambda: s.config.member(target.uuid) is not None)
        await target.crash()
        operation = await s.ended(begun.operation_id)
        assert operation.state == master_pb2.Operation.FAILED
        assert target.uuid in operation.error
        await s.until(lambda: s.has_voters(3))
        assert source.uuid in s.config.voters

    tell(story)


def test_the_number_of_voters_of_a_table_follows_a_call(tell):
    async def story(s):
        for count in (1, 3):
            begun = await s.ask("ChangeVotingReplicaCount", table_name="t", count=count)
            assert (await s.ended(begun.operation_id)).state == master_pb2.Operation.DONE
            assert s.has_voters(count)
        error = await s.refused(
            ErrorCode.EVEN_REPLICATION_FACTOR, "ChangeVotingReplicaCount", tablet_id=s.tablet_id, count=2
        )
        assert "odd" in error.message

    tell(story)


def test_a_retired_server_has_no_replica_and_gets_none(tell):
    async def story(s):
        victim = s.leader
        begun = await s.ask("RetireTabletServer", ts_uuid=victim.uuid)
        operation = await s.ended(begun.operation_id)
        assert (operation.state, operation.steps_done) == (master_pb2.Operation.DONE, 1)
        assert s.config.member(victim.uuid) is None
        servers = (await s.ask("ListTabletServers")).servers
        assert {server.uuid: server.mode for server in servers}[victim.uuid] == master_pb2.RETIRED
        error = await s.refused(ErrorCode.ILLEGAL_STATE, "AddReplica", tablet_id=s.tablet_id, ts_uuid=victim.uuid)
        assert "retired" in error.message
        await s.ask("ChangeTabletServerMode", ts_uuid=victim.uuid, mode=master_pb2.NORMAL)
        await s.ask("AddReplica", tablet_id=s.tablet_id, ts_uuid=victim.uuid)
        await s.until(lambda: s.has_voters(4))

    tell(story)


def test_of_two_retirements_at_once_that_together_leave_too_few_servers_one_is_refused(tell):
    async def story(s):
        first, second = s.followers
        answers = await asyncio.gather(
            *(s.ask("RetireTabletServer", ts_uuid=ts.uuid) for ts in (first, second)), return_exceptions=True
        )
        (refusal,) = (answer for answer in answers if isinstance(answer, KuduError))
        assert refusal.code is ErrorCode.REPLICATION_FACTOR_TOO_HIGH
        (begun,) = (answer for answer in answers if not isinstance(answer, KuduError))
        assert (await s.ended(begun.operation_id)).state == master_pb2.Operation.DONE

    tell(story)


# What masters repair.


def test_a_dead_servers_replica_is_rebuilt_elsewhere_after_the_patience_and_not_before(tell):
    async def story(s):
        victim, spare = s.followers[0], s.free
        await victim.crash()
        await asyncio.sleep(PATIENCE_S - 2)
        assert s.config.config_index == 0
        await s.until(lambda: victim.uuid not in s.config.voters and s.has_voters(3), timeout_s=30)
        assert spare.uuid in s.config.voters
        assert s.wanted == 3

    tell(story)


def test_a_replica_added_in_the_place_of_a_dead_one_makes_no_more_voters(tell):
    async def story(s):
        victim = s.followers[0]
        spare = s.free
        await spare.crash()
        await victim.crash()
        await asyncio.sleep(PATIENCE_S + 5)
        assert s.config.config_index == 0, "there is no server for another"
        await spare.restart()
        await asyncio.sleep(0.5)
        with contextlib.suppress(KuduError):  # The master may be faster.
            await s.ask("AddReplica", tablet_id=s.tablet_id, ts_uuid=spare.uuid)
        await s.until(lambda: s.has_voters(3) and victim.uuid not in s.config.voters, timeout_s=30)
        assert s.wanted == 3

    tell(story)


def test_a_voter_that_comes_back_in_time_stays(tell):
    async def story(s):
        victim = s.followers[0]
        await victim.crash()
        await asyncio.sleep(PATIENCE_S - 5)
        await victim.restart()
        await asyncio.sleep(3 * PATIENCE_S)
        assert s.config.config_index == 0

    tell(story)


def test_a_restart_of_the_master_replaces_nobody(tell):
    async def story(s):
        (master,) = s.cluster.masters
        for _ in range(3):
            await master.crash()
            await asyncio.sleep(PATIENCE_S + 5)
            await master.restart()
            await asyncio.sleep(10)
        assert s.config.config_index == 0

    tell(story)


def test_a_silence_that_a_new_master_did_not_hear_does_not_count(tell):
    async def story(s):
        (master,) = s.cluster.masters
        victim = s.followers[0]
        await victim.crash()
        await asyncio.sleep(PATIENCE_S - 5)
        await master.stop()
        await master.restart()
        await asyncio.sleep(PATIENCE_S - 5)
        assert s.config.config_index == 0
        await s.until(lambda: s.has_voters(3) and victim.uuid not in s.config.voters, timeout_s=30)

    tell(story)


def test_a_replica_that_failed_is_replaced_while_its_server_lives(tell):
    async def story(s):
        victim = s.followers[0]
        victim.process.manager.replica(s.tablet_id).fail(KuduError(ErrorCode.CORRUPTION, "its rows are damaged"))
        await s.until(lambda: s.has_voters(3) and len(s.cluster.replicas(s.tablet_id)) == 3)
        assert {replica.consensus.uuid for replica in s.cluster.replicas(s.tablet_id)} == set(s.config.voters)
        assert s.wanted == 3

    tell(story)


def test_a_failed_replica_is_replaced_also_without_a_spare_server(tell):
    async def story(s):
        victim = s.followers[0]
        victim.process.manager.replica(s.tablet_id).fail(KuduError(ErrorCode.CORRUPTION, "its rows are damaged"))
        await s.until(lambda: s.has_voters(3) and len(s.cluster.replicas(s.tablet_id)) == 3)

    tell(story, tservers=3)


def test_another_server_is_chosen_when_the_one_that_was_copied_to_dies(tell):
    async def story(s):
        victim = s.followers[0]
        spares = [ts for ts in s.cluster.tservers if s.config.member(ts.uuid) is None]
        for spare in spares:
            for voter in (s.leader, *s.followers):
                s.cluster.network.cut(spare.address, voter.address)
        await victim.crash()
        await s.until(lambda: len(s.config.members) == 4)
        first = next(spare for spare in spares if s.config.member(spare.uuid) is not None)
        s.cluster.network.heal()
        await first.crash()
        await s.until(lambda: s.has_voters(3) and len(s.cluster.replicas(s.tablet_id)) == 3, timeout_s=200)
        assert first.uuid not in s.config.voters

    tell(story, tservers=5)


def test_a_server_that_takes_no_copy_is_told_of_and_asked_again_later(tell):
    async def story(s):
        victim, spare = s.followers[0], s.free
        (master,) = s.cluster.masters
        spare.disk.capacity_bytes = TESTING_OPTIONS.wal.disk_reserved_bytes  # Enough to live on, and for nothing new.
        begun = await s.ask("RetireTabletServer", ts_uuid=victim.uuid)
        told = f"it could not be copied to {spare.uuid} (2 failures in a row)"
        await s.until(lambda: told in master.process.member_policy.blocked_reason(s.tablet_id))
        assert s.config.member(spare.uuid) is None
        (tablet,) = (await s.ask("GetTableLocations", table_name="t")).tablet_locations
        assert told in tablet.waits_for
        assert f"tablet {s.tablet_id} waits: {told}" in (await s.operation(begun.operation_id)).progress
        spare.disk.capacity_bytes = None
        assert (await s.ended(begun.operation_id)).state == master_pb2.Operation.DONE
        assert spare.uuid in s.config.voters
        (tablet,) = (await s.ask("GetTableLocations", table_name="t")).tablet_locations
        assert tablet.waits_for == ""

    tell(story)


def test_a_server_in_maintenance_is_waited_for(tell):
    async def story(s):
        victim = s.followers[0]
        await s.ask("ChangeTabletServerMode", ts_uuid=victim.uuid, mode=master_pb2.MAINTENANCE)
        await victim.crash()
        await asyncio.sleep(3 * PATIENCE_S)
        assert s.config.config_index == 0
        await s.ask("ChangeTabletServerMode", ts_uuid=victim.uuid, mode=master_pb2.NORMAL)
        await s.until(lambda: s.has_voters(3) and victim.uuid not in s.config.voters, timeout_s=30)

    tell(story)


def test_nothing_is_evicted_while_the_rest_could_not_go_on(tell):
    async def story(s):
        first, second = s.followers
        leader = s.leader
        await first.crash()
        await second.crash()
        await asyncio.sleep(3 * PATIENCE_S)
        config = leader.process.manager.replica(s.tablet_id).consensus.committed_config
        assert config.config_index == 0
        await first.restart()
        await s.until(lambda: s.has_voters(3) and second.uuid not in s.config.voters, timeout_s=60)

    tell(story)


def test_a_paused_master_counts_no_silence(tell):
    async def story(s):
        (master,) = s.cluster.masters
        policy, reign = master.process.member_policy, master.process.committer.require_reign()
        now_s = asyncio.get_running_loop().time()
        assert policy.begin_sweep(reign, now_s + 10 * PATIENCE_S) == []
        assert policy.begin_sweep(reign, now_s + 10 * PATIENCE_S + 1) == []

    tell(story)
