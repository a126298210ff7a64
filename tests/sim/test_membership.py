"""Members of tablets change all the time, whatever else happens, and what was acknowledged holds."""

from __future__ import annotations

import asyncio
import os
from typing import TypeVar

import pytest

from kudu_py.testing import sim_loop
from kudu_py.testing.sim_admin import SimAdmin
from kudu_py.testing.sim_caller import SimCaller
from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_meddler import SimMeddler
from kudu_py.testing.sim_trouble import SimTrouble
from kudu_py.testing.sim_writers import SimWriters

LONG_SEEDS = int(os.environ.get("KUDU_SIM_SEEDS", "2"))


CallerT = TypeVar("CallerT", bound=SimCaller)


async def live_through(cluster: SimCluster, caller_type: type[CallerT], troubles: int) -> CallerT:
    await cluster.start()
    async with cluster.client() as client:
        table = await cluster.create_table(client, "t")
        tablet_ids = [tablet.tablet_id for tablet in await table.tablets()]
        writers, trouble = SimWriters(client, table, cluster.rng), SimTrouble(cluster)
        caller = caller_type(cluster, tablet_ids)
        writers.start()
        caller.start()
        for _ in range(troubles):
            await asyncio.sleep(cluster.rng.random() * 3)
            await trouble.once()
            writers.check_alive()
        await trouble.heal()
        await caller.stop()
        await writers.stop()
        await cluster.settle_members(tablet_ids)
        cluster.check_replicas_agree(tablet_ids)
        await writers.check()
    await cluster.stop()
    assert writers.inserted
    assert writers.reads
    return caller


def administered(seed: int, troubles: int) -> SimAdmin:
    cluster = SimCluster(seed, masters=1 if seed % 2 else 3, tservers=5)
    return sim_loop.run(live_through(cluster, SimAdmin, troubles), seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_holds_while_members_change(seed):
    admin = administered(seed, troubles=4)

    assert admin.done


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 200 + LONG_SEEDS))
def test_what_was_acknowledged_holds_while_members_change_for_long(seed):
    admin = administered(seed, troubles=20)

    assert admin.done


@pytest.mark.parametrize("troubles", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_what_was_acknowledged_holds_whatever_servers_are_told_directly(troubles):
    meddler = sim_loop.run(live_through(SimCluster(5, tservers=5), SimMeddler, troubles), seed=5)

    assert meddler.done["StartTabletCopy"]
    assert meddler.refused
