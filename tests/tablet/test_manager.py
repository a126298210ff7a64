"""The replicas of a server: opened beside each other, created and deleted under one transition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import OpId
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.env.disk import Disk
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.waiting import wait_until

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
DIRECTORIES = ReplicaDirectories("/data")


async def started(size: int = 1) -> tuple[ReplicaGroup, ReplicaHost]:
    group = ReplicaGroup(size=size)
    await group.start()
    return group, group.hosts[0]


def test_all_replicas_of_a_server_are_there_after_a_restart(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        tablets = [await group.create() for _ in range(10)]
        for number, tablet_id in enumerate(tablets):
            await group.write(tablet_id, batch_of([(number, number, None)]))
        await host.crash()
        await host.restart()
        assert [replica.tablet_id for replica in host.manager.replicas()] == sorted(tablets)
        for number, tablet_id in enumerate(tablets):
            assert rows_of(await group.leader(tablet_id)) == [(number, number, None)]
        await group.stop()

    simulate(main())


def test_a_replica_that_cannot_be_opened_is_failed_and_the_others_run(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        damaged, unreadable, sound = [await group.create() for _ in range(3)]
        for tablet_id in (damaged, unreadable, sound):
            await group.write(tablet_id, batch_of([(1, 1, None)]))
            await host.manager.replica(tablet_id).checkpointer.flush()
        await host.stop()
        directory = DIRECTORIES.row_directory(damaged)
        rows = next(name for name in host.disk.list_dir(directory) if name.endswith(".rows"))
        host.disk.unlink(f"{directory}/{rows}")
        host.disk.corrupt(DIRECTORIES.superblock_path(unreadable), 30, b"\xff")
        await host.restart()
        states = {replica.tablet_id: replica.state for replica in host.manager.replicas()}
        assert states == {
            damaged: ReplicaState.FAILED,
            unreadable: ReplicaState.FAILED,
            sound: ReplicaState.RUNNING,
        }
        for tablet_id in (damaged, unreadable):
            status = host.manager.replica(tablet_id).status()
            assert tablet_id in status.error or rows in status.error
            with pytest.raises(KuduError) as raised:
                host.manager.consensus(tablet_id)
            assert raised.value.code is ErrorCode.TABLET_FAILED
        assert rows_of(await group.leader(sound)) == [(1, 1, None)]
        assert host.fatal == []
        await group.stop()

    simulate(main())


def test_a_failed_replica_can_be_deleted_and_does_not_vote(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        await group.create()  # a server that lost all its votes would not start
        await host.stop()
        host.disk.unlink(DIRECTORIES.consensus_metadata_path(tablet_id))
        await host.restart()
        await host.manager.delete_tablet(tablet_id)
        assert [tombstone.tablet_id for tombstone in host.manager.tombstones()] == [tablet_id]
        assert await host.manager.tombstone_vote(tablet_id, consensus_pb2.RequestVoteRequest()) is None
        await group.stop()

    simulate(main())


def test_an_id_with_a_path_in_it_reaches_no_file(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        evil = "../../../etc/passwd"
        with pytest.raises(KuduError) as raised:
            host.manager.replica(evil)
        assert raised.value.code is ErrorCode.INVALID_ARGUMENT
        assert (await refusal(host.manager.delete_tablet(evil))).code is ErrorCode.INVALID_ARGUMENT
        assert (await refusal(group.create(group.new_tablet(evil)))).code is ErrorCode.INVALID_ARGUMENT
        for path in (
            DIRECTORIES.superblock_path,
            DIRECTORIES.consensus_metadata_path,
            DIRECTORIES.log_directory,
            DIRECTORIES.row_directory,
        ):
            with pytest.raises(KuduError):
                path(evil)
        await group.stop()

    simulate(main())


def test_a_tablet_is_created_once(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        new = group.new_tablet()
        first, second = await asyncio.gather(
            host.manager.create_tablet(new), host.manager.create_tablet(new), return_exceptions=True
        )
        outcomes = sorted((first, second), key=lambda outcome: isinstance(outcome, KuduError))
        assert outcomes[0] is host.manager.replica(new.tablet_id)
        assert isinstance(outcomes[1], KuduError)
        assert (outcomes[1].code, outcomes[1].verdict) == (ErrorCode.ALREADY_IN_PROGRESS, Verdict.TRY_LATER)
        assert (await refusal(host.manager.create_tablet(new))).code is ErrorCode.TABLET_ALREADY_EXISTS
        await host.manager.delete_tablet(new.tablet_id)
        assert (await refusal(host.manager.create_tablet(new))).code is ErrorCode.TABLET_ALREADY_EXISTS
        await group.stop()

    simulate(main())


def test_what_cannot_be_a_replica_here_is_not_created(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        new = group.new_tablet()
        error = await refusal(host.manager.create_tablet(replace(new, config=RaftConfig(0, ()))))
        assert error.code is ErrorCode.INVALID_CONFIG
        error = await refusal(host.manager.create_tablet(replace(new, schema=Schema((), 0))))
        assert error.code is ErrorCode.INVALID_SCHEMA
        assert host.manager.replicas() == []
        assert host.disk.list_dir(DIRECTORIES.superblocks) == []
        await group.stop()

    simulate(main())


def test_a_creation_goes_on_when_its_caller_gives_up(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        new = group.new_tablet()
        creation = asyncio.ensure_future(host.manager.create_tablet(new))
        await asyncio.sleep(0.001)
        creation.cancel()
        await group.wait_until(lambda: any(r.state is ReplicaState.RUNNING for r in host.manager.replicas()))
        await group.leader(new.tablet_id)
        await group.stop()

    simulate(main())


def test_a_deleted_replica_leaves_no_files_but_its_memory(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of([(1, 1, None)]))
        last = host.manager.replica(tablet_id).consensus.last_op_id
        await host.manager.delete_tablet(tablet_id, reason="a test")
        await host.manager.delete_tablet(tablet_id)
        disk: Disk = host.disk
        assert not disk.exists(DIRECTORIES.log_directory(tablet_id))
        assert not disk.exists(DIRECTORIES.row_directory(tablet_id))
        await host.crash()
        await host.restart()
        with pytest.raises(KuduError) as raised:
            host.manager.replica(tablet_id)
        assert raised.value.code is ErrorCode.TABLET_NOT_FOUND
        assert [tombstone.tombstone_last_op_id for tombstone in host.manager.tombstones()] == [last]
        await group.stop()

    simulate(main())


def test_no_call_changes_the_files_of_a_replica_that_is_being_opened(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of([(1, 1, None)]))
        await host.crash()
        starting = asyncio.create_task(host.restart())
        await wait_until(
            lambda: (
                host.running is not None
                and [each.state for each in host.manager.replicas()] == [ReplicaState.BOOTSTRAPPING]
            ),
            step_s=0.0001,
        )
        error = await refusal(host.manager.delete_tablet(tablet_id))
        assert (error.code, error.verdict) == (ErrorCode.ALREADY_IN_PROGRESS, Verdict.TRY_LATER)
        assert "being opened" in error.message
        await starting
        assert rows_of(await group.leader(tablet_id)) == [(1, 1, None)]
        await host.manager.delete_tablet(tablet_id)
        assert host.fatal == []
        await group.stop()

    simulate(main())


def test_a_deletion_is_refused_if_the_config_has_moved_on(simulate: Simulate):
    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        await group.leader(tablet_id)
        await host.manager.delete_tablet(tablet_id, expected_config_index_max=0)
        other = await group.create()
        replica = await group.leader(other)
        replica.consensus._raft._state.committed_config = replace(replica.consensus.committed_config, config_index=5)
        error = await refusal(host.manager.delete_tablet(other, expected_config_index_max=4))
        assert error.code is ErrorCode.CAS_FAILED
        assert replica.state is ReplicaState.RUNNING
        await group.stop()

    simulate(main())


def test_a_deletion_is_refused_of_a_replica_that_does_not_run_if_its_file_says_that_the_config_has_moved_on(
    simulate: Simulate,
):
    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        await replica.stop()
        record = (await host.manager._voters.load(tablet_id)).durable
        path = host.manager.context.directories.consensus_metadata_path(tablet_id)
        moved_on = replace(record, config=replace(record.config, config_index=5))
        ConsensusMetadata.create(host.manager.context.threads.disk, path, moved_on)
        error = await refusal(host.manager.delete_tablet(tablet_id, expected_config_index_max=4))
        assert error.code is ErrorCode.CAS_FAILED
        await host.manager.delete_tablet(tablet_id, expected_config_index_max=5)
        assert [each.tablet_id for each in host.manager.tombstones()] == [tablet_id]
        await group.stop()

    simulate(main())


def vote_request(host: ReplicaHost, tablet_id: TabletId, candidate: ReplicaHost, term: int, last: OpId) -> Any:
    request = consensus_pb2.RequestVoteRequest(
        dest_uuid=host.uuid, tablet_id=tablet_id, candidate_uuid=candidate.uuid, candidate_term=term
    )
    request.last_op_id.term, request.last_op_id.index = last
    return request


def test_a_tombstone_votes_and_never_forgets_what_it_promised(simulate: Simulate):
    async def main() -> None:
        group, host = await started(size=3)
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of([(1, 1, None)]))
        await group.settle(tablet_id)
        replica = host.manager.replica(tablet_id)
        last, term = replica.consensus.last_op_id, replica.consensus.term
        await host.manager.delete_tablet(tablet_id)
        first, second = group.hosts[1:]
        stub = ConsensusServiceStub(group.network.dialer("client:1").channel(host.address))

        old = await stub.RequestVote(vote_request(host, tablet_id, first, term + 1, OpId(last.term, last.index - 1)))
        assert (old.vote_granted, old.reason) == (False, "LAST_OPID_TOO_OLD")
        given = await stub.RequestVote(vote_request(host, tablet_id, first, term + 2, last))
        assert given.vote_granted
        refused = await stub.RequestVote(vote_request(host, tablet_id, second, term + 2, last))
        assert (refused.vote_granted, refused.reason) == (False, "ALREADY_VOTED")
        await host.crash()
        await host.restart()
        refused = await stub.RequestVote(vote_request(host, tablet_id, second, term + 2, last))
        assert (refused.vote_granted, refused.reason) == (False, "ALREADY_VOTED")
        again = await stub.RequestVote(vote_request(host, tablet_id, first, term + 2, last))
        assert again.vote_granted
        await group.stop()

    simulate(main())


def test_the_vote_of_a_tombstone_counts_for_a_candidate(simulate: Simulate):
    async def main() -> None:
        group, _ = await started(size=3)
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        await group.settle(tablet_id)
        followers = [host for host in group.hosts if host.uuid != leader.consensus.uuid]
        gone = next(host for host in group.hosts if host.uuid == leader.consensus.uuid)
        await followers[0].manager.delete_tablet(tablet_id)
        await gone.crash()
        candidate = followers[1].manager.replica(tablet_id)
        # It leads, and would commit again once the tablet is copied to the server that deleted it.
        await group.wait_until(lambda: candidate.is_leader)
        await group.stop()

    simulate(main())


def test_before_its_replicas_are_listed_a_server_denies_none(simulate: Simulate):
    """A leader that hears TABLET_NOT_FOUND would copy the tablet there."""

    async def main() -> None:
        group, host = await started()
        tablet_id = await group.create()
        await host.stop()
        starting = asyncio.ensure_future(host.restart())
        await group.wait_until(lambda: host.running is not None)
        with pytest.raises(KuduError) as raised:
            host.manager.replica(tablet_id)
        assert (raised.value.code, raised.value.verdict) == (ErrorCode.TABLET_NOT_RUNNING, Verdict.TRY_LATER)
        await starting
        await group.leader(tablet_id)
        await group.stop()

    simulate(main())


def test_a_server_on_its_way_out_hands_its_leaderships_over(simulate: Simulate):
    async def main() -> None:
        group, _ = await started(size=3)
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        host = next(host for host in group.hosts if host.uuid == leader.consensus.uuid)
        assert await host.manager.step_down_all() == 0
        successor = await group.leader(tablet_id)
        assert successor.consensus.uuid != host.uuid
        await group.stop()

    simulate(main())


def test_a_failed_log_write_is_told_once_and_silences_the_replica(simulate: Simulate):
    async def main() -> None:
        from kudu_py.testing.sim_disk import Fault, Operation

        group, host = await started()
        tablet_id = await group.create()
        replica = await group.leader(tablet_id)
        host.disk.inject(Fault(Operation.SYNC, path_contains="/wals/"))
        error = await refusal(replica.write_batch(batch_of([(1, 1, None)])))
        assert error.verdict is Verdict.UNKNOWN
        assert len(host.fatal) == 1
        assert not replica.is_leader
        await host.crash()

    simulate(main())
