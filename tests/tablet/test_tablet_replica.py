"""A replica from write to restart: order of checks, exactly once, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime, add_micros
from kudu_py.common.ids import TabletId
from kudu_py.common.row_batch import RowOperation
from kudu_py.consensus.core.model import EntryKind
from kudu_py.consensus.rounds import Round
from kudu_py.pb import tserver_pb2
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.retained_results import REMEMBER_CLIENTS_MICROS
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import (
    SCHEMA,
    TESTING_OPTIONS,
    ReplicaGroup,
    Row,
    batch_of,
    request_of,
    rows_of,
)

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
CLIENT = "c" * 32
ROWS: list[Row] = [(1, 10, "a"), (2, 20, None), (3, None, "c")]


async def single() -> tuple[ReplicaGroup, TabletId, TabletReplica]:
    group = ReplicaGroup()
    await group.start()
    tablet_id = await group.create()
    return group, tablet_id, await group.leader(tablet_id)


def a_write(
    replica: TabletReplica,
    rows: list[Row] = ROWS,
    sequence: int = 1,
    operation: RowOperation = RowOperation.INSERT,
    first_attempt_time: int | None = None,
) -> tserver_pb2.WriteRequest:
    """Of the client, at this moment."""
    now = replica._context.hybrid_clock.now() if first_attempt_time is None else first_attempt_time
    return request_of(
        replica.tablet_id, batch_of(rows, operation), client_id=CLIENT, sequence=sequence, first_attempt_time=now
    )


# Restarts.


def test_a_single_replica_has_all_acknowledged_rows_after_flush_and_restart(simulate: Simulate):
    async def main() -> None:
        group, tablet_id, replica = await single()
        rows = [(i, i * 2, f"row {i}") for i in range(100)]
        await group.write(tablet_id, batch_of(rows[:50]))
        assert await replica.checkpointer.flush()
        await group.write(tablet_id, batch_of(rows[50:]))
        assert rows_of(replica) == rows
        await group.stop()
        await group.hosts[0].restart()
        replica = await group.leader(tablet_id)
        assert rows_of(replica) == rows
        assert replica.superblock.checkpoint.index > 0
        await group.stop()
        assert group.fatal() == []

    simulate(main())


def test_a_restarted_replica_applies_nothing_above_its_checkpoint_before_it_is_known_to_be_committed(
    simulate: Simulate,
):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        await group.write(tablet_id, batch_of(ROWS))
        await group.settle(tablet_id)
        await group.stop()
        alone = group.hosts[0]
        await alone.restart()
        replica = alone.manager.replica(tablet_id)
        await asyncio.sleep(20.0)
        assert rows_of(replica) == []
        for host in group.hosts[1:]:
            await host.restart()
        await group.leader(tablet_id)
        await group.settle(tablet_id)
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


def test_replicas_agree_after_writes_flushes_and_power_cuts(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(seed=5, size=3)
        await group.start()
        tablet_id = await group.create()
        wanted: dict[int, Row] = {}
        for step in range(30):
            rows = [(key, step, None) for key in range(step, step + 20)]
            await group.write(tablet_id, batch_of(rows, RowOperation.UPSERT))
            wanted.update((row[0], row) for row in rows)
            if step % 7 == 3:
                await group.replicas(tablet_id)[step % 3].checkpointer.flush()
            if step % 10 == 9:
                victim = group.hosts[step % 3]
                await victim.crash()
                await group.write(tablet_id, batch_of([(1000 + step, 0, "while one was away")]))
                wanted[1000 + step] = (1000 + step, 0, "while one was away")
                await victim.restart()
        await group.leader(tablet_id)
        await group.settle(tablet_id)
        for replica in group.replicas(tablet_id):
            assert rows_of(replica) == sorted(wanted.values())
        assert group.fatal() == []
        await group.stop()

    simulate(main())


# The order of checks.


def test_a_write_answers_its_timestamp_and_row_errors(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        first = await replica.write(a_write(replica, ROWS[:1], sequence=1))
        second = await replica.write(a_write(replica, ROWS, sequence=2))
        assert second.timestamp > first.timestamp
        assert [(error.row_index, error.code) for error in second.row_errors] == [(0, tserver_pb2.ALREADY_PRESENT)]
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


def test_a_follower_refuses_writes_and_names_the_leader(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        follower = next(replica for replica in group.replicas(tablet_id) if replica is not leader)
        await group.wait_until(lambda: follower.consensus.leader is not None)
        error = await refusal(follower.write(a_write(follower)))
        assert (error.code, error.verdict) == (ErrorCode.NOT_THE_LEADER, Verdict.TRY_LATER)
        assert error.details["leader_uuid"] == leader.consensus.uuid
        assert error.details["leader_address"] == leader.consensus.address
        await group.stop()

    simulate(main())


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda request: request.__setattr__("rows", b"no arrow"), ErrorCode.INVALID_ROW_BLOCK),
        (lambda request: request.__setattr__("rows", b""), ErrorCode.INVALID_ROW_BLOCK),
        (lambda request: request.__setattr__("rows", request.rows[:-9]), ErrorCode.INVALID_ROW_BLOCK),
        (lambda request: request.__setattr__("schema_version", 7), ErrorCode.MISMATCHED_SCHEMA),
        (lambda request: request.column_ids.append(99), ErrorCode.MISMATCHED_SCHEMA),
        (lambda request: request.__setattr__("client_id", "../../etc/passwd"), ErrorCode.INVALID_ARGUMENT),
        (lambda request: request.__setattr__("sequence", 0), ErrorCode.INVALID_ARGUMENT),
        (lambda request: request.__setattr__("first_attempt_time", 0), ErrorCode.INVALID_ARGUMENT),
        (lambda request: request.__setattr__("first_attempt_time", (1 << 63) - 1), ErrorCode.INVALID_ARGUMENT),
        (lambda request: request.__setattr__("first_attempt_time", 1), ErrorCode.REQUEST_STALE),
    ],
)
def test_a_write_that_may_not_enter_the_log_changes_nothing(simulate: Simulate, spoil: Any, code: ErrorCode):
    async def main() -> None:
        group, _, replica = await single()
        last = replica.consensus.last_op_id
        request = a_write(replica)
        spoil(request)
        error = await refusal(replica.write(request))
        assert error.code is code, error
        assert replica.consensus.last_op_id == last
        await group.stop()

    simulate(main())


def test_a_write_above_the_size_limit_is_refused_with_the_limit(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(options=ReplicaOptions(consensus=TESTING_OPTIONS.consensus, write_bytes_max=4096))
        await group.start()
        replica = await group.leader(await group.create())
        error = await refusal(replica.write(a_write(replica, [(key, key, "x" * 100) for key in range(50)])))
        assert error.code is ErrorCode.INVALID_ROW_BLOCK
        assert "4096" in error.message
        await replica.write(a_write(replica, ROWS))
        await group.stop()

    simulate(main())


def test_writes_are_throttled_when_memory_is_short_and_taken_again_after_a_flush(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        memory = replica._context.memory
        urged: list[bool] = []
        memory.on_pressure = lambda: urged.append(True)
        await replica.write(a_write(replica, sequence=1))
        assert memory.used_bytes > 0
        memory.limit_bytes = memory.used_bytes - 1
        error = await refusal(replica.write(a_write(replica, sequence=2)))
        assert (error.code, error.verdict) == (ErrorCode.THROTTLED, Verdict.TRY_LATER)
        assert urged == [True]
        # A retry is answered all the same: it takes nothing.
        await replica.write(a_write(replica, sequence=1))
        await replica.checkpointer.flush()
        await replica.write(a_write(replica, [(9, 9, None)], sequence=3))
        await group.stop()
        assert memory.used_bytes == 0

    simulate(main())


def test_a_follower_short_of_memory_takes_entries_again_after_a_flush(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        await group.settle(tablet_id)
        followers = [host for host in group.hosts if host.uuid != leader.consensus.uuid]
        term = leader.consensus.term
        budgets = [host.manager.context.memory for host in followers]
        for memory in budgets:
            memory.change(2 * memory.followed_limit_bytes)
        waiting = asyncio.ensure_future(leader.write_batch(batch_of(ROWS)))
        await asyncio.sleep(10.0)
        assert not waiting.done()
        assert (leader.consensus.term, leader.is_leader) == (term, True)
        for memory in budgets:
            memory.change(-2 * memory.followed_limit_bytes)
        await waiting
        await group.stop()

    simulate(main())


def test_entries_that_wait_at_a_follower_are_accounted_for_and_not_kept_when_memory_is_short(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        await group.settle(tablet_id)
        roomy, short = [host for host in group.hosts if host.uuid != leader.consensus.uuid]
        budgets = [host.manager.context.memory for host in (roomy, short)]
        before = budgets[0].used_bytes
        budgets[1].change(budgets[1].limit_bytes + 1)  # more than writes may take, less than keeps entries away
        taken = budgets[1].used_bytes
        await leader.write_batch(batch_of([(key, key, "x" * 1000) for key in range(50)]))
        index = leader.consensus.last_op_id.index
        await group.wait_until(
            lambda: all(host.manager.replica(tablet_id).consensus.last_op_id.index == index for host in (roomy, short))
        )
        assert all(host.manager.replica(tablet_id).applied.index < index for host in (roomy, short))  # put off
        assert budgets[0].used_bytes - before > 50_000
        assert budgets[1].used_bytes == taken
        budgets[1].change(-budgets[1].limit_bytes - 1)
        await group.settle(tablet_id)
        for host, memory in zip((roomy, short), budgets, strict=True):
            assert memory.used_bytes == host.manager.replica(tablet_id).tablet.memory_bytes
            assert len(rows_of(host.manager.replica(tablet_id))) == 50
        await leader.write_batch(batch_of([(key, key, "x" * 1000) for key in range(50, 100)]))
        await group.stop()  # with entries that wait
        assert [memory.used_bytes for memory in budgets] == [0, 0]

    simulate(main())


@pytest.mark.parametrize("found_by", ["apply", "fail"])
def test_a_replica_found_damaged_leaves_its_group_and_the_process_goes_on(simulate: Simulate, found_by: str):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id, other = await group.create(), await group.create()
        damaged = await group.leader(tablet_id)
        host = next(host for host in group.hosts if host.uuid == damaged.consensus.uuid)
        await damaged.write_batch(batch_of(ROWS))
        error = KuduError(ErrorCode.CORRUPTION, "a chunk of a file is damaged")
        if found_by == "fail":
            damaged.fail(error)
        else:
            with pytest.MonkeyPatch.context() as patch:
                tablet = damaged.tablet

                def broken(*_: object) -> None:
                    raise error

                patch.setattr(tablet, "apply", broken)
                refused = await refusal(damaged.write_batch(batch_of([(9, 9, None)])))
                assert refused.verdict is Verdict.UNKNOWN
        assert damaged.state is ReplicaState.FAILED
        assert (await refusal(damaged.write_batch(batch_of([(8, 8, None)])))).code is ErrorCode.TABLET_FAILED
        others = [one for one in group.hosts if one is not host]
        await group.write(tablet_id, batch_of([(7, 7, None)]))
        assert (await group.leader(tablet_id, others)).tablet.row_count >= 4
        await group.write(other, batch_of(ROWS))
        await group.settle(other)
        assert host.fatal == []
        await host.manager.delete_tablet(tablet_id)
        assert host.manager.context.memory.used_bytes == host.manager.replica(other).tablet.memory_bytes
        await group.stop()

    simulate(main())


# Exactly once.


def test_a_retry_is_answered_and_not_applied_twice(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        request = a_write(replica)
        first = await replica.write(request)
        last = replica.consensus.last_op_id
        assert await replica.write(request) == first
        assert replica.consensus.last_op_id == last
        await group.stop()

    simulate(main())


def test_a_retry_of_a_write_in_flight_gets_the_same_answer(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        request = a_write(replica)
        first, second = await asyncio.gather(replica.write(request), replica.write(request))
        assert first == second
        assert not first.row_errors
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


def test_an_id_in_flight_that_comes_with_other_rows_is_refused(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        pending = replica.running().intake.begin(a_write(replica))
        assert isinstance(pending, Round)
        error = await refusal(replica.write(a_write(replica, ROWS[:1])))
        assert error.code is ErrorCode.REQUEST_ID_REUSED
        await pending.future
        error = await refusal(replica.write(a_write(replica, ROWS[:1])))
        assert error.code is ErrorCode.REQUEST_ID_REUSED
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


def test_a_writer_that_gives_up_does_not_stop_the_write(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        request = a_write(replica)
        write = asyncio.ensure_future(replica.write(request))
        other = asyncio.ensure_future(replica.write(request))
        await group.wait_until(lambda: replica.consensus.rounds_in_flight == 1)
        write.cancel()
        assert not (await other).row_errors
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


@pytest.mark.parametrize("flushed", [True, False])
def test_a_retry_after_a_restart_is_answered_from_what_was_replicated(simulate: Simulate, flushed: bool):
    async def main() -> None:
        group, tablet_id, replica = await single()
        await replica.write(a_write(replica, ROWS[:1], sequence=1))
        request = a_write(replica, sequence=2)
        first = await replica.write(request)
        if flushed:
            await replica.checkpointer.flush()
        await group.hosts[0].crash()
        await group.hosts[0].restart()
        replica = await group.leader(tablet_id)
        assert await replica.write(request) == first
        assert first.row_errors
        await group.stop()

    simulate(main())


def test_a_new_leader_answers_the_retry_of_a_write_that_the_old_one_applied(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        request = a_write(leader)
        first = await leader.write(request)
        host = next(host for host in group.hosts if host.uuid == leader.consensus.uuid)
        await host.crash()
        successor = await group.leader(tablet_id)
        assert successor is not leader
        assert await successor.write(request) == first
        assert rows_of(successor) == ROWS
        await group.stop()

    simulate(main())


def test_a_write_that_was_put_off_for_too_long_is_refused_at_apply_too(simulate: Simulate):
    """The identity is decided again where the entry is applied, by its timestamp: alike on every replica."""

    async def main() -> None:
        group, _, replica = await single()
        await replica.write(a_write(replica, sequence=2))
        late = a_write(replica, [(9, 9, None)], sequence=1)
        # Past the checks of the leader, as an entry of an earlier leader would be.
        pending = replica.consensus.propose(EntryKind.WRITE, late.SerializeToString())
        outcome: Any = await pending.future
        assert outcome.error.code is ErrorCode.REQUEST_STALE
        assert rows_of(replica) == ROWS
        await group.stop()

    simulate(main())


def test_memory_of_answers_follows_the_log_and_not_the_clock(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        request = a_write(replica)
        first = await replica.write(request)
        await asyncio.sleep(2 * REMEMBER_CLIENTS_MICROS / 1e6)
        # The clock alone forgets nothing.
        assert await replica.write(request) == first
        await replica.write_batch(batch_of([(50, 0, None)]))
        other = request_of(
            replica.tablet_id,
            batch_of([(51, 0, None)]),
            client_id="d" * 32,
            sequence=1,
            first_attempt_time=replica._context.hybrid_clock.now(),
        )
        await replica.write(other)
        error = await refusal(replica.write(request))
        assert (error.code, error.verdict) == (ErrorCode.REQUEST_STALE, Verdict.UNKNOWN)
        await group.stop()

    simulate(main())


def test_waiting_writers_learn_at_a_stop_that_the_outcome_is_unknown(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        for host in group.hosts:
            if host.uuid != leader.consensus.uuid:
                await host.crash()
        write = asyncio.ensure_future(leader.write(a_write(leader)))
        await asyncio.sleep(0.05)
        await leader.stop()
        assert (await refusal(_await(write))).verdict is Verdict.UNKNOWN
        await group.stop()

    simulate(main())


async def _await(future: asyncio.Future[Any]) -> object:
    return await future


# Reads.


def spec_at(timestamp: HybridTime) -> ScanSpec:
    return ScanSpec(columns=SCHEMA.names, timestamp=timestamp)


def count(replica: TabletReplica, timestamp: HybridTime) -> int:
    return sum(batch.num_rows for batch in replica.scan(spec_at(timestamp)))


def test_a_read_of_the_latest_state_sees_every_acknowledged_write(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        for key in range(20):
            await replica.write_batch(batch_of([(key, key, None)]))
            assert count(replica, await replica.latest_snapshot()) == key + 1
        await group.stop()

    simulate(main())


def test_a_leader_cut_off_from_its_followers_does_not_serve_the_latest_state(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        others = [host for host in group.hosts if host.uuid != leader.consensus.uuid]
        own = next(host for host in group.hosts if host.uuid == leader.consensus.uuid)
        for host in others:
            group.network.cut(own.address, host.address)
        read = asyncio.ensure_future(leader.latest_snapshot())
        successor = await group.leader(tablet_id, others)
        await successor.write_batch(batch_of(ROWS))
        error = await refusal(_await(read))
        assert error.verdict is Verdict.TRY_LATER
        await group.stop()

    simulate(main())


def test_a_snapshot_gives_the_same_rows_on_every_replica_and_later_on(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        await leader.write_batch(batch_of(ROWS))
        at = await leader.latest_snapshot()
        await leader.write_batch(batch_of([(1, 99, "changed")], RowOperation.UPDATE))
        for replica in group.replicas(tablet_id):
            await replica.snapshot_at(at, allow_follower=True)
            assert rows_of(replica, at) == ROWS
            await replica.checkpointer.flush()
            assert rows_of(replica, at) == ROWS
        await group.stop()

    simulate(main())


def test_a_snapshot_ahead_of_the_leaders_clock_moves_it_and_stays_as_it_was(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        await replica.write_batch(batch_of(ROWS))
        at = add_micros(replica._context.hybrid_clock.now(), 5_000_000)
        await replica.snapshot_at(at)
        before = rows_of(replica, at)
        response = await replica.write(a_write(replica, [(77, 7, None)], sequence=9))
        assert response.timestamp > at
        assert rows_of(replica, at) == before
        await group.stop()

    simulate(main())


@pytest.mark.parametrize("seconds", [60, -8 * 24 * 3600])
def test_a_snapshot_too_far_ahead_or_too_old_is_refused(simulate: Simulate, seconds: int):
    async def main() -> None:
        group, _, replica = await single()
        at = add_micros(replica._context.hybrid_clock.now(), seconds * 1_000_000)
        assert (await refusal(replica.snapshot_at(at))).code is ErrorCode.INVALID_SNAPSHOT
        await group.stop()

    simulate(main())


def test_a_follower_waits_until_a_snapshot_is_complete(simulate: Simulate):
    async def main() -> None:
        group = ReplicaGroup(size=3)
        await group.start()
        tablet_id = await group.create()
        leader = await group.leader(tablet_id)
        response = await leader.write(a_write(leader))
        at = HybridTime(response.timestamp)
        for replica in group.replicas(tablet_id):
            await replica.snapshot_at(at, allow_follower=True)
            assert rows_of(replica, at) == ROWS
        await group.stop()

    simulate(main())


def test_what_is_not_running_says_so(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        await replica.stop()
        error = await refusal(replica.write(a_write(replica)))
        assert (error.code, error.verdict) == (ErrorCode.TABLET_NOT_RUNNING, Verdict.TRY_LATER)
        await group.stop()

    simulate(main())


def test_a_write_that_is_decided_in_the_turn_of_its_time_out_is_answered_once(simulate: Simulate):
    async def main() -> None:
        group, _, replica = await single()
        loop = asyncio.get_running_loop()
        at = loop.time() + TESTING_OPTIONS.write_timeout_s
        pending = Round(replica.applied, HybridTime(1), loop.create_future(), 1)
        told: list[object] = []
        loop.call_at(at, pending.future.set_exception, KuduError(ErrorCode.OPERATION_ABORTED, "decided after all"))
        replica._when_decided(pending, told.append)
        await asyncio.sleep(TESTING_OPTIONS.write_timeout_s + 1.0)
        assert len(told) == 1, told
        await group.stop()

    for _ in range(8):  # the order within the turn is drawn
        simulate(main())
