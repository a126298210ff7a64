"""What a tablet answers: every operation on rows in every state, and every kind of scan."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import encode_key
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.tablet.compaction import CompactionOptions
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.write_result import RowErrorCode
from kudu_py.testing.tablet_rig import SIMPLE_SCHEMA, TabletRig, batch_of

_INSERTS = {RowOperation.INSERT, RowOperation.INSERT_IGNORE, RowOperation.UPSERT, RowOperation.UPSERT_IGNORE}
_CHANGES = {RowOperation.UPSERT, RowOperation.UPSERT_IGNORE, RowOperation.UPDATE, RowOperation.UPDATE_IGNORE}
_DELETES = {RowOperation.DELETE, RowOperation.DELETE_IGNORE}


@pytest.fixture
def rig(tmp_path):
    """An empty tablet with the usual three columns."""
    return TabletRig(str(tmp_path))


NEW = (7, 70, "new")
OLD = (7, 1, "old")


@pytest.mark.parametrize("place", ["memory", "frozen", "disk"])
@pytest.mark.parametrize("state", ["missing", "exists", "deleted"])
@pytest.mark.parametrize("operation", list(RowOperation), ids=lambda op: op.name)
@pytest.mark.parametrize("others", [0, 70])
def test_an_operation_does_what_the_state_of_its_row_asks_for(rig, operation, state, place, others):
    rig.write(RowOperation.INSERT, range(100, 110), range(10), ["x"] * 10)
    if state != "missing":
        rig.write(RowOperation.INSERT, [7], [1], ["old"])
    if state == "deleted":
        rig.write(RowOperation.DELETE, [7], [None], [None])
    exists = state == "exists"

    def act():
        # With `others` the batch is large enough for the way of arrays.
        keys = [7, *range(1000, 1000 + others)]
        operations = [operation] + [RowOperation.UPSERT] * others
        columns = [keys, [70] * len(keys), ["new"] * len(keys)]
        result = rig.apply(batch_of(rig.schema, operations, columns))
        expected = ()
        if exists and operation is RowOperation.INSERT:
            expected = ((0, RowErrorCode.ALREADY_PRESENT),)
        if not exists and operation in (RowOperation.UPDATE, RowOperation.DELETE):
            expected = ((0, RowErrorCode.NOT_FOUND),)
        assert result.row_errors == expected

    if place == "frozen":
        rig.flush(act)
    else:
        if place == "disk":
            rig.flush()
        act()
    if exists:
        after = None if operation in _DELETES else NEW if operation in _CHANGES else OLD
    else:
        after = NEW if operation in _INSERTS else None
    for _ in range(2):
        assert [row for row in rig.rows() if row[0] == 7] == ([] if after is None else [after])
        assert [row for row in rig.rows(rig.timestamp - 10) if row[0] == 7] == ([OLD] if exists else [])
        rig.reopen()
        rig.flush()


def test_rows_of_one_key_take_effect_in_order(rig):
    I, U, D, P = RowOperation.INSERT, RowOperation.UPDATE, RowOperation.DELETE, RowOperation.UPSERT  # noqa: E741
    for count, operations in enumerate(itertools.product([I, U, D, P], repeat=4)):
        for filler in (0, 70):
            key = 10 * count + (filler > 0)
            keys = [key] * 4 + [10_000_000 + 100 * count + i for i in range(filler)]
            ops = [*operations, *[P] * filler]
            result = rig.apply(batch_of(rig.schema, ops, [keys, range(len(keys)), [str(i) for i in range(len(keys))]]))
            row, errors = None, []
            for i, op in enumerate(operations):
                if op is I and row is not None:
                    errors.append((i, RowErrorCode.ALREADY_PRESENT))
                elif op in (U, D) and row is None:
                    errors.append((i, RowErrorCode.NOT_FOUND))
                else:
                    row = None if op is D else (key, i, str(i))
            assert list(result.row_errors) == errors
            found = rig.rows(predicates=[Predicate("key", PredicateOp.EQ, (key,))])
            assert found == ([] if row is None else [row])


def test_a_cell_that_is_not_set_keeps_its_value_or_takes_the_default(tmp_path):
    schema = Schema(
        (
            ColumnSchema("k", DataType.INT32, column_id=0),
            ColumnSchema("d", DataType.INT32, default=5, column_id=1),
            ColumnSchema("n", DataType.STRING, nullable=True, column_id=2),
        ),
        1,
    )
    rig = TabletRig(str(tmp_path), schema)
    unset = [[False, True, True], [False, False, True], [False, True, False]]
    for rows in (1, 70):
        keys = [1000 * rows + i for i in range(3)]
        for _ in range(rows // 3 + 1):
            rig.apply(batch_of(schema, RowOperation.UPSERT, [keys, [1, 2, 3], ["a", "b", "c"]], unset=unset))
    rig.apply(batch_of(schema, RowOperation.UPSERT, [[1, 2]], positions=[0]))
    rig.apply(batch_of(schema, RowOperation.UPDATE, [[1], ["set"]], positions=[0, 2]))
    assert sorted(rig.rows()) == [
        (1, 5, "set"),
        (2, 5, None),
        *[(1000 * rows + i, [5, 2, 5][i], [None, None, "c"][i]) for rows in (1, 70) for i in range(3)],
    ]


def test_ascending_batches_and_others_live_together(rig):
    for first in (0, 1000, 2000):
        rig.write(RowOperation.INSERT, range(first, first + 500), range(500), ["a"] * 500)
    result = rig.write(RowOperation.INSERT, range(1400, 1600), range(200), ["b"] * 200)
    assert [row for row, _ in result.row_errors] == list(range(100))
    assert rig.tablet.row_count == 1600
    result = rig.write(RowOperation.DELETE, range(3000), [0] * 3000, [""] * 3000)
    assert result.deleted == 1600
    assert rig.rows() == []


# -- scans -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def spread(rig):
    """300 rows: two rowsets on disk, one in memory, updates and deletes over all of them."""
    for part in range(3):
        keys = [(i * 37 + part) % 1000 for i in range(part, 300, 3)]
        rig.write(RowOperation.UPSERT, keys, [k % 7 for k in keys], [f"s{k:04d}" for k in keys])
        if part < 2:
            rig.flush()
    everything = sorted(rig.rows())
    rig.write(RowOperation.UPDATE, [everything[i][0] for i in range(0, 300, 10)], [100] * 30, [None] * 30)
    rig.write(RowOperation.DELETE, [everything[i][0] for i in range(5, 300, 10)], [0] * 30, [""] * 30)
    return rig


def _expected(rig):
    return sorted(rig.rows())


def test_a_projection_gives_its_columns_in_its_order_with_exact_types(spread):
    spec = ScanSpec(columns=("string_val", "key"), timestamp=spread.timestamp)
    for batch in spread.tablet.scan(spec):
        fields = [SIMPLE_SCHEMA.column(name).arrow_field for name in spec.columns]
        assert batch.schema == pa.schema(fields)
        assert not batch.schema.field("key").nullable
    assert sorted(spread.rows(columns=["key"])) == [(row[0],) for row in _expected(spread)]


@pytest.mark.parametrize("limit", [None, 0, 1, 100, 5000])
def test_an_empty_projection_counts(spread, limit):
    batches = list(spread.tablet.scan(ScanSpec(columns=(), timestamp=spread.timestamp, limit=limit)))
    assert sum(batch.num_rows for batch in batches) == (270 if limit is None else min(limit, 270))
    assert all(batch.num_columns == 0 for batch in batches)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 7, 269, 270, 1000])
def test_a_limit_is_exact(spread, limit, ordered):
    rows = spread.rows(limit=limit, ordered=ordered)
    assert len(rows) == min(limit, 270)
    assert set(rows) <= set(_expected(spread))


PREDICATES = [
    [Predicate("int_val", PredicateOp.EQ, (100,))],
    [Predicate("int_val", PredicateOp.LT, (3,)), Predicate("string_val", PredicateOp.GE, ("s0500",))],
    [Predicate("string_val", PredicateOp.IS_NULL)],
    [Predicate("string_val", PredicateOp.IS_NOT_NULL), Predicate("int_val", PredicateOp.IN, (1, 2, 100))],
    [Predicate("key", PredicateOp.GE, (200,)), Predicate("key", PredicateOp.LT, (300,))],
    [Predicate("key", PredicateOp.GT, (5000,))],
]


def _holds(row, predicate):
    value = row[SIMPLE_SCHEMA.names.index(predicate.column)]
    if predicate.op is PredicateOp.IS_NULL:
        return value is None
    if value is None:
        return False
    return {
        PredicateOp.EQ: lambda: value == predicate.values[0],
        PredicateOp.LT: lambda: value < predicate.values[0],
        PredicateOp.GT: lambda: value > predicate.values[0],
        PredicateOp.GE: lambda: value >= predicate.values[0],
        PredicateOp.IN: lambda: value in predicate.values,
        PredicateOp.IS_NOT_NULL: lambda: True,
    }[predicate.op]()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("predicates", PREDICATES, ids=str)
def test_predicates_see_rows_as_they_are_at_the_snapshot(spread, predicates, ordered):
    for timestamp in (spread.timestamp, spread.timestamp - 10, spread.timestamp - 20):
        everything = spread.rows(timestamp)
        expected = sorted(row for row in everything if all(_holds(row, p) for p in predicates))
        assert sorted(spread.rows(timestamp, predicates=predicates, ordered=ordered)) == expected
        columns = [row[1:2] for row in spread.rows(timestamp, predicates=predicates)]
        assert sorted(columns) == sorted(row[1:2] for row in expected)


def test_an_ordered_scan_can_be_resumed_after_any_row(spread):
    everything = _expected(spread)
    assert spread.rows(ordered=True) == everything
    for at in (0, 1, 100, 268, 269):
        key = encode_key(SIMPLE_SCHEMA, everything[at][:1])
        assert spread.rows(ordered=True, start_after_key=key) == everything[at + 1 :]


def test_key_bounds_hold_without_order_too(spread):
    low, high = encode_key(SIMPLE_SCHEMA, (250,)), encode_key(SIMPLE_SCHEMA, (700,))
    spec = ScanSpec(columns=("key",), timestamp=spread.timestamp, start_key=low, end_key=high)
    keys = sorted(key for batch in spread.tablet.scan(spec) for key in batch.column(0).to_pylist())
    assert keys == [row[0] for row in _expected(spread) if 250 <= row[0] < 700]


def test_batches_are_about_as_large_as_asked(rig):
    n = 200_000
    rig.write(RowOperation.INSERT, range(n), range(n), ["x" * 20] * n)
    rig.flush()
    for batch_bytes in (1 << 16, 1 << 20):
        spec = ScanSpec(columns=SIMPLE_SCHEMA.names, timestamp=rig.timestamp, batch_bytes=batch_bytes)
        sizes = [batch.nbytes for batch in rig.tablet.scan(spec)]
        assert max(sizes) <= 1.6 * batch_bytes
        assert sum(sizes) / len(sizes) > 0.5 * batch_bytes


def test_a_scan_reads_its_snapshot_whatever_happens_meanwhile(spread):
    everything = _expected(spread)
    scans = []
    for ordered in (False, True):
        spec = ScanSpec(columns=SIMPLE_SCHEMA.names, timestamp=spread.timestamp, ordered=ordered, batch_bytes=512)
        scan = spread.tablet.scan(spec)
        scans.append((scan, [next(scan)]))
    spread.write(RowOperation.UPSERT, range(1000), [1] * 1000, ["later"] * 1000)
    spread.flush()
    spread.write(RowOperation.DELETE, range(0, 1000, 2), [1] * 500, [""] * 500)
    spread.flush()
    while spread.compact(history_start=spread.timestamp):
        pass
    for scan, batches in scans:
        batches.extend(scan)
        rows = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
        assert sorted(rows) == everything


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"columns": ("nope",)}, ErrorCode.COLUMN_NOT_FOUND),
        ({"columns": ("key", "key")}, ErrorCode.INVALID_SCAN_SPEC),
        ({"columns": (), "limit": -1}, ErrorCode.INVALID_SCAN_SPEC),
        ({"columns": (), "predicates": (Predicate("x", PredicateOp.IS_NULL),)}, ErrorCode.COLUMN_NOT_FOUND),
    ],
)
def test_a_scan_that_does_not_fit_is_refused_before_it_starts(rig, more, code):
    with pytest.raises(KuduError) as caught:
        rig.tablet.scan(ScanSpec(timestamp=rig.timestamp, **more))
    assert caught.value.code is code


def test_a_snapshot_before_the_kept_history_is_refused(rig):
    for i in range(2):
        rig.write(RowOperation.UPSERT, [1, 2], [i, i], ["", ""])
        rig.flush()
    assert rig.compact(history_start=20)
    rig.compact(history_start=20)
    with pytest.raises(KuduError) as caught:
        rig.rows(19)
    assert caught.value.code is ErrorCode.INVALID_SNAPSHOT
    assert rig.rows(20) == [(1, 1, ""), (2, 1, "")]


def test_rows_deleted_one_by_one_do_not_have_a_rowset_rewritten_each_time_one_of_them_is_history_no_more(tmp_path):
    options = TabletOptions(compaction=CompactionOptions(delta_share=0.1))
    rig = TabletRig(str(tmp_path), options=options)
    rig.write(RowOperation.INSERT, range(100), range(100), ["x"] * 100)
    rig.flush()
    deleted_at = []
    for key in range(50):
        rig.write(RowOperation.DELETE, [key], [None], [None])
        deleted_at.append(rig.timestamp)
    rig.flush()
    assert not rig.compact(history_start=deleted_at[0] - 1), "all of it is history"
    folds = sum(rig.compact(history_start=timestamp) for timestamp in deleted_at)
    assert 0 < folds < 10
    assert rig.rows() == [(key, key, "x") for key in range(50, 100)]
    assert rig.tablet.records.rowsets[0].rows < 65, "those that nobody can see are gone, but for a share"


# -- schema ------------------------------------------------------------------------------------------------------------


def test_rows_older_than_a_column_read_its_default_of_then(rig):
    rig.write(RowOperation.INSERT, [1], [1], ["a"])
    rig.flush()
    rig.write(RowOperation.INSERT, [2], [2], ["b"])
    columns = (
        SIMPLE_SCHEMA.columns[0],
        ColumnSchema("renamed", DataType.INT32, nullable=True, column_id=1),
        ColumnSchema("added", DataType.STRING, default="then", column_id=3),
        ColumnSchema("hole", DataType.INT8, nullable=True, column_id=4),
    )
    rig.alter(Schema(columns, 1, version=1))
    rig.write(RowOperation.INSERT, [3], [3], ["c"], [3])
    rig.write(RowOperation.UPDATE, [1], [10], ["d"], [None])
    later = ColumnSchema("added", DataType.STRING, default="now", column_id=3)
    rig.alter(Schema((*columns[:2], later, columns[3]), 1, version=2))
    expected = [(1, 10, "d", None), (2, 2, "then", None), (3, 3, "c", 3)]
    digest = rig.tablet.digest(rig.timestamp)
    assert sorted(rig.rows()) == expected
    rig.flush()
    assert sorted(rig.rows()) == expected
    rig.reopen()
    assert sorted(rig.rows()) == expected
    while rig.compact():
        assert sorted(rig.rows()) == expected
    assert rig.tablet.digest(rig.timestamp) == digest
    rig.apply(batch_of(rig.schema, RowOperation.INSERT, [[4]], positions=[0]))
    assert (4, None, "now", None) in rig.rows()


def test_a_key_or_a_type_cannot_be_altered(rig):
    key = ColumnSchema("key", DataType.INT64, column_id=9)
    for columns in ((key,), (SIMPLE_SCHEMA.columns[0], ColumnSchema("int_val", DataType.INT64, column_id=1))):
        with pytest.raises(KuduError) as caught:
            rig.alter(Schema(columns, 1))
        assert caught.value.code is ErrorCode.INVALID_SCHEMA


def test_a_schema_without_column_ids_is_refused(tmp_path):
    with pytest.raises(KuduError) as caught:
        TabletRig(str(tmp_path), Schema((ColumnSchema("k", DataType.INT64),), 1))
    assert caught.value.code is ErrorCode.INVALID_SCHEMA


# -- facts -------------------------------------------------------------------------------------------------------------


def test_memory_is_given_back_by_a_flush(rig):
    rig.write(RowOperation.INSERT, range(20_000), range(20_000), ["x" * 50] * 20_000)
    rig.write(RowOperation.UPDATE, range(20_000), range(20_000), ["y" * 50] * 20_000)
    assert rig.tablet.memory_bytes > 3_000_000
    assert rig.tablet.has_unflushed
    rig.flush()
    assert rig.tablet.memory_bytes < 1_500_000
    assert not rig.tablet.has_unflushed
    assert rig.tablet.resident_bytes < 4 * 20_000
    assert rig.tablet.on_disk_bytes > 2_000_000


def test_single_rows_are_kept_as_few_chunks(rig):
    for i in range(3000):
        rig.write(RowOperation.UPSERT, [i % 1000], [i], ["x"])
    assert rig.tablet.memory_bytes < 1_500_000
    assert len(rig.rows()) == 1000


def test_the_digest_depends_on_rows_only(tmp_path):
    digests = set()
    for name, size in (("a", 1), ("b", 7), ("c", 300)):
        directory = tmp_path / name
        directory.mkdir()
        rig = TabletRig(str(directory))
        for first in range(0, 300, size):
            keys = list(range(first, min(first + size, 300)))
            rig.write(RowOperation.UPSERT, keys, [k % 9 or None for k in keys], [str(k) for k in keys])
            if first % 4 == 0:
                rig.flush()
        digests.add(rig.tablet.digest(rig.timestamp))
    assert len(digests) == 1
    rig.write(RowOperation.UPDATE, [5], [6], ["5"])
    assert rig.tablet.digest(rig.timestamp) not in digests
    assert rig.tablet.digest(rig.timestamp - 10) in digests
