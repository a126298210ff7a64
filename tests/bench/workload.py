"""The rows of all figures, those of upstream's `kudu perf loadgen`: `key INT64, int_val INT32, string_val STRING`.

Rows are made before a clock runs, so that figures tell of the cluster and the client and not of NumPy's generator.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

import kudu_py as kudu
from kudu_py.client import aio

HASH_PARTITIONS = 6
REPLICAS = 3
BATCH_ROWS = 10_000
"""Rows of the record batches that a user hands to `session.write`."""

TABLE_PARAMS: dict[str, object] = {
    "columns": "key INT64, int_val INT32, string_val STRING",
    "hash_partitions": HASH_PARTITIONS,
    "replicas": REPLICAS,
    "tablet_servers": 3,
}


async def create_table(client: aio.Client, name: str, *, hash_partitions: int = HASH_PARTITIONS) -> aio.Table:
    """An empty table for the rows; every tablet has a leader on return."""
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("int_val").type(kudu.int32).nullable(False)
    builder.add_column("string_val").type(kudu.string)
    partitioning = kudu.Partitioning()
    if hash_partitions > 1:
        partitioning.add_hash_partitions(["key"], hash_partitions)
    return await client.create_table(name, builder.build(), partitioning, n_replicas=REPLICAS)


def sequential_keys(count: int) -> np.ndarray:
    """0, 1, 2, ..."""
    return np.arange(count, dtype=np.int64)


def random_keys(count: int, *, seed: int = 1) -> np.ndarray:
    """Distinct keys without order over all of INT64: an odd multiple is a bijection modulo 2^64."""
    start = np.uint64(np.random.default_rng(seed).integers(0, 2**63))
    scattered = (np.arange(count, dtype=np.uint64) + start) * np.uint64(0x9E3779B97F4A7C15)
    return (scattered ^ (scattered >> np.uint64(32))).view(np.int64)


def batches(keys: np.ndarray, *, batch_rows: int = BATCH_ROWS) -> list[pa.RecordBatch]:
    """The rows of these keys; a string of 15 characters each, as wide as loadgen's."""
    rng = np.random.default_rng(2)
    strings = pa.array([f"string-{i:08d}" for i in range(100_000)])
    made = []
    for first in range(0, len(keys), batch_rows):
        part = keys[first : first + batch_rows]
        columns = [
            pa.array(part),
            pa.array(rng.integers(0, 2**31 - 1, len(part), dtype=np.int32)),
            strings.take(pa.array(rng.integers(0, len(strings), len(part)))),
        ]
        made.append(pa.RecordBatch.from_arrays(columns, names=["key", "int_val", "string_val"]))
    return made


async def ingest(client: aio.Client, table: aio.Table, rows: Iterable[pa.RecordBatch]) -> None:
    """Inserts all rows as a user with batches at hand would: one session, one batch after another, one flush."""
    session = client.new_session(kudu.FLUSH_AUTO_BACKGROUND)
    for batch in rows:
        await session.write(table, batch, "insert")
    await session.flush()
