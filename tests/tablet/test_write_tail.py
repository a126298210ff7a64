"""Small batches beside arrays: the same log gives the same tablet, whenever its tails become arrays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.small_batch import SmallBatch, SmallBatchReader
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.write_tail import TAIL_ROWS_MAX
from kudu_py.testing.tablet_rig import SIMPLE_SCHEMA, TabletRig, batch_of

_STRINGS = Schema(
    (
        ColumnSchema("a", DataType.STRING, column_id=0),
        ColumnSchema("b", DataType.DECIMAL, precision=30, column_id=1),
        ColumnSchema("n", DataType.INT32, default=5, column_id=2),
        ColumnSchema("s", DataType.STRING, nullable=True, column_id=3),
        ColumnSchema("f", DataType.BOOL, nullable=True, column_id=4),
    ),
    2,
)
_PAIR = Schema(
    (
        ColumnSchema("a", DataType.INT8, column_id=0),
        ColumnSchema("b", DataType.INT16, column_id=1),
        ColumnSchema("n", DataType.INT32, nullable=True, column_id=2),
    ),
    2,
)


def _cell(rng, column, in_key):
    if not in_key and column.nullable and rng.random() < 0.2:
        return None
    if column.type is DataType.STRING:
        return rng.choice(["", "é", "x" * rng.randrange(20)])
    if column.type is DataType.BOOL:
        return rng.random() < 0.5
    return rng.randrange(-60, 60)


def _random_batch(rng, schema):
    n = rng.choice([1, 1, 1, 3, 10, 40, 64, 65, 90])
    operations = [rng.choice(list(RowOperation)) for _ in range(n)]
    if rng.random() < 0.6:
        operations = [rng.choice([RowOperation.INSERT, RowOperation.UPSERT, RowOperation.DELETE])] * n
    optional = list(range(schema.key_count, len(schema.columns)))
    kept = optional if rng.random() < 0.5 else [p for p in optional if rng.random() < 0.7]
    positions = [*range(schema.key_count), *kept]
    columns = [[_cell(rng, schema.columns[p], p < schema.key_count) for _ in range(n)] for p in positions]
    unset = None
    if rng.random() < 0.3:
        unset = [[p >= schema.key_count and rng.random() < 0.4 for p in positions] for _ in range(n)]
    return batch_of(schema, operations, columns, positions=positions, unset=unset)


@pytest.mark.parametrize("schema", [SIMPLE_SCHEMA, _STRINGS, _PAIR], ids=["int", "strings", "pair"])
@pytest.mark.parametrize("seed", range(4))
def test_when_a_tail_becomes_arrays_makes_no_difference(tmp_path, schema, seed):
    rng = random.Random(f"{seed}/{len(schema.columns)}")
    # One replica sees arrays only, one makes arrays of its tail now and then, one when it must.
    for name in ("arrays", "often", "seldom"):
        (tmp_path / name).mkdir()
    rigs = [TabletRig(str(tmp_path / name), schema) for name in ("arrays", "often", "seldom")]
    arrays, often, seldom = rigs
    small = 0
    for step in range(1, 250):
        batch = _random_batch(rng, schema)
        timestamp, op_id = HybridTime(10 * step), OpId(1, step)
        results = [arrays.tablet.apply(batch, timestamp, op_id)]
        for rig in (often, seldom):
            sent = batch.encode(), batch.column_ids
            opened = rig.tablet.reader.open(*sent, has_unset=batch.unset is not None)
            small += isinstance(opened, SmallBatch)
            results.append(rig.tablet.apply(opened, timestamp, op_id))
        outcomes = {(r.row_errors, r.inserted, r.updated, r.deleted) for r in results}
        assert len(outcomes) == 1, outcomes
        if rng.random() < 0.3:
            often.tablet.digest(timestamp)
        for rig in rigs:
            rig.timestamp, rig.index = timestamp, step
            assert rig.tablet.row_count == arrays.tablet.row_count
        if rng.random() < 0.05:
            for rig in rigs:
                rig.flush()
                assert rig.tablet.has_unflushed is False
            facts = {(r.records.next_row_id, r.records.live_rows, r.records.max_key) for r in rigs}
            assert len(facts) == 1, facts
        if step % 25 == 0:
            for at in (timestamp, rng.randrange(10, timestamp)):
                assert len({rig.tablet.digest(HybridTime(at)) for rig in rigs}) == 1
    assert small > 200


def _insert(rig, keys, *, operation=RowOperation.INSERT):
    keys = list(keys)
    return rig.write(operation, keys, [1] * len(keys), ["x"] * len(keys))


@pytest.fixture
def rig(tmp_path):
    """A tablet that has taken a batch, so that the form of the next ones is known."""
    rig = TabletRig(str(tmp_path))
    _insert(rig, [-1])
    return rig


def test_a_snapshot_holds_what_was_in_the_tail_and_nothing_after(rig):
    _insert(rig, [1, 2])
    at = rig.timestamp
    scan = rig.tablet.scan(ScanSpec(columns=("key",), timestamp=HybridTime(at)))
    _insert(rig, [3])
    _insert(rig, range(10, 10 + TAIL_ROWS_MAX))
    assert sorted(key for batch in scan for key in batch.column(0).to_pylist()) == [-1, 1, 2]
    assert sorted(row[0] for row in rig.rows(at)) == [-1, 1, 2]
    assert len(rig.rows()) == 4 + TAIL_ROWS_MAX


def test_each_batch_of_a_tail_has_its_own_time(rig):
    times = []
    for key in range(20):
        _insert(rig, [key])
        times.append(rig.timestamp)
    rig.write(RowOperation.UPDATE, [3], [9], ["y"])
    rig.write(RowOperation.DELETE, [4], [None], [None])
    assert len(rig.rows()) == 20
    for count, at in enumerate(times, start=2):
        assert len(rig.rows(at)) == count
    assert (3, 9, "y") in rig.rows()
    assert (3, 1, "x") in rig.rows(times[-1])


def test_a_tail_is_bounded_and_counted(rig):
    empty = rig.tablet.memory_bytes
    _insert(rig, [1])
    one = rig.tablet.memory_bytes
    assert one > empty
    assert rig.tablet.unflushed_bytes == rig.tablet.memory_bytes
    assert rig.tablet.has_unflushed
    peak = 0
    for first in range(10, 10 + 4 * TAIL_ROWS_MAX, 8):
        _insert(rig, range(first, first + 8))
        peak = max(peak, rig.tablet._tail.rows)
    assert peak < TAIL_ROWS_MAX
    rig.flush()
    assert not rig.tablet.has_unflushed
    assert rig.tablet.memory_bytes <= empty
    assert len(rig.rows()) == 2 + 4 * TAIL_ROWS_MAX


def test_a_key_may_leave_and_come_back_within_a_tail(rig):
    for _ in range(3):
        assert _insert(rig, [5]).inserted == 1
        assert rig.write(RowOperation.DELETE, [5], [None], [None]).deleted == 1
        assert rig.write(RowOperation.DELETE, [5], [None], [None]).row_errors
    assert _insert(rig, [5]).inserted == 1
    assert _insert(rig, range(100)).row_errors == ((5, 1),)
    assert sorted(row[0] for row in rig.rows()) == list(range(-1, 100))
    rig.flush()
    assert _insert(rig, [5]).row_errors == ((0, 1),)


def test_a_column_that_is_added_splits_the_tail(rig):
    _insert(rig, [1])
    added = ColumnSchema("more", DataType.INT32, default=8, column_id=9)
    rig.alter(replace(SIMPLE_SCHEMA, columns=(*SIMPLE_SCHEMA.columns, added), version=1))
    for key in (2, 3):
        rig.apply(batch_of(rig.schema, RowOperation.INSERT, [[key], [1], ["x"], [key]]))
    assert sorted(rig.rows()) == [(-1, 1, "x", 8), (1, 1, "x", 8), (2, 1, "x", 2), (3, 1, "x", 3)]


def test_a_batch_that_was_opened_under_an_older_schema_is_applied_all_the_same(rig):
    batch = batch_of(rig.schema, RowOperation.INSERT, [[1], [1], ["x"]])
    reader = SmallBatchReader(SIMPLE_SCHEMA)
    for _ in range(2):
        opened = reader.open(batch.encode(), (), has_unset=False)
    assert isinstance(opened, SmallBatch)
    result = rig.tablet.apply(opened, HybridTime(1000), OpId(1, 50))
    assert result.inserted == 1
