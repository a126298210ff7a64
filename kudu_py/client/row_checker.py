"""`RowChecker`: rows of Python values to cells.

A row is checked before it is grouped with rows of others, so that a bad one fails alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import MAX_CELL_BYTES, MAX_ENCODED_KEY_BYTES, ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical


class Unset:
    """The type of `UNSET`, the mark of a column that a row does not set."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()

_INSERTS = frozenset({RowOperation.INSERT, RowOperation.INSERT_IGNORE, RowOperation.UPSERT, RowOperation.UPSERT_IGNORE})
_DELETES = frozenset({RowOperation.DELETE, RowOperation.DELETE_IGNORE})
_INTEGER_LIMITS = {DataType.INT8: 1 << 7, DataType.INT16: 1 << 15, DataType.INT32: 1 << 31, DataType.INT64: 1 << 63}


@dataclass(frozen=True, eq=False)
class RowChecker:
    """Turns rows of Python values into cells, for one schema; what it lets pass a server accepts.

    Attributes:
        checks: per column, a value's canonical form.
        limits: per column, the first int too large for it; 0 if it is not of an integer type.
        are_text: per column, whether it is a STRING.
    """

    schema: Schema
    checks: tuple[Callable[[object], object], ...]
    limits: tuple[int, ...]
    are_text: tuple[bool, ...]

    @classmethod
    def of(cls, schema: Schema) -> RowChecker:
        """The checker of a schema."""
        return cls(
            schema,
            tuple(_cell_check(column) for column in schema.columns),
            tuple(_INTEGER_LIMITS.get(column.type, 0) for column in schema.columns),
            tuple(column.type is DataType.STRING for column in schema.columns),
        )

    def cells(self, operation: RowOperation, values: Sequence[object]) -> tuple[list[object], int]:
        """The canonical cells of a row and about what they take in memory.

        Args:
            values: one per column, UNSET where the row sets none.

        Raises:
            KuduError: INVALID_ARGUMENT that names the column: a key column is missing or null, a value of another type
            or out
                of range, a null where none may be, a column that is not nullable and has no default left out of an
                insert, anything but the key in a delete, a cell or key that is too long.
        """
        cells: list[object] = []
        size = 16 * len(values)
        key_count = self.schema.key_count
        key_bytes = 0
        limits = self.limits
        deletes = operation in _DELETES
        for i, value in enumerate(values):
            cell: object
            # Plain ints and ASCII text, most of all cells, are their own canonical form. (Only text that is not ASCII
            # can hold what UTF-8 cannot: lone surrogates.)
            if type(value) is int and -limits[i] <= value < limits[i]:
                cell = value
            elif value is None or value is UNSET:
                cells.append(self._check_missing(operation, i, value))
                continue
            else:
                length = -1
                if type(value) is str and self.are_text[i] and value.isascii():
                    cell = value
                    length = len(value)
                else:
                    cell = self.checks[i](value)
                    if isinstance(cell, bytes):
                        length = len(cell)
                    elif isinstance(cell, str):
                        length = len(cell.encode())
                if length >= 0:
                    if length > MAX_CELL_BYTES:
                        raise self._refused(i, f"has {length} bytes; the limit is {MAX_CELL_BYTES}")
                    size += length
                    if i < key_count:
                        key_bytes += length
            if deletes and i >= key_count:
                raise self._refused(i, "is not part of the primary key; a delete takes the key columns alone")
            cells.append(cell)
        if key_bytes > MAX_ENCODED_KEY_BYTES:
            raise self._refused(
                0, f"and the rest of the key have {key_bytes} bytes; the limit is {MAX_ENCODED_KEY_BYTES}"
            )
        return cells, size

    def _check_missing(self, operation: RowOperation, i: int, value: object) -> object:
        column = self.schema.columns[i]
        if i < self.schema.key_count:
            raise self._refused(i, "is part of the primary key and must be set" if value is UNSET else "cannot be null")
        if operation in _DELETES:
            return UNSET
        if value is None and not column.nullable:
            raise self._refused(i, "is not nullable but the value is null")
        if value is UNSET and operation in _INSERTS and not column.nullable and column.default is None:
            raise self._refused(i, "is not nullable, has no default and is not set")
        return value

    def _refused(self, i: int, why: str) -> KuduError:
        return KuduError(ErrorCode.INVALID_ARGUMENT, f"column {self.schema.columns[i].name!r} {why}")


def cell_value(column: ColumnSchema, value: object) -> object:
    """`canonical`, and kudu-python's pair of text and format for times: `("2017-01-01", "%Y-%m-%d")`."""
    if column.type in (DataType.UNIXTIME_MICROS, DataType.DATE) and isinstance(value, tuple) and len(value) == 2:
        text, pattern = value
        try:
            parsed = datetime.datetime.strptime(str(text), str(pattern)).replace(tzinfo=datetime.UTC)
        except ValueError as error:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"column {column.name!r}: {error}") from error
        return parsed if column.type is DataType.UNIXTIME_MICROS else parsed.date()
    return canonical(column, value)


def _cell_check(column: ColumnSchema) -> Callable[[object], object]:
    """`canonical` for one column, with a short way for the plain Python type."""
    kind = column.type
    if kind is DataType.VARCHAR:

        def check_varchar(value: object) -> object:
            text = canonical(column, value)
            assert isinstance(text, str)
            if len(text) > column.length:
                raise KuduError(
                    ErrorCode.INVALID_ARGUMENT, f"column {column.name!r} is longer than {column.length} characters"
                )
            return text

        return check_varchar
    plain = {DataType.DOUBLE: float, DataType.FLOAT: float, DataType.BOOL: bool, DataType.BINARY: bytes}.get(kind)
    if plain is not None:

        def check_plain(value: object) -> object:
            return value if type(value) is plain else canonical(column, value)

        return check_plain
    return lambda value: cell_value(column, value)
