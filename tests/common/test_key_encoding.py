"""Keys of whole batches: encoded bytes order as the keys do, and hashes depend on the key alone."""

from __future__ import annotations

import datetime
import decimal
import random

import numpy as np
import pyarrow as pa
import pytest

from kudu_py.common.key_encoding import (
    KeyBatch,
    decode_key,
    encode_key,
    encode_keys,
    hash_scalars,
    hashes_of,
    radix_order,
)
from kudu_py.common.schema import ColumnSchema, DataType, Schema

_UTC = datetime.UTC
_EXAMPLES = {
    DataType.INT8: [-128, -1, 0, 1, 127],
    DataType.INT16: [-(1 << 15), -256, 0, 255, (1 << 15) - 1],
    DataType.INT32: [-(1 << 31), -1, 0, 1 << 16, (1 << 31) - 1],
    DataType.INT64: [-(1 << 63), -(1 << 32), -1, 0, 1 << 33, (1 << 63) - 1],
    DataType.UNIXTIME_MICROS: [datetime.datetime(y, 1, 1, 1, 2, 3, 4, tzinfo=_UTC) for y in (1, 1969, 1970, 9999)],
    DataType.DATE: [
        datetime.date(1, 1, 1),
        datetime.date(1969, 12, 31),
        datetime.date(1970, 1, 1),
        datetime.date(9999, 12, 31),
    ],
    DataType.STRING: ["", "a", "a\0", "a\0b", "a\1", "ab", "abcdefgh", "abcdefghi", "é", "\U0001f600"],
    DataType.VARCHAR: ["", "a", "b", "é"],
    DataType.BINARY: [b"", b"\0", b"\0\0", b"\0\1", b"\1", b"abcdefgh", b"abcdefgh\0", b"\xff"],
    DataType.DECIMAL: [decimal.Decimal(x) for x in ("-99.99", "-0.01", "0.00", "0.01", "99.99")],
}


def _column(kind, name="k", precision=4):
    more = {"precision": precision, "scale": 2} if kind is DataType.DECIMAL else {}
    return ColumnSchema(name, kind, length=9 if kind is DataType.VARCHAR else 0, **more)


def _schema(*kinds):
    return Schema(tuple(_column(kind, f"k{i}") for i, kind in enumerate(kinds)), len(kinds))


def _columns(schema, rows):
    return [pa.array([row[i] for row in rows], c.arrow_type) for i, c in enumerate(schema.columns)]


def _sort_key(row):
    return tuple(value.encode() if isinstance(value, str) else value for value in row)


_KINDS = [(kind,) for kind in _EXAMPLES]
_PAIRS = [(a, b) for a in _EXAMPLES for b in (DataType.STRING, DataType.BINARY, DataType.INT16, DataType.DECIMAL)]


@pytest.mark.parametrize("kinds", [*_KINDS, *_PAIRS], ids=str)
def test_encoded_keys_order_as_keys(kinds):
    schema = _schema(*kinds)
    rng = random.Random(str(kinds))
    rows = list({tuple(rng.choice(_EXAMPLES[kind]) for kind in kinds) for _ in range(80)})
    columns = _columns(schema, rows)
    encoded = encode_keys(schema, columns).array.to_pylist()
    by_bytes = [row for _, row in sorted(zip(encoded, rows, strict=True), key=lambda pair: pair[0])]
    assert by_bytes == sorted(rows, key=_sort_key)
    assert [rows[i] for i in KeyBatch.of(schema, columns).order()] == by_bytes
    assert [decode_key(schema, key) for key in encoded] == rows
    assert encode_key(schema, rows[0]) == encoded[0]


@pytest.mark.parametrize(("precision", "width"), [(9, 4), (10, 8), (18, 8), (19, 16), (38, 16)])
def test_decimals_take_as_many_bytes_as_their_precision_needs(precision, width):
    schema = Schema((_column(DataType.DECIMAL, precision=precision),), 1)
    values = [
        decimal.Decimal(x).scaleb(-2, decimal.Context(prec=50))
        for x in (-(10**precision) + 1, -1, 0, 1, 10**precision - 1)
    ]
    encoded = [encode_key(schema, [value]) for value in values]
    assert [len(key) for key in encoded] == [width] * 5
    assert encoded == sorted(encoded)
    assert [decode_key(schema, key) for key in encoded] == [(value,) for value in values]


@pytest.mark.parametrize("kinds", [*_KINDS, *_PAIRS], ids=str)
def test_a_hash_depends_on_its_key_alone(kinds):
    schema = _schema(*kinds)
    rng = random.Random(str(kinds))
    rows = [tuple(rng.choice(_EXAMPLES[kind]) for kind in kinds) for _ in range(40)]
    keys = KeyBatch.of(schema, _columns(schema, rows))
    together = keys.hashes().tolist()
    alone = [int(KeyBatch.of(schema, _columns(schema, [row])).hashes()[0]) for row in rows]
    assert together == alone
    assert together == [hash_scalars(key) for key in keys.scalars()]
    assert together == hashes_of(keys.scalars())
    assert keys.take(np.arange(0, 40, 3)).hashes().tolist() == together[::3]
    assert all(h >> 32 & 1 for h in together)
    assert len(set(together)) == len(set(rows))


def test_hashes_are_part_of_the_file_format():
    schema = _schema(DataType.INT64, DataType.STRING)
    keys = KeyBatch.of(schema, _columns(schema, [(1, "a"), (-1, ""), (7, "0123456789abcdef!")]))
    assert keys.hashes().tolist() == [15116712121808915604, 7137561298298681191, 3885617764989947100]


@pytest.mark.parametrize("kinds", [*_KINDS, *_PAIRS], ids=str)
def test_equal_means_the_same_key(kinds):
    schema = _schema(*kinds)
    rng = random.Random(str(kinds))
    rows = [tuple(rng.choice(_EXAMPLES[kind][:3]) for kind in kinds) for _ in range(60)]
    other = [rng.choice([row, rng.choice(rows)]) for row in rows]
    a, b = KeyBatch.of(schema, _columns(schema, rows)), KeyBatch.of(schema, _columns(schema, other))
    assert a.equal(b).tolist() == [x == y for x, y in zip(rows, other, strict=True)]


def test_slices_of_arrays_are_read_from_their_offset():
    schema = _schema(DataType.STRING, DataType.INT32, DataType.DECIMAL)
    rows = [("x" * i, i, decimal.Decimal(i)) for i in range(20)]
    whole = KeyBatch.of(schema, _columns(schema, rows))
    part = KeyBatch.of(schema, [column.slice(7, 5) for column in _columns(schema, rows)])
    assert part.hashes().tolist() == whole.hashes().tolist()[7:12]
    sliced = [column.slice(7, 5) for column in _columns(schema, rows)]
    assert (
        encode_keys(schema, sliced).array.to_pylist()
        == encode_keys(schema, _columns(schema, rows)).array.to_pylist()[7:12]
    )


def test_ascending_largest_and_ordinal_agree_with_the_order():
    schema = _schema(DataType.INT32, DataType.DECIMAL)
    rows = sorted({(random.Random(i).randrange(-5, 5), decimal.Decimal(i % 7 - 3)) for i in range(30)})
    keys = KeyBatch.of(schema, _columns(schema, rows))
    assert keys.ascending()
    assert not KeyBatch.of(schema, _columns(schema, rows[::-1])).ascending()
    assert not KeyBatch.of(schema, _columns(schema, [rows[0], rows[0]])).ascending()
    ordinals = [keys.ordinal(i) for i in range(keys.rows)]
    assert ordinals == sorted(ordinals)
    assert KeyBatch.of(schema, _columns(schema, rows[::-1])).largest() == ordinals[-1]
    assert KeyBatch.of(_schema(DataType.STRING), [pa.array(["a"])]).ordinal(0) is None


@pytest.mark.parametrize("spread", [1, 1 << 10, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_radix_order_is_a_stable_argsort(spread):
    words = np.random.default_rng(3).integers(0, spread, 20_000, dtype=np.uint64, endpoint=True)
    assert np.array_equal(radix_order(words), np.argsort(words, kind="stable"))


@pytest.mark.parametrize("encoded", [b"", b"\0\0\0", b"\x80\0\0\1abc", b"\x80\0\0\1a\0\2", b"\x80\0\0\1a\0"])
def test_bytes_that_are_no_key_are_refused(encoded):
    with pytest.raises(ValueError, match="key"):
        decode_key(_schema(DataType.INT32, DataType.STRING, DataType.INT8), encoded)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (ColumnSchema("k", DataType.INT8, nullable=False), [1, -2]),
        (ColumnSchema("k", DataType.INT64, nullable=False), [1, -2]),
        (ColumnSchema("k", DataType.STRING, nullable=False), ["a", "bc"]),
        (ColumnSchema("k", DataType.DECIMAL, nullable=False, precision=9, scale=2), [decimal.Decimal("1.25")] * 2),
    ],
)
def test_buffers_may_be_longer_than_their_cells_by_any_number_of_bytes(column, values):
    """Arrow allows it, and whoever writes to a server may send it: an entry of the log must never fail to apply."""
    usual = pa.array(values, column.arrow_type)
    longer = [None if each is None else pa.py_buffer(each.to_pybytes() + b"odd") for each in usual.buffers()]
    odd = pa.Array.from_buffers(column.arrow_type, len(usual), longer)
    odd.validate(full=True)
    schema = Schema((column,), 1)
    assert encode_keys(schema, [odd]).bytes_at(1) == encode_keys(schema, [usual]).bytes_at(1)
    assert KeyBatch.of(schema, [odd]).hashes().tolist() == KeyBatch.of(schema, [usual]).hashes().tolist()
