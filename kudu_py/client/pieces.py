"""`Piece`: rows of one caller on their way to one tablet, and how pieces are grouped into the rows of one Write."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.client.row_checker import UNSET
from kudu_py.client.row_encoder import SMALL_ROWS_MAX, EncodedRows, RowEncoder
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.row_batch import RowBatch
from kudu_py.common.schema import Schema

RowErrors = Sequence[tuple[int, ErrorCode]]
"""Position within the piece and reason, in order."""


class Piece(Protocol):
    """Rows of one caller for one tablet, in order.

    Attributes:
        schema: the table's schema that the rows follow.
        rows: their number.
        size_bytes: about what they take in memory.
        deadline: loop time after which the caller does not wait any more.
        alone: to be sent in a message of its own.
    """

    schema: Schema
    rows: int
    size_bytes: int
    deadline: float
    alone: bool

    def written(self, timestamp: int, errors: RowErrors) -> None:
        """The Write was applied at `timestamp`, but for the rows in `errors`. Called once, as is `failed`."""

    def failed(self, error: KuduError) -> None:
        """None of the rows was applied, or that is not known (by the error's verdict)."""


class RowPiece:
    """One row operation; who waits for it is told by what a subclass does in `written` and `failed`.

    Attributes:
        operation: its wire code.
        cells: a canonical value, None or UNSET per column of the schema.
    """

    __slots__ = ("alone", "cells", "deadline", "operation", "schema", "size_bytes")

    rows = 1

    def __init__(
        self, schema: Schema, operation: int, cells: Sequence[object], size_bytes: int, deadline: float
    ) -> None:
        self.schema = schema
        self.operation = operation
        self.cells = cells
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.alone = False

    def written(self, timestamp: int, errors: RowErrors) -> None:
        raise NotImplementedError

    def failed(self, error: KuduError) -> None:
        raise NotImplementedError


class BatchPiece:
    """Rows of an Arrow batch that belong to one tablet.

    Attributes:
        batch: the rows.
    """

    __slots__ = ("alone", "batch", "deadline", "on_failed", "on_written", "rows", "schema", "size_bytes")

    def __init__(
        self,
        batch: RowBatch,
        size_bytes: int,
        deadline: float,
        on_written: Callable[[int, RowErrors], None],
        on_failed: Callable[[KuduError], None],
    ) -> None:
        self.schema = batch.schema
        self.batch = batch
        self.rows = batch.row_count
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.on_written = on_written
        self.on_failed = on_failed
        self.alone = False

    def written(self, timestamp: int, errors: RowErrors) -> None:
        self.on_written(timestamp, errors)

    def failed(self, error: KuduError) -> None:
        self.on_failed(error)


def fits_group(group: Piece, piece: Piece) -> bool:
    """Whether `piece` can share a message with one that begins with `group`."""
    if group.alone or piece.alone or group.schema is not piece.schema:
        return False
    if isinstance(group, BatchPiece):
        return isinstance(piece, BatchPiece) and group.batch.positions == piece.batch.positions
    return isinstance(piece, RowPiece)


def encode_group(pieces: Sequence[Piece], encoder: RowEncoder) -> EncodedRows:
    """The wire form of the rows of pieces that fit one group, in order.

    Args:
        encoder: of the pieces' schema.
    """
    if isinstance(pieces[0], RowPiece) and len(pieces) <= SMALL_ROWS_MAX:
        rows = cast("Sequence[RowPiece]", pieces)
        try:
            return encoder.encode(bytes([row.operation for row in rows]), [row.cells for row in rows])
        except (OverflowError, struct.error):
            pass  # Arrow has a form for it
    batch = batch_of(pieces)
    return EncodedRows(batch.encode(), batch.column_ids, batch.unset is not None)


def batch_of(pieces: Sequence[Piece]) -> RowBatch:
    """The rows of pieces that fit one group, in order, as one batch."""
    first = pieces[0]
    if isinstance(first, RowPiece):
        return _batch_of_rows(first.schema, [piece for piece in pieces if isinstance(piece, RowPiece)])
    assert isinstance(first, BatchPiece)
    if len(pieces) == 1:
        return first.batch
    batches = [piece.batch for piece in pieces if isinstance(piece, BatchPiece)]
    assert len(batches) == len(pieces), "rows and batches in one group"
    rows = pa.concat_batches([batch.rows for batch in batches])
    unset: npt.NDArray[np.bool_] | None = None
    if any(batch.unset is not None for batch in batches):
        nothing = [np.zeros((batch.row_count, len(batch.positions)), np.bool_) for batch in batches]
        unset = np.concatenate([n if b.unset is None else b.unset for b, n in zip(batches, nothing, strict=True)])
    operations = np.concatenate([batch.operations for batch in batches])
    return RowBatch(first.schema, operations, rows, first.batch.positions, unset)


def _batch_of_rows(schema: Schema, pieces: Sequence[RowPiece]) -> RowBatch:
    operations = np.array([piece.operation for piece in pieces], np.uint8)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    positions: list[int] = []
    unset_columns: list[npt.NDArray[np.bool_]] = []
    some_unset = False
    for i, cells in enumerate(zip(*[piece.cells for piece in pieces], strict=True)):
        column = schema.columns[i]
        unset = np.zeros(len(pieces), np.bool_)
        if UNSET in cells:
            unset[:] = [cell is UNSET for cell in cells]
            if unset.all():
                continue
            some_unset = True
            cells = tuple(None if cell is UNSET else cell for cell in cells)
        arrays.append(pa.array(cells, column.arrow_type))
        fields.append(column.arrow_field.with_nullable(True))
        positions.append(i)
        unset_columns.append(unset)
    rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return RowBatch(schema, operations, rows, tuple(positions), np.column_stack(unset_columns) if some_unset else None)
