"""`SchemaBuilder` and `Partitioning`: how a user describes a table, with kudu-python's names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kudu_py.client.errors import invalid, not_supported, raises_public
from kudu_py.common.partition import HashLevel, PartitionSchema, RangePartition, split_ranges
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical

TypeLike = DataType | str


@raises_public
def data_type(given: TypeLike) -> DataType:
    """A type by constant or name, upper or lower case."""
    if isinstance(given, DataType):
        return given
    try:
        return DataType(str(given).upper())
    except ValueError:
        known = ", ".join(kind.value.lower() for kind in DataType)
        raise invalid(f"{given!r} is no column type; types are {known}") from None


class ColumnSpec:
    """One column being described; every method returns the object itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._type: DataType | None = None
        self._nullable: bool | None = None
        self._default: object | None = None
        self._precision = 0
        self._scale = 0
        self._length = 0
        self._comment = ""
        self._encoding = ""
        self._compression = ""
        self.is_primary_key = False

    @property
    def name(self) -> str:
        """The column's name."""
        return self._name

    def type(self, type_: TypeLike) -> ColumnSpec:
        """The column's type: a constant such as `kudu.int64`, or its name."""
        self._type = data_type(type_)
        return self

    def nullable(self, is_nullable: bool = True) -> ColumnSpec:
        """Whether values may be missing; columns are nullable unless this says otherwise or they are in the key."""
        self._nullable = is_nullable
        return self

    def primary_key(self) -> ColumnSpec:
        """Makes the column the next one of the primary key."""
        self.is_primary_key = True
        return self

    def non_unique_primary_key(self) -> ColumnSpec:
        """Not offered: keys are unique."""
        raise not_supported("non-unique primary keys are not supported: give a unique key")

    def default(self, value: object) -> ColumnSpec:
        """The value of rows that are inserted without this column."""
        self._default = value
        return self

    def precision(self, precision: int) -> ColumnSpec:
        """Of a decimal: digits in all, 1 to 38."""
        self._precision = precision
        return self

    def scale(self, scale: int) -> ColumnSpec:
        """Of a decimal: digits behind the point."""
        self._scale = scale
        return self

    def length(self, length: int) -> ColumnSpec:
        """Of a varchar: characters at most."""
        self._length = length
        return self

    def comment(self, comment: str) -> ColumnSpec:
        """At most 256 bytes, for people."""
        self._comment = comment
        return self

    def encoding(self, encoding: str) -> ColumnSpec:
        """Kept and shown; the storage decides for itself."""
        self._encoding = encoding
        return self

    def compression(self, compression: str) -> ColumnSpec:
        """Kept and shown; the storage decides for itself."""
        self._compression = compression
        return self

    def block_size(self, block_size: int) -> ColumnSpec:
        """Taken for compatibility; the storage decides for itself."""
        return self

    def rename(self, new_name: str) -> ColumnSpec:
        """Gives the column another name."""
        self._name = new_name
        return self

    def build(self, *, in_key: bool) -> ColumnSchema:
        """The column; KuduInvalidArgument if its type is missing or its default does not fit."""
        if self._type is None:
            raise invalid(f"column {self._name!r} has no type: give one, such as .type('int64')")
        if self._type is DataType.DECIMAL and not (1 <= self._precision <= 38 and 0 <= self._scale <= self._precision):
            raise invalid(
                f"column {self._name!r}: a decimal has a precision of 1 to 38, and a scale of 0 to its precision"
            )
        nullable = self._nullable if self._nullable is not None else not in_key
        column = ColumnSchema(
            self._name,
            self._type,
            nullable=nullable,
            precision=self._precision,
            scale=self._scale,
            length=self._length,
            comment=self._comment,
            encoding=self._encoding,
            compression=self._compression,
        )
        if self._default is None:
            return column
        return ColumnSchema(
            column.name,
            column.type,
            column.nullable,
            canonical(column, self._default),
            column.precision,
            column.scale,
            column.length,
            column.comment,
            column.encoding,
            column.compression,
        )


class SchemaBuilder:
    """Builds the schema of a new table."""

    def __init__(self) -> None:
        self._specs: list[ColumnSpec] = []
        self._keys: list[str] | None = None

    def add_column(
        self,
        name: str,
        type_: TypeLike | None = None,
        nullable: bool | None = None,
        compression: str | None = None,
        encoding: str | None = None,
        primary_key: bool = False,
        non_unique_primary_key: bool = False,
        block_size: int | None = None,
        default: object | None = None,
        precision: int | None = None,
        scale: int | None = None,
        length: int | None = None,
        comment: str | None = None,
    ) -> ColumnSpec:
        """Adds a column; what is not given here can be given on the returned `ColumnSpec`."""
        spec = ColumnSpec(name)
        self._specs.append(spec)
        if type_ is not None:
            spec.type(type_)
        if nullable is not None:
            spec.nullable(nullable)
        if primary_key:
            spec.primary_key()
        if non_unique_primary_key:
            spec.non_unique_primary_key()
        if default is not None:
            spec.default(default)
        spec.precision(precision or 0).scale(scale or 0).length(length or 0)
        spec.comment(comment or "").encoding(encoding or "").compression(compression or "")
        return spec

    def set_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Makes these columns the primary key, in this order."""
        self._keys = list(key_names)
        return self

    def set_non_unique_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Not offered: keys are unique."""
        raise not_supported("non-unique primary keys are not supported: give a unique key")

    @raises_public
    def build(self) -> Schema:
        """The schema: key columns first, in key order, then the others in the order they were added.

        Raises:
            KuduInvalidArgument: names the column that is wrong.
        """
        marked = [spec.name for spec in self._specs if spec.is_primary_key]
        keys = self._keys if self._keys is not None else marked
        names = [spec.name for spec in self._specs]
        for key in keys:
            if key not in names:
                raise invalid(f"the key column {key!r} is no column; columns are {', '.join(names)}")
        if len(set(keys)) != len(keys):
            raise invalid(f"a column is twice in the primary key: {', '.join(keys)}")
        by_name = {spec.name: spec for spec in self._specs}
        ordered = [by_name[key] for key in keys] + [spec for spec in self._specs if spec.name not in keys]
        if len(set(names)) != len(names):
            ordered = self._specs  # refused below, by name
        schema = Schema(tuple(spec.build(in_key=spec.name in keys) for spec in ordered), len(keys))
        schema.validate()
        return schema


def schema_builder() -> SchemaBuilder:
    """A new `SchemaBuilder`."""
    return SchemaBuilder()


Bound = dict[str, object] | Sequence[object] | None


@dataclass(frozen=True, slots=True)
class _Range:
    lower: Bound
    upper: Bound
    lower_inclusive: bool
    upper_inclusive: bool


class Partitioning:
    """How the rows of a new table are spread over tablets; every method returns the object itself."""

    def __init__(self) -> None:
        self._levels: list[HashLevel] = []
        self._range_columns: tuple[str, ...] = ()
        self._ranges: list[_Range] = []
        self._splits: list[Bound] = []

    def add_hash_partitions(
        self, column_names: Sequence[str] | str, num_buckets: int, seed: int | None = None
    ) -> Partitioning:
        """Spreads rows over `num_buckets` tablets by a hash of these key columns; several levels multiply."""
        columns = (column_names,) if isinstance(column_names, str) else tuple(column_names)
        self._levels.append(HashLevel(columns, num_buckets, seed or 0))
        return self

    def set_range_partition_columns(self, column_names: Sequence[str] | str) -> Partitioning:
        """The key columns by which ranges are told apart, in comparing order."""
        self._range_columns = (column_names,) if isinstance(column_names, str) else tuple(column_names)
        return self

    def add_range_partition(
        self,
        lower_bound: Bound = None,
        upper_bound: Bound = None,
        lower_bound_type: str = "inclusive",
        upper_bound_type: str = "exclusive",
    ) -> Partitioning:
        """Adds a range. Bounds are values by column name or in order; None is unbounded. Bound types are `inclusive` or
        `exclusive`."""
        inclusive = []
        for given in (lower_bound_type, upper_bound_type):
            if given not in ("inclusive", "exclusive"):
                raise invalid(f"a bound type is 'inclusive' or 'exclusive', not {given!r}")
            inclusive.append(given == "inclusive")
        self._ranges.append(_Range(lower_bound, upper_bound, inclusive[0], inclusive[1]))
        return self

    def add_range_partition_split(self, split_row: dict[str, object] | Sequence[object]) -> Partitioning:
        """Cuts the range that holds these values in two."""
        self._splits.append(split_row)
        return self

    @raises_public
    def resolve(self, schema: Schema) -> tuple[PartitionSchema, list[RangePartition]]:
        """The partition schema and the ranges to create, for a table of `schema`."""
        range_columns = self._range_columns
        if not range_columns and (self._ranges or self._splits):
            range_columns = tuple(column.name for column in schema.key_columns)
        layout = PartitionSchema(tuple(self._levels), range_columns)
        layout.validate(schema)
        ranges = [
            RangePartition(
                _bound(range_columns, item.lower),
                _bound(range_columns, item.upper),
                item.lower_inclusive,
                item.upper_inclusive,
            )
            for item in self._ranges
        ]
        if self._splits:
            splits = [_bound(range_columns, split) or () for split in self._splits]
            ranges = split_ranges(schema, layout, ranges, splits)
        return layout, ranges


def _bound(columns: Sequence[str], given: Bound) -> tuple[object, ...] | None:
    """Values in column order; the columns after the last given one are left out."""
    if given is None or (isinstance(given, dict) and not given):
        return None
    if not isinstance(given, dict):
        return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    for name in given:
        if name not in columns:
            raise invalid(f"{name!r} is no range partition column; those are {', '.join(columns)}")
    values = []
    for name in columns:
        if name not in given:
            break
        values.append(given[name])
    if len(values) != len(given):
        raise invalid(f"a range bound gives values for the first range columns; those are {', '.join(columns)}")
    return tuple(values)
