"""Builders of catalog values: small, with a default for all that a test does not care about."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import HashLevel, Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import TabletEntry, TabletState
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.placement import Candidate
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import NewTable, Servers, plan_create_table


@dataclass(frozen=True)
class Make:
    """Builders; ids are readable and legal."""

    @staticmethod
    def server(n: int) -> ServerId:
        return ServerId(f"5e{n:030x}")

    @staticmethod
    def tablet_id(n: int) -> TabletId:
        return TabletId(f"7a{n:030x}")

    @staticmethod
    def table_id(n: int) -> TableId:
        return TableId(f"ab{n:030x}")

    @staticmethod
    def candidates(count: int) -> tuple[Candidate, ...]:
        return tuple(Candidate(Make.server(n), f"host{n}:7050") for n in range(1, count + 1))

    @staticmethod
    def servers(count: int, *, settling: bool = False) -> Servers:
        live = Make.candidates(count)
        return Servers(live, frozenset(c.uuid for c in live), settling)

    @staticmethod
    def config(members: Sequence[int], index: int = 0) -> RaftConfig:
        return RaftConfig(
            index, tuple(Member(Make.server(n), MemberType.VOTER, f"host{n}:7050") for n in sorted(members))
        )

    @staticmethod
    def schema() -> Schema:
        return Schema(
            (ColumnSchema("key", DataType.INT64), ColumnSchema("value", DataType.STRING, nullable=True)), key_count=1
        )

    @staticmethod
    def new_table(name: str = "t", buckets: int = 4, num_replicas: int = 3) -> NewTable:
        levels = (HashLevel(("key",), buckets),) if buckets else ()
        return NewTable(name, Make.schema(), PartitionSchema(levels), num_replicas=num_replicas)

    @staticmethod
    def created(
        state: CatalogState, request: NewTable | None = None, *, servers: int = 3, seed: int = 1
    ) -> tuple[CatalogState, CatalogChange]:
        change = plan_create_table(
            state,
            request or Make.new_table(),
            servers=Make.servers(servers),
            options=CatalogOptions(),
            rng=random.Random(seed),
            now_micros=1_000_000,
        )
        return state.applying(change), change

    @staticmethod
    def tablet(
        n: int = 1, *, state: TabletState = TabletState.RUNNING, members: Sequence[int] = (1, 2, 3), index: int = 0
    ) -> TabletEntry:
        return TabletEntry(Make.tablet_id(n), Make.table_id(1), Partition((n,)), state, Make.config(members, index))


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def plan(make: Make) -> Callable[..., CatalogChange]:
    """`plan_create_table` with three servers, default options and a fixed seed."""

    def run(request: NewTable, **given: object) -> CatalogChange:
        arguments: dict[str, object] = {
            "servers": make.servers(3), "options": CatalogOptions(), "rng": random.Random(7), "now_micros": 5,
        }  # fmt: skip
        state = given.pop("state", CatalogState())
        return plan_create_table(state, request, **{**arguments, **given})

    return run
