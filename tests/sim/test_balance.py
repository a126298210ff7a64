"""Whole clusters on virtual time: replicas and leaders spread by themselves while writes go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kudu_py.master.rebalancer import RebalancerOptions
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_writers import SimWriters

OPTIONS = RebalancerOptions(interval_s=1.0, moves_per_server_max=1, cooldown_s=2.0)


def reigns(cluster: SimCluster) -> bool:
    return cluster.masters[0].process.committer.reign is not None


async def become_even(cluster: SimCluster) -> None:
    """Four servers have three replicas each and lead one tablet each, and nothing is under way."""
    async with asyncio.timeout(120):
        while True:
            if reigns(cluster):
                told = await cluster.masters[0].process.rebalancer.balance()
                if [(each.replicas, each.leaders) for each in told.servers] == [(3, 1)] * 4 and not told.holds:
                    return
            await asyncio.sleep(0.1)


def test_an_empty_fourth_server_is_filled_while_writes_go_on_and_the_master_is_killed():
    async def story():
        cluster = SimCluster(1)
        (master,) = cluster.masters
        master.settings = replace(master.settings, rebalancer=OPTIONS)
        await cluster.start()
        async with cluster.client() as client:
            table = await cluster.create_table(client, "t", buckets=4)
            tablet_ids = [tablet.tablet_id for tablet in await table.tablets()]
            writers = SimWriters(client, table, cluster.rng)
            writers.start()
            await cluster.add_tserver().start()
            await cluster.wait_until(lambda: master.process.committer.require_reign().state.open_operations)
            await master.crash()
            await master.restart()
            await become_even(cluster)
            await writers.stop()
            await cluster.settle_members(tablet_ids)
            cluster.check_replicas_agree(tablet_ids)
            await writers.check()
        await cluster.stop()
        assert writers.inserted

    sim_loop.run(story(), seed=1)
