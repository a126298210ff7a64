"""Hash and range partitioning: how a table's rows are spread over tablets.

A table has any number of hash levels on disjoint key columns, then ranges over key columns. A row's place is the bucket
of each level and the range that its range key falls into; a range may be missing ("non-covered"): such rows have none.
Range bounds are encoded range keys (`key_encoding.py`), so that comparing bytes compares keys. Rows are placed by
`partitioner.py`.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import BYTES_TYPES, decode_key, encode_key
from kudu_py.common.schema import DataType, Schema
from kudu_py.common.values import canonical, least_value, successor

MAX_BUCKETS = 1 << 16


@dataclass(frozen=True, slots=True)
class HashLevel:
    """One level of hash partitioning.

    Attributes:
        columns: key columns by name, in hashing order; at least one.
        bucket_count: 2 to 65,536.
        seed: 0 to 2^32 - 1; sets apart tables or levels that hash the same columns.
    """

    columns: tuple[str, ...]
    bucket_count: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PartitionSchema:
    """How rows are spread over tablets.

    Attributes:
        hash_levels: on disjoint sets of key columns.
        range_columns: key columns by name, in comparing order; empty: one range that holds everything.
    """

    hash_levels: tuple[HashLevel, ...] = ()
    range_columns: tuple[str, ...] = ()

    def validate(self, schema: Schema) -> None:
        """Refuses what a table of `schema` cannot have.

        Raises:
            KuduError: INVALID_ARGUMENT that names the column or level.
        """
        keys = {column.name for column in schema.key_columns}
        hashed: set[str] = set()
        for level in self.hash_levels:
            if not level.columns:
                raise _invalid("a hash level needs at least one column")
            if not 2 <= level.bucket_count <= MAX_BUCKETS:
                on = ", ".join(level.columns)
                raise _invalid(f"the hash level on {on} has 2 to {MAX_BUCKETS} buckets, not {level.bucket_count}")
            if not 0 <= level.seed < 1 << 32:
                raise _invalid(f"a hash seed is 0 to 4294967295, not {level.seed}")
            for name in level.columns:
                _require_key_column(schema, keys, name, "hash")
                if name in hashed:
                    raise _invalid(f"column {name!r} is hashed twice; hash levels use disjoint columns")
                hashed.add(name)
        if len(set(self.range_columns)) != len(self.range_columns):
            raise _invalid("a range partition column is listed twice")
        for name in self.range_columns:
            _require_key_column(schema, keys, name, "range")

    def range_schema(self, schema: Schema) -> Schema:
        """The range columns as a key of their own, for encoding; asks for at least one range column."""
        assert self.range_columns
        return Schema(tuple(schema.column(name) for name in self.range_columns), len(self.range_columns))


@dataclass(frozen=True, slots=True)
class RangePartition:
    """A range to create, by values.

    Attributes:
        lower, upper: values of the range columns, in order, or None for unbounded; fewer values than columns: the rest
            is the least value.
        lower_inclusive, upper_inclusive: whether the bound itself is in the range.
    """

    lower: tuple[object, ...] | None = None
    upper: tuple[object, ...] | None = None
    lower_inclusive: bool = True
    upper_inclusive: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The part of a table that one tablet holds; ordered by buckets, then range.

    Attributes:
        hash_buckets: the bucket of each hash level.
        range_lower: encoded range key, inclusive; empty: unbounded.
        range_upper: encoded range key, exclusive; empty: unbounded.
    """

    hash_buckets: tuple[int, ...] = ()
    range_lower: bytes = b""
    range_upper: bytes = b""


def create_partitions(
    schema: Schema, partition_schema: PartitionSchema, ranges: Sequence[RangePartition] = ()
) -> list[Partition]:
    """Every partition of a new table, in order: each combination of buckets with each range.

    Args:
        ranges: none: one unbounded range.

    Raises:
        KuduError: INVALID_ARGUMENT if the partition schema does not fit, a bound is no key, or ranges are empty or
            overlap.
    """
    partition_schema.validate(schema)
    bounds = encode_ranges(schema, partition_schema, ranges) if ranges else [(b"", b"")]
    buckets = itertools.product(*(range(level.bucket_count) for level in partition_schema.hash_levels))
    return [Partition(combination, lower, upper) for combination in buckets for lower, upper in bounds]


def encode_ranges(
    schema: Schema, partition_schema: PartitionSchema, ranges: Sequence[RangePartition]
) -> list[tuple[bytes, bytes]]:
    """Ranges as encoded [lower, upper) pairs in order, which do not overlap; raises as `create_partitions`."""
    if ranges and not partition_schema.range_columns:
        raise _invalid("range partitions need range partition columns")
    range_schema = partition_schema.range_schema(schema)
    encoded = []
    for item in ranges:
        lower, upper = _encode_ends(range_schema, item)
        # None: above the last key. An upper bound is empty only for the least string: nothing lies below it.
        nothing_below = item.upper is not None and upper == b""
        if nothing_below or lower is None or (upper and lower >= upper):
            raise _invalid(f"the range partition {describe_range(item)} is empty: lower bound not below upper bound")
        encoded.append((lower, upper or b"", item))
    encoded.sort(key=lambda entry: entry[0])
    for (_, upper, first), (lower, _, second) in itertools.pairwise(encoded):
        if upper == b"" or upper > lower:
            raise _invalid(f"range partitions overlap: {describe_range(first)} and {describe_range(second)}")
    return [(lower, upper) for lower, upper, _ in encoded]


def split_ranges(
    schema: Schema,
    partition_schema: PartitionSchema,
    ranges: Sequence[RangePartition],
    splits: Sequence[tuple[object, ...]],
) -> list[RangePartition]:
    """`ranges` (none: one unbounded) cut at each of `splits`, upstream's older way of giving ranges.

    Raises:
        KuduError: INVALID_ARGUMENT if a split is in no range, or at its lower bound.
    """
    range_schema = partition_schema.range_schema(schema)
    result = list(ranges) or [RangePartition()]
    encoded = [(_encode_bound(range_schema, split, after=False) or b"", split) for split in splits]
    for at, split in sorted(encoded, key=lambda entry: entry[0]):
        for i, item in enumerate(result):
            lower = (
                b"" if item.lower is None else _encode_bound(range_schema, item.lower, after=not item.lower_inclusive)
            )
            upper = b"" if item.upper is None else _encode_bound(range_schema, item.upper, after=item.upper_inclusive)
            if lower is not None and lower < at and (not upper or at < upper):
                result[i : i + 1] = [
                    RangePartition(item.lower, split, item.lower_inclusive, False),
                    RangePartition(split, item.upper, True, item.upper_inclusive),
                ]
                break
        else:
            raise _invalid(f"the split {_show_values(split)} lies in no range partition")
    return result


def _encode_ends(range_schema: Schema, item: RangePartition) -> tuple[bytes | None, bytes | None]:
    lower = b"" if item.lower is None else _encode_bound(range_schema, item.lower, after=not item.lower_inclusive)
    upper = b"" if item.upper is None else _encode_bound(range_schema, item.upper, after=item.upper_inclusive)
    return lower, upper


def _encode_bound(range_schema: Schema, values: tuple[object, ...], *, after: bool) -> bytes | None:
    """The least encoded key at (or, with `after`, above) the given values; None if there is none."""
    columns = range_schema.columns
    if not 1 <= len(values) <= len(columns):
        shown = _show_values(values) if values else "none"
        raise _invalid(f"a range bound has 1 to {len(columns)} values ({', '.join(range_schema.names)}), not {shown}")
    full = [canonical(column, value) for column, value in zip(columns, values, strict=False)]
    full.extend(least_value(column) for column in columns[len(full) :])
    if not after:
        return _encode_exact(range_schema, full)
    following = successor(columns[-1], full[-1])
    if following is not None:
        return _encode_exact(range_schema, [*full[:-1], following])
    if len(columns) == 1 and columns[0].type not in BYTES_TYPES and columns[0].type is not DataType.DECIMAL:
        return None
    # No key lies between an encoded key and the same with a zero byte behind it.
    return _encode_exact(range_schema, full) + b"\0"


def _encode_exact(schema: Schema, values: Sequence[object]) -> bytes:
    try:
        return encode_key(schema, values)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _invalid(f"{_show_values(tuple(values))} cannot be a range bound: {str(error)[:200]}") from error


def describe_range(item: RangePartition) -> str:
    """Such as `2013-01-01 <= VALUES < 2014-01-01`, in upstream's way."""
    lower = "" if item.lower is None else f"{_show_values(item.lower)} {'<=' if item.lower_inclusive else '<'} "
    upper = "" if item.upper is None else f" {'<=' if item.upper_inclusive else '<'} {_show_values(item.upper)}"
    return f"{lower}VALUES{upper}" if lower or upper else "UNBOUNDED"


def describe_partitioning(partition_schema: PartitionSchema) -> str:
    """Such as `HASH (key) PARTITIONS 4, RANGE (day)`; `NONE` for a table of one tablet."""
    parts = [
        f"HASH ({', '.join(level.columns)}) PARTITIONS {level.bucket_count}" for level in partition_schema.hash_levels
    ]
    if partition_schema.range_columns:
        parts.append(f"RANGE ({', '.join(partition_schema.range_columns)})")
    return ", ".join(parts) or "NONE"


def describe_partition(schema: Schema, partition_schema: PartitionSchema, partition: Partition) -> str:
    """Such as `HASH (key) PARTITION 3, RANGE (day) PARTITION 2013-01-01 <= VALUES < 2014-01-01`."""
    parts = [
        f"HASH ({', '.join(level.columns)}) PARTITION {bucket}"
        for level, bucket in zip(partition_schema.hash_levels, partition.hash_buckets, strict=True)
    ]
    if partition_schema.range_columns:
        range_schema = partition_schema.range_schema(schema)
        lower = f"{_show_bound(range_schema, partition.range_lower)} <= " if partition.range_lower else ""
        upper = f" < {_show_bound(range_schema, partition.range_upper)}" if partition.range_upper else ""
        shown = f"{lower}VALUES{upper}" if lower or upper else "UNBOUNDED"
        parts.append(f"RANGE ({', '.join(partition_schema.range_columns)}) PARTITION {shown}")
    return ", ".join(parts)


def _show_bound(range_schema: Schema, encoded: bytes) -> str:
    try:
        return _show_values(decode_key(range_schema, encoded))
    except (ValueError, OverflowError):
        return f"0x{encoded.hex()}"


def _show_values(values: tuple[object, ...]) -> str:
    shown = [str(v)[:64] if isinstance(v, int | datetime.date | decimal.Decimal) else repr(v)[:64] for v in values]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _require_key_column(schema: Schema, keys: set[str], name: str, what: str) -> None:
    schema.column(name)
    if name not in keys:
        raise _invalid(f"column {name!r} is not part of the primary key and cannot be a {what} partition column")


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, message)
