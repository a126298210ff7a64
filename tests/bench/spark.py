"""Spark writes and scans through the data source, in a Spark of its own process."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys

from kudu_py.client import aio
from spark_connector import java_runtime
from tests.bench import workload
from tests.bench.cluster import DIRECTORY, fresh_cluster
from tests.bench.results import ROOT, Results

ROWS = 3_000_000
TIMEOUT_S = 600


async def run(results: Results, scale: float) -> None:
    """`spark_write_rows_per_s` and `spark_scan_rows_per_s`."""
    rows = max(10_000, int(ROWS * scale))
    with fresh_cluster("spark") as cluster:
        client = await aio.connect(cluster.masters)
        async with client:
            await workload.create_table(client, "spark")
        timings = await asyncio.to_thread(_run_job, cluster.masters, rows)
    params = {"rows": rows, "master": "local[2]", "settings": "spark_connector.configure", **workload.TABLE_PARAMS}
    results.add(
        "spark_write_rows_per_s",
        rows / statistics.median(timings["write"]),
        "rows/s",
        "higher",
        bound_by="CPU of both cores: Spark makes rows and turns them into Arrow beside the client and the servers",
        operation="upsert, into a table that has the rows but for the first time",
        input_partitions=4,
        times_s=timings["write"],
        **params,
    )
    results.add(
        "spark_scan_rows_per_s",
        rows / statistics.median(timings["scan"]),
        "rows/s",
        "higher",
        bound_by="CPU of both cores, three fifths of it the JVM's: rows out of Arrow batches, the query, compiling",
        query="count, and sums over all three columns; a fresh load() each",
        warm_up_times_s=timings["scan_warm_up"],
        times_s=timings["scan"],
        **params,
    )


def _run_job(masters: str, rows: int) -> dict[str, list[float]]:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    environment = {**java_runtime.spark_environment(DIRECTORY / "java"), "PYTHONPATH": str(ROOT)}
    report = DIRECTORY / "spark.json"
    log = DIRECTORY / "spark.log"
    command = [sys.executable, "-m", "tests.bench.spark_job", masters, "spark", str(rows), str(report)]
    with log.open("w") as output:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"the Spark job ended with status {done.returncode}, see {log}")
    return json.loads(report.read_text())
