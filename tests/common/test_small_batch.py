"""A small batch is what `decode` and `validate` make of the same bytes, or is left to them."""

from __future__ import annotations

import datetime
import decimal
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudu_py.common import message_form
from kudu_py.common.errors import KuduError
from kudu_py.common.message_form import are_apart, form_of
from kudu_py.common.row_batch import RowBatch, RowOperation, decode, validate
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.small_batch import SMALL_ROWS_MAX, SmallBatch, SmallBatchReader, join

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_VALUES = {
    DataType.BOOL: st.booleans(),
    DataType.INT8: st.integers(-128, 127),
    DataType.INT16: st.integers(-(1 << 15), (1 << 15) - 1),
    DataType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    DataType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    DataType.FLOAT: st.floats(width=32),
    DataType.DOUBLE: st.floats(),
    DataType.STRING: st.text(max_size=12),
    DataType.VARCHAR: st.text(max_size=8),
    DataType.BINARY: st.binary(max_size=12),
    DataType.UNIXTIME_MICROS: st.integers(-(1 << 60), 1 << 60),
    DataType.DATE: st.integers(-719_162, 2_932_896),
    DataType.DECIMAL: st.integers(-(10**22) + 1, 10**22 - 1),
}
_IN_KEY = [kind for kind in DataType if kind not in (DataType.BOOL, DataType.FLOAT, DataType.DOUBLE)]


def _column(number, kind, nullable, default):
    more = {DataType.DECIMAL: {"precision": 22, "scale": 3}, DataType.VARCHAR: {"length": 7}}.get(kind, {})
    value = 7 if default and kind is DataType.INT32 else None
    return ColumnSchema(f"c{number}", kind, nullable=nullable, default=value, column_id=number + 10, **more)


def _array(column, values):
    kind = column.arrow_type
    if column.type is DataType.DECIMAL:
        context = decimal.Context(prec=60)
        values = [None if value is None else decimal.Decimal(value).scaleb(-column.scale, context) for value in values]
    elif column.type is DataType.UNIXTIME_MICROS:
        return pa.array(values, pa.int64()).cast(kind)
    elif column.type is DataType.DATE:
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, kind)


@st.composite
def _batches(draw):
    keys = draw(st.lists(st.sampled_from(_IN_KEY), min_size=1, max_size=3))
    others = draw(st.lists(st.sampled_from(list(DataType)), max_size=5))
    columns = [_column(i, kind, False, False) for i, kind in enumerate(keys)]
    columns += [_column(len(keys) + i, kind, draw(st.booleans()), draw(st.booleans())) for i, kind in enumerate(others)]
    schema = Schema(tuple(columns), len(keys))
    optional = list(range(len(keys), len(columns)))
    if draw(st.booleans()):
        optional = draw(st.permutations(optional).map(lambda p: p[: len(p) // 2 + 1]))
    positions = [*range(len(keys)), *optional]
    n = draw(st.one_of(st.integers(1, 12), st.integers(1, SMALL_ROWS_MAX + 2)))
    operations = draw(st.lists(st.sampled_from(RowOperation), min_size=n, max_size=n))
    if draw(st.booleans()):
        operations = [operations[0]] * n
    arrays = []
    for position in positions:
        column = schema.columns[position]
        values = _VALUES[column.type]
        if position >= len(keys) and draw(st.integers(0, 3)):
            values = st.one_of(st.none(), values)
        some = draw(st.lists(values, min_size=n, max_size=n))
        arrays.append(_array(column, some))
    unset = None
    if draw(st.booleans()):
        seed = draw(st.integers(0, 1 << 30))
        unset = np.random.default_rng(seed).random((n, len(positions))) < 0.4
        if draw(st.integers(0, 9)):
            unset[:, : len(keys)] = False
    rows = pa.RecordBatch.from_arrays(arrays, names=[schema.columns[p].name for p in positions])
    return RowBatch(schema, np.array(operations, np.uint8), rows, tuple(positions), unset)


def _by_arrow(schema, payload, column_ids, has_unset):
    """What the long way says: the batch, or None if it is refused."""
    try:
        batch = decode(schema, payload, column_ids, has_unset=has_unset)
        validate(batch)
    except KuduError:
        return None
    return batch


def _opened(schema, payload, column_ids, has_unset, *, reader=None):
    reader = SmallBatchReader(schema) if reader is None else reader
    try:
        return reader.open(payload, column_ids, has_unset=has_unset)
    except KuduError:
        return None


def _bits(cells):
    if pa.types.is_floating(cells.type):
        return cells.view(pa.int32() if cells.type.bit_width == 32 else pa.int64())
    return cells


def _require_same(small, batch):
    joined = join([small])
    joined.rows.validate(full=True)
    assert joined.schema is batch.schema
    assert joined.positions == batch.positions
    assert joined.operations.tolist() == batch.operations.tolist() == list(small.operations)
    assert (joined.unset is None) == (batch.unset is None)
    if batch.unset is not None:
        assert np.array_equal(joined.unset, batch.unset)
    assert joined.rows.schema == batch.rows.schema
    for mine, other in zip(joined.rows.columns, batch.rows.columns, strict=True):
        assert _bits(mine).equals(_bits(other))
    assert small.keys == batch.keys.scalars() == joined.keys.scalars()
    validate(joined)


@settings(max_examples=200, deadline=None)
@given(_batches())
def test_a_small_batch_is_what_arrow_reads(batch):
    reader = SmallBatchReader(batch.schema)
    sent = batch.encode(), batch.column_ids, batch.unset is not None
    expected = _by_arrow(batch.schema, *sent)
    for attempt in range(3):
        opened = _opened(batch.schema, *sent, reader=reader)
        if isinstance(opened, SmallBatch):
            assert expected is not None
            _require_same(opened, expected)
        elif attempt and expected is not None:
            # Nothing about these batches is unusual.
            assert batch.row_count > SMALL_ROWS_MAX


_NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 7, 8, 9, 16, 64, 65, 255, 1 << 31, (1 << 31) - 1, -1, -8, -(1 << 63), 1 << 62]),
    st.integers(-40, 400),
)


@st.composite
def _changes(draw):
    return draw(
        st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from([1, 4, 8]), _NUMBERS), min_size=1, max_size=3)
    )


@settings(max_examples=300, deadline=None)
@given(_batches(), st.lists(_changes(), min_size=1, max_size=12))
def test_a_changed_message_is_never_more_than_arrow_reads(batch, mutants):
    column_ids, has_unset = batch.column_ids, batch.unset is not None
    payload = batch.encode()
    reader = SmallBatchReader(batch.schema)
    for _ in range(2):
        _opened(batch.schema, payload, column_ids, has_unset, reader=reader)
    for changes in mutants:
        changed = bytearray(payload)
        for at, width, number in changes:
            at = at % len(changed) // width * width
            changed[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        opened = _opened(batch.schema, bytes(changed), column_ids, has_unset, reader=reader)
        if isinstance(opened, SmallBatch):
            expected = _by_arrow(batch.schema, bytes(changed), column_ids, has_unset)
            assert expected is not None, [(at % len(changed), width, number) for at, width, number in changes]
            _require_same(opened, expected)


SCHEMA = Schema(
    (
        ColumnSchema("k", DataType.INT64, column_id=0),
        ColumnSchema("v", DataType.STRING, nullable=True, column_id=1),
        ColumnSchema("w", DataType.VARCHAR, length=3, column_id=2),
        ColumnSchema("d", DataType.DATE, nullable=True, column_id=3),
        ColumnSchema("x", DataType.DECIMAL, precision=4, nullable=True, column_id=4),
    ),
    1,
)


def _simple(n=2, *, v=None, w=None, operations=None):
    columns = [
        pa.array(range(n), pa.int64()),
        pa.array(v or ["é"] * n),
        pa.array(w or ["abc"] * n),
        pa.array([0] * n, pa.int32()).cast(pa.date32()),
        pa.array([decimal.Decimal(1)] * n, pa.decimal128(4, 0)),
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=list(SCHEMA.names))
    codes = np.array(operations or [RowOperation.INSERT] * n, np.uint8)
    return RowBatch(SCHEMA, codes, rows, (0, 1, 2, 3, 4)).encode()


def _reader():
    reader = SmallBatchReader(SCHEMA)
    reader.open(_simple(), (), has_unset=False)
    assert isinstance(reader.open(_simple(), (), has_unset=False), SmallBatch)
    return reader


def test_a_form_is_learnt_from_the_first_message():
    assert isinstance(_reader().open(_simple(9), (), has_unset=False), SmallBatch)


def _body(payload):
    return 8 + struct.unpack_from("<i", payload, 4)[0]


_OFFSETS = struct.pack("<3i", 0, 2, 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload.replace("é".encode(), b"\xc3\x28"),
        lambda payload: payload.replace(
            b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00", struct.pack("<3i", 0, 1, 4)
        ),
        lambda payload: payload.replace(
            b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00", struct.pack("<3i", 0, 4, 2)
        ),
        lambda payload: payload.replace(
            b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00", struct.pack("<3i", -2, 2, 4)
        ),
        lambda payload: payload.replace(
            b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00", struct.pack("<3i", 0, 2, 40)
        ),
        lambda payload: payload[: _body(payload)] + b"\x04" + payload[_body(payload) + 1 :],
        lambda payload: payload[:-8],
        lambda payload: payload + bytes(8),
        lambda payload: payload[:-32] + (10_000).to_bytes(16, "little") + payload[-16:],
    ],
    ids=["utf8", "split", "falling", "negative", "beyond", "operation", "cut", "surplus", "decimal"],
)
def test_what_is_wrong_in_a_message_is_left_to_arrow(change):
    reader, payload = _reader(), change(_simple())
    assert payload != _simple()
    expected = _by_arrow(SCHEMA, payload, (), False)
    opened = _opened(SCHEMA, payload, (), False, reader=reader)
    assert not isinstance(opened, SmallBatch)
    assert expected is None or isinstance(opened, RowBatch)


@pytest.mark.parametrize("words", [["abc", "abcd"], ["abc", "éééé"]])
def test_a_string_above_its_characters_is_left_to_validate(words):
    opened = _reader().open(_simple(w=words), (), has_unset=False)
    assert isinstance(opened, RowBatch)
    with pytest.raises(KuduError, match="row 1: column 'w' is longer than 3 characters"):
        validate(opened)


def test_more_rows_than_small_ones_are_arrays():
    assert isinstance(_reader().open(_simple(SMALL_ROWS_MAX), (), has_unset=False), SmallBatch)
    assert isinstance(_reader().open(_simple(SMALL_ROWS_MAX + 1), (), has_unset=False), RowBatch)


def test_tables_that_differ_in_their_key_only_are_told_apart():
    columns = tuple(ColumnSchema(f"c{i}", DataType.INT16, column_id=i) for i in range(2))
    for key_count in (1, 2, 1):
        reader = SmallBatchReader(Schema(columns, key_count))
        rows = pa.RecordBatch.from_arrays([pa.array([7, 8], pa.int16())] * 2, names=["c0", "c1"])
        payload = RowBatch(reader.schema, np.array([1, 1], np.uint8), rows, (0, 1)).encode()
        opened = [reader.open(payload, (), has_unset=False) for _ in range(2)][1]
        assert isinstance(opened, SmallBatch)
        assert opened.keys == [(7,) * key_count, (8,) * key_count]


def test_many_batches_join_in_order():
    reader = _reader()
    rng = random.Random(4)
    sizes = [1, 3, 64, 2, 9, 8]
    words = [[rng.choice([None, "", "é", "xyz"]) for _ in range(n)] for n in sizes]
    smalls = [reader.open(_simple(n, v=v), (), has_unset=False) for n, v in zip(sizes, words, strict=True)]
    assert all(isinstance(small, SmallBatch) for small in smalls)
    joined = join(smalls)
    joined.rows.validate(full=True)
    assert joined.rows.column(0).to_pylist() == [i for n in sizes for i in range(n)]
    assert joined.rows.column(1).to_pylist() == [word for some in words for word in some]


def test_numbers_that_overlap_make_no_form():
    payload = bytearray(_simple())
    form = form_of(bytes(payload))
    assert form is not None
    columns = payload.index(struct.pack("<Iqq", 6, 2, 0))
    buffers = payload.index(struct.pack("<Iqq", 14, 0, 0))
    leading = next(i for i in range(8, columns, 4) if i + struct.unpack_from("<I", payload, i)[0] == columns)
    for elsewhere in range(buffers, buffers + 14 * 16, 8):
        struct.pack_into("<i", payload, leading, elsewhere - leading)
        struct.pack_into("<I", payload, elsewhere, 14 if elsewhere == buffers else 1)
        assert form_of(bytes(payload)) is None


@pytest.mark.parametrize(
    ("spans", "verdict"),
    [
        ([(0, 8), (8, 12), (100, 200)], True),
        ([(0, 8), (4, 12)], False),
        ([(0, 8), (0, 8)], False),
        ([(0, 8), (2, 4)], False),
        ([(0, 8), (196, 204)], False),
        ([(0, 8), (-4, 0)], False),
    ],
)
def test_stretches_are_apart(spans, verdict):
    assert are_apart(spans, 200) is verdict


def _padded(payload, junk):
    """The message with bytes that nothing refers to behind its flatbuffer."""
    size = int.from_bytes(payload[4:8], "little")
    return payload[:4] + (size + len(junk)).to_bytes(4, "little") + payload[8 : 8 + size] + junk + payload[8 + size :]


def test_no_form_is_learnt_from_heads_with_more_than_writers_put_there():
    schema = Schema((ColumnSchema("padded", DataType.INT64, column_id=1),), 1)
    batch = RowBatch(schema, np.array([1], np.uint8), pa.record_batch([pa.array([5])], names=["padded"]), (0,))
    payload, before = batch.encode(), dict(message_form._forms)
    reader = SmallBatchReader(schema)
    for i in range(10):
        opened = reader.open(_padded(payload, bytes([i]) * 4096), (), has_unset=False)
        assert isinstance(opened, RowBatch), "Arrow overlooks the padding"
    message_form.learn(payload, 2, 99)  # as if Arrow had overlooked surplus buffers
    assert message_form._forms == before

    reader.open(payload, (), has_unset=False)
    assert isinstance(reader.open(payload, (), has_unset=False), SmallBatch)
