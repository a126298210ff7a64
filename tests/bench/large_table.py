"""Ten million rows: what a server's memory grows to while they come, and how fast a client reads them all."""

from __future__ import annotations

import asyncio
import statistics
import time

from kudu_py.client import aio
from kudu_py.testing.process_cluster import ProcessCluster
from tests.bench import workload
from tests.bench.cluster import CpuMeter, fresh_cluster, metric, option, peak_rss_bytes, tablet_servers
from tests.bench.results import Results

ROWS = 10_000_000
SCANS = 5
FLUSH_AGE_S = 5
FLUSH_WAIT_S = 120


async def run(results: Results, scale: float) -> None:
    """`tserver_peak_rss_bytes` and `scan_rows_per_s`."""
    rows = max(workload.BATCH_ROWS, int(ROWS * scale))
    flags = [f"--flush_threshold_secs={FLUSH_AGE_S}"]  # else the last rows stay in memory for two minutes
    with fresh_cluster("large_table", flags=flags) as cluster:
        client = await aio.connect(cluster.masters)
        async with client:
            table = await workload.create_table(client, "large_table")
            batches = workload.batches(workload.random_keys(rows))
            started = time.perf_counter()
            await workload.ingest(client, table, batches)
            seconds = time.perf_counter() - started
            servers = tablet_servers(cluster)
            results.add(
                "tserver_peak_rss_bytes",
                max(peak_rss_bytes(server) for server in servers),
                "bytes",
                "lower",
                bound_by="unflushed rows and the copies that a flush makes of them; Python and its libraries take "
                "150 MB before the first row",
                rows=rows,
                key_order="random",
                batch_rows=workload.BATCH_ROWS,
                memory_limit_bytes=int(option(servers[0], "memory_limit_bytes")),
                ingest_rows_per_s=round(rows / seconds),
                **workload.TABLE_PARAMS,
            )
            del batches
            await _flushed(cluster)
            await _measure_scan(results, cluster, table, rows)


async def _flushed(cluster: ProcessCluster) -> None:
    """Waits until (nearly) all rows are in files; what is below a megabyte a tablet is left in memory."""
    deadline = time.monotonic() + FLUSH_WAIT_S
    while any(metric(server, "kudu_tablet_memory_bytes") > 1 << 20 for server in tablet_servers(cluster)):
        assert time.monotonic() < deadline, "rows are not flushed"
        await asyncio.sleep(0.5)
    # Compactions that follow the flushes end as well, so that the scans have the machine.
    done = -1.0
    while done != (
        done := sum(metric(server, "kudu_maintenance_compactions_total") for server in tablet_servers(cluster))
    ):
        assert time.monotonic() < deadline, "compaction does not end"
        await asyncio.sleep(3)


async def _measure_scan(results: Results, cluster: ProcessCluster, table: aio.Table, rows: int) -> None:
    taken = []
    meter = CpuMeter(cluster)
    for _ in range(SCANS):
        started = time.perf_counter()
        seen = size = 0
        async for batch in table.scanner().record_batches():
            seen += batch.num_rows
            size += batch.nbytes
        taken.append(time.perf_counter() - started)
        assert seen == rows, f"{seen} of {rows} rows"
    results.add(
        "scan_rows_per_s",
        rows / statistics.median(taken),
        "rows/s",
        "higher",
        bound_by="copies of the rows: from the file into an answer, through gRPC and the kernel twice, and out again",
        rows=rows,
        columns_read=3,
        bytes_per_row=round(size / rows, 1),
        scans=SCANS,
        clients=1,
        flushed=True,
        **workload.TABLE_PARAMS,
        **meter.per(rows * SCANS, "row"),
    )
