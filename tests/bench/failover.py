"""How long a client's writes stand still when the server that leads their tablet is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time

import kudu_py as kudu
from kudu_py.client import aio
from kudu_py.testing.process_cluster import ProcessCluster, run_command
from tests.bench import workload
from tests.bench.cluster import fresh_cluster
from tests.bench.results import Results

KILLS = 10
HEALTHY_WAIT_S = 60


class _Writer:
    """Writes one row after another without a pause, and knows when each was begun and acknowledged."""

    def __init__(self, client: aio.Client, table: aio.Table) -> None:
        self._client, self._table = client, table
        self.last: tuple[float, float] = (0.0, 0.0)

    async def run(self) -> None:
        session = self._client.new_session(kudu.FLUSH_AUTO_SYNC)
        for key in range(10**9):
            begun = time.perf_counter()
            await session.apply(self._table.new_upsert({"key": key % 1000, "int_val": 0, "string_val": "x"}))
            self.last = (begun, time.perf_counter())

    async def first_after(self, moment: float) -> float:
        """When the first row that was begun after `moment` was acknowledged."""
        while self.last[0] < moment:  # noqa: ASYNC110  # a wait of a tenth of a percent of what is measured
            await asyncio.sleep(0.001)
        return self.last[1]


async def run(results: Results, scale: float) -> None:
    """`failover_s`."""
    kills = max(1, round(KILLS * scale))
    with fresh_cluster("failover") as cluster:
        async with await aio.connect(cluster.masters) as client:
            taken = await gaps(cluster, client, kills)
    results.add(
        "failover_s",
        statistics.median(taken),
        "s",
        "lower",
        bound_by="the election timeout: three missed heartbeats of 300 ms and a random share; the rest is milliseconds",
        kills=kills,
        slowest_s=round(max(taken), 3),
        fastest_s=round(min(taken), 3),
        measured="from kill -9 to the acknowledgement of a row sent after it, one caller writing all the time",
        **{**workload.TABLE_PARAMS, "hash_partitions": 1},
    )


async def gaps(cluster: ProcessCluster, client: aio.Client, kills: int) -> list[float]:
    """Kills the leader's server so often, each time with all replicas well, while a caller writes; seconds without."""
    table = await workload.create_table(client, "failover", hash_partitions=1)
    writer = _Writer(client, table)
    writing = asyncio.create_task(writer.run())
    taken = []
    for _ in range(kills):
        await asyncio.sleep(1)
        taken.append(await _kill_leader(cluster, client, table, writer))
        assert not writing.done(), writing
    writing.cancel()
    return taken


async def _kill_leader(cluster: ProcessCluster, client: aio.Client, table: aio.Table, writer: _Writer) -> float:
    (tablet,) = await table.tablets()
    # Writes go on, so the client knows who leads now, whatever the master has heard.
    address = client.cache.leader(tablet.tablet_id)
    leader = next(daemon for daemon in cluster.daemons if daemon.rpc_address == address)
    os.kill(leader.pid, signal.SIGKILL)
    killed = time.perf_counter()
    gap = await writer.first_after(killed) - killed
    await asyncio.to_thread(cluster.restart, leader.name)
    await asyncio.to_thread(_await_healthy, cluster)
    return gap


def _await_healthy(cluster: ProcessCluster) -> None:
    deadline = time.monotonic() + HEALTHY_WAIT_S
    while run_command("cluster", "ksck", cluster.masters, check=False).returncode != 0:
        assert time.monotonic() < deadline, "the cluster does not get well"
        time.sleep(0.2)
