"""A copy to this server that fails, is cancelled, or meets a power cut: it goes back, and the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import HardState
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.manager import DeleteType
from kudu_py.tablet.metadata import DataState
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.copy_rig import DIRECTORIES, OPTIONS, SMALL_PIECES, OrderRig
from kudu_py.testing.refusals import refusal
from kudu_py.testing.sim_disk import Fault, Operation
from kudu_py.testing.waiting import wait_until

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_copy_that_fails_goes_back_to_the_tombstone_and_says_why(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        last = rig.copied.consensus.last_op_id
        await rig.begin_and_lose_source()
        tombstone = rig.tombstone()
        assert (tombstone.data_state, tombstone.tombstone_last_op_id) == (DataState.DELETED, last)
        assert "UNAVAILABLE" in rig.target.manager.copy_error(rig.tablet_id)
        assert rig.target.fatal == []
        given = await rig.target.manager.tombstone_vote(rig.tablet_id, rig.vote_request(50, last))
        assert given is not None
        assert given.vote_granted
        await rig.target.restart() if rig.target.running is None else None
        assert (
            await rig.target.manager.tombstone_vote(rig.tablet_id, rig.vote_request(51, OpId(0, 1)))
        ).vote_granted is False
        await rig.group.stop()

    simulate(main())


def test_a_first_copy_that_fails_leaves_a_tombstone_that_votes_once_a_term(simulate: Simulate):
    """Kudu's TC-14: it never acknowledged anything, so any log will do."""

    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin_and_lose_source()
        assert rig.tombstone().tombstone_last_op_id == MIN_OP_ID
        manager = rig.target.manager
        first = await manager.tombstone_vote(rig.tablet_id, rig.vote_request(7, OpId(1, 1)))
        other = rig.vote_request(7, OpId(9, 9))
        other.candidate_uuid = "d" * 32
        second = await manager.tombstone_vote(rig.tablet_id, other)
        assert first is not None
        assert second is not None
        assert (first.vote_granted, second.vote_granted) == (True, False)
        await rig.target.crash()
        await rig.target.restart()
        again = await rig.target.manager.tombstone_vote(rig.tablet_id, other)
        assert again is not None
        assert not again.vote_granted, "the vote outlives the power cut"
        await rig.group.stop()

    simulate(main())


def test_votes_given_while_copying_are_in_the_merged_metadata(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.group.wait_until(lambda: rig.target.manager.replicas())
        given = await rig.target.manager.tombstone_vote(rig.tablet_id, rig.vote_request(60, OpId(9, 90)))
        assert rig.copied.state is ReplicaState.COPYING, "it was fast enough"
        assert given is not None
        assert given.vote_granted
        await rig.rest()
        assert rig.copied.state is ReplicaState.RUNNING
        assert rig.promises().hard_state == HardState(60, rig.source.uuid)
        await rig.group.stop()

    simulate(main())


def test_a_cancelled_copy_ends_as_a_tombstone_and_the_next_goes_on_where_it_was(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        manager = rig.target.manager

        def fetched() -> int:
            (copy,) = manager.context.copies.copies_to_here()
            return copy.progress.bytes_done

        await rig.group.wait_until(lambda: fetched() > 0)
        await manager.cancel_copy(rig.tablet_id)
        assert rig.tombstone().data_state is DataState.DELETED
        assert "CANCELLED" in manager.copy_error(rig.tablet_id)
        assert (await refusal(manager.cancel_copy(rig.tablet_id))).code is ErrorCode.NOT_FOUND
        await rig.begin(expected_state=consensus_pb2.DELETED)
        await rig.rest()
        rig.assert_copied()
        assert manager.copy_error(rig.tablet_id) == ""
        assert manager.context.copies.copies()[0].progress.bytes_resumed > 0
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("delete_type", list(DeleteType))
def test_deleting_what_is_being_copied_ends_the_copy(simulate: Simulate, delete_type: DeleteType):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        manager = rig.target.manager
        await rig.group.wait_until(lambda: manager.replicas())
        if delete_type is DeleteType.DELETED_COMPLETELY:
            forgetting = manager.delete_tablet(rig.tablet_id, expected_config_index_max=3, delete_type=delete_type)
            assert (await refusal(forgetting)).code is ErrorCode.ALREADY_IN_PROGRESS
        # A master that goes by the config it knows ends the copy of what it does not find in it.
        index = 3 if delete_type is DeleteType.TOMBSTONED else None
        await manager.delete_tablet(rig.tablet_id, expected_config_index_max=index, delete_type=delete_type)
        assert manager.replicas() == []
        if delete_type is DeleteType.TOMBSTONED:
            assert rig.tombstone().data_state is DataState.DELETED
        else:
            assert manager.tombstones() == []
            assert rig.target.disk.list_dir(DIRECTORIES.superblocks) == []
            assert rig.target.disk.list_dir(DIRECTORIES.consensus_metadata) == []
        await rig.group.stop()

    simulate(main())


def test_a_replica_deleted_completely_may_come_back_as_if_it_had_never_been_here(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        await rig.begin()
        await rig.rest()
        await rig.target.manager.delete_tablet(rig.tablet_id)
        await rig.target.manager.delete_tablet(rig.tablet_id, delete_type=DeleteType.DELETED_COMPLETELY)
        await rig.target.crash()
        await rig.target.restart()
        assert rig.target.manager.tombstones() == []
        await rig.begin(expected_state=consensus_pb2.DOES_NOT_EXIST)
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    simulate(main())


def test_a_server_that_stops_or_loses_power_during_a_copy_finds_a_tombstone_and_goes_on(simulate: Simulate):
    async def attempt(seed: int, ends: str) -> None:
        rig = await OrderRig.start(seed=seed)
        await rig.begin()
        await asyncio.sleep(0.004 * seed)
        await (rig.target.stop() if ends == "stop" else rig.target.crash())
        await rig.target.restart()
        rested = rig.target.manager.tombstones() or rig.target.manager.replicas()
        if rested:
            assert rig.target.manager.tombstones() or rig.copied.state is ReplicaState.RUNNING
        await rig.begin()
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    for seed in range(1, 8):
        for ends in ("stop", "crash"):
            simulate(attempt(seed, ends))


def test_a_server_that_stops_begins_no_copy_that_it_was_just_ordered(simulate: Simulate):
    """It would wait for its end, which may be hours away."""

    async def main() -> None:
        rig = await OrderRig.start(options=replace(OPTIONS, copy=replace(SMALL_PIECES, bytes_per_s=10)))
        request = await rig.request()
        manager = rig.target.manager
        ordered = asyncio.create_task(manager.start_tablet_copy(request))
        await wait_until(lambda: rig.tablet_id in manager._hosted.changing, step_s=0.000_001)
        assert not manager._copies._targets, "it is still being looked at what is here"
        before = asyncio.get_running_loop().time()
        await rig.target.stop()
        assert asyncio.get_running_loop().time() - before < 1.0
        assert (await refusal(ordered)).code is ErrorCode.SHUTTING_DOWN
        await rig.target.restart()
        assert rig.target.manager.tombstones() == rig.target.manager.replicas() == []
        await rig.group.stop()

    simulate(main())


def test_a_power_cut_at_any_step_of_a_copy_ends_in_a_tombstone_or_a_replica(simulate: Simulate):
    async def attempt(step: int) -> bool:
        rig = await OrderRig.start(seed=step)
        await rig.begin()
        await rig.rest()
        last = rig.copied.consensus.last_op_id
        disk = rig.target.disk
        disk.crash_at_step = disk.steps + step
        await rig.begin()
        await rig.group.wait_until(lambda: disk.is_crashed or not rig.target.manager._copies._targets)
        is_crashed, disk.crash_at_step = disk.is_crashed, None
        if is_crashed:
            await rig.target.crash()
            await rig.target.restart()
        for tombstone in rig.target.manager.tombstones():
            assert (tombstone.data_state, tombstone.tombstone_last_op_id) == (DataState.DELETED, last), step
        for replica in rig.target.manager.replicas():
            assert (replica.state, replica.consensus.last_op_id) == (ReplicaState.RUNNING, last), step
        await rig.begin()
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()
        return is_crashed

    step = 1
    while simulate(attempt(step)):
        step += 7 if step > 40 else 3
    assert step > 40


def test_a_full_disk_ends_a_copy_cleanly_and_gives_the_room_back(simulate: Simulate):
    async def main() -> None:
        rig = await OrderRig.start()
        disk = rig.target.disk
        fault = disk.inject(Fault(Operation.WRITE, errno=28, path_contains="-copy/", times=None, skip=4))
        await rig.begin()
        await rig.rest()
        assert "DISK_FULL" in rig.target.manager.copy_error(rig.tablet_id)
        assert rig.target.fatal == []
        fault.times = 0
        await rig.begin()
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    simulate(main())


def test_a_disk_that_fails_while_the_copy_is_put_in_place_ends_the_process_and_a_restart_finds_a_state_of_rest(
    simulate: Simulate,
):
    async def attempt(operation: Operation, path: str) -> None:
        rig = await OrderRig.start()
        rig.target.disk.inject(
            Fault(operation, path_contains=path, times=None, skip=1 if path == "/tablet-meta/" else 0)
        )
        await rig.begin()
        await rig.rest()
        assert [type(error) for error in rig.target.fatal] == [OSError] * len(rig.target.fatal)
        assert rig.target.fatal, operation
        await rig.target.crash()
        await rig.target.restart()
        assert rig.tombstone().data_state is DataState.DELETED
        await rig.begin()
        await rig.rest()
        rig.assert_copied()
        await rig.group.stop()

    for operation, path in ((Operation.RENAME, "/data/wals"), (Operation.SYNC, "/tablet-meta/")):
        simulate(attempt(operation, path))
