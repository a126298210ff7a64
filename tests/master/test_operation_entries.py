"""Operations and modes of servers in the sys catalog: what is published is what a reload finds."""

from __future__ import annotations

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import (
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TabletServerEntry,
    TabletServerMode,
)


def state(world):
    return world.master.process.committer.require_reign().state


async def reloaded(world):
    return await world.master.process.sys_catalog.load()


async def commit(world, change: CatalogChange) -> None:
    await world.master.process.committer.commit([], lambda state: change)


def test_operations_of_every_kind_and_modes_survive_a_restart(simulate):
    async def story(world):
        one, two, tablet = ServerId("a" * 32), ServerId("b" * 32), TabletId("c" * 32)
        operations = tuple(
            OperationEntry(
                OperationId(f"{n:032x}"),
                kind,
                state=OperationState.FAILED,
                tablet_id=tablet,
                from_=one,
                to=two,
                server=two,
                count=n,
                by_admin=bool(n % 2),
                created_micros=n,
                ended_micros=n + 1,
                error="no",
                previous_wanted_voters={tablet: 4},
                previous_num_replicas=3,
                previous_mode=TabletServerMode.MAINTENANCE,
            )
            for n, kind in enumerate(OperationKind)
        )
        modes = tuple(TabletServerEntry(ServerId(f"{n:032x}"), mode, n) for n, mode in enumerate(TabletServerMode))
        await commit(world, CatalogChange(operations=operations, servers=modes))
        before = state(world)
        await world.master.crash()
        await world.master.restart()
        await world.reigning()
        assert state(world) == before
        assert tuple(before.operations.values()) == operations
        assert tuple(before.servers.values()) == modes

    simulate(story, beats=False)


def test_a_forgotten_operation_is_gone_with_all_its_parts(simulate):
    async def story(world):
        many = {TabletId(f"{n:032x}"): 3 for n in range(4000)}
        large, small = (
            OperationEntry(
                OperationId(f"{n:032x}"),
                OperationKind.CHANGE_VOTING_REPLICA_COUNT,
                state=OperationState.DONE,
                previous_wanted_voters=previous,
            )
            for n, previous in enumerate([many, {}])
        )
        await commit(world, CatalogChange(operations=(large, small)))
        assert await reloaded(world) == state(world)
        await commit(world, CatalogChange(forgotten=(large.operation_id,)))
        assert await reloaded(world) == state(world)
        assert list(state(world).operations) == [small.operation_id]

    simulate(story, beats=False)
