"""A few rows in plain Python are, byte for byte, the message that Arrow makes of them."""

import datetime
import decimal
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudu_py.client.pieces import RowPiece, batch_of
from kudu_py.client.row_checker import UNSET, RowChecker
from kudu_py.client.row_encoder import SMALL_ROWS_MAX, RowEncoder
from kudu_py.common.row_batch import RowOperation, decode, validate
from kudu_py.common.schema import ColumnSchema, DataType, Schema

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_VALUES = {
    DataType.BOOL: st.booleans(),
    DataType.INT8: st.integers(-(1 << 7), (1 << 7) - 1),
    DataType.INT16: st.integers(-(1 << 15), (1 << 15) - 1),
    DataType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    DataType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    DataType.FLOAT: st.floats(width=32),
    DataType.DOUBLE: st.floats(),
    DataType.STRING: _TEXT,
    DataType.VARCHAR: _TEXT,
    DataType.BINARY: st.binary(max_size=12),
    DataType.UNIXTIME_MICROS: st.datetimes(timezones=st.just(datetime.UTC)),
    DataType.DATE: st.dates(),
    DataType.DECIMAL: st.integers(-(10**22) + 1, 10**22 - 1).map(lambda n: decimal.Decimal(n).scaleb(-3)),
}
_IN_KEY = [kind for kind in DataType if kind not in (DataType.BOOL, DataType.FLOAT, DataType.DOUBLE)]
_DELETES = (RowOperation.DELETE, RowOperation.DELETE_IGNORE)


def column(number, kind, nullable=False):
    more = {DataType.DECIMAL: {"precision": 22, "scale": 3}, DataType.VARCHAR: {"length": 12}}.get(kind, {})
    return ColumnSchema(f"c{number}", kind, nullable=nullable, column_id=number + 10, **more)


@st.composite
def groups(draw):
    """A schema of any types, and rows of it in which any cell that may be is null or not set."""
    keys = draw(st.lists(st.sampled_from(_IN_KEY), min_size=1, max_size=3))
    others = draw(st.lists(st.sampled_from(list(DataType)), max_size=10))
    columns = [column(i, kind) for i, kind in enumerate(keys)]
    columns += [column(len(keys) + i, kind, nullable=True) for i, kind in enumerate(others)]
    schema = Schema(tuple(columns), len(keys))
    checker = RowChecker.of(schema)
    left_out = draw(st.sets(st.integers(0, len(columns)), max_size=3))
    rows = []
    for operation in draw(st.lists(st.sampled_from(list(RowOperation)), min_size=1, max_size=20)):
        values = [draw(_VALUES[kind]) for kind in keys]
        for i, kind in enumerate(others, len(keys)):
            nothing = operation in _DELETES or i in left_out
            values.append(UNSET if nothing else draw(st.one_of(_VALUES[kind], st.sampled_from([None, UNSET]))))
        rows.append((operation, checker.cells(operation, values)[0]))
    return schema, rows


def by_arrow(schema, rows):
    batch = batch_of([RowPiece(schema, operation, cells, 1, 1.0) for operation, cells in rows])
    validate(batch)
    return batch.encode(), batch.column_ids, batch.unset is not None


@settings(max_examples=300, deadline=None)
@given(groups())
def test_the_bytes_are_those_of_arrow(group):
    schema, rows = group
    encoded = RowEncoder(schema).encode(bytes(operation for operation, _ in rows), [cells for _, cells in rows])
    assert tuple(encoded) == by_arrow(schema, rows)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 63, 64, 65, SMALL_ROWS_MAX])
def test_any_number_of_rows(n):
    schema = Schema((column(0, DataType.INT64), column(1, DataType.BOOL, True), column(2, DataType.STRING, True)), 1)
    texts = ["", "x" * 9, None, UNSET, "é"]
    rows = [(RowOperation.UPSERT, [key, (True, None, False)[key % 3], texts[key % 5]]) for key in range(n)]
    encoded = RowEncoder(schema).encode(bytes([RowOperation.UPSERT] * n), [cells for _, cells in rows])
    assert tuple(encoded) == by_arrow(schema, rows)
    read = decode(schema, encoded.rows, encoded.column_ids, has_unset=encoded.has_unset)
    assert read.rows.column(0).to_pylist() == list(range(n))
    assert read.rows.column(1).to_pylist() == [cells[1] for _, cells in rows]


def test_more_than_eight_columns_with_a_mask():
    columns = [column(0, DataType.INT32), *[column(i, DataType.INT8, True) for i in range(1, 20)]]
    schema = Schema(tuple(columns), 1)
    rows = [
        (RowOperation.UPSERT, [k, *[UNSET if (k + i) % 3 == 0 or i == 5 else i for i in range(19)]]) for k in range(5)
    ]
    encoded = RowEncoder(schema).encode(bytes([RowOperation.UPSERT] * 5), [cells for _, cells in rows])
    assert encoded.has_unset
    assert len(encoded.column_ids) == 19
    assert tuple(encoded) == by_arrow(schema, rows)


def test_a_float_that_becomes_infinite_is_left_to_arrow():
    schema = Schema((column(0, DataType.INT64), column(1, DataType.FLOAT, True)), 1)
    with pytest.raises((OverflowError, struct.error)):
        RowEncoder(schema).encode(bytes([RowOperation.INSERT]), [[1, 1e300]])
