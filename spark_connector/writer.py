"""Arrow batches of a task to the table; which frames and rows are refused, and what is said then.

A task may run twice. Each attempt is a client of its own (a second attempt may batch its rows differently, so it must
not be answered from what the first one did), and what the first attempt wrote stays: `upsert`, the default, and the
`_ignore` operations do not mind; `insert` ends in an error that says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_connector.cluster import RefusedRow, TableView, WriteOutcome, write_batches
from spark_connector.options import KuduOptions
from spark_connector.type_mapping import to_spark


@dataclass
class KuduCommit(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        rows: rows sent; those that an `_ignore` operation left alone are among them.
        seconds: from the task's first row to the last acknowledgement.
    """

    rows: int
    seconds: float


class KuduWriter(DataSourceArrowWriter):
    """One batch write to a table."""

    def __init__(self, options: KuduOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of one task; every row is durable on a majority when it returns.

        Raises:
            ValueError: rows were refused; names some of them and says why.
        """
        started = time.perf_counter()
        outcome = write_batches(self._options, iterator)
        if outcome.refused:
            raise ValueError(_refusal(self._options, outcome))
        return KuduCommit(outcome.row_count, time.perf_counter() - started)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rows are durable already: there is nothing left to do."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rows that were written stay; the write may be run again."""


_ADVICE = {
    ("insert", "ALREADY_PRESENT"): "A task that Spark runs again meets the rows of its first attempt: use "
    "kudu.operation insert_ignore, which leaves such rows alone, or upsert, which writes them again",
    ("update", "NOT_FOUND"): "Use kudu.operation update_ignore to leave missing rows alone, or upsert to insert them",
    ("delete", "NOT_FOUND"): "A task that Spark runs again misses the rows that its first attempt deleted: use "
    "kudu.operation delete_ignore",
}


def _refusal(options: KuduOptions, outcome: WriteOutcome) -> str:
    first = outcome.refused[0]
    unknown = [row for row in outcome.refused if row.is_unknown]
    if unknown:
        return (
            f"{options.operation} into table {options.table}: no answer came in time for some rows, such as "
            f"{_keys(unknown)}; they may have been written or not ({unknown[0].message}). An upsert can be run again"
        )
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    again = f" This is attempt {attempt + 1} of the task." if attempt else ""
    advice = _ADVICE.get((options.operation, first.code), "")
    return (
        f"{options.operation} into table {options.table} was refused for some rows ({first.code}), such as "
        f"{_keys(outcome.refused)}: {first.message}.{again} {advice}".rstrip()
    )


def _keys(rows: Iterable[RefusedRow]) -> str:
    return "; ".join(", ".join(f"{name}={value!r:.100}" for name, value in row.key.items()) for row in rows)


def check_frame(view: TableView, schema: StructType, options: KuduOptions) -> None:
    """Refuses a frame whose columns do not fit the table.

    Raises:
        ValueError: names the column and says what to do.
    """
    columns = {column.name: column for column in view.columns}
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen:
            raise ValueError(f"column {field.name!r} is twice in the frame")
        seen.add(field.name)
        column = columns.get(field.name)
        if column is None:
            raise ValueError(
                f"the frame has a column {field.name!r} that table {view.name} lacks; it has {', '.join(columns)}"
            )
        wanted = to_spark(column.type_name, column.precision, column.scale)
        if field.dataType != wanted:
            raise ValueError(
                f"column {field.name!r} is {field.dataType.simpleString()} in the frame and "
                f"{wanted.simpleString()} in table {view.name}: "
                f'cast it, such as col("{field.name}").cast("{wanted.simpleString()}")'
            )
    missing = [column.name for column in view.columns if column.is_key and column.name not in seen]
    if missing:
        raise ValueError(
            f"the frame lacks the key column{'s' * (len(missing) > 1)} {', '.join(missing)} of table {view.name}"
        )
    if options.operation.startswith(("insert", "upsert")):
        missing = [c.name for c in view.columns if not c.nullable and not c.has_default and c.name not in seen]
        if missing:
            raise ValueError(
                f"the frame lacks {', '.join(missing)}, which table {view.name} does not "
                "allow to be null and has no default for"
            )
    if options.operation.startswith("delete"):
        more = [name for name in schema.names if not columns[name].is_key]
        if more:
            raise ValueError(
                f"a delete takes the key columns alone; leave out {', '.join(more)}, such as with frame.select(...)"
            )
