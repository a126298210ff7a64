"""How users describe tables."""

import datetime

import pytest

import kudu_py as kudu
from kudu_py.common.partition import HashLevel, RangePartition


def test_columns_are_described_in_chains_or_arguments():
    builder = kudu.schema_builder()
    builder.add_column("b", "string", nullable=False, comment="text", encoding="plain", compression="lz4")
    builder.add_column("a").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("price", kudu.decimal, precision=10, scale=2, default="1.50")
    builder.add_column("name").type("varchar").length(20).default("x")
    schema = builder.build()
    assert schema.names == ("a", "b", "price", "name"), "key columns come first"
    assert schema.key_count == 1
    assert not schema.column("a").nullable
    assert schema.column("price").nullable
    assert str(schema.column("price").default) == "1.50"
    assert (schema.column("b").comment, schema.column("b").compression) == ("text", "lz4")


def test_the_primary_key_can_be_named_in_its_order():
    builder = kudu.schema_builder()
    for name in ("x", "y", "z"):
        builder.add_column(name, kudu.int32)
    schema = builder.set_primary_keys(["z", "x"]).build()
    assert schema.names == ("z", "x", "y")
    assert [column.name for column in schema.key_columns] == ["z", "x"]


def _build(describe):
    builder = kudu.schema_builder()
    describe(builder)
    return builder.build()


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda b: b.add_column("a").primary_key(), "'a' has no type"),
        (lambda b: b.add_column("a", "int65"), "'int65' is no column type; types are bool, int8"),
        (lambda b: b.add_column("a", "int64"), "needs a primary key"),
        (lambda b: b.add_column("a", "int64").nullable().primary_key(), "'a' is part of the primary key"),
        (lambda b: b.add_column("a", "double").primary_key(), "'a' of type DOUBLE cannot be part"),
        (lambda b: (b.add_column("a", "int64").primary_key(), b.add_column("a", "int8")), "'a' is declared twice"),
        (lambda b: (b.add_column("a", "int64"), b.set_primary_keys(["c"])), "'c' is no column; columns are a"),
        (lambda b: (b.add_column("a", "int64"), b.set_primary_keys(["a", "a"])), "twice in the primary key"),
        (lambda b: b.add_column("a", "int8", default=300).primary_key(), "'a': 300 does not fit INT8"),
        (lambda b: b.add_column("a", "decimal").primary_key(), "precision"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_name(describe, message):
    with pytest.raises(kudu.KuduInvalidArgument, match=message):
        _build(describe)


def test_what_is_not_offered_says_so():
    with pytest.raises(kudu.KuduNotSupported, match="unique"):
        kudu.schema_builder().add_column("a").non_unique_primary_key()


@pytest.fixture
def schema():
    builder = kudu.schema_builder()
    builder.add_column("day", kudu.date).primary_key()
    builder.add_column("id", kudu.int64).primary_key()
    return builder.build()


def test_bounds_are_given_by_name_or_in_order(schema):
    first, second = datetime.date(2013, 1, 1), datetime.date(2014, 1, 1)
    layout = kudu.Partitioning().add_hash_partitions("id", 4, seed=3).set_range_partition_columns(["day", "id"])
    layout.add_range_partition({"day": first}, {"day": second, "id": 5}, "exclusive", "inclusive")
    layout.add_range_partition([second, 6], None)
    partition_schema, ranges = layout.resolve(schema)
    assert partition_schema.hash_levels == (HashLevel(("id",), 4, 3),)
    assert ranges == [RangePartition((first,), (second, 5), False, True), RangePartition((second, 6), None)]


def test_splits_cut_ranges(schema):
    layout = kudu.Partitioning().set_range_partition_columns(["day"])
    layout.add_range_partition_split({"day": "2013-06-01"})
    _, ranges = layout.resolve(schema)
    assert [(item.lower, item.upper) for item in ranges] == [(None, ("2013-06-01",)), (("2013-06-01",), None)]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (kudu.Partitioning().add_hash_partitions(["nope"], 2), "'nope'"),
        (kudu.Partitioning().add_hash_partitions(["id"], 1), "2 to"),
        (kudu.Partitioning().set_range_partition_columns(["day"]).add_range_partition({"id": 1}), "'id' is no range"),
        (
            kudu.Partitioning().set_range_partition_columns(["day", "id"]).add_range_partition({"id": 1}),
            "the first range columns",
        ),
    ],
)
def test_a_partitioning_that_does_not_fit_is_refused_by_name(schema, layout, message):
    with pytest.raises(kudu.KuduBadStatus, match=message):
        layout.resolve(schema)


def test_bound_types_are_checked():
    with pytest.raises(kudu.KuduInvalidArgument, match="'inclusive' or 'exclusive', not 'x'"):
        kudu.Partitioning().add_range_partition(None, None, "x")
