"""`KuduSession`: row operations and Arrow batches to the writers of their tablets, and what became of them.

A session holds nothing back but in MANUAL_FLUSH: rows go to the `TabletWriter` of their tablet, which groups whatever
waits for it. Rows of one key are applied in the order in which they were given to one session, also over a flush.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kudu_py.client.arrow_rows import conform, cut, split, take_row
from kudu_py.client.errors import invalid, public_error, raises_public, raises_public_async
from kudu_py.client.location_cache import TableLocations
from kudu_py.client.pieces import BatchPiece, RowErrors, RowPiece
from kudu_py.client.table import TableInfo, WriteOperation, operation_of
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.row_batch import RowBatch, RowOperation, validate
from kudu_py.common.schema import ColumnSchema

if TYPE_CHECKING:
    from kudu_py.client.client import KuduClient

_SLICE_ROWS = 1 << 16
"""Rows of a batch that are handled in one turn of the loop."""
_DELETES = (RowOperation.DELETE, RowOperation.DELETE_IGNORE)


@unique
class FlushMode(Enum):
    """When rows are sent."""

    AUTO_FLUSH_SYNC = "sync"
    """`apply` and `write` return when the rows are durable, and raise if they were not applied."""
    AUTO_FLUSH_BACKGROUND = "background"
    """Rows are sent at once; errors are collected until `flush`."""
    MANUAL_FLUSH = "manual"
    """Single rows wait for `flush`; errors are collected. Arrow batches are sent at once, behind the rows that wait."""


@raises_public
def flush_mode_of(given: FlushMode | str) -> FlushMode:
    """A flush mode by constant or by kudu-python's name."""
    if isinstance(given, FlushMode):
        return given
    for mode in FlushMode:
        if str(given).lower() in (mode.value, mode.name.lower()):
            return mode
    raise invalid(f"{given!r} is no flush mode; modes are {', '.join(mode.value for mode in FlushMode)}")


@dataclass(frozen=True, slots=True, eq=False)
class RowError:
    """A row that was not applied, or may not have been.

    Attributes:
        code: why.
        message: the same for people; names the row.
        operation: what was to be done.
        row: the values by column.
        row_index: where the row stood in its Arrow batch; None for single operations.
        table: the table's name.
    """

    code: ErrorCode
    message: str
    operation: RowOperation
    row: dict[str, object]
    row_index: int | None
    table: str
    possibly_successful: bool = False

    def was_possibly_successful(self) -> bool:
        """Whether the outcome is unknown."""
        return self.possibly_successful

    def failed_op(self) -> str:
        """The operation for people."""
        return f"{self.operation.name} {self.row}"

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"


class _Epoch:
    """What was handed over between two flushes."""

    __slots__ = ("count", "waiter")

    def __init__(self) -> None:
        self.count = 0
        self.waiter: asyncio.Future[None] | None = None

    def ended(self) -> None:
        self.count -= 1
        if self.count == 0 and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        if self.count:
            if self.waiter is None:
                self.waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.waiter)


class _Row(RowPiece):
    """One row of a session."""

    __slots__ = ("epoch", "future", "session", "source")

    def __init__(
        self,
        session: KuduSession,
        source: WriteOperation,
        cells: list[object],
        size_bytes: int,
        future: asyncio.Future[None] | None,
    ) -> None:
        """
        Args:
            future: for the outcome; None: an error is kept by the session.
        """
        RowPiece.__init__(self, source.table.schema, source.operation, cells, size_bytes, 0.0)
        self.session = session
        self.source = source
        self.future = future
        self.epoch = session._epoch

    def written(self, timestamp: int, errors: RowErrors) -> None:
        if errors:
            source = self.source
            self.failed(_row_error(source.table, source.operation, self.key, errors[0][1]))
            return
        self.session._budget.give_back(self.size_bytes)
        future = self.future
        if future is not None and not future.done():
            future.set_result(None)
        self.epoch.ended()

    def failed(self, error: KuduError) -> None:
        self.session._budget.give_back(self.size_bytes)
        future = self.future
        if future is None:
            source = self.source
            self.session._keep(error, source.operation, source.as_dict(), None, source.table)
        elif not future.done():
            future.set_exception(error)
        self.epoch.ended()

    @property
    def key(self) -> Sequence[object]:
        """The cells of the key columns."""
        return self.cells[: self.schema.key_count]


class KuduSession:
    """Writes through one client. Made by `KuduClient.new_session`; may be shared by tasks of one loop.

    Used as `async with`, it flushes at the end.
    """

    def __init__(self, client: KuduClient, flush_mode: FlushMode, timeout_s: float) -> None:
        self._client = client
        self._budget = client.budget
        self._mode = flush_mode
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # Rows that wait for `flush`, checked, with their sizes; one by one they are handed over, by one task at a time.
        self._buffer: deque[tuple[WriteOperation, list[object], int]] = deque()
        self._buffered_bytes = 0
        self._sending = asyncio.Lock()
        self._epoch = _Epoch()
        self._earlier: deque[_Epoch] = deque()
        self._errors: list[RowError] = []
        self._errors_overflowed = False
        self._error_count = 0
        self._unknown_count = 0
        self._is_closed = False

    # -- settings
    # --------------------------------------------------------------------------------------------------------

    @property
    def flush_mode(self) -> FlushMode:
        """The present mode."""
        return self._mode

    @raises_public
    def set_flush_mode(self, flush_mode: FlushMode | str) -> None:
        """Changes the mode; refused while rows wait for `flush`."""
        if self._buffer:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "the flush mode cannot change while rows wait: flush first")
        self._mode = flush_mode_of(flush_mode)

    def set_timeout_ms(self, ms: int) -> None:
        """For each row from now on: the time until it must be durable, retries included."""
        if ms <= 0:
            raise invalid(f"a timeout is positive, not {ms} ms")
        self._timeout_s = ms / 1000

    def set_mutation_buffer_space(self, size_bytes: int) -> None:
        """Taken for compatibility; the client's `buffered_bytes_max` bounds what is buffered."""

    def set_mutation_buffer_flush_watermark(self, watermark_pct: float) -> None:
        """Taken for compatibility; rows are sent as soon as their tablet is free."""

    def set_mutation_buffer_flush_interval(self, millis: int) -> None:
        """Taken for compatibility; rows are sent as soon as their tablet is free."""

    def set_mutation_buffer_max_num(self, max_num: int) -> None:
        """Taken for compatibility."""

    # -- writing
    # ---------------------------------------------------------------------------------------------------------

    async def apply(self, operation: WriteOperation) -> None:
        """Writes one row, as the flush mode says. Waits for room if too much is buffered.

        Raises:
            KuduInvalidArgument: the row cannot be; nothing was sent.
            KuduBadStatus: AUTO_FLUSH_SYNC only: the row was not applied (KuduAlreadyPresent, KuduNotFound,
            KuduTimeout...) or may
                not have been (KuduOutcomeUnknown).
        """
        try:
            if self._mode is FlushMode.MANUAL_FLUSH:
                self.hold_back(operation)
                return
            self._require_open()
            cells, size = operation.table.checker.cells(operation.operation, operation.values)
            future = self._loop.create_future() if self._mode is FlushMode.AUTO_FLUSH_SYNC else None
            row = _Row(self, operation, cells, size, future)
            if not self._send_now(row):
                await self._send_later(row)
            if future is not None:
                await future
        except KuduError as error:
            raise public_error(error) from error

    @raises_public
    def hold_back(self, operation: WriteOperation) -> None:
        """MANUAL_FLUSH's `apply`: checks the row and keeps it until `flush`. No waiting, any thread.

        Raises:
            KuduInvalidArgument: the row cannot be.
            KuduBadStatus: ILLEGAL_STATE if too much waits.
        """
        self._require_open()
        cells, size = operation.table.checker.cells(operation.operation, operation.values)
        limit = self._client.options.buffered_bytes_max
        if self._buffered_bytes + size > limit and self._buffer:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"{self._buffered_bytes} bytes wait to be flushed; the limit is {limit}: flush first",
            )
        self._buffer.append((operation, cells, size))
        self._buffered_bytes += size

    @raises_public_async
    async def write(
        self,
        table: TableInfo,
        data: Any,
        operation: RowOperation | str = RowOperation.UPSERT,
        *,
        nulls_are_unset: bool = False,
    ) -> None:
        """Writes Arrow data: a RecordBatch, a Table, anything with the Arrow stream interface (pandas, polars), or an
        iterable of these.

        The fast way: rows are split by tablet column-wise and encoded once. Columns are found by name; those left out
        are not set. Returns when all rows have been handed over (AUTO_FLUSH_SYNC: are durable), waiting for room as
        needed.

        Args:
            nulls_are_unset: a null leaves the column as it is in a row that is there, and gives a new row the default.

        Raises:
            KuduInvalidArgument: names the column or row that cannot be. Nothing of the batch it is in was sent; earlier
                batches were.
            KuduBadStatus: AUTO_FLUSH_SYNC only, as `flush`.
        """
        self._require_open()
        code = operation_of(operation)
        await self._send_buffer()
        async for batch in _batches_of(data):
            for first in range(0, batch.num_rows, _SLICE_ROWS):
                await self._write_slice(
                    table, batch.slice(first, _SLICE_ROWS), first, code, nulls_are_unset=nulls_are_unset
                )
        if self._mode is FlushMode.AUTO_FLUSH_SYNC:
            await self._flush()

    @raises_public_async
    async def flush(self) -> None:
        """Sends what waits, and returns when everything given to this session before has an outcome.

        Raises:
            KuduBadStatus: rows failed since the last flush; `get_pending_errors` has them. KuduOutcomeUnknown if the
            outcome of
                some is not known.
        """
        await self._flush()

    def get_pending_errors(self) -> tuple[list[RowError], bool]:
        """The errors since the last time they were asked for, and whether there were more than are kept."""
        errors, self._errors = self._errors, []
        overflowed, self._errors_overflowed = self._errors_overflowed, False
        return errors, overflowed

    def count_pending_errors(self) -> int:
        """How many errors `get_pending_errors` would answer."""
        return len(self._errors)

    def has_pending_operations(self) -> bool:
        """Whether rows wait for `flush` or for an outcome."""
        return bool(self._buffer) or self._epoch.count > 0 or any(epoch.count for epoch in self._earlier)

    async def close(self) -> None:
        """Flushes; the session takes no more rows."""
        if not self._is_closed:
            try:
                await self.flush()
            finally:
                self._is_closed = True

    async def __aenter__(self) -> KuduSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        self._is_closed = True

    # -- inside
    # ----------------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._is_closed:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "the session is closed")

    async def _flush(self) -> None:
        await self._send_buffer()
        self._earlier.append(self._epoch)
        self._epoch = _Epoch()
        for epoch in list(self._earlier):
            await epoch.wait()
        while self._earlier and not self._earlier[0].count:
            self._earlier.popleft()
        failed, self._error_count = self._error_count, 0
        unknown, self._unknown_count = self._unknown_count, 0
        if failed:
            first = f"; the first: {self._errors[0]}" if self._errors else ""
            codes = {error.code for error in self._errors}
            raise KuduError(
                codes.pop() if len(codes) == 1 else ErrorCode.IO_ERROR,
                f"{counted(failed, 'row')} {'was' if failed == 1 else 'were'} not applied"
                f"{f' ({unknown} of them maybe)' if unknown else ''}{first}",
                verdict=Verdict.UNKNOWN if unknown else Verdict.FAILED,
            )

    async def _send_buffer(self) -> None:
        """Hands the rows that wait over, in order. Who comes second goes behind; who is cancelled leaves the rest."""
        async with self._sending:
            refused: dict[str, KuduError] = {}  # by table: what cannot be found once is not looked for row by row
            while self._buffer:
                operation, cells, size = self._buffer[0]
                row = _Row(self, operation, cells, size, None)
                error = refused.get(operation.table.id)
                try:
                    if error is None and not self._send_now(row):
                        await self._send_later(row)
                except KuduError as raised:
                    error = refused[operation.table.id] = raised
                self._buffer.popleft()
                self._buffered_bytes -= size
                if error is not None:
                    self._keep(error, operation.operation, operation.as_dict(), None, operation.table)

    def _send_now(self, row: _Row) -> bool:
        """Hands a row over if nothing has to be waited for: the usual way, and no coroutine on it."""
        client = self._client
        locations = client.known_locations(row.source.table)
        if locations is None:
            return False
        partition = locations.position_of(row.cells)
        if partition < 0:
            return False
        writer = client.writer(locations.tablets[partition].tablet_id)
        if not self._budget.try_take(row.size_bytes):
            return False
        row.epoch.count += 1
        row.deadline = self._loop.time() + self._timeout_s
        if row.future is None:
            writer.submit(row)
        else:
            writer.submit_awaited(row)
        return True

    async def _send_later(self, row: _Row) -> None:
        client = self._client
        table = row.source.table
        locations = client.known_locations(table) or await client.locations(table)
        partition = locations.position_of(row.cells)
        if partition < 0:
            locations = await client.locations(table, refresh=True)
            partition = locations.position_of(row.cells)
        epoch = row.epoch = self._epoch
        epoch.count += 1
        try:
            await self._budget.take(row.size_bytes)
        except BaseException:
            epoch.ended()
            raise
        if partition < 0:
            row.failed(_no_partition(table, row.key))
            return
        row.deadline = self._loop.time() + self._timeout_s
        try:
            writer = client.writer(locations.tablets[partition].tablet_id)
        except KuduError as closed:  # while this waited
            row.failed(closed)
            return
        writer.submit(row)

    async def _write_slice(
        self, table: TableInfo, data: pa.RecordBatch, first: int, operation: RowOperation, *, nulls_are_unset: bool
    ) -> None:
        schema = table.schema
        rows, positions = conform(schema, data)
        if operation in _DELETES and len(positions) > schema.key_count:
            extra = schema.columns[positions[schema.key_count]].name
            raise invalid(f"a delete takes the key columns alone; leave out {extra!r}")
        unset = _nulls(rows, schema.key_count) if nulls_are_unset else None
        batch = RowBatch(schema, np.full(len(rows), operation, np.uint8), rows, positions, unset)
        validate(batch)
        locations = self._client.known_locations(table) or await self._client.locations(table)
        partitions = locations.partitioner.rows_to_partitions(batch.rows.columns)
        if partitions.min() < 0:
            locations = await self._client.locations(table, refresh=True)
            partitions = locations.partitioner.rows_to_partitions(batch.rows.columns)
            outside = np.flatnonzero(partitions < 0)
            for row in outside.tolist():
                key = [batch.rows.column(k)[row].as_py() for k in range(schema.key_count)]
                self._keep(_no_partition(table, key), operation, take_row(batch, row), first + row, table)
            if len(outside):
                inside = np.flatnonzero(partitions >= 0)
                if not len(inside):
                    return
                kept = RowBatch(
                    schema,
                    batch.operations[inside],
                    batch.rows.take(pa.array(inside)),
                    positions,
                    unset[inside] if unset is not None else None,
                )
                await self._send_batch(table, locations, kept, partitions[inside], first + inside, operation)
                return
        await self._send_batch(table, locations, batch, partitions, first, operation)

    async def _send_batch(
        self,
        table: TableInfo,
        locations: TableLocations,
        batch: RowBatch,
        partitions: np.ndarray[Any, np.dtype[np.int32]],
        places: int | np.ndarray[Any, np.dtype[np.int64]],
        operation: RowOperation,
    ) -> None:
        """
        Args:
            places: where the rows stood in the caller's batch: each, or the first of a run.
        """
        options = self._client.options
        deadline = self._loop.time() + self._timeout_s
        for partition, part, where in split(batch, partitions, len(locations.tablets)):
            if isinstance(places, int):
                stood = places if where is None else places + where
            else:
                stood = places if where is None else places[where]
            for at, piece_rows in cut(part, rows_max=options.group_rows_max, bytes_max=options.group_bytes_max):
                here = stood + at if isinstance(stood, int) else stood[at : at + piece_rows.row_count]
                await self._submit_batch(
                    table, locations.tablets[partition].tablet_id, piece_rows, here, operation, deadline
                )

    async def _submit_batch(
        self,
        table: TableInfo,
        tablet_id: str,
        batch: RowBatch,
        places: int | np.ndarray[Any, np.dtype[np.int64]],
        operation: RowOperation,
        deadline: float,
    ) -> None:
        client = self._client
        size = batch.rows.nbytes + batch.row_count
        epoch = self._epoch
        epoch.count += 1
        try:
            if not client.budget.try_take(size):
                await client.budget.take(size)
        except BaseException:
            epoch.ended()
            raise

        def place(row: int) -> int:
            return places + row if isinstance(places, int) else int(places[row])

        def on_written(timestamp: int, errors: RowErrors) -> None:
            client.budget.give_back(size)
            for row, code in errors:
                if len(self._errors) >= client.options.errors_kept_max:
                    self._errors_overflowed = True
                    self._error_count += 1
                    continue
                key = [batch.rows.column(k)[row].as_py() for k in range(table.schema.key_count)]
                self._keep(_row_error(table, operation, key, code), operation, take_row(batch, row), place(row), table)
            epoch.ended()

        def on_failed(error: KuduError) -> None:
            client.budget.give_back(size)
            for row in range(batch.row_count):
                if len(self._errors) >= client.options.errors_kept_max:
                    self._errors_overflowed = True
                    more = batch.row_count - row
                    self._error_count += more
                    self._unknown_count += more if error.verdict is Verdict.UNKNOWN else 0
                    break
                self._keep(error, operation, take_row(batch, row), place(row), table)
            epoch.ended()

        try:
            writer = client.writer(tablet_id)
        except KuduError as closed:  # maybe while this waited
            on_failed(closed)
            raise
        writer.submit(BatchPiece(batch, size, max(deadline, self._loop.time()), on_written, on_failed))

    def _keep(
        self, error: KuduError, operation: RowOperation, row: dict[str, object], index: int | None, table: TableInfo
    ) -> None:
        unknown = error.verdict is Verdict.UNKNOWN
        self._error_count += 1
        self._unknown_count += unknown
        if len(self._errors) >= self._client.options.errors_kept_max:
            self._errors_overflowed = True
            return
        self._errors.append(RowError(error.code, error.message, operation, row, index, table.name, unknown))


def _nulls(rows: pa.RecordBatch, key_count: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """bool[n, k]: where a cell outside the key is null; None if there is none."""
    if not any(cells.null_count for cells in rows.columns[key_count:]):
        return None
    nulls = np.zeros((rows.num_rows, rows.num_columns), np.bool_)
    for k in range(key_count, rows.num_columns):
        if rows.column(k).null_count:
            nulls[:, k] = rows.column(k).is_null().to_numpy(zero_copy_only=False)
    return nulls


async def _batches_of(data: Any) -> AsyncIterator[pa.RecordBatch]:
    """The record batches of whatever Arrow data a caller has."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        for batch in data.to_batches():
            yield batch
    elif hasattr(data, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(data):
            yield batch
    elif hasattr(data, "__aiter__"):
        async for item in data:
            async for batch in _batches_of(item):
                yield batch
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        for item in data:
            if not (hasattr(item, "__arrow_c_stream__") or hasattr(item, "__arrow_c_array__")):
                raise invalid(f"write takes Arrow data; for rows such as {type(item).__name__} use apply")
            async for batch in _batches_of(item):
                yield batch
    else:
        raise invalid(f"write takes a RecordBatch, a Table or other Arrow data, not {type(data).__name__}")


def _show_key(table: TableInfo, key: Iterable[object]) -> str:
    columns: Iterator[ColumnSchema] = iter(table.schema.key_columns)
    return ", ".join(f"{column.name}={value!r}"[:100] for column, value in zip(columns, key, strict=True))


def _row_error(table: TableInfo, operation: RowOperation, key: Iterable[object], code: ErrorCode) -> KuduError:
    why = {
        ErrorCode.ALREADY_PRESENT: "the key is there already",
        ErrorCode.NOT_FOUND: "there is no row of this key",
    }.get(code, code.value)
    return KuduError(code, f"{operation.name} into {table.name} of {_show_key(table, key)}: {why}")


def _no_partition(table: TableInfo, key: Iterable[object]) -> KuduError:
    return KuduError(ErrorCode.NOT_FOUND, f"table {table.name} has no range partition for {_show_key(table, key)}")
