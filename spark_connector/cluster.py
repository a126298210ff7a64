"""The cluster as the connector sees it: the only module that talks to `kudu_py.client`.

Everything here runs in Spark's Python workers, which are forked and then run many tasks. A client, with its thread and
its channels, must be made after the fork and on first use; the libraries behind it are imported then, too, so that a
worker that only looks up a schema pays for nothing else.

Reads share one client per worker and master addresses. A write makes a client of its own for each task attempt: a
client is an identity to the servers, which answer a repeated message of one identity from memory, and a second attempt
of a task may batch its rows differently and must not get the answers of the first.

A worker that Spark's daemon has forked collects garbage after every task and every hook of planning, over all objects
alive: 10 to 45 ms with the libraries loaded here. What is alive at the beginning of its first calls is therefore
frozen, that is, taken out of those collections for good: libraries, mostly.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_connector.options import KuduOptions

if TYPE_CHECKING:
    import pyarrow as pa

    import kudu_py.client as kudu

ADMIN_TIMEOUT_MS = 30_000
GATHER_ROWS = 32_768
"""Spark's batches are gathered to so many rows before they are split by tablet, so that each tablet gets thousands."""
GATHER_BYTES = 4 << 20
SHOWN_ROWS = 5
FREEZES = 3
"""The first call loads the libraries, and what Spark loads itself comes before the second or the third. Not more: a
frozen cycle of garbage is never freed."""

_clients: dict[tuple[int, str], kudu.Client] = {}
_WORKER_MODULES = frozenset({"pyspark.worker", "pyspark.sql.worker.utils"})
"""Of tasks and of planning: one of them is loaded in every worker, none in a user's program."""
_freezes = 0


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A column of a table.

    Attributes:
        type_name: the Kudu type, in lower case.
        precision, scale: of a decimal, else 0.
    """

    name: str
    type_name: str
    precision: int
    scale: int
    nullable: bool
    is_key: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class TableView:
    """A table: its name and columns, key columns first."""

    name: str
    columns: tuple[ColumnView, ...]


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a write did not apply.

    Attributes:
        code: why, such as ALREADY_PRESENT.
        key: the key columns' values.
        is_unknown: it may have been applied: no answer came in time.
    """

    code: str
    key: dict[str, object]
    message: str
    is_unknown: bool


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What became of the rows of one task.

    Attributes:
        row_count: rows handed over; all of them are durable if none was refused.
        refused: the first refused rows, not necessarily all.
    """

    row_count: int
    refused: tuple[RefusedRow, ...]


def open_table(options: KuduOptions) -> TableView:
    """The table of the options.

    Raises:
        ValueError: there is no such table.
        ConnectionError: no master can be reached.
    """
    _freeze_libraries()
    with _named_errors(options.masters, options.table):
        table = _shared_client(options).table(options.table)
    schema = table.schema
    return TableView(
        table.name,
        tuple(
            ColumnView(
                column.name,
                column.type.value.lower(),
                column.precision,
                column.scale,
                column.nullable,
                position < schema.key_count,
                column.default is not None,
            )
            for position, column in enumerate(schema.columns)
        ),
    )


def table_exists(masters: str, name: str) -> bool:
    """Whether there is a table of this name."""
    with _named_errors(masters, name), _own_client(masters) as client:
        return client.table_exists(name)


def kudu_schema(columns: Sequence[ColumnView]) -> kudu.Schema:
    """The schema of a table with these columns, key columns first, in key order.

    Raises:
        ValueError: names the column that cannot be.
    """
    import kudu_py.client as kudu

    builder = kudu.schema_builder()
    for column in columns:
        spec = builder.add_column(column.name, column.type_name, nullable=column.nullable)
        spec.precision(column.precision).scale(column.scale)
    builder.set_primary_keys([column.name for column in columns if column.is_key])
    try:
        return builder.build()
    except kudu.KuduBadStatus as error:
        raise ValueError(str(error)) from error


def create_table(
    masters: str, name: str, schema: kudu.Schema, hashed: tuple[Sequence[str], int] | None, num_replicas: int
) -> None:
    """Creates a table and returns when all its tablets have leaders.

    Args:
        hashed: key columns and number of buckets; None: one tablet.

    Raises:
        ValueError: says what cannot be; a table of this name among it.
    """
    import kudu_py.client as kudu

    with _named_errors(masters, name), _own_client(masters) as client:
        partitioning = kudu.Partitioning()
        if hashed is not None:
            partitioning.add_hash_partitions(list(hashed[0]), hashed[1])
        client.create_table(name, schema, partitioning, n_replicas=num_replicas)


def delete_table(masters: str, name: str) -> None:
    """Deletes a table and all its rows.

    Raises:
        ValueError: there is no such table.
    """
    with _named_errors(masters, name), _own_client(masters) as client:
        client.delete_table(name)


def plan_scan(
    options: KuduOptions, columns: Sequence[str], conditions: Sequence[tuple[str, str, object]]
) -> list[bytes]:
    """Scan tokens, one for each tablet that can hold a matching row, all at one snapshot.

    Args:
        conditions: column, operator and value; operators are ==, <, <=, >, >=, in, is null, is not null. Rows must
            match all of them.
    """
    _freeze_libraries()
    with _named_errors(options.masters, options.table):
        table = _shared_client(options).table(options.table)
        builder = table.scan_token_builder()
        builder.set_projected_column_names(columns)
        for column, operator, value in conditions:
            builder.add_predicate(_predicate(table[column], operator, value))
        if options.snapshot_timestamp_ms is not None:
            builder.set_snapshot(options.snapshot_timestamp_ms * 1000)
        else:
            builder.set_read_mode("snapshot")
        builder.set_fault_tolerant(options.fault_tolerant)
        if options.allow_followers:
            builder.set_selection("closest")
        if options.batch_size_bytes:
            builder.set_batch_size_bytes(options.batch_size_bytes)
        return [token.serialize() for token in builder.build()]


def _predicate(column: Any, operator: str, value: object) -> Any:
    match operator:
        case "==":
            return column == value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case ">=":
            return column >= value
        case "in":
            return column.in_list(value)
        case "is null":
            return column.is_null()
        case "is not null":
            return column.is_not_null()
    raise AssertionError(f"{operator!r} is no operator")


def scan_token(options: KuduOptions, token: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a token, in batches with the table's Arrow types."""
    _freeze_libraries()
    with _named_errors(options.masters, options.table):
        scanner = _shared_client(options).deserialize_token_into_scanner(token)
        scanner.set_timeout_millis(options.timeout_ms)
        yield from scanner.record_batches()


def write_batches(options: KuduOptions, batches: Iterable[pa.RecordBatch]) -> WriteOutcome:
    """Writes all rows as a client of its own, and returns when each has an outcome.

    Stops early once rows were refused. Waits whenever the client has enough rows on their way.

    Raises:
        ValueError: a row cannot be, such as a null where none may be; names column and row.
        ConnectionError: no server can be reached.
    """
    import kudu_py.client as kudu

    _freeze_libraries()
    with _named_errors(options.masters, options.table), _own_client(options.masters, options.timeout_ms) as client:
        table = client.table(options.table)
        session = client.new_session("background", timeout_ms=options.timeout_ms)
        row_count = 0
        for rows in _gathered(batches):
            _write(session, table, rows, options)
            row_count += rows.num_rows
            if session.count_pending_errors():
                break
        try:
            session.flush()
        except kudu.KuduBadStatus:
            errors, _ = session.get_pending_errors()
            if not errors:
                raise
            key = [column.name for column in table.schema.key_columns]
            refused = [
                RefusedRow(
                    error.code.value,
                    {name: error.row.get(name) for name in key},
                    error.message,
                    error.was_possibly_successful(),
                )
                for error in errors[:SHOWN_ROWS]
            ]
            return WriteOutcome(row_count, tuple(refused))
        return WriteOutcome(row_count, ())


def _write(session: kudu.Session, table: kudu.Table, rows: pa.RecordBatch, options: KuduOptions) -> None:
    """Hands rows over; an error about one of them names its key."""
    import kudu_py.client as kudu

    # In the slices in which the client checks them, so that the place of a row that it names is a place in `part`.
    for first in range(0, rows.num_rows, GATHER_ROWS):
        part = rows.slice(first, GATHER_ROWS)
        try:
            session.write(table, part, options.operation, nulls_are_unset=options.ignore_null)
        except kudu.KuduInvalidArgument as error:
            place = error.details.get("row")
            if place is None:
                raise
            row = part.slice(int(place), 1).select([column.name for column in table.schema.key_columns]).to_pylist()[0]
            key = ", ".join(f"{name}={value!r:.100}" for name, value in row.items())
            raise ValueError(
                f"{options.operation} into table {table.name}: {error.message.partition(': ')[2]}, in the row {key}"
            ) from error


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in larger batches."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        row_count += batch.num_rows
        size_bytes += batch.nbytes
        if row_count >= GATHER_ROWS or size_bytes >= GATHER_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, row_count, size_bytes = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def _shared_client(options: KuduOptions) -> kudu.Client:
    """This process's client for reads."""
    # The process is part of the key: a client's thread does not live on in a fork.
    key = (os.getpid(), options.masters)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = _connect(options.masters, options.timeout_ms)
    return client


@contextmanager
def _own_client(masters: str, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Iterator[kudu.Client]:
    """A client that nobody shares; closed at the end."""
    client = _connect(masters, timeout_ms)
    try:
        yield client
    finally:
        client.close()


def _connect(masters: str, timeout_ms: int) -> kudu.Client:
    import kudu_py.client as kudu

    return kudu.connect(masters, admin_timeout_ms=min(timeout_ms, ADMIN_TIMEOUT_MS), rpc_timeout_ms=timeout_ms)


def _freeze_libraries() -> None:
    """Begins a call in a worker; does nothing in the process of the user's own program."""
    global _freezes
    if _freezes < FREEZES and not _WORKER_MODULES.isdisjoint(sys.modules):
        _freezes += 1
        gc.freeze()


@contextmanager
def _named_errors(masters: str, table: str) -> Iterator[None]:
    """Raises what Spark's users expect, with the cluster and the table in the message."""
    import kudu_py.client as kudu

    try:
        yield
    except (kudu.KuduUnavailable, kudu.KuduTimeout, kudu.KuduOutcomeUnknown) as error:
        raise ConnectionError(f"table {table} at {masters}: {error}") from error
    except kudu.KuduBadStatus as error:
        raise ValueError(f"table {table} at {masters}: {error}") from error
