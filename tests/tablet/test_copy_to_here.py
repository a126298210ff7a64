"""A replica that is copied to this server by order: what is refused, what a source must have, how it comes to life."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.wire import op_id_to_pb
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.copy_order import require_nothing_forgotten
from kudu_py.tablet.metadata import DataState
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.copy_rig import DIRECTORIES, OPTIONS, ROWS, OrderRig
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import ReplicaGroup, batch_of, rows_of

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_server_that_never_had_the_tablet_gets_it(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin(expected_state=consensus_pb2.DOES_NOT_EXIST)
        await rig.rest()
        rig.assert_copied()
        await rig.target.crash()
        await rig.target.restart()
        rig.assert_copied()
        assert rig.promises().hard_state.voted_for is None
        assert rows_of(rig.copied) == ROWS[:25], (
            "of the checkpoint; the rest follows when the leader says it is committed"
        )
        await rig.group.stop()

    simulate(main())


def test_what_a_leader_lacks_of_a_tombstone_comes_back_with_its_promises(simulate: Simulate):
    """Kudu's DL-14: the own term and vote stay, the config is the source's."""

    async def main() -> None:
        rig = await OrderRig.start(sources=3)
        await rig.begin()
        await rig.rest()
        await rig.target.manager.delete_tablet(rig.tablet_id)
        leader = await rig.leader()
        vote = consensus_pb2.RequestVoteRequest(
            dest_uuid=rig.target.uuid,
            tablet_id=rig.tablet_id,
            candidate_uuid=rig.group.hosts[1].uuid,
            candidate_term=leader.consensus.term + 1,
        )
        vote.last_op_id.term, vote.last_op_id.index = leader.consensus.last_op_id
        given = await rig.target.manager.tombstone_vote(rig.tablet_id, vote)
        assert given is not None
        assert given.vote_granted
        await rig.begin()  # of a lower term, but its log holds all that was acknowledged here
        await rig.rest()
        rig.assert_copied()
        promised = rig.promises()
        assert promised.hard_state == HardState(leader.consensus.term + 1, rig.group.hosts[1].uuid)
        assert promised.committed_config == leader.consensus.committed_config
        await rig.group.stop()

    simulate(main())


def test_a_copy_is_refused_with_exact_reasons_and_nothing_is_changed(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        target, steps = rig.target, rig.target.disk.steps
        other = "e" * 32
        last = consensus_pb2.StartTabletCopyRequest().last_op_id
        last.term, last.index = 1, 7
        for fields, code, text in (
            ({"tablet_id": "../x"}, ErrorCode.INVALID_ARGUMENT, "tablet_id"),
            ({"caller_uuid": "me"}, ErrorCode.INVALID_ARGUMENT, "caller_uuid"),
            ({"source_uuid": ""}, ErrorCode.INVALID_ARGUMENT, "source_uuid"),
            ({"source_uuid": target.uuid}, ErrorCode.INVALID_ARGUMENT, "to itself"),
            ({"source_address": ""}, ErrorCode.INVALID_ARGUMENT, "source_address"),
            ({"expected_state": 77}, ErrorCode.INVALID_ARGUMENT, "expected_state 77"),
            ({"expected_state": consensus_pb2.DELETED}, ErrorCode.ILLEGAL_STATE, "is DOES_NOT_EXIST here, not DELETED"),
            ({"expected_state": consensus_pb2.COPYING}, ErrorCode.ILLEGAL_STATE, "DOES_NOT_EXIST"),
            ({"last_op_id": last}, ErrorCode.ILLEGAL_STATE, "ends at 0.0 here, not at 1.7"),
        ):
            error = await refusal(rig.begin(**fields))
            assert (error.code, text in error.message) == (code, True), error
        await rig.begin()
        error = await refusal(rig.begin())
        assert (error.code, error.verdict) == (ErrorCode.ALREADY_IN_PROGRESS, Verdict.TRY_LATER)
        await rig.rest()
        steps = target.disk.steps
        term = rig.copied.consensus.term
        for fields, code, text in (
            ({"expected_state": consensus_pb2.DOES_NOT_EXIST}, ErrorCode.ILLEGAL_STATE, "is READY here"),
            ({"caller_term": term - 1}, ErrorCode.INVALID_TERM, f"knows term {term}"),
            ({"last_op_id": last}, ErrorCode.ILLEGAL_STATE, "not at 1.7"),
            ({"caller_uuid": other, "last_op_id": last}, ErrorCode.ILLEGAL_STATE, "not at 1.7"),
        ):
            error = await refusal(rig.begin(**fields))
            assert (error.code, text in error.message) == (code, True), error
        assert (rig.copied.state, target.disk.steps) == (ReplicaState.RUNNING, steps)
        await rig.group.stop()

    simulate(main())


def test_a_leader_of_old_cannot_replace_what_a_later_one_wrote(simulate: Simulate):
    """Kudu's TC-01; what is here is a tombstone."""

    async def main() -> None:
        rig = await OrderRig.start(sources=3)
        old = await rig.leader()
        old_host = next(host for host in rig.group.hosts if host.uuid == old.consensus.uuid)
        request = await rig.request()
        await old.consensus.leader_step_down()
        await rig.group.wait_until(lambda: not old.is_leader)
        new = await rig.group.leader(rig.tablet_id, [h for h in rig.group.hosts[:-1] if h is not old_host])
        await new.write_batch(batch_of([(1000, 1, None)]))
        await rig.begin()
        await rig.rest()
        await rig.target.manager.delete_tablet(rig.tablet_id)
        before = rig.tombstone()
        error = await refusal(rig.target.manager.start_tablet_copy(request))
        assert (error.code, error.details["term"]) == (ErrorCode.INVALID_TERM, str(new.consensus.term))
        assert rig.tombstone() == before
        await rig.group.stop()

    simulate(main())


def test_a_follower_that_lost_its_replica_gets_it_back_while_writes_go_on(simulate: Simulate):
    """Nobody but the leader sees to it; also if the tombstone has voted in a later term meanwhile."""

    async def attempt(seed: int, votes: int) -> None:
        group = ReplicaGroup(seed, size=3, options=OPTIONS)
        await group.start()
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of(ROWS[:20]))
        leader = await group.leader(tablet_id)
        await leader.checkpointer.flush()
        victim = next(host for host in group.hosts if host.uuid != leader.consensus.uuid)
        await victim.manager.delete_tablet(tablet_id)
        last = leader.consensus.last_op_id
        for ahead in range(votes):
            vote = consensus_pb2.RequestVoteRequest(
                dest_uuid=victim.uuid,
                tablet_id=tablet_id,
                candidate_uuid="d" * 32,
                candidate_term=leader.consensus.term + 1 + ahead,
                ignore_live_leader=True,
            )
            vote.last_op_id.term, vote.last_op_id.index = last
            await victim.manager.tombstone_vote(tablet_id, vote)
        others = [host for host in group.hosts if host is not victim]
        for row in ROWS[20:40]:
            await (await group.leader(tablet_id, others)).write_batch(batch_of([row], RowOperation.UPSERT))
        await group.wait_until(
            lambda: [replica.state for replica in victim.manager.replicas()] == [ReplicaState.RUNNING]
        )
        await group.write(tablet_id, batch_of(ROWS[40:]))
        await group.settle(tablet_id)
        for host in group.hosts:
            assert rows_of(host.manager.replica(tablet_id)) == ROWS
        assert group.fatal() == []
        await group.stop()

    for votes in (0, 3):
        simulate(attempt(votes + 1, votes))


def test_a_leader_is_not_replaced(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start(sources=2)
        leader = await rig.leader()
        host = next(host for host in rig.group.hosts if host.uuid == leader.consensus.uuid)
        other = next(
            host for host in rig.group.hosts[:2] if host is not host.uuid and host.uuid != leader.consensus.uuid
        )
        request = await rig.request(
            dest_uuid=host.uuid, caller_uuid=other.uuid, source_uuid=other.uuid, source_address=other.address
        )
        for term in (request.caller_term, request.caller_term + 1000):
            request.caller_term = term
            error = await refusal(host.manager.start_tablet_copy(request))
            assert error.code is ErrorCode.ILLEGAL_STATE
            assert "leads" in error.message
        assert leader.state is ReplicaState.RUNNING
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_lives_is_deleted_and_copied_anew(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        before = rig.copied
        await rig.begin(expected_state=consensus_pb2.READY)
        await rig.rest()
        rig.assert_copied()
        assert rig.copied is not before
        assert before.state is ReplicaState.STOPPED
        names = rig.target.disk.list_dir(DIRECTORIES.quarantine)
        assert [name.rpartition("-")[2] for name in names] == ["deleted"], (
            "nothing is left of where files were gathered"
        )
        await rig.group.stop()

    simulate(main())


def test_a_replica_lives_on_if_the_source_cannot_or_must_not_be_copied_from(simulate: Simulate):
    """Whoever ordered it may be mistaken in where the source is, and in what it has."""

    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        replica, steps = rig.copied, rig.target.disk.steps
        for fields, why in (
            ({"source_uuid": "d" * 32, "source_address": "nowhere:1"}, "UNAVAILABLE"),
            ({"source_uuid": "d" * 32}, "WRONG_SERVER_UUID"),
            ({"source_address": "no address"}, "INVALID_ARGUMENT"),
            ({"committed_op_id": op_id_to_pb(OpId(9, 999))}, "ILLEGAL_STATE"),
        ):
            await rig.begin(**fields)
            await rig.rest()
            assert why in rig.target.manager.copy_error(rig.tablet_id)
            assert rig.copied is replica, fields
            assert replica.state is ReplicaState.RUNNING
        assert rig.target.disk.steps == steps
        await rig.group.stop()

    simulate(main())


def test_an_order_to_copy_what_nobody_has_leaves_nothing(simulate: Simulate):
    """Else anybody could fill the disk with the memory of tablets that never were."""

    async def main() -> None:
        rig = await OrderRig.start()
        steps = rig.target.disk.steps
        await rig.begin(tablet_id="c" * 32)
        await rig.rest()
        assert "TABLET_NOT_FOUND" in rig.target.manager.copy_error("c" * 32)
        assert rig.target.manager.tombstones() == []
        assert rig.target.disk.steps == steps
        await rig.group.stop()

    simulate(main())


def test_more_orders_than_may_wait_are_told_to_try_later(simulate: Simulate):
    async def main() -> None:
        options = replace(OPTIONS, copy=replace(OPTIONS.copy, copies_max=1, queued_max=1))
        rig = await OrderRig.start(options=options)
        await rig.begin()
        await rig.begin(tablet_id="c" * 32)
        error = await refusal(rig.begin(tablet_id="d" * 32))
        assert (error.code, error.verdict) == (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER)
        assert (await refusal(rig.begin())).code is ErrorCode.ALREADY_IN_PROGRESS, "which one is told the truth of"
        await rig.rest()
        rig.assert_copied()
        await rig.begin(tablet_id="d" * 32)
        await rig.rest()
        await rig.group.stop()

    simulate(main())


def test_errors_of_copies_that_left_nothing_here_are_forgotten_some_time(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start(options=replace(OPTIONS, copy=replace(OPTIONS.copy, remembered_max=2)))
        request = await rig.request()
        await rig.begin_and_lose_source()
        manager = rig.target.manager
        for digit in "bcde":
            request.tablet_id = digit * 32
            await manager.start_tablet_copy(request)
            await rig.rest()
        assert [bool(manager.copy_error(digit * 32)) for digit in "bcde"] == [False, False, True, True]
        assert manager.copy_error(rig.tablet_id), "its tombstone is here, and whoever looks at it wants to know"
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_is_copied_is_seen_and_answers_that_it_is(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.group.wait_until(lambda: rig.target.manager.replicas())
        assert (rig.copied.state, rig.copied.status().data_state) == (ReplicaState.COPYING, DataState.COPYING)
        with pytest.raises(KuduError) as raised:
            rig.target.manager.consensus(rig.tablet_id)
        assert raised.value.code is ErrorCode.TABLET_NOT_RUNNING
        assert raised.value.details["data_state"] == "COPYING"
        assert rig.tablet_id in rig.target.reports
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    simulate(main())


def test_a_failed_replica_is_replaced_by_a_copy_of_its_leader(simulate: Simulate):
    """Its rows are damaged, its log can be read: nothing it promised is forgotten."""

    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        last = rig.copied.consensus.last_op_id
        rig.copied.fail(KuduError(ErrorCode.CORRUPTION, "rotten"))
        assert rig.copied.state is ReplicaState.FAILED
        assert await rig.target.manager._remover.last_op_id(rig.copied) == last
        await rig.begin(expected_state=consensus_pb2.READY)
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    simulate(main())


def test_a_replica_whose_log_cannot_be_read_is_replaced_only_by_its_leader_and_does_not_vote(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        await rig.target.stop()
        for name in rig.target.disk.list_dir(DIRECTORIES.log_directory(rig.tablet_id)):
            rig.target.disk.unlink(f"{DIRECTORIES.log_directory(rig.tablet_id)}/{name}")
        await rig.target.restart()
        assert rig.copied.state is ReplicaState.FAILED
        error = await refusal(rig.begin(caller_uuid="d" * 32))
        assert (error.code, "only its leader" in error.message) == (ErrorCode.ILLEGAL_STATE, True)
        await rig.begin_and_lose_source()
        assert rig.tombstone().tombstone_last_op_id is None
        assert await rig.target.manager.tombstone_vote(rig.tablet_id, rig.vote_request(99, OpId(9, 99))) is None
        await rig.source.restart()
        await rig.begin()
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    simulate(main())


def test_a_replica_that_lost_its_votes_does_not_come_back_under_this_servers_name(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        await rig.target.manager.delete_tablet(rig.tablet_id)
        alone = replace(rig.group.new_tablet(), config=RaftConfig(0, (rig.target.member,)))
        await rig.target.manager.create_tablet(alone)  # a server that lost all its votes would not start
        await rig.target.stop()
        rig.target.disk.unlink(DIRECTORIES.consensus_metadata_path(rig.tablet_id))
        await rig.target.restart()
        error = await refusal(rig.begin())
        assert (error.code, "vote twice" in error.message) == (ErrorCode.CORRUPTION, True)
        assert rig.tombstone().data_state is DataState.DELETED
        await rig.group.stop()

    simulate(main())


def test_a_log_is_taken_for_another_only_if_it_would_get_its_vote():
    for own, fetched in ((OpId(2, 5), OpId(2, 5)), (OpId(2, 5), OpId(3, 1)), (MIN_OP_ID, MIN_OP_ID), (None, MIN_OP_ID)):
        require_nothing_forgotten(own, fetched, ServerId("a" * 32))
    for own, fetched in ((OpId(2, 5), OpId(2, 4)), (OpId(2, 5), OpId(1, 9))):
        with pytest.raises(KuduError) as refused:
            require_nothing_forgotten(own, fetched, ServerId("a" * 32))
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        assert refused.value.details["last_op_id"] == str(own)


def test_a_source_that_lacks_what_was_acknowledged_here_is_refused(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start(sources=3)
        leader = await rig.leader()
        last = leader.consensus.last_op_id
        slow = next(host for host in rig.group.hosts[:-1] if host.uuid != leader.consensus.uuid)
        await rig.begin()
        await rig.rest()
        await slow.stop()
        await leader.write_batch(batch_of([(1000, 1, None)]))
        await rig.begin()
        await rig.rest()
        assert rig.copied.consensus.last_op_id > last
        for host in rig.group.hosts[:-1]:
            if host is not slow:
                await host.stop()
        await slow.restart()
        await rig.target.manager.start_tablet_copy(
            consensus_pb2.StartTabletCopyRequest(
                dest_uuid=rig.target.uuid,
                tablet_id=rig.tablet_id,
                caller_uuid=slow.uuid,
                caller_term=rig.copied.consensus.term,
                source_uuid=slow.uuid,
                source_address=slow.address,
            )
        )
        await rig.rest()
        assert rig.copied.state is ReplicaState.RUNNING
        assert "ILLEGAL_STATE" in rig.target.manager.copy_error(rig.tablet_id)
        await rig.group.stop()

    simulate(main())
