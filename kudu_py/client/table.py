"""A table, its columns, and the row operations and predicates that are made of them. No I/O: both clients share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kudu_py.client.errors import invalid, raises_public
from kudu_py.client.row_checker import UNSET, RowChecker, cell_value
from kudu_py.common.counted import counted
from kudu_py.common.partition import PartitionSchema
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import ColumnSchema, Schema

Record = Mapping[str, object] | Sequence[object]
"""A row: values by column name, or in schema order (columns left out at the end are not set)."""

OPERATION_NAMES = {operation.name.lower(): operation for operation in RowOperation}


@raises_public
def operation_of(given: RowOperation | str) -> RowOperation:
    """An operation by constant or name, such as `upsert` or `insert_ignore`."""
    if isinstance(given, RowOperation):
        return given
    found = OPERATION_NAMES.get(given.lower().replace("-", "_"))
    if found is None:
        raise invalid(f"{given!r} is no operation; operations are {', '.join(OPERATION_NAMES)}")
    return found


_position = raises_public(Schema.position)


class WriteOperation:
    """One row operation, not yet applied. Columns can still be set: `op["column"] = value`."""

    __slots__ = ("operation", "table", "values")

    def __init__(self, table: TableInfo, operation: RowOperation, record: Record | None) -> None:
        self.table = table
        self.operation = operation
        positions = table.positions
        values: list[object] = [UNSET] * len(positions)
        if record is not None:
            if type(record) is dict or isinstance(record, Mapping):
                for name, value in record.items():
                    position = positions.get(name)
                    values[_position(table.schema, name) if position is None else position] = value
            else:
                if len(record) > len(values):
                    raise invalid(
                        f"the row has {counted(len(record), 'value')}; table {table.name!r} has"
                        f" {counted(len(values), 'column')}"
                    )
                values[: len(record)] = record
        self.values = values

    @raises_public
    def __setitem__(self, column: str | int, value: object) -> None:
        self.values[column if isinstance(column, int) else self.table.schema.position(column)] = value

    def as_dict(self) -> dict[str, object]:
        """The columns that are set."""
        pairs = zip(self.table.schema.names, self.values, strict=True)
        return {name: value for name, value in pairs if value is not UNSET}

    def __repr__(self) -> str:
        return f"{self.operation.name} {self.as_dict()} into {self.table.name}"


class Column:
    """A column of a table, for predicates: `table["c"] == 5`, `table["c"].in_list([1, 2])`.

    Comparing makes predicates, so that columns have no hash.
    """

    def __init__(self, table: TableInfo, column: ColumnSchema) -> None:
        self.table = table
        self.spec = column

    @property
    def name(self) -> str:
        """The column's name."""
        return self.spec.name

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._compare(PredicateOp.EQ, other)

    def __lt__(self, other: object) -> Predicate:
        return self._compare(PredicateOp.LT, other)

    def __le__(self, other: object) -> Predicate:
        return self._compare(PredicateOp.LE, other)

    def __gt__(self, other: object) -> Predicate:
        return self._compare(PredicateOp.GT, other)

    def __ge__(self, other: object) -> Predicate:
        return self._compare(PredicateOp.GE, other)

    @raises_public
    def in_list(self, values: Sequence[object]) -> Predicate:
        """Holds where the cell is one of `values`; never for an empty list."""
        return Predicate(self.name, PredicateOp.IN, tuple(cell_value(self.spec, value) for value in values))

    def is_null(self) -> Predicate:
        """Holds where there is no value."""
        return Predicate(self.name, PredicateOp.IS_NULL)

    def is_not_null(self) -> Predicate:
        """Holds where there is a value."""
        return Predicate(self.name, PredicateOp.IS_NOT_NULL)

    @raises_public
    def _compare(self, op: PredicateOp, other: object) -> Predicate:
        if other is None:
            raise invalid(f"column {self.name!r}: compare with is_null() or is_not_null(), not with None")
        return Predicate(self.name, op, (cell_value(self.spec, other),))

    def __repr__(self) -> str:
        return f"Column({self.name}, {self.spec.type.value})"


@dataclass(eq=False)
class TableInfo:
    """A table as it was when it was opened.

    Attributes:
        id: stays the same through renames.
        num_replicas: voters per tablet.
        positions: of the columns in the schema, by name.
    """

    id: str
    name: str
    schema: Schema
    partition_schema: PartitionSchema
    num_replicas: int
    owner: str = ""
    comment: str = ""
    checker: RowChecker = field(init=False, repr=False)
    positions: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.positions = {name: i for i, name in enumerate(self.schema.names)}
        self.checker = RowChecker.of(self.schema)

    @raises_public
    def __getitem__(self, key: str | int) -> Column:
        """A column by name or position."""
        column = self.schema.columns[key] if isinstance(key, int) else self.schema.column(key)
        return Column(self, column)

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.schema.columns)

    def new_insert(self, record: Record | None = None) -> WriteOperation:
        """Adds a row; a row error if its key is there."""
        return WriteOperation(self, RowOperation.INSERT, record)

    def new_insert_ignore(self, record: Record | None = None) -> WriteOperation:
        """Adds a row, or does nothing if its key is there."""
        return WriteOperation(self, RowOperation.INSERT_IGNORE, record)

    def new_upsert(self, record: Record | None = None) -> WriteOperation:
        """Adds a row, or sets the given columns if its key is there."""
        return WriteOperation(self, RowOperation.UPSERT, record)

    def new_upsert_ignore(self, record: Record | None = None) -> WriteOperation:
        """As `new_upsert`."""
        return WriteOperation(self, RowOperation.UPSERT_IGNORE, record)

    def new_update(self, record: Record | None = None) -> WriteOperation:
        """Sets the given columns; a row error if the key is not there."""
        return WriteOperation(self, RowOperation.UPDATE, record)

    def new_update_ignore(self, record: Record | None = None) -> WriteOperation:
        """Sets the given columns, or does nothing if the key is not there."""
        return WriteOperation(self, RowOperation.UPDATE_IGNORE, record)

    def new_delete(self, record: Record | None = None) -> WriteOperation:
        """Removes a row by its key columns; a row error if the key is not there."""
        return WriteOperation(self, RowOperation.DELETE, record)

    def new_delete_ignore(self, record: Record | None = None) -> WriteOperation:
        """Removes a row by its key columns, or does nothing if the key is not there."""
        return WriteOperation(self, RowOperation.DELETE_IGNORE, record)
