"""Batched ingest: rows a second from a client's record batches to durable on a majority and applied."""

from __future__ import annotations

import time

import pyarrow as pa

from kudu_py.client import aio
from tests.bench import workload
from tests.bench.cluster import CpuMeter, fresh_cluster
from tests.bench.results import Results

ROWS = 2_000_000
BOUND_BY = (
    "CPU of both cores: client and three servers share them, see the CPU per row; on the servers it goes to gRPC's "
    "copies, the log's checksums and writes, and the row engine's probes and appends"
)


async def run(results: Results, scale: float) -> None:
    """`ingest_sequential_rows_per_s` and `ingest_random_rows_per_s`."""
    rows = max(workload.BATCH_ROWS, int(ROWS * scale))
    await _measure(results, "ingest_sequential_rows_per_s", workload.batches(workload.sequential_keys(rows)))
    await _measure(results, "ingest_random_rows_per_s", workload.batches(workload.random_keys(rows)))


async def _measure(results: Results, name: str, batches: list[pa.RecordBatch]) -> None:
    rows = sum(batch.num_rows for batch in batches)
    with fresh_cluster(name) as cluster:
        client = await aio.connect(cluster.masters)
        async with client:
            # Connections, leaders and code paths warm, as in a client that has been running.
            warm = workload.batches(workload.random_keys(100_000, seed=7))
            await workload.ingest(client, await workload.create_table(client, "warm"), warm)
            table = await workload.create_table(client, name)
            meter = CpuMeter(cluster)
            started = time.perf_counter()
            await workload.ingest(client, table, batches)
            seconds = time.perf_counter() - started
            cpu = meter.per(rows, "row")
            assert await table.scanner().count() == rows
    results.add(
        name,
        rows / seconds,
        "rows/s",
        "higher",
        bound_by=BOUND_BY,
        rows=rows,
        batch_rows=workload.BATCH_ROWS,
        grouped="each batch is split by tablet; pieces that wait for a tablet share a message of at most 16,384 rows",
        clients=1,
        **workload.TABLE_PARAMS,
        **cpu,
    )
