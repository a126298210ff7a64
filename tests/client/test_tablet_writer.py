"""Grouping, refusals and what is worth another attempt: the parts of writing that need no network."""

import numpy as np
import pyarrow as pa
import pytest

from kudu_py.client.arrow_rows import conform, cut, split
from kudu_py.client.budget import ByteBudget
from kudu_py.client.pieces import BatchPiece, RowPiece, batch_of, encode_group, fits_group
from kudu_py.client.row_checker import UNSET, RowChecker
from kudu_py.client.row_encoder import SMALL_ROWS_MAX, RowEncoder
from kudu_py.client.tablet_writer import may_succeed_elsewhere_or_later
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.row_batch import RowBatch, RowOperation, decode, validate
from kudu_py.common.schema import ColumnSchema, DataType, Schema

SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.INT64, column_id=0),
        ColumnSchema("count", DataType.INT32, default=5, column_id=1),
        ColumnSchema("note", DataType.STRING, nullable=True, column_id=2),
    ),
    1,
)
CHECKER = RowChecker.of(SCHEMA)


def row(operation: RowOperation, *values: object) -> RowPiece:
    cells, size = CHECKER.cells(operation, [*values, *[UNSET] * (3 - len(values))])
    return RowPiece(SCHEMA, operation, cells, size, 1.0)


def arrow(first: int, last: int, operation: RowOperation = RowOperation.UPSERT) -> RowBatch:
    keys = pa.array(range(first, last))
    data = pa.record_batch([keys, pa.array([str(key) for key in range(first, last)])], ["key", "note"])
    rows, positions = conform(SCHEMA, data)
    return RowBatch(SCHEMA, np.full(last - first, operation, np.uint8), rows, positions)


def piece(batch: RowBatch) -> BatchPiece:
    return BatchPiece(batch, batch.rows.nbytes, 1.0, lambda *_: None, lambda _: None)


def test_rows_that_set_different_columns_share_a_message():
    group = [
        row(RowOperation.INSERT, 1, 2, "a"),
        row(RowOperation.UPDATE, 2, UNSET, "b"),
        row(RowOperation.DELETE, 3),
        row(RowOperation.UPSERT, 4, 9, None),
    ]
    batch = batch_of(group)
    validate(batch)
    sent = decode(SCHEMA, batch.encode(), batch.column_ids, has_unset=batch.unset is not None)
    assert sent.operations.tolist() == [1, 2, 3, 5]
    assert sent.rows.column(0).to_pylist() == [1, 2, 3, 4]
    assert sent.unset.tolist() == [[False, False, False], [False, True, False], [False, True, True], [False] * 3]


def test_columns_that_no_row_sets_are_not_sent():
    batch = batch_of([row(RowOperation.DELETE, 1), row(RowOperation.DELETE_IGNORE, 2)])
    assert batch.positions == (0,)
    assert batch.unset is None
    assert decode(SCHEMA, batch.encode(), batch.column_ids).rows.column_names == ["key"]


@pytest.mark.parametrize("count", [1, SMALL_ROWS_MAX, SMALL_ROWS_MAX + 1])
def test_rows_are_encoded_alike_in_any_number(count):
    encoded = encode_group([row(RowOperation.UPSERT, key, 7) for key in range(count)], RowEncoder(SCHEMA))
    assert (encoded.column_ids, encoded.has_unset) == ((0, 1), False)
    assert decode(SCHEMA, encoded.rows, encoded.column_ids).rows.to_pydict() == {
        "key": list(range(count)),
        "count": [7] * count,
    }


def test_a_value_that_plain_python_cannot_pack_is_sent_all_the_same():
    schema = Schema((SCHEMA.columns[0], ColumnSchema("share", DataType.FLOAT, column_id=1)), 1)
    cells, size = RowChecker.of(schema).cells(RowOperation.INSERT, [1, 1e300])
    encoded = encode_group([RowPiece(schema, RowOperation.INSERT, cells, size, 1.0)], RowEncoder(schema))
    assert decode(schema, encoded.rows).rows.column(1).to_pylist() == [float("inf")]


def test_batches_of_the_same_columns_are_joined_in_order():
    batch = batch_of([piece(arrow(0, 3)), piece(arrow(7, 9, RowOperation.DELETE))])
    assert batch.rows.column(0).to_pylist() == [0, 1, 2, 7, 8]
    assert batch.operations.tolist() == [5, 5, 5, 3, 3]


def test_what_cannot_share_a_message_does_not():
    single, batch = row(RowOperation.INSERT, 1), piece(arrow(0, 1))
    assert fits_group(single, row(RowOperation.DELETE, 2))
    assert not fits_group(single, batch)
    assert not fits_group(batch, single)
    alone = row(RowOperation.INSERT, 2)
    alone.alone = True
    assert not fits_group(single, alone)
    newer = Schema(SCHEMA.columns, 1, 1)
    assert not fits_group(single, RowPiece(newer, 1, [1, 2, None], 1, 1.0))


def test_split_keeps_the_order_of_each_partition():
    batch = arrow(0, 1000)
    partitions = (np.arange(1000) * 7 % 3).astype(np.int32)
    parts = split(batch, partitions, 3)
    assert [number for number, _, _ in parts] == [0, 1, 2]
    for number, part, where in parts:
        assert part.rows.column(0).to_pylist() == np.flatnonzero(partitions == number).tolist() == where.tolist()


def test_rows_of_one_partition_are_not_moved():
    batch = arrow(0, 10)
    assert split(batch, np.full(10, 2, np.int32), 3) == [(2, batch, None)]


def test_large_batches_are_cut_and_nothing_is_lost():
    batch = arrow(0, 10_000)
    pieces = cut(batch, rows_max=3000, bytes_max=1 << 30)
    assert [(first, part.row_count) for first, part in pieces] == [(0, 3000), (3000, 3000), (6000, 3000), (9000, 1000)]
    skewed = RowBatch(
        SCHEMA,
        np.full(4, 5, np.uint8),
        pa.record_batch([pa.array([1, 2, 3, 4]), pa.array(["x" * 60_000, "", "", ""])], ["key", "note"]),
        (0, 2),
    )
    parts = cut(skewed, rows_max=100, bytes_max=10_000)
    assert [first for first, _ in parts] == sorted({first for first, _ in parts})
    assert sum(part.row_count for _, part in parts) == 4
    assert [key for _, part in parts for key in part.rows.column(0).to_pylist()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("operation", "values", "message"),
    [
        (RowOperation.INSERT, (UNSET, 1), "'key' is part of the primary key and must be set"),
        (RowOperation.INSERT, (None, 1), "'key' cannot be null"),
        (RowOperation.INSERT, (1 << 63, 1), "does not fit INT64"),
        (RowOperation.UPSERT, (1, None), "'count' is not nullable but the value is null"),
        (RowOperation.UPDATE, (1, "x"), "'count' of type INT32 cannot hold str 'x'"),
        (RowOperation.DELETE, (1, 2), "'count' is not part of the primary key"),
        (RowOperation.INSERT, (1, 2, "x" * 65_537), "'note' has 65537 bytes; the limit is 65536"),
        (RowOperation.INSERT, (1, 2, "\ud800"), "'note' of type STRING cannot hold"),
    ],
)
def test_a_bad_row_is_refused_before_it_is_grouped(operation, values, message):
    with pytest.raises(KuduError, match=message) as caught:
        row(operation, *values)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_a_column_with_a_default_may_be_left_out():
    assert row(RowOperation.INSERT, 1).cells == [1, UNSET, UNSET]


@pytest.mark.parametrize(
    ("code", "verdict", "again"),
    [
        (ErrorCode.NOT_THE_LEADER, Verdict.TRY_LATER, True),
        (ErrorCode.UNAVAILABLE, Verdict.UNKNOWN, True),
        (ErrorCode.TIMED_OUT, Verdict.UNKNOWN, True),
        (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER, True),
        (ErrorCode.TABLET_NOT_FOUND, Verdict.FAILED, True),
        (ErrorCode.INTERNAL, Verdict.UNKNOWN, True),
        (ErrorCode.INVALID_MUTATION, Verdict.FAILED, False),
        (ErrorCode.MISMATCHED_SCHEMA, Verdict.FAILED, False),
        # A server that cannot tell whether it applied the message will not be able to later.
        (ErrorCode.REQUEST_STALE, Verdict.UNKNOWN, False),
        (ErrorCode.REQUEST_ID_REUSED, Verdict.FAILED, False),
    ],
)
def test_what_is_worth_sending_again(code, verdict, again):
    assert may_succeed_elsewhere_or_later(KuduError(code, "why", verdict=verdict)) is again


async def test_room_is_given_in_the_order_of_asking():
    import asyncio

    budget = ByteBudget(100)
    assert budget.try_take(80)
    taken: list[int] = []

    async def take(size: int) -> None:
        await budget.take(size)
        taken.append(size)

    async with asyncio.TaskGroup() as tasks:
        for size in (50, 10, 500):
            tasks.create_task(take(size))
        await asyncio.sleep(0)
        assert not budget.try_take(1), "others wait already"
        assert taken == []
        budget.give_back(80)
        await asyncio.sleep(0)
        assert taken == [50, 10]
        budget.give_back(50)
        assert budget.taken == 10
        budget.give_back(10)
        await asyncio.sleep(0)
        assert taken == [50, 10, 500], "what is larger than all fits alone"


async def test_a_caller_that_gives_up_takes_no_room():
    import asyncio

    budget = ByteBudget(10)
    assert budget.try_take(10)
    waiting = asyncio.create_task(budget.take(10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    budget.give_back(10)
    assert budget.taken == 0
    assert budget.try_take(10)
