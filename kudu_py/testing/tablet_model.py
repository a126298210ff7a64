"""A model of a tablet's rows: what the row engine must do, as a dict of versions, a row at a time.

Tests drive a `Tablet` and a `TabletModel` with the same batches and compare answers and snapshots.
"""

from __future__ import annotations

from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.schema import Schema
from kudu_py.tablet.write_result import RowErrorCode

Row = tuple[object, ...]

_UPSERTS = (RowOperation.UPSERT, RowOperation.UPSERT_IGNORE)
_INSERTS = (*_UPSERTS, RowOperation.INSERT, RowOperation.INSERT_IGNORE)
_DELETES = (RowOperation.DELETE, RowOperation.DELETE_IGNORE)


class TabletModel:
    """Every version of every row."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._versions: dict[Row, list[tuple[int, Row | None]]] = {}

    def apply(self, batch: RowBatch, timestamp: int) -> list[tuple[int, RowErrorCode]]:
        """Applies a batch row by row; the row errors."""
        errors = []
        columns = [column.to_pylist() for column in batch.rows.columns]
        for i, code in enumerate(batch.operations.tolist()):
            error = self._apply_row(batch, RowOperation(code), columns, i, timestamp)
            if error is not None:
                errors.append((i, error))
        return errors

    def _apply_row(
        self, batch: RowBatch, operation: RowOperation, columns: list[list[object]], i: int, timestamp: int
    ) -> RowErrorCode | None:
        given = {
            position: columns[k][i]
            for k, position in enumerate(batch.positions)
            if batch.unset is None or not batch.unset[i, k]
        }
        key = tuple(given[position] for position in range(self.schema.key_count))
        versions = self._versions.setdefault(key, [])
        current = versions[-1][1] if versions else None
        if operation in _INSERTS:
            if current is None:
                row = tuple(given.get(p, column.default) for p, column in enumerate(self.schema.columns))
                versions.append((timestamp, row))
            elif operation in _UPSERTS:
                versions.append((timestamp, _changed(current, given)))
            elif operation is RowOperation.INSERT:
                return RowErrorCode.ALREADY_PRESENT
        elif operation in _DELETES:
            if current is not None:
                versions.append((timestamp, None))
            elif operation is RowOperation.DELETE:
                return RowErrorCode.NOT_FOUND
        elif current is not None:
            versions.append((timestamp, _changed(current, given)))
        elif operation is RowOperation.UPDATE:
            return RowErrorCode.NOT_FOUND
        return None

    def rows_at(self, timestamp: int) -> list[Row]:
        """All rows of a snapshot, in no order."""
        rows = []
        for versions in self._versions.values():
            row: Row | None = None
            for at, version in versions:
                if at > timestamp:
                    break
                row = version
            if row is not None:
                rows.append(row)
        return rows


def _changed(row: Row, given: dict[int, object]) -> Row:
    return tuple(given.get(p, value) for p, value in enumerate(row))
