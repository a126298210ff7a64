"""Long operations begun and ended while others write to the catalog."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TableEntry,
    TableState,
    TabletEntry,
    TabletState,
)
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers
from kudu_py.master.operations import Operations
from kudu_py.master.ts_registry import TsRegistry
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_clock import SimClock

TABLE, OPERATION = TableId("ab" * 16), OperationId("0f" * 16)
OLD, NEW = TabletId("7a" * 16), TabletId("7b" * 16)
SCHEMA = Schema((ColumnSchema("key", DataType.INT64, column_id=0),), key_count=1)
CONFIG = RaftConfig(0, (Member(ServerId("5e" * 16), MemberType.VOTER, "host:7050"),))


class SlowStore:
    """Everything is durable after a second."""

    async def write(self, change: CatalogChange) -> None:
        await asyncio.sleep(1)


def test_cancelling_undoes_no_report_on_a_tablet_that_came_while_it_waited_for_the_table():
    table = TableEntry(TABLE, "t", TableState.RUNNING, SCHEMA, PartitionSchema(), 3, 1)
    tablet = TabletEntry(OLD, TABLE, Partition(()), TabletState.CREATING, CONFIG)
    counting = OperationEntry(
        OPERATION, OperationKind.CHANGE_VOTING_REPLICA_COUNT, table_id=TABLE, count=3, previous_num_replicas=1
    )

    def of(kind: LockKind, key: str) -> LockKey:
        return LockKey(kind, key)

    def replaced(state: CatalogState) -> CatalogChange:
        old = state.tablets[OLD]
        return CatalogChange((old.moved_to(TabletState.REPLACED, ""), replace(old, tablet_id=NEW)))

    def runs(state: CatalogState) -> CatalogChange:
        return CatalogChange((state.tablets[NEW].moved_to(TabletState.RUNNING, ""),))

    async def story() -> None:
        reports: list[asyncio.Task[CatalogChange]] = []

        def on_published(change: CatalogChange) -> None:
            if NEW in {tablet.tablet_id for tablet in change.tablets} and not reports:
                reports.append(asyncio.create_task(committer.commit([of(LockKind.TABLET, NEW)], runs)))

        committer = Committer(SlowStore(), on_published=on_published, on_doubt=lambda term: None)
        committer.begin(1, CatalogState.build(None, [table], [tablet], (), [counting]))
        clock = SimClock()
        operations = Operations(
            committer=committer,
            registry=TsRegistry(started_s=0.0, unresponsive_timeout_s=10.0, settle_s=0.0),
            servers=lambda: Servers((), frozenset()),
            blocked=lambda tablet_id: "",
            clock=clock,
            rng=random.Random(1),
            options=CatalogOptions(),
        )
        locks = [of(LockKind.TABLE, TABLE), of(LockKind.TABLET, OLD)]
        replacing = asyncio.create_task(committer.commit(locks, replaced))
        await asyncio.sleep(0.5)
        cancelled = await operations.cancel(OPERATION)
        await asyncio.gather(replacing, *reports)
        assert cancelled.state is OperationState.CANCELLED
        state = committer.require_reign().state
        assert state.tables[TABLE].num_replicas == 1
        assert state.tablets[NEW].state is TabletState.RUNNING

    for seed in range(5):
        sim_loop.run(story(), seed=seed)
