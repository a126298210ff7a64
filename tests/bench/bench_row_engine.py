"""What the row engine costs: µs per applied row, flush, compaction, scan and digest rates, of one tablet on one core.

    .venv/bin/python tests/bench/bench_row_engine.py [rows]

Rows are `key INT64, int_val INT32, string_val STRING(15)`. Reads the process's CPU time, so other load matters less.
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np
import pyarrow as pa

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet import Tablet, TabletOptions
from kudu_py.testing.tablet_rig import SIMPLE_SCHEMA

_STRING_KEYS = Schema(
    (
        ColumnSchema("tenant", DataType.STRING, column_id=0),
        ColumnSchema("id", DataType.STRING, column_id=1),
        ColumnSchema("int_val", DataType.INT32, nullable=True, column_id=2),
    ),
    key_count=2,
)


class _Bench:
    def __init__(self, schema: Schema, flush_bytes: int = 64 << 20) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.disk = PosixDisk()
        self.tablet = Tablet.open(
            schema=schema, options=TabletOptions(flush_bytes=flush_bytes), directory=self.directory.name, disk=self.disk
        )
        self.schema = schema
        self.index = 0
        self.rng = np.random.default_rng(1)
        self.strings = pa.array([f"string-{i:08d}" for i in range(100_000)])
        self.tenants = pa.array([f"tenant-{i:04d}" for i in range(500)])

    def simple(self, operation: RowOperation, keys: np.ndarray) -> RowBatch:
        n = len(keys)
        values = pa.array(self.rng.integers(0, 2**31 - 1, n, dtype=np.int32))
        strings = self.strings.take(pa.array(self.rng.integers(0, 100_000, n)))
        rows = pa.RecordBatch.from_arrays([pa.array(keys), values, strings], names=["key", "int_val", "string_val"])
        return RowBatch(self.schema, np.full(n, operation, np.uint8), rows, (0, 1, 2))

    def composite(self, operation: RowOperation, keys: np.ndarray) -> RowBatch:
        n = len(keys)
        ids = pa.array([f"{key & (2**64 - 1):016x}" for key in keys.tolist()])
        tenants = self.tenants.take(pa.array(keys.view(np.uint64) % np.uint64(500)))
        rows = pa.RecordBatch.from_arrays(
            [tenants, ids, pa.array(np.arange(n, dtype=np.int32))], names=list(self.schema.names)
        )
        return RowBatch(self.schema, np.full(n, operation, np.uint8), rows, (0, 1, 2))

    def apply(self, batches: list[RowBatch]) -> float:
        begin = time.process_time()
        for batch in batches:
            self.index += 1
            self.tablet.apply(batch, HybridTime(self.index), OpId(1, self.index))
        return time.process_time() - begin

    def flush(self) -> float:
        begin = time.process_time()
        result = self.tablet.begin_flush().run(self.disk)
        self.tablet.records_after(result)
        self.tablet.finish(result)
        return time.process_time() - begin

    def ingest(self, make: object, operation: RowOperation, keys: np.ndarray, size: int) -> tuple[float, float]:
        """µs per row of apply and of flush."""
        applied = flushed = 0.0
        for first in range(0, len(keys), 100_000):
            part = keys[first : first + 100_000]
            batches = [make(operation, part[i : i + size]) for i in range(0, len(part), size)]
            applied += self.apply(batches)
            if self.tablet.wants_flush:
                flushed += self.flush()
        return applied / len(keys) * 1e6, flushed / len(keys) * 1e6

    def compact(self) -> float:
        begin = time.process_time()
        while (plan := self.tablet.begin_compaction(HybridTime(self.index))) is not None:
            result = plan.run(self.disk)
            self.tablet.records_after(result)
            for file in self.tablet.finish(result):
                self.disk.unlink(f"{self.directory.name}/{file.name}")
        return time.process_time() - begin

    def scan(self, **more: object) -> tuple[int, int, float]:
        spec = ScanSpec(timestamp=HybridTime(self.index), **more)
        begin = time.process_time()
        rows = batches = 0
        for batch in self.tablet.scan(spec):
            rows += batch.num_rows
            batches += 1
        return rows, batches, time.process_time() - begin


def _show(name: str, value: float, unit: str) -> None:
    print(f"{name:62s} {value:10.3f} {unit}", flush=True)


def _random(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(-(2**63), 2**63 - 1, n)


def _writes(n: int) -> None:
    for size in (1, 8, 64, 1_700, 10_000):
        rows = min(n, size * 3_000)
        bench = _Bench(SIMPLE_SCHEMA)
        applied, _ = bench.ingest(bench.simple, RowOperation.INSERT, np.arange(rows), size)
        _show(f"insert, sequential INT64 key, batches of {size}", applied, "µs/row")
        bench = _Bench(SIMPLE_SCHEMA)
        applied, _ = bench.ingest(bench.simple, RowOperation.INSERT, _random(bench.rng, rows), size)
        _show(f"insert, random INT64 key, batches of {size}", applied, "µs/row")
    bench = _Bench(_STRING_KEYS)
    applied, _ = bench.ingest(bench.composite, RowOperation.INSERT, _random(bench.rng, min(n, 500_000)), 1_700)
    _show("insert, random key of two strings, batches of 1,700", applied, "µs/row")


def _reads(n: int) -> None:
    bench = _Bench(SIMPLE_SCHEMA)
    keys = _random(bench.rng, n)
    applied, flushed = bench.ingest(bench.simple, RowOperation.INSERT, keys, 1_700)
    _show(f"insert {n} random with flushes: apply", applied, "µs/row")
    _show(f"insert {n} random with flushes: flush (worker)", flushed, "µs/row")
    _show(
        f"memory per row on disk ({len(bench.tablet.records.rowsets)} rowsets)",
        bench.tablet.resident_bytes / n,
        "bytes",
    )
    _scans(bench, "before compaction")
    half = np.concatenate([bench.rng.choice(keys, n // 20), _random(bench.rng, n // 20)])
    bench.rng.shuffle(half)
    applied, _ = bench.ingest(bench.simple, RowOperation.UPSERT, half, 1_700)
    _show("upsert, half hits, on all that", applied, "µs/row")
    _show("flush of that", bench.flush() / len(half) * 1e6, "µs/row")
    _scans(bench, "with 5 % updated")
    _show("compaction, until there is nothing to gain", bench.compact() / n * 1e6, "µs/row")
    _scans(bench, f"after compaction, {len(bench.tablet.records.rowsets)} rowsets")
    _show("on disk", bench.tablet.on_disk_bytes / n, "bytes/row")
    begin = time.process_time()
    Tablet.open(
        schema=bench.schema,
        options=TabletOptions(),
        directory=bench.directory.name,
        disk=bench.disk,
        records=bench.tablet.records,
    )
    _show("open", (time.process_time() - begin) * 1e3, "ms")


def _scans(bench: _Bench, when: str) -> None:
    n = bench.tablet.row_count
    for name, more in (
        ("all columns", {"columns": bench.schema.names}),
        ("one column", {"columns": ("int_val",)}),
        ("count", {"columns": ()}),
        (
            "int_val < 1 %",
            {"columns": bench.schema.names, "predicates": (Predicate("int_val", PredicateOp.LT, (21474836,)),)},
        ),
        ("in key order", {"columns": bench.schema.names, "ordered": True}),
    ):
        bench.scan(**more)
        rows, batches, seconds = bench.scan(**more)
        _show(f"scan {name}, {when} ({rows} rows, {batches} batches)", n / seconds / 1e6, "M rows/s")
    begin = time.process_time()
    bench.tablet.digest(HybridTime(bench.index))
    _show(f"digest, {when}", n / (time.process_time() - begin) / 1e6, "M rows/s")


if __name__ == "__main__":
    pa.set_cpu_count(1)
    count = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000
    _writes(min(count, 1_000_000))
    _reads(count)
