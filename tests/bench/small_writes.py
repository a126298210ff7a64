"""Writes of one row a call: latency of a lone caller, throughput of many."""

from __future__ import annotations

import asyncio
import time

import kudu_py as kudu
from kudu_py.client import aio
from tests.bench import workload
from tests.bench.cluster import CpuMeter, fresh_cluster
from tests.bench.results import Results, percentile

LONE_WRITES = 3_000
CALLERS = 64
CALLS = 120_000
WARM_UP_CALLS = 300


async def run(results: Results, scale: float) -> None:
    """`write_p50_ms`, `write_p99_ms` and `small_writes_per_s`."""
    with fresh_cluster("small_writes") as cluster:
        client = await aio.connect(cluster.masters)
        async with client:
            table = await workload.create_table(client, "small_writes")
            keys = iter(workload.random_keys(int((LONE_WRITES + CALLS) * scale) + 10_000).tolist())
            await write(client, table, [next(keys) for _ in range(WARM_UP_CALLS)])

            taken = await write(client, table, [next(keys) for _ in range(max(100, int(LONE_WRITES * scale)))])
            params = {"callers": 1, "calls": len(taken), "rows_per_call": 1, **workload.TABLE_PARAMS}
            for name, percent, bound_by in (
                (
                    "write_p50_ms",
                    50,
                    "CPU of every process on the way, most of it gRPC's messages; the sync takes a sixth",
                ),
                ("write_p99_ms", 99, "the tail of the disk's syncs, and whatever else the machine runs"),
            ):
                value = percentile(taken, percent) * 1e3
                results.add(name, value, "ms", "lower", bound_by=bound_by, **params)

            await write_concurrently(client, table, [next(keys) for _ in range(CALLERS * 20)])
            calls = max(CALLERS, int(CALLS * scale) // CALLERS * CALLERS)
            sent = [next(keys) for _ in range(calls)]
            meter = CpuMeter(cluster)
            started = time.perf_counter()
            latencies = await write_concurrently(client, table, sent)
            seconds = time.perf_counter() - started
            results.add(
                "small_writes_per_s",
                calls / seconds,
                "calls/s",
                "higher",
                bound_by="server CPU per tablet message, little of it for what it carries",
                callers=CALLERS,
                processes=1,
                calls=calls,
                rows_per_call=1,
                grouped="calls that wait for a tablet while its message is under way share the next one",
                p50_ms=round(percentile(latencies, 50) * 1e3, 2),
                p99_ms=round(percentile(latencies, 99) * 1e3, 2),
                **workload.TABLE_PARAMS,
                **meter.per(calls, "call"),
            )


async def write(client: aio.Client, table: aio.Table, keys: list[int]) -> list[float]:
    """One caller: each row is durable before the next is sent; seconds that each took."""
    session = client.new_session(kudu.FLUSH_AUTO_SYNC)
    taken = []
    for key in keys:
        started = time.perf_counter()
        row = {"key": key, "int_val": key & 0x7FFFFFFF, "string_val": "fifteen letters"}
        await session.apply(table.new_insert(row))
        taken.append(time.perf_counter() - started)
    return taken


async def write_concurrently(client: aio.Client, table: aio.Table, keys: list[int]) -> list[float]:
    """The same by many callers at once, a session each."""
    share = len(keys) // CALLERS
    parts = [keys[i * share : (i + 1) * share] for i in range(CALLERS)]
    taken = await asyncio.gather(*[write(client, table, part) for part in parts])
    return [one for part in taken for one in part]
