"""What is flushed next, and that it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.common.row_batch import RowOperation
from kudu_py.tablet import quarantine
from kudu_py.tablet.compaction import CompactionOptions
from kudu_py.tablet.quarantine import QuarantineOptions
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.testing.replica_group import TESTING_OPTIONS, batch_of, request_of
from kudu_py.testing.sim_tserver import TESTING_SETTINGS
from kudu_py.tserver.maintenance import FlushNeed, MaintenanceOptions, choose_flush

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
OPTIONS = MaintenanceOptions(flush_age_s=120, flush_age_bytes_min=1000, flush_age_max_s=3600)


def need(name: str, unflushed_bytes: int, *, wants_flush: bool = False, age_s: float = 0) -> FlushNeed:
    return FlushNeed(TabletId(name), unflushed_bytes, wants_flush, age_s)


@pytest.mark.parametrize(
    ("needs", "is_under_pressure", "chosen"),
    [
        ([], True, None),
        ([need("a", 0, age_s=9999)], True, None),
        ([need("a", 10), need("b", 20)], False, None),
        ([need("a", 10), need("b", 20)], True, "b"),
        ([need("a", 900, wants_flush=True), need("b", 500, wants_flush=True), need("c", 2000)], False, "a"),
        ([need("a", 900, wants_flush=True), need("c", 2000)], True, "c"),
        ([need("a", 999, age_s=200), need("b", 1000, age_s=121), need("c", 5000, age_s=119)], False, "b"),
        ([need("a", 1, age_s=3600), need("b", 1000, age_s=3000)], False, "a"),
        ([need("a", 1000, age_s=9000), need("b", 10, wants_flush=True)], False, "b"),
    ],
)
def test_what_is_flushed_next(needs: list[FlushNeed], is_under_pressure: bool, chosen: str | None):
    assert choose_flush(needs, OPTIONS, is_under_pressure=is_under_pressure) == chosen


def test_memory_stays_bounded_while_writes_go_on(simulate: Simulate, serving: Any):
    settings = replace(
        TESTING_SETTINGS,
        replica=replace(TESTING_OPTIONS, tablet=TabletOptions(flush_bytes=200_000)),
        maintenance=MaintenanceOptions(poll_s=0.01),
    )

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            server = servers.servers[0].tablet_server
            highest = 0
            for step in range(60):
                await asyncio.sleep(0.02)
                rows = [(key, key, "x" * 40) for key in range(step * 500, step * 500 + 500)]
                await stub.Write(request_of(tablet_id, batch_of(rows)))
                highest = max(highest, server.memory.used_bytes)
            assert server.maintenance.flushes >= 3
            assert highest < 1_500_000
            assert server.manager.replica(tablet_id).tablet.row_count == 30_000

    simulate(main())


def test_old_rows_are_flushed_however_few(simulate: Simulate, serving: Any):
    settings = replace(TESTING_SETTINGS, maintenance=MaintenanceOptions(flush_age_max_s=30.0))

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id = await servers.create()
            await servers.stub().Write(request_of(tablet_id, batch_of([(1, 1, None)])))
            await asyncio.sleep(29.0)
            assert servers.servers[0].tablet_server.maintenance.flushes == 0
            await asyncio.sleep(2.0)
            assert servers.servers[0].tablet_server.maintenance.flushes == 1

    simulate(main())


def test_damage_that_upkeep_finds_fails_the_replica_and_not_the_process(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(settings=TESTING_SETTINGS) as servers:
            tablet_id = await servers.create()
            server = servers.servers[0].tablet_server
            replica = server.manager.replica(tablet_id)

            async def compact() -> bool:
                raise KuduError(ErrorCode.CORRUPTION, "a chunk is damaged")

            replica.checkpointer.compact = compact
            await servers.stub().Write(request_of(tablet_id, batch_of([(1, 1, None)])))
            await replica.checkpointer.flush()
            await asyncio.sleep(5.0)
            assert replica.state is ReplicaState.FAILED
            assert server.maintenance.flushes == 0
            await servers.create()  # serves on, and its upkeep goes on
            assert server.is_serving

    simulate(main())


def test_upkeep_that_finds_no_room_says_so_once_and_goes_on_when_there_is(simulate: Simulate, serving: Any):
    settings = replace(TESTING_SETTINGS, maintenance=MaintenanceOptions(flush_age_max_s=1.0))

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id = await servers.create()
            server, disk = servers.servers[0].tablet_server, servers.servers[0].disk
            await servers.stub().Write(request_of(tablet_id, batch_of([(1, 1, None)])))
            disk.capacity_bytes = 1 << 20
            await asyncio.sleep(60.0)
            assert server.maintenance.flushes == 0
            disk.capacity_bytes = None
            await asyncio.sleep(15.0)
            assert server.maintenance.flushes == 1
            assert server.is_serving

    with structlog.testing.capture_logs() as events:
        simulate(main())
    told = [event for event in events if event["event"].startswith("maintenance_")]
    assert [(event["event"], event["what"]) for event in told] == [
        ("maintenance_postponed", "flush"),
        ("maintenance_resumed", "flush"),
    ]
    assert "are free, of which" in told[0]["error"]


def test_a_compaction_that_finds_no_room_holds_no_flush_up(simulate: Simulate, serving: Any):
    """A flush may use what a compaction leaves free, and memory must not grow for a compaction that nobody needs."""
    settings = replace(
        TESTING_SETTINGS,
        replica=replace(TESTING_OPTIONS, tablet=TabletOptions(compaction=CompactionOptions(rowsets_min=3))),
        maintenance=MaintenanceOptions(flush_age_max_s=1.0, full_retry_s=10.0),
    )

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            server, disk = servers.servers[0].tablet_server, servers.servers[0].disk
            replica = server.manager.replica(tablet_id)
            for step in range(3):
                await stub.Write(request_of(tablet_id, batch_of([(step, 1, None)])))
                await replica.checkpointer.flush()
            await stub.Write(request_of(tablet_id, batch_of([(3, 1, None)])))
            assert server.maintenance.compactions == 0
            reserved_bytes = settings.replica.wal.disk_reserved_bytes
            disk.capacity_bytes = 1 << 40
            disk.capacity_bytes += reserved_bytes * 3 // 4 - disk.free_bytes("/")
            await asyncio.sleep(5.0)
            assert (server.maintenance.flushes, server.maintenance.compactions) == (1, 0)
            disk.capacity_bytes = None
            await asyncio.sleep(10.0)
            assert server.maintenance.compactions > 0

    simulate(main())


def test_a_replica_that_always_has_something_to_compact_takes_its_turn(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(settings=TESTING_SETTINGS) as servers:
            manager = servers.servers[0].tablet_server.manager
            turns: list[str] = []
            for tablet_id in [await servers.create() for _ in range(3)]:

                async def compact(tablet_id: str = tablet_id) -> bool:
                    turns.append(tablet_id)
                    await asyncio.sleep(1.0)
                    return True

                manager.replica(tablet_id).checkpointer.compact = compact
            await asyncio.sleep(30.0)
            assert len(set(turns[-3:])) == 3
            assert turns[-6:-3] == turns[-3:]

    simulate(main())


def test_upkeep_remembers_nothing_of_replicas_that_were_deleted(simulate: Simulate, serving: Any):
    settings = replace(TESTING_SETTINGS, maintenance=MaintenanceOptions(room_s=1.0, full_retry_s=1e9))

    async def main() -> None:
        async with serving(settings=settings) as servers:
            server, disk = servers.servers[0].tablet_server, servers.servers[0].disk
            for _ in range(3):
                tablet_id = await servers.create()
                await servers.stub().Write(request_of(tablet_id, batch_of([(1, 1, None)])))
                disk.capacity_bytes = 1 << 20
                server.memory.change(1 << 40)  # so that it is to be flushed at once, and finds no room
                await asyncio.sleep(2.0)
                server.memory.change(-(1 << 40))
                disk.capacity_bytes = None
                await server.manager.delete_tablet(tablet_id)
            upkeep = server.maintenance
            assert upkeep._in_good_order
            await asyncio.sleep(2.0)
            noted = (upkeep._in_good_order, upkeep._unflushed_since, upkeep._left_alone_until, upkeep._out_of_room)
            assert [len(notes) for notes in noted] == [0, 0, 0, 0]

    simulate(main())


def test_files_that_pile_up_are_compacted(simulate: Simulate, serving: Any):
    settings = replace(
        TESTING_SETTINGS,
        replica=replace(TESTING_OPTIONS, tablet=TabletOptions(compaction=CompactionOptions(rowsets_min=3))),
    )

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            server = servers.servers[0].tablet_server
            replica = server.manager.replica(tablet_id)
            for step in range(6):
                rows = [(key, step, None) for key in range(step * 50, step * 50 + 100)]
                await stub.Write(request_of(tablet_id, batch_of(rows, RowOperation.UPSERT)))
                await replica.checkpointer.flush()
            await asyncio.sleep(5.0)
            assert server.maintenance.compactions > 0
            assert len(replica.tablet.records.rowsets) < 3
            assert replica.tablet.row_count == 350

    simulate(main())


def test_what_deleted_replicas_left_is_purged_in_time(simulate: Simulate, serving: Any):
    settings = replace(
        TESTING_SETTINGS,
        replica=replace(TESTING_SETTINGS.replica, quarantine=QuarantineOptions(retention_s=60.0)),
        maintenance=MaintenanceOptions(room_s=1.0),
    )

    async def main() -> None:
        async with serving(settings=settings) as servers:
            tablet_id = await servers.create()
            manager, disk = servers.servers[0].tablet_server.manager, servers.servers[0].disk
            await manager.delete_tablet(tablet_id)
            await asyncio.sleep(30)
            assert len(quarantine.entries(disk, manager.context.directories)) == 1
            await asyncio.sleep(32)
            assert quarantine.entries(disk, manager.context.directories) == []

    simulate(main())
