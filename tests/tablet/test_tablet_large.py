"""Files of many chunks: what is moved by flush and compaction is what was written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.testing.tablet_rig import TabletRig

ROWS = 150_000


def _schema(kind):
    return Schema(
        (
            ColumnSchema("k", kind, column_id=0),
            ColumnSchema("k2", DataType.INT32, column_id=1),
            ColumnSchema("v", DataType.INT64, nullable=True, column_id=2),
            ColumnSchema("s", DataType.STRING, nullable=True, column_id=3),
        ),
        key_count=2,
    )


def _batch(schema, operation, numbers, rng):
    n = len(numbers)
    if schema.columns[0].type is DataType.STRING:
        keys = pa.array([f"key-{number * 7919 % 1_000_003:x}" for number in numbers.tolist()])
    else:
        keys = pa.array(numbers * 7919 % 1_000_003)
    values = pa.array(rng.integers(0, 1000, n), mask=rng.random(n) < 0.1)
    strings = pa.array([f"{x:x}" for x in rng.integers(0, 1 << 40, n).tolist()])
    arrays = [keys, pa.array((numbers % 5).astype(np.int32)), values, strings]
    return RowBatch(
        schema, np.full(n, operation, np.uint8), pa.RecordBatch.from_arrays(arrays, names=schema.names), (0, 1, 2, 3)
    )


def _ordered_keys(rig):
    spec = ScanSpec(columns=("k", "k2"), timestamp=HybridTime(rig.timestamp), ordered=True)
    return pa.Table.from_batches(rig.tablet.scan(spec))


@pytest.mark.parametrize(
    ("kind", "history_share"), [(DataType.INT64, 0.0), (DataType.STRING, 0.5), (DataType.INT64, 1.0)]
)
def test_files_of_many_chunks_hold_what_was_written(tmp_path, kind, history_share):
    rng = np.random.default_rng(11)
    schema = _schema(kind)
    rig = TabletRig(str(tmp_path), schema)
    numbers = rng.permutation(ROWS)
    digests = {}
    for part in np.array_split(numbers, 2):
        for some in np.array_split(part, 40):
            rig.apply(_batch(schema, RowOperation.INSERT, some, rng))
        rig.flush()
        for operation in (RowOperation.UPSERT, RowOperation.UPDATE, RowOperation.DELETE_IGNORE, RowOperation.UPSERT):
            rig.apply(_batch(schema, operation, rng.choice(numbers, 20_000), rng))
            digests[rig.timestamp] = rig.tablet.digest(rig.timestamp)
    count = rig.tablet.row_count
    keys = _ordered_keys(rig)
    assert keys.equals(keys.sort_by([("k", "ascending"), ("k2", "ascending")]))
    assert keys.num_rows == count
    history_start = int(rig.timestamp * history_share)
    steps = [lambda: None, rig.flush, rig.reopen]
    while steps:
        steps.pop(0)()
        for timestamp, digest in digests.items():
            if timestamp >= rig.records.history_start:
                assert rig.tablet.digest(timestamp) == digest
        assert _ordered_keys(rig).equals(keys)
        if not steps and rig.compact(history_start):
            steps.append(rig.reopen)
    assert rig.records.history_start >= history_start or history_share == 0.0
    result = rig.apply(_batch(schema, RowOperation.INSERT, numbers, rng))
    assert len(result.row_errors) == count
    assert rig.tablet.row_count == ROWS
