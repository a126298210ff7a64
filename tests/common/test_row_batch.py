"""Row batches from the wire: what is sent comes back, and what no log may hold is refused by name."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.row_batch import RowBatch, RowOperation, decode, validate
from kudu_py.common.schema import MAX_CELL_BYTES, ColumnSchema, DataType, Schema

SCHEMA = Schema(
    (
        ColumnSchema("k", DataType.INT64, column_id=10),
        ColumnSchema("v", DataType.VARCHAR, length=3, nullable=True, column_id=11),
        ColumnSchema("day", DataType.DATE, default=datetime.date(2000, 1, 1), column_id=12),
        ColumnSchema("must", DataType.INT8, column_id=13),
    ),
    key_count=1,
)


def _batch(operations, columns, positions=(0, 1, 2, 3), unset=None):
    arrays = [pa.array(cells, SCHEMA.columns[p].arrow_type) for p, cells in zip(positions, columns, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, names=[SCHEMA.columns[p].name for p in positions])
    mask = None if unset is None else np.array(unset, np.bool_)
    return RowBatch(SCHEMA, np.array(operations, np.uint8), rows, tuple(positions), mask)


def _sent(batch):
    decoded = decode(SCHEMA, batch.encode(), batch.column_ids, has_unset=batch.unset is not None)
    validate(decoded)
    return decoded


def _refused(batch):
    with pytest.raises(KuduError) as caught:
        _sent(batch)
    return caught.value


GOOD = ([1, 2], ["a", None], [datetime.date(2020, 1, 1)] * 2, [1, 2])


def test_a_batch_comes_back_as_it_was_sent():
    batch = _sent(_batch([RowOperation.INSERT, RowOperation.DELETE], GOOD))
    assert batch.operations.tolist() == [1, 3]
    assert batch.rows.to_pydict()["v"] == ["a", None]
    assert batch.single_operation is None
    assert batch.unset is None


def test_unset_cells_and_left_out_columns_come_back():
    batch = _sent(_batch([2, 2], [[1, 2], ["a", "b"]], (0, 1), [[False, True], [False, False]]))
    assert batch.positions == (0, 1)
    assert batch.unset is not None
    assert batch.unset.tolist() == [[False, True], [False, False]]
    assert batch.single_operation is RowOperation.UPDATE


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([1, None], *GOOD[1:]), "key column 'k' is null"),
        ((GOOD[0], ["a", "long"], *GOOD[2:]), "longer than 3 characters"),
        ((*GOOD[:3], [1, None]), "'must' is not nullable"),
    ],
)
def test_a_bad_cell_is_refused_by_row_and_column(columns, words):
    error = _refused(_batch([1, 1], columns))
    assert "row 1" in error.message
    assert words in error.message


def test_a_date_outside_the_calendar_is_refused():
    days = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())
    good = _batch([1, 1], GOOD)
    rows = pa.RecordBatch.from_arrays([*good.rows.columns[:2], days, good.rows.column(3)], names=good.rows.schema.names)
    error = _refused(RowBatch(SCHEMA, good.operations, rows, good.positions))
    assert "row 1: column 'day'" in error.message


def test_a_cell_above_the_limit_is_refused():
    schema = Schema((SCHEMA.columns[0], ColumnSchema("s", DataType.BINARY, nullable=True, column_id=2)), 1)
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([b"", bytes(MAX_CELL_BYTES + 1)])], names=["k", "s"])
    with pytest.raises(KuduError, match="row 1: column 's' has a cell of 65537 bytes"):
        validate(RowBatch(schema, np.array([1, 1], np.uint8), rows, (0, 1)))


def test_an_insert_must_set_what_has_no_default():
    error = _refused(_batch([RowOperation.UPDATE, RowOperation.INSERT], [[1, 2], ["a", "b"]], (0, 1)))
    assert "row 1: column 'must'" in error.message
    assert _sent(_batch([RowOperation.UPDATE, RowOperation.DELETE], [[1, 2], ["a", "b"]], (0, 1))).row_count == 2


@pytest.mark.parametrize("code", [0, 4, 6, 9, 14, 255])
def test_an_unknown_operation_is_refused(code):
    assert f"code {code}" in _refused(_batch([1, code], GOOD)).message


def test_an_empty_batch_is_refused():
    assert _refused(_batch([], [[], [], [], []])).code is ErrorCode.INVALID_ROW_BLOCK


@pytest.mark.parametrize("payload", [b"", b"\0" * 8, b"\xff" * 64, b"ARROW1\0\0" + bytes(100)])
def test_bytes_that_are_no_message_are_refused(payload):
    with pytest.raises(KuduError) as caught:
        decode(SCHEMA, payload)
    assert caught.value.code is ErrorCode.INVALID_ROW_BLOCK


def test_no_cut_or_flipped_message_does_more_than_be_refused():
    whole = bytearray(_batch([1, 1], GOOD).encode())
    for length in range(0, len(whole), 7):
        with pytest.raises(KuduError):
            validate(decode(SCHEMA, bytes(whole[:length])))
    for at in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        try:
            validate(decode(SCHEMA, bytes(broken)))
        except KuduError:
            continue


def test_a_schema_message_is_refused():
    with pytest.raises(KuduError, match="schema message"):
        decode(SCHEMA, SCHEMA.arrow.serialize().to_pybytes())


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_message_is_refused(codec):
    batch = _batch([1, 1], GOOD)
    arrays = [pa.array(batch.operations), *batch.rows.columns]
    plain = pa.RecordBatch.from_arrays(arrays, names=["__op", *SCHEMA.names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(plain)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    payload = reader.read_next_message().serialize().to_pybytes()
    with pytest.raises(KuduError, match="without body compression"):
        decode(SCHEMA, payload)


@pytest.mark.parametrize("column_ids", [(10, 99), (10, 10), (11,), (11, 10)])
def test_columns_that_do_not_fit_the_schema_are_refused(column_ids):
    with pytest.raises(KuduError) as caught:
        decode(SCHEMA, _batch([1], [[1]], (0,)).encode(), column_ids)
    assert caught.value.code is ErrorCode.MISMATCHED_SCHEMA


@pytest.mark.parametrize("rubbish", [b"x", bytes(8), b"another message, say"])
def test_nothing_may_stand_behind_the_message(rubbish):
    payload = _batch([1, 1], GOOD).encode()
    decode(SCHEMA, payload)
    with pytest.raises(KuduError) as caught:
        decode(SCHEMA, payload + rubbish)
    assert caught.value.code is ErrorCode.INVALID_ROW_BLOCK
    assert "nothing behind it" in caught.value.message
