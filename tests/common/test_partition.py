"""Hash and range partitioning: the layout of data, so everything here must hold for ever."""

import datetime
import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.partition import (
    HashLevel,
    Partition,
    PartitionSchema,
    RangePartition,
    create_partitions,
    describe_partition,
    describe_partitioning,
    split_ranges,
)
from kudu_py.common.partition_hash import HashLevelBuckets
from kudu_py.common.partitioner import Partitioner
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical


def key_schema(*columns: tuple[str, DataType]) -> Schema:
    def column(name: str, kind: DataType) -> ColumnSchema:
        if kind is DataType.DECIMAL:
            return ColumnSchema(name, kind, precision=12, scale=2)
        return ColumnSchema(name, kind, length=50 if kind is DataType.VARCHAR else 0)

    return Schema((*(column(*c) for c in columns), ColumnSchema("v", DataType.DOUBLE, nullable=True)), len(columns))


def arrays(schema: Schema, rows: list[tuple[object, ...]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], column.arrow_type) for i, column in enumerate(schema.key_columns)]


def partitioner(schema: Schema, layout: PartitionSchema, ranges: list[RangePartition] | None = None) -> Partitioner:
    return Partitioner(schema, layout, create_partitions(schema, layout, ranges or []))


TIMESTAMP = datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)

GOLDEN = [
    (DataType.INT8, [0, 1, -1, 127], [44, 1, 40, 45]),
    (DataType.INT32, [0, 1, -1, 127, 2_000_000_000], [44, 1, 40, 45, 86]),
    (DataType.INT64, [0, 1, -1, 127, 1 << 62], [44, 1, 40, 45, 75]),
    (DataType.UNIXTIME_MICROS, [TIMESTAMP], [6]),
    (DataType.DATE, [datetime.date(2013, 1, 1)], [93]),
    (DataType.DECIMAL, [decimal.Decimal("12.50"), decimal.Decimal("-0.01")], [62, 18]),
    (DataType.STRING, ["", "a", "12345678", "123456789", "ü" * 20], [6, 82, 12, 60, 14]),
    (DataType.BINARY, [b"", b"\0", b"\0\0"], [6, 24, 72]),
]


@pytest.mark.parametrize(
    ("kind", "values", "buckets"), GOLDEN, ids=lambda v: v.value if isinstance(v, DataType) else ""
)
def test_hash_buckets_never_change(kind, values, buckets):
    schema = key_schema(("k", kind))
    level = HashLevelBuckets.of(schema, HashLevel(("k",), 97, 7))
    cells = pa.array(values, schema.columns[0].arrow_type)
    assert level.buckets([cells]).tolist() == buckets
    assert level.buckets([pa.concat_arrays([cells, cells]).slice(1)]).tolist() == [*buckets[1:], *buckets]


def documented_bucket(seed: int, buckets: int, words_of_columns: list[int | bytes]) -> int:
    """The hash as the module's docstring tells it, written down a second time."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & mask
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    h = mix(seed + 0x9E3779B97F4A7C15 & mask)
    for value in words_of_columns:
        if isinstance(value, int):
            h = mix(h ^ value & mask)
            continue
        h = mix(h ^ len(value))
        for i in range(0, len(value), 8):
            h = (h ^ int.from_bytes(value[i : i + 8], "little")) * 0x9E3779B97F4A7C15 & mask
            h ^= h >> 32
        h = mix(h)
    return ((h >> 32) * buckets) >> 32


KEYS = st.lists(
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.text(max_size=30), st.binary(max_size=20)),
    min_size=1,
    max_size=20,
)


@given(rows=KEYS, seed=st.integers(0, (1 << 32) - 1))
@settings(max_examples=60, deadline=None)
def test_hash_is_as_documented_and_independent_of_batch_mates(rows, seed):
    schema = key_schema(("a", DataType.INT32), ("b", DataType.STRING), ("c", DataType.BINARY))
    level = HashLevelBuckets.of(schema, HashLevel(("a", "b", "c"), 1000, seed))
    together = level.buckets(arrays(schema, rows)).tolist()
    assert together == [level.bucket_of(row) for row in rows]
    assert together == [documented_bucket(seed, 1000, [a, b.encode(), c]) for a, b, c in rows]


def test_seed_sets_tables_apart():
    schema = key_schema(("k", DataType.INT64))
    keys = [pa.array(np.arange(1000))]
    first, second = (HashLevelBuckets.of(schema, HashLevel(("k",), 4, seed)).buckets(keys) for seed in (0, 1))
    assert (first != second).any()


def test_sequential_keys_spread_evenly():
    schema = key_schema(("k", DataType.INT64))
    counts = np.bincount(HashLevelBuckets.of(schema, HashLevel(("k",), 6)).buckets([pa.array(np.arange(60_000))]))
    assert counts.min() > 9_600
    assert counts.max() < 10_400


def test_partitions_are_every_combination_in_order():
    schema = key_schema(("a", DataType.INT64), ("b", DataType.STRING))
    layout = PartitionSchema((HashLevel(("a",), 2), HashLevel(("b",), 3)), ("a",))
    partitions = create_partitions(schema, layout, [RangePartition((10,), None), RangePartition(None, (10,))])
    assert len(partitions) == 2 * 3 * 2
    assert partitions == sorted(partitions)
    assert [p.hash_buckets for p in partitions[::2]] == list(itertools.product(range(2), range(3)))
    assert partitions[0].range_lower == b""
    assert partitions[0].range_upper == partitions[1].range_lower != b""
    assert partitions[1].range_upper == b""


@given(rows=st.lists(st.tuples(st.integers(-50, 50), st.text("ab\0", max_size=3)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_rows_fall_into_the_range_that_compares_so(rows):
    schema = key_schema(("a", DataType.INT8), ("b", DataType.STRING))
    ranges = [
        RangePartition(None, (-20, "")),
        RangePartition((-20, "b"), (5,), lower_inclusive=False, upper_inclusive=True),
        RangePartition((7, "a"), (7, "b"), upper_inclusive=True),
        RangePartition((7, "ba"), (30, "a")),
    ]
    found = partitioner(schema, PartitionSchema((), ("a", "b")), ranges)

    def expected(row: tuple[int, str]) -> int:
        if row < (-20, ""):
            return 0
        if (-20, "b") < row <= (5, ""):
            return 1
        if (7, "a") <= row <= (7, "b"):
            return 2
        return 3 if (7, "ba") <= row < (30, "a") else -1

    assert found.rows_to_partitions(arrays(schema, rows)).tolist() == [expected(row) for row in rows]
    assert [found.row_to_partition(row) for row in rows] == [expected(row) for row in rows]


@pytest.mark.parametrize(
    ("kind", "cuts", "values"),
    [
        (DataType.INT64, [-5, 0, 1 << 40], [-(1 << 63), -6, -5, -1, 0, 5, 1 << 40, (1 << 63) - 1]),
        (DataType.DATE, [datetime.date(2013, 1, 1)], [datetime.date(2012, 12, 31), datetime.date(2013, 1, 1)]),
        (DataType.UNIXTIME_MICROS, [TIMESTAMP], [TIMESTAMP, TIMESTAMP - datetime.timedelta(microseconds=1)]),
        (DataType.DECIMAL, ["1.50"], [decimal.Decimal("1.49"), decimal.Decimal("1.50"), decimal.Decimal("-3.00")]),
        (DataType.STRING, ["m", "mm", "mmmmmmmmz"], ["", "l", "m", "m\0", "mm", "mmmmmmmm", "mmmmmmmmz", "n"]),
    ],
)
def test_ranges_order_as_values_do(kind, cuts, values):
    schema = key_schema(("k", kind))
    ranges = [RangePartition(None, (cuts[0],))]
    ranges += [RangePartition((a,), (b,)) for a, b in itertools.pairwise(cuts)]
    ranges += [RangePartition((cuts[-1],), None)]
    found = partitioner(schema, PartitionSchema((), ("k",)), ranges)
    limits = [canonical(schema.columns[0], cut) for cut in cuts]
    wanted = [sum(value >= limit for limit in limits) for value in values]
    assert found.rows_to_partitions(arrays(schema, [(value,) for value in values])).tolist() == wanted
    assert [found.row_to_partition((value,)) for value in values] == wanted


def test_a_row_that_no_range_covers_has_no_partition():
    schema = key_schema(("k", DataType.INT64))
    layout = PartitionSchema((HashLevel(("k",), 2),), ("k",))
    found = partitioner(schema, layout, [RangePartition((0,), (10,)), RangePartition((20,), (30,))])
    placed = found.rows_to_partitions([pa.array([-1, 5, 10, 19, 20, 30])])
    assert (placed == -1).tolist() == [True, False, True, True, False, True]


def test_inclusive_bounds_reach_the_greatest_value():
    schema = key_schema(("k", DataType.INT8))
    found = partitioner(schema, PartitionSchema((), ("k",)), [RangePartition((5,), (127,), False, True)])
    assert found.rows_to_partitions([pa.array([5, 6, 127], pa.int8())]).tolist() == [-1, 0, 0]


@pytest.mark.parametrize(
    "ranges",
    [
        [RangePartition((0,), (10,)), RangePartition((9,), (20,))],
        [RangePartition(None, None), RangePartition((9,), (20,))],
        [RangePartition((0,), (10,), upper_inclusive=True), RangePartition((10,), (20,))],
        [RangePartition((0,), (10,)), RangePartition((0,), (10,))],
    ],
)
def test_overlapping_ranges_are_refused_by_name(ranges):
    with pytest.raises(KuduError, match="overlap") as caught:
        create_partitions(key_schema(("k", DataType.INT64)), PartitionSchema((), ("k",)), ranges)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (DataType.INT64, RangePartition((10,), (10,))),
        (DataType.INT64, RangePartition((10,), (9,))),
        (DataType.INT8, RangePartition((127,), None, lower_inclusive=False)),
        (DataType.STRING, RangePartition(None, ("",))),
        (DataType.STRING, RangePartition(("a",), ("a",), lower_inclusive=False, upper_inclusive=True)),
    ],
)
def test_empty_ranges_are_refused(kind, item):
    with pytest.raises(KuduError, match="is empty"):
        create_partitions(key_schema(("k", kind)), PartitionSchema((), ("k",)), [item])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (PartitionSchema((HashLevel(("k",), 1),)), "2 to 65536 buckets, not 1"),
        (PartitionSchema((HashLevel((), 2),)), "at least one column"),
        (PartitionSchema((HashLevel(("v",), 2),)), "'v' is not part of the primary key"),
        (PartitionSchema((HashLevel(("k",), 2), HashLevel(("k",), 3))), "'k' is hashed twice"),
        (PartitionSchema((HashLevel(("k",), 2, -1),)), "seed"),
        (PartitionSchema((), ("k", "k")), "listed twice"),
        (PartitionSchema((), ("v",)), "'v' is not part of the primary key"),
        (PartitionSchema((), ("w",)), "no column is named 'w'"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(layout, message):
    with pytest.raises(KuduError, match=message):
        layout.validate(key_schema(("k", DataType.INT64)))


def test_bounds_of_the_wrong_type_or_number_are_refused():
    schema, layout = key_schema(("k", DataType.INT64)), PartitionSchema((), ("k",))
    for bound in (("x",), (1, 2), (1 << 63,), ()):
        with pytest.raises(KuduError):
            create_partitions(schema, layout, [RangePartition(bound, None)])
    with pytest.raises(KuduError, match="need range partition columns"):
        create_partitions(schema, PartitionSchema(), [RangePartition((1,), None)])


def test_splits_cut_the_range_that_holds_them():
    schema, layout = key_schema(("k", DataType.INT64)), PartitionSchema((), ("k",))
    cut = split_ranges(schema, layout, [], [(10,), (0,)])
    assert [(item.lower, item.upper) for item in cut] == [(None, (0,)), ((0,), (10,)), ((10,), None)]
    with pytest.raises(KuduError, match="lies in no range"):
        split_ranges(schema, layout, [RangePartition((0,), (5,))], [(7,)])


def test_descriptions_read_like_the_definition():
    schema = key_schema(("day", DataType.DATE), ("k", DataType.STRING))
    layout = PartitionSchema((HashLevel(("k",), 3),), ("day",))
    days = RangePartition((datetime.date(2013, 1, 1),), (datetime.date(2014, 1, 1),))
    partition = create_partitions(schema, layout, [days])[1]
    shown = describe_partition(schema, layout, partition)
    assert shown == "HASH (k) PARTITION 1, RANGE (day) PARTITION 2013-01-01 <= VALUES < 2014-01-01"
    assert describe_partition(schema, PartitionSchema(), Partition()) == ""
    assert describe_partitioning(layout) == "HASH (k) PARTITIONS 3, RANGE (day)"
    assert describe_partitioning(PartitionSchema()) == "NONE"


# -- pruning -----------------------------------------------------------------------------------------------------------

OPS = st.sampled_from([PredicateOp.EQ, PredicateOp.LT, PredicateOp.LE, PredicateOp.GT, PredicateOp.GE])


def predicates(column: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[Predicate]:
    return st.one_of(
        st.builds(lambda op, value: Predicate(column, op, (value,)), OPS, values),
        st.builds(lambda some: Predicate(column, PredicateOp.IN, tuple(some)), st.lists(values, max_size=4)),
        st.just(Predicate(column, PredicateOp.IS_NOT_NULL)),
    )


def matches(predicate: Predicate, value: object) -> bool:
    values = predicate.values
    return {
        PredicateOp.EQ: lambda: value == values[0],
        PredicateOp.LT: lambda: value < values[0],
        PredicateOp.LE: lambda: value <= values[0],
        PredicateOp.GT: lambda: value > values[0],
        PredicateOp.GE: lambda: value >= values[0],
        PredicateOp.IN: lambda: value in values,
        PredicateOp.IS_NOT_NULL: lambda: True,
    }[predicate.op]()


INTS = st.integers(-6, 6)
TEXTS = st.text("ab", max_size=2)


@given(
    given_predicates=st.lists(
        st.one_of(predicates("a", INTS), predicates("b", TEXTS), predicates("c", INTS)), max_size=4
    )
)
@settings(max_examples=150, deadline=None)
def test_pruning_keeps_every_partition_that_holds_a_matching_row(given_predicates):
    schema = key_schema(("a", DataType.INT8), ("b", DataType.STRING), ("c", DataType.INT64))
    layout = PartitionSchema((HashLevel(("a", "c"), 5),), ("b", "a"))
    ranges = [RangePartition(None, ("a",)), RangePartition(("a", 3), ("b",)), RangePartition(("b",), None)]
    found = partitioner(schema, layout, ranges)
    texts = ["", "a", "b", "aa", "ab", "ba", "bb"]
    rows = list(itertools.product(range(-6, 7, 2), texts, range(-6, 7, 3)))
    placed = found.rows_to_partitions(arrays(schema, rows)).tolist()
    names = {"a": 0, "b": 1, "c": 2}
    needed = {
        partition
        for row, partition in zip(rows, placed, strict=True)
        if partition >= 0 and all(matches(p, row[names[p.column]]) for p in given_predicates)
    }
    assert needed <= set(found.prune(given_predicates))


def test_equality_on_a_hash_level_leaves_one_bucket():
    schema = key_schema(("a", DataType.INT64), ("b", DataType.STRING))
    found = partitioner(schema, PartitionSchema((HashLevel(("a",), 4), HashLevel(("b",), 3))))
    one = found.prune([Predicate("a", PredicateOp.EQ, (7,)), Predicate("b", PredicateOp.EQ, ("x",))])
    assert one == [found.row_to_partition((7, "x"))]
    assert len(found.prune([Predicate("a", PredicateOp.EQ, (7,))])) == 3
    assert len(found.prune([Predicate("a", PredicateOp.IN, (7, 8))])) in (3, 6)
    assert len(found.prune([])) == 12


def test_contradictions_leave_nothing():
    schema = key_schema(("a", DataType.INT64))
    found = partitioner(schema, PartitionSchema((HashLevel(("a",), 4),), ("a",)))
    for contradiction in (
        [Predicate("a", PredicateOp.EQ, (1,)), Predicate("a", PredicateOp.EQ, (2,))],
        [Predicate("a", PredicateOp.GT, (5,)), Predicate("a", PredicateOp.LT, (5,))],
        [Predicate("a", PredicateOp.IN, ())],
        [Predicate("a", PredicateOp.IS_NULL)],
    ):
        assert found.prune(contradiction) == []


def test_comparisons_leave_the_ranges_that_they_touch():
    schema = key_schema(("day", DataType.INT32), ("k", DataType.STRING))
    ranges = [RangePartition((i,), (i + 10,)) for i in range(0, 100, 10)]
    found = partitioner(schema, PartitionSchema((), ("day", "k")), ranges)

    def kept(*some: tuple[PredicateOp, int]) -> list[int]:
        return found.prune([Predicate("day", op, (value,)) for op, value in some])

    assert kept((PredicateOp.EQ, 10)) == [1]
    assert kept((PredicateOp.GE, 90)) == [9]
    assert kept((PredicateOp.GT, 89)) == [9]
    assert kept((PredicateOp.LT, 10)) == [0]
    assert kept((PredicateOp.LE, 10)) == [0, 1]
    assert kept((PredicateOp.GE, 15), (PredicateOp.LE, 35)) == [1, 2, 3]
    assert found.prune([Predicate("day", PredicateOp.IN, (5, 25))]) == [0, 1, 2]


def test_predicates_on_other_columns_prune_nothing():
    schema = key_schema(("a", DataType.INT64))
    found = partitioner(schema, PartitionSchema((HashLevel(("a",), 4),)))
    assert found.prune([Predicate("v", PredicateOp.EQ, (1.0,))]) == [0, 1, 2, 3]
