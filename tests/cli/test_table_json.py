"""Upstream's JSON for tables and predicates."""

from __future__ import annotations

import json

import pytest

from kudu_py.cli.table_json import parse_predicates, parse_table
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.pb import common_pb2

TABLE = {
    "table_name": "metrics",
    "schema": {
        "columns": [
            {"column_name": "value", "column_type": "DECIMAL", "is_nullable": True, "type_attributes": {"precision":
            9, "scale": 2}}, {"column_name": "host", "column_type": "string"}, {"column_name": "at", "column_type":
            "INT64", "default_value": "7"},
        ],
        "key_column_names": ["at", "host"],
    },
    "partition": {
        "hash_partitions": [{"columns": ["host"], "num_buckets": 4, "seed": 8}],
        "range_partition": {
            "columns": ["at"],
            "range_bounds": [
                {
                    "lower_bound": {"bound_type": "inclusive", "bound_values": ["2"]},
                    "upper_bound": {"bound_type": "exclusive", "bound_values": ["3"]},
                },
                {"lower_bound": {"bound_type": "inclusive", "bound_values": [3]}},
            ],
        },
    },
    "num_replicas": 3,
}  # fmt: skip


def test_key_columns_come_first_in_the_order_of_their_names():
    request = parse_table(json.dumps(TABLE))

    assert [column.name for column in request.schema.columns] == ["at", "host", "value"]
    assert request.schema.key_count == 2
    assert request.schema.columns[2].precision == 9
    assert request.num_replicas == 3


def test_quoted_numbers_are_read_by_the_type_of_their_column():
    request = parse_table(json.dumps(TABLE))

    assert request.schema.columns[0].default_value.int_value == 7
    first, second = request.range_partitions
    assert (first.lower.values[0].int_value, first.upper.values[0].int_value) == (2, 3)
    assert second.HasField("lower")
    assert not second.HasField("upper")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.update(tabel_name="x"), "tabel_name"),
        (lambda t: t["schema"]["columns"][0].update(column_type="INT65"), "schema.columns[0].column_type"),
        (lambda t: t["schema"].update(key_column_names=["nope"]), "'nope'"),
        (lambda t: t["schema"]["columns"][2].update(default_value="seven"), "schema.columns[2].default_value"),
        (
            lambda t: t["partition"]["hash_partitions"][0].update(num_buckets="4"),
            "partition.hash_partitions[0].num_buckets",
        ),
        (lambda t: t.update(num_replicas=-1), "num_replicas"),
        (
            lambda t: t["partition"]["range_partition"]["range_bounds"][0]["lower_bound"].update(bound_type="open"),
            "bound_type",
        ),
    ],
)
def test_a_mistake_is_refused_by_its_place(change, named):
    table = json.loads(json.dumps(TABLE))
    change(table)

    with pytest.raises(KuduError) as refused:
        parse_table(json.dumps(table))

    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert named in refused.value.message


def test_text_that_is_no_json_is_refused():
    with pytest.raises(KuduError, match="no JSON"):
        parse_table("{")


SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.INT64, column_id=0),
        ColumnSchema("name", DataType.STRING, nullable=True, column_id=1),
    ),
    1,
)


def test_conditions_are_a_conjunction():
    found = parse_predicates('["AND", [">=", "key", 5], ["IN", "name", ["a", "b"]], ["NOTNULL", "name"]]', SCHEMA)

    assert [(p.column, p.operator, len(p.values)) for p in found] == [
        ("key", common_pb2.GREATER_OR_EQUAL, 1),
        ("name", common_pb2.IN_LIST, 2),
        ("name", common_pb2.IS_NOT_NULL, 0),
    ]


def test_one_condition_needs_no_conjunction():
    assert parse_predicates('["=", "key", "5"]', SCHEMA)[0].values[0].int_value == 5


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('["OR", ["=", "key", 1]]', "no condition"),
        ('["!=", "key", 1]', "'!='"),
        ('["=", "kay", 1]', "kay"),
        ('["=", "key", "one"]', "'one'"),
        ('["=", "key"]', "takes one value"),
    ],
)
def test_a_wrong_condition_is_refused_by_name(text, named):
    with pytest.raises(KuduError, match=named.replace("[", r"\[")):
        parse_predicates(text, SCHEMA)


@pytest.mark.parametrize(
    ("names", "keys", "said"),
    [(["k", "k"], ["k"], r"schema.columns\[1\].column_name: 'k'"), (["k", "v"], ["k", "k"], "key_column_names: 'k'")],
)
def test_a_column_named_twice_is_refused_and_not_merged(names, keys, said):
    columns = [{"column_name": name, "column_type": "INT64"} for name in names]

    with pytest.raises(KuduError, match=said):
        parse_table(json.dumps({"table_name": "t", "schema": {"columns": columns, "key_column_names": keys}}))
