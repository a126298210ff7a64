"""Formats for rowsets on disk: size, writing, scanning all and one column, reading single rows.

    .venv/bin/python tests/bench/bench_row_formats.py [rows]

Rows are those of `bench_row_engine.py` plus row id and timestamp, in chunks of 65,536; files are in the page cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_CHUNK = 65_536


def _table(rows: int) -> pa.Table:
    rng = np.random.default_rng(1)
    strings = pa.array([f"string-{i:08d}" for i in range(100_000)])
    return pa.table(
        {
            "key": np.sort(rng.integers(-(2**63), 2**63 - 1, rows)),
            "int_val": rng.integers(0, 2**31 - 1, rows, dtype=np.int32),
            "string_val": strings.take(pa.array(rng.integers(0, 100_000, rows))),
            "row_id": rng.permutation(rows).astype(np.uint32),
            "timestamp": np.repeat(np.arange(-(-rows // 1700), dtype=np.uint64), 1700)[rng.permutation(rows)],
        }
    )


def _write(table: pa.Table, path: str, kind: str, codec: str | None) -> None:
    if kind == "parquet":
        pq.write_table(table, path, compression=codec or "none", row_group_size=_CHUNK)
        return
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=_CHUNK)


def _scan(path: str, kind: str, columns: list[str]) -> int:
    total = 0
    if kind == "parquet":
        file = pq.ParquetFile(path, memory_map=True)
        for group in range(file.num_row_groups):
            total += file.read_row_group(group, columns=columns, use_threads=False).nbytes
        return total
    with pa.memory_map(path) as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(c) for c in columns], use_threads=False)
        reader = pa.ipc.open_file(source, options=options)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            # Mapped bytes must be touched to be counted.
            total += sum(int(np.frombuffer(b, np.uint8)[::64].sum()) for c in batch.columns for b in c.buffers() if b)
    return total


def main() -> None:
    """Prints the table."""
    rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000
    table = _table(rows)
    print("| format | bytes a row | write ns a row | scan all, M rows/s | scan one, M rows/s | one chunk ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        for kind, codec in (
            ("arrow", None),
            ("arrow", "lz4"),
            ("arrow", "zstd"),
            ("parquet", None),
            ("parquet", "lz4"),
            ("parquet", "zstd"),
        ):
            path = f"{directory}/{kind}-{codec}"
            begin = time.process_time()
            _write(table, path, kind, codec)
            written = time.process_time() - begin
            figures = []
            for columns in (table.column_names, ["int_val"]):
                _scan(path, kind, columns)
                begin = time.process_time()
                _scan(path, kind, columns)
                figures.append(time.process_time() - begin)
            all_s, one_s = figures
            chunk_ms = all_s / (rows / _CHUNK) * 1e3
            size = os.path.getsize(path) / rows
            print(
                f"| {kind} {codec or 'plain'} | {size:.1f} | {written / rows * 1e9:.0f} "
                f"| {rows / all_s / 1e6:.0f} | {rows / one_s / 1e6:.0f} | {chunk_ms:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    pa.set_cpu_count(1)
    main()
