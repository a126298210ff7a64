"""Predicates: exact for nulls, NaN and the two zeros, and statistics never exclude a match."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, DataType, Schema

NAN = math.nan
SCHEMA = Schema(
    (
        ColumnSchema("k", DataType.INT64),
        ColumnSchema("f", DataType.DOUBLE, nullable=True),
        ColumnSchema("s", DataType.STRING, nullable=True),
        ColumnSchema("b", DataType.BOOL, nullable=True),
    ),
    1,
)
_PYTHON = {
    PredicateOp.EQ: lambda a, b: a == b,
    PredicateOp.LT: lambda a, b: a < b,
    PredicateOp.LE: lambda a, b: a <= b,
    PredicateOp.GT: lambda a, b: a > b,
    PredicateOp.GE: lambda a, b: a >= b,
}
_COMPARISONS = list(_PYTHON)


def _evaluate(column, op, values, cells):
    bound = Predicate(column, op, tuple(values)).bind(SCHEMA)
    result = bound.evaluate(pa.array(cells, bound.column.arrow_type))
    assert result.null_count == 0
    return result.to_pylist()


def _rank(value):
    """NaN is one value, above all others."""
    return (1, 0.0) if math.isnan(value) else (0, value)


FLOATS = [0.0, -0.0, 1.0, -1.0, NAN, math.inf, -math.inf, None]


@pytest.mark.parametrize("op", _COMPARISONS)
@pytest.mark.parametrize("value", FLOATS[:-1])
def test_nan_equals_itself_and_is_above_everything(op, value):
    expected = [cell is not None and _PYTHON[op](_rank(cell), _rank(value)) for cell in FLOATS]
    assert _evaluate("f", op, [value], FLOATS) == expected


@pytest.mark.parametrize("values", [[NAN], [0.0], [-0.0, 1.0], [math.inf, NAN], []])
def test_in_finds_nan_and_both_zeros(values):
    expected = [cell is not None and any(_rank(cell) == _rank(v) for v in values) for cell in FLOATS]
    assert _evaluate("f", PredicateOp.IN, values, FLOATS) == expected


def test_null_tests_see_nulls_only():
    assert _evaluate("f", PredicateOp.IS_NULL, [], FLOATS) == [cell is None for cell in FLOATS]
    assert _evaluate("f", PredicateOp.IS_NOT_NULL, [], FLOATS) == [cell is not None for cell in FLOATS]


@pytest.mark.parametrize("op", _COMPARISONS)
@pytest.mark.parametrize("value", ["", "a", "é", "\U0001f600", "\uffff"])
def test_strings_compare_as_bytes(op, value):
    cells = ["", "a", "b", "é", "\uffff", "\U0001f600", None]
    expected = [cell is not None and _PYTHON[op](cell.encode(), value.encode()) for cell in cells]
    assert _evaluate("s", op, [value], cells) == expected


def test_bools_compare():
    cells = [True, False, None]
    assert _evaluate("b", PredicateOp.EQ, [True], cells) == [True, False, False]
    assert _evaluate("b", PredicateOp.LT, [True], cells) == [False, True, False]
    assert _evaluate("b", PredicateOp.IN, [False], cells) == [False, True, False]


@pytest.mark.parametrize("seed", range(60))
def test_statistics_never_exclude_a_match(seed):
    rng = random.Random(seed)
    name = rng.choice(["k", "f", "s", "b"])
    pool = {
        "k": list(range(-5, 6)),
        "f": [x for x in FLOATS if x is not None],
        "s": ["", "a", "ab", "b", "é"],
        "b": [True, False],
    }[name]
    cells = [None if rng.random() < 0.2 and name != "k" else rng.choice(pool) for _ in range(rng.randrange(1, 5))]
    kind = SCHEMA.column(name).arrow_type
    array = pa.array(cells, kind)
    bounds = pc.min_max(array)
    nan = name == "f" and any(cell is not None and math.isnan(cell) for cell in cells)
    low, high = (pa.scalar(None, kind), pa.scalar(None, kind)) if nan else (bounds["min"], bounds["max"])
    for op in PredicateOp:
        count = 1 if op in _PYTHON else rng.randrange(4) if op is PredicateOp.IN else 0
        bound = Predicate(name, op, tuple(rng.choice(pool) for _ in range(count))).bind(SCHEMA)
        matches = pc.any(bound.evaluate(array)).as_py()
        assert bound.may_match(low, high, array.null_count, len(array)) or not matches


def test_statistics_exclude_what_cannot_match():
    bound = Predicate("k", PredicateOp.GT, (10,)).bind(SCHEMA)
    assert not bound.may_match(pa.scalar(1), pa.scalar(10), 0, 5)
    bound = Predicate("k", PredicateOp.IN, (0, 11)).bind(SCHEMA)
    assert not bound.may_match(pa.scalar(1), pa.scalar(10), 0, 5)


@pytest.mark.parametrize(
    ("predicate", "code"),
    [
        (Predicate("nope", PredicateOp.EQ, (1,)), ErrorCode.COLUMN_NOT_FOUND),
        (Predicate("k", PredicateOp.EQ, ()), ErrorCode.INVALID_ARGUMENT),
        (Predicate("k", PredicateOp.EQ, (1, 2)), ErrorCode.INVALID_ARGUMENT),
        (Predicate("k", PredicateOp.EQ, ("x",)), ErrorCode.INVALID_ARGUMENT),
        (Predicate("k", PredicateOp.EQ, (1 << 63,)), ErrorCode.INVALID_ARGUMENT),
        (Predicate("k", PredicateOp.IN, (1, None)), ErrorCode.INVALID_ARGUMENT),
        (Predicate("s", PredicateOp.IS_NULL, ("x",)), ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_a_predicate_that_does_not_fit_is_refused(predicate, code):
    with pytest.raises(KuduError) as caught:
        predicate.bind(SCHEMA)
    assert caught.value.code is code
