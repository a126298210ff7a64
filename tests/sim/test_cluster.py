"""Whole clusters on virtual time: whatever happens to servers and network, what was acknowledged holds."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence

import pytest

from kudu_py.testing import sim_disk, sim_loop
from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_trouble import SimTrouble
from kudu_py.testing.sim_writers import SimWriters

TROUBLES = 6
LONG_SEEDS = int(os.environ.get("KUDU_SIM_SEEDS", "2"))
FOUND_SOMETHING = {154}
"""Long seeds that found a fault: 154, a server restarted with its clock set back was taken for an older process."""


async def live_through(
    seed: int, troubles: int = TROUBLES, kinds: Sequence[str] = (), survival: float | None = None
) -> None:
    cluster = SimCluster(seed)
    if survival is not None:
        for node in cluster.nodes:
            node.disk.survival = survival if node in cluster.tservers else 1.0
    await cluster.start()
    async with cluster.client() as client:
        table = await cluster.create_table(client, "t")
        tablet_ids = [tablet.tablet_id for tablet in await table.tablets()]
        writers = SimWriters(client, table, cluster.rng)
        trouble = SimTrouble(cluster, kinds)
        writers.start()
        for _ in range(troubles):
            await asyncio.sleep(cluster.rng.random() * 2)
            await trouble.once()
            writers.check_alive()
        await trouble.heal()
        await cluster.settle(tablet_ids, at_rest=False)
        await writers.stop()
        await cluster.settle(tablet_ids)
        cluster.check_replicas_agree(tablet_ids)
        await writers.check()
    await cluster.stop()
    assert writers.inserted
    assert writers.reads


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_holds_whatever_happens(seed):
    sim_loop.run(live_through(seed), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted({*range(100, 100 + LONG_SEEDS)} | FOUND_SOMETHING))
def test_what_was_acknowledged_holds_whatever_happens_for_long(seed):
    sim_loop.run(live_through(seed, troubles=20), seed=seed)


def test_a_log_that_leaves_out_most_of_its_syncs_is_found_out(monkeypatch):
    writes = itertools.count()

    def write_and_seldom_sync(file, offset, buffers):
        file.write(offset, buffers)
        if next(writes) % 32 == 0:
            file.sync()

    monkeypatch.setattr(sim_disk, "write_then_sync", write_and_seldom_sync)

    with pytest.raises(AssertionError, match=r"acknowledged rows are gone|was acknowledged before"):
        sim_loop.run(live_through(1, troubles=2, kinds=("crash_all",), survival=0.0), seed=1)
