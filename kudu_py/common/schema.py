"""Columns, the primary key, schema versions, and their Arrow form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, unique

import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError

MAX_COLUMNS = 300
MAX_IDENTIFIER_BYTES = 256
MAX_COMMENT_BYTES = 256
MAX_CELL_BYTES = 64 * 1024
MAX_ENCODED_KEY_BYTES = 16 * 1024


@unique
class DataType(Enum):
    """Column types, by upstream's names."""

    BOOL = "BOOL"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    VARCHAR = "VARCHAR"
    BINARY = "BINARY"
    UNIXTIME_MICROS = "UNIXTIME_MICROS"
    DATE = "DATE"
    DECIMAL = "DECIMAL"


_ARROW_TYPES: dict[DataType, pa.DataType] = {
    DataType.BOOL: pa.bool_(),
    DataType.INT8: pa.int8(),
    DataType.INT16: pa.int16(),
    DataType.INT32: pa.int32(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT: pa.float32(),
    DataType.DOUBLE: pa.float64(),
    DataType.STRING: pa.string(),
    DataType.VARCHAR: pa.string(),
    DataType.BINARY: pa.binary(),
    DataType.UNIXTIME_MICROS: pa.timestamp("us", tz="UTC"),
    DataType.DATE: pa.date32(),
}

NOT_IN_KEY = frozenset({DataType.BOOL, DataType.FLOAT, DataType.DOUBLE})
"""Types whose values have no useful order or equality for a primary key (as upstream)."""


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column.

    Attributes:
        name: 1 to 256 bytes of UTF-8, unique in its table, case-sensitive.
        type: the column's type.
        nullable: whether a value may be missing; never true for key columns.
        default: the value of rows inserted without this column, as the Python value that Arrow gives for the type
            (`int`, `float`, `bool`, `str`, `bytes`, `datetime.datetime` with UTC, `datetime.date`, `decimal.Decimal`);
            None means that there is no default: a nullable column is then null, another must be given.
        precision, scale: of DECIMAL (1..38, 0..precision); 0 otherwise.
        length: of VARCHAR, in characters (1..65,535); 0 otherwise.
        comment: at most 256 bytes.
        encoding, compression: what the user asked for, kept and shown; the storage decides for itself.
        column_id: the permanent id within the table (0 and up), assigned by the master; -1 before that.
    """

    name: str
    type: DataType
    nullable: bool = False
    default: object | None = None
    precision: int = 0
    scale: int = 0
    length: int = 0
    comment: str = ""
    encoding: str = ""
    compression: str = ""
    column_id: int = -1

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of this column in every Arrow batch of the house."""
        if self.type is DataType.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        return _ARROW_TYPES[self.type]

    @property
    def arrow_field(self) -> pa.Field:
        """Name, Arrow type and nullability."""
        return pa.field(self.name, self.arrow_type, self.nullable)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table, key columns first.

    Attributes:
        columns: 1 to 300 columns; the first `key_count` are the primary key, in key order.
        key_count: at least 1.
        version: grows by one with each alteration; names the schema on the wire.
    """

    columns: tuple[ColumnSchema, ...]
    key_count: int
    version: int = 0
    _positions: dict[str, int] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)
    _arrow: list[pa.Schema] = field(init=False, repr=False, compare=False, hash=False, default_factory=list)
    row_schemas: dict[tuple[tuple[int, ...], bool], tuple[pa.Schema, pa.Schema]] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )
    """For `row_batch.decode` to keep what it makes of this schema."""

    def __post_init__(self) -> None:
        self._positions.update({column.name: i for i, column in enumerate(self.columns)})
        self._arrow.append(pa.schema([column.arrow_field for column in self.columns]))

    @property
    def arrow(self) -> pa.Schema:
        """All columns in order, with nullability."""
        return self._arrow[0]

    @property
    def all_positions(self) -> tuple[int, ...]:
        """0, 1, ... for all columns."""
        return tuple(range(len(self.columns)))

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[ColumnSchema, ...]:
        """The columns of the primary key, in key order."""
        return self.columns[: self.key_count]

    def position(self, name: str) -> int:
        """Where the column `name` stands.

        Raises:
            KuduError: COLUMN_NOT_FOUND that names the column and those there are.
        """
        found = self._positions.get(name)
        if found is None:
            shown = ", ".join(self.names[:20]) + (", ..." if len(self.columns) > 20 else "")
            raise KuduError(ErrorCode.COLUMN_NOT_FOUND, f"no column is named {name[:256]!r}; the columns are {shown}")
        return found

    def column(self, name: str) -> ColumnSchema:
        """The column of this name; raises as `position`."""
        return self.columns[self.position(name)]

    def validate(self) -> None:
        """Refuses a schema that no table may have.

        Raises:
            KuduError: INVALID_SCHEMA that names the column.
        """
        if not self.columns:
            raise _invalid("a table needs at least one column")
        if len(self.columns) > MAX_COLUMNS:
            raise _invalid(f"a table has at most {MAX_COLUMNS} columns, not {len(self.columns)}")
        if not 1 <= self.key_count <= len(self.columns):
            raise _invalid("a table needs a primary key: mark at least one column as part of it")
        if len(self._positions) != len(self.columns):
            twice = next(name for name, count in Counter(self.names).items() if count > 1)
            raise _invalid(f"column {twice!r} is declared twice")
        for i, column in enumerate(self.columns):
            _validate_column(column, in_key=i < self.key_count)


def _validate_column(column: ColumnSchema, *, in_key: bool) -> None:
    name = column.name
    if not name or len(name.encode()) > MAX_IDENTIFIER_BYTES or "\0" in name:
        raise _invalid(f"a column name has 1 to {MAX_IDENTIFIER_BYTES} bytes and no NUL, not {name[:64]!r}")
    if name.startswith("__"):
        raise _invalid(f"column {name!r}: names that begin with two underscores are reserved")
    if len(column.comment.encode()) > MAX_COMMENT_BYTES:
        raise _invalid(f"column {name!r}: the comment is longer than {MAX_COMMENT_BYTES} bytes")
    if in_key and column.nullable:
        raise _invalid(f"column {name!r} is part of the primary key and cannot be nullable")
    if in_key and column.type in NOT_IN_KEY:
        raise _invalid(f"column {name!r} of type {column.type.value} cannot be part of the primary key")
    if column.type is DataType.DECIMAL:
        if not 1 <= column.precision <= 38:
            raise _invalid(f"column {name!r}: a DECIMAL has a precision of 1 to 38, not {column.precision}")
        if not 0 <= column.scale <= column.precision:
            raise _invalid(f"column {name!r}: a DECIMAL's scale is 0 to its precision, not {column.scale}")
    elif column.precision or column.scale:
        raise _invalid(f"column {name!r}: only DECIMAL has precision and scale")
    if column.type is DataType.VARCHAR:
        if not 1 <= column.length <= 65_535:
            raise _invalid(f"column {name!r}: a VARCHAR has a length of 1 to 65535, not {column.length}")
    elif column.length:
        raise _invalid(f"column {name!r}: only VARCHAR has a length")
    if column.default is not None:
        try:
            pa.scalar(column.default, column.arrow_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise _invalid(f"column {name!r}: the default {column.default!r} is no {column.type.value}") from error


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_SCHEMA, message)
