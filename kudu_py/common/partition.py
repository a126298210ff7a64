"""Hash and range partitioning: rows to tablets, column-wise.

A table has any number of hash levels on disjoint key columns, then ranges over key columns. A row's place is the bucket of
each level and the range that its range key falls into; a range may be missing ("non-covered"), and then the row has none.

The hash is part of the data's layout and never changes. All arithmetic is on unsigned 64-bit integers:

    mix(x):   x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
    start:    h = mix(seed + 0x9E3779B97F4A7C15)
    column:   INT*, UNIXTIME_MICROS, DATE   h = mix(h ^ v), v sign-extended to 64 bits
              DECIMAL                       h = mix(h ^ high), then h = mix(h ^ low), of the unscaled 128-bit integer
              STRING, VARCHAR, BINARY       h = mix(h ^ length); for each 8 bytes w, little-endian, the last zero-padded:
                                            h = (h ^ w) * 0x9E3779B97F4A7C15, h ^= h >> 32; then h = mix(h)
    bucket:   ((h >> 32) * bucket_count) >> 32

`mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, constants by Stafford). It is not the hash of the key index:
rows of one tablet share their bucket, and an index that used the same bits would be filled unevenly.

Range bounds are encoded range keys (`key_encoding.py`), so that comparing bytes compares keys.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import (
    BYTES_TYPES,
    BytesPart,
    FixedPart,
    KeyBatch,
    decode_key,
    encode_key,
    encode_keys,
    encoded_width,
)
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.common.values import canonical, days_since_epoch, least_value, micros_since_epoch, successor

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB
_U64_GOLDEN, _U64_MUL_1, _U64_MUL_2 = np.uint64(_GOLDEN), np.uint64(_MUL_1), np.uint64(_MUL_2)
_U27, _U30, _U31, _U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_WORD_MASKS = np.array([(1 << (8 * i)) - 1 for i in range(9)], dtype=np.uint64)
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_BLOCK_ROWS = 1 << 14
"""Rows hashed at a time: a block and its temporaries stay in the second-level cache."""

MAX_BUCKETS = 1 << 16
MAX_PRUNED_COMBINATIONS = 4096
"""Value combinations of IN lists that pruning looks at per hash level; beyond, the level is not pruned."""

U64 = npt.NDArray[np.uint64]


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
                raise _invalid(
                    f"the hash level on {', '.join(level.columns)} has 2 to {MAX_BUCKETS} buckets, not {level.bucket_count}"
                )
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
        lower, upper: values of the range columns, in order, or None for unbounded; fewer values than columns: the rest is
            the least value.
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
        KuduError: INVALID_ARGUMENT if the partition schema does not fit, a bound is no key, or ranges are empty or overlap.
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
        lower = b"" if item.lower is None else _encode_bound(range_schema, item.lower, after=not item.lower_inclusive)
        upper = b"" if item.upper is None else _encode_bound(range_schema, item.upper, after=item.upper_inclusive)
        # None: above the last key. An encoded bound is empty only for the least value of a string: nothing lies below it.
        nothing_below = item.upper is not None and upper == b""
        if nothing_below or lower is None or (upper and lower >= upper):
            raise _invalid(
                f"the range partition {describe_range(item)} is empty: its lower bound is not below its upper"
            )
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


def _encode_bound(range_schema: Schema, values: tuple[object, ...], *, after: bool) -> bytes | None:
    """The least encoded key at (or, with `after`, above) the given values; None if there is none."""
    columns = range_schema.columns
    if not 1 <= len(values) <= len(columns):
        raise _invalid(
            f"a range bound has 1 to {len(columns)} values ({', '.join(range_schema.names)}), not {_show_values(values)}"
        )
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


class Partitioner:
    """Finds the partition of rows, for one table as of one list of partitions. Immutable."""

    def __init__(self, schema: Schema, partition_schema: PartitionSchema, partitions: Sequence[Partition]) -> None:
        """
        Args:
            partitions: disjoint; positions in this list are what the methods answer.
        """
        self.schema = schema
        self.partition_schema = partition_schema
        self.partitions = tuple(partitions)
        self._levels = [_Level.of(schema, level) for level in partition_schema.hash_levels]
        self._ranges = _RangeIndex.of(schema, partition_schema, self.partitions)
        strides = [1] * len(self._levels)
        for i in range(len(self._levels) - 2, -1, -1):
            strides[i] = strides[i + 1] * self._levels[i + 1].bucket_count
        self._strides = strides
        combinations = strides[0] * self._levels[0].bucket_count if self._levels else 1
        table = np.full((combinations, self._ranges.segment_count), -1, np.int32)
        for i, partition in enumerate(self.partitions):
            row = sum(stride * bucket for stride, bucket in zip(strides, partition.hash_buckets, strict=True))
            first, last = self._ranges.segments_of(partition)
            assert (table[row, first:last] == -1).all(), f"partition {i} overlaps another"
            table[row, first:last] = i
        self._table = table
        self._single = len(self.partitions) == 1 and not self._levels and self._ranges.segment_count == 1

    def rows_to_partitions(self, key_columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
        """int32[n]: position of each row's partition, -1 if no range covers it.

        Args:
            key_columns: at least the key columns, first, in key order, with the schema's types and no nulls.
        """
        n = len(key_columns[0])
        if self._single:
            return np.zeros(n, np.int32)
        combination: npt.NDArray[np.int64] | None = None
        for level, stride in zip(self._levels, self._strides, strict=True):
            buckets = level.buckets(key_columns)
            if stride != 1:
                buckets *= stride
            combination = buckets if combination is None else combination + buckets
        if self._ranges.segment_count == 1:
            assert combination is not None
            return self._table[:, 0].take(combination)
        segments = self._ranges.find(key_columns)
        if combination is None:
            return self._table[0].take(segments)
        return self._table.reshape(-1).take(combination * self._ranges.segment_count + segments)

    def row_to_partition(self, key: Sequence[object]) -> int:
        """The same for one row, without Arrow: `key` holds the canonical values of the key columns, in key order."""
        if self._single:
            return 0
        combination = 0
        for level, stride in zip(self._levels, self._strides, strict=True):
            combination += level.bucket_of(key) * stride
        segment = self._ranges.find_one(key) if self._ranges.segment_count > 1 else 0
        return int(self._table[combination, segment])

    def prune(self, predicates: Sequence[Predicate]) -> list[int]:
        """Positions, rising, of the partitions that can hold a row for which all predicates hold; in doubt one is kept.

        Hash levels are pruned by EQ and IN on all their columns; ranges by EQ on leading range columns and one comparison,
        EQ or IN behind them.
        """
        limits = _Limits.by_column(self.schema, predicates)
        if any(limit.impossible for limit in limits.values()):
            return []
        allowed = [level.possible_buckets(limits) for level in self._levels]
        lower, upper = self._ranges.bounds(limits)
        if upper is not None and lower >= upper:
            return []
        kept = []
        for i, partition in enumerate(self.partitions):
            hash_fits = all(
                buckets is None or bucket in buckets
                for buckets, bucket in zip(allowed, partition.hash_buckets, strict=True)
            )
            below = partition.range_upper != b"" and partition.range_upper <= lower
            above = upper is not None and partition.range_lower >= upper
            if hash_fits and not below and not above:
                kept.append(i)
        return kept


# -- hashing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Level:
    """A hash level bound to a schema: where its columns stand in the key."""

    positions: tuple[int, ...]
    columns: tuple[ColumnSchema, ...]
    key: Schema
    bucket_count: int
    start: int

    @classmethod
    def of(cls, schema: Schema, level: HashLevel) -> _Level:
        columns = tuple(schema.column(name) for name in level.columns)
        positions = tuple(schema.position(name) for name in level.columns)
        start = _mix_one((level.seed + _GOLDEN) & _MASK64)
        return cls(positions, columns, Schema(columns, len(columns)), level.bucket_count, start)

    def buckets(self, key_columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """int64[n], 0 to bucket_count - 1."""
        batch = KeyBatch.of(self.key, [key_columns[i] for i in self.positions])
        h = np.full(batch.rows, self.start, np.uint64)
        for part in batch.parts:
            if isinstance(part, FixedPart):
                _hash_fixed(h, part)
            else:
                _hash_bytes(h, part)
        h >>= _U32
        h *= np.uint64(self.bucket_count)
        h >>= _U32
        return h.view(np.int64)

    def bucket_of(self, key: Sequence[object]) -> int:
        """The bucket of one key, given by the canonical values of all key columns."""
        return self.bucket_of_values([key[i] for i in self.positions])

    def bucket_of_values(self, values: Sequence[object]) -> int:
        """The bucket of the canonical values of this level's columns."""
        h = self.start
        for column, value in zip(self.columns, values, strict=True):
            h = _hash_value(h, column, value)
        return ((h >> 32) * self.bucket_count) >> 32

    def possible_buckets(self, limits: dict[str, _Limits]) -> frozenset[int] | None:
        """Buckets that rows within the limits can be in; None: any."""
        choices = []
        count = 1
        for column in self.columns:
            limit = limits.get(column.name)
            if limit is None or limit.values is None:
                return None
            count *= len(limit.values)
            if count > MAX_PRUNED_COMBINATIONS:
                return None
            choices.append(limit.values)
        return frozenset(self.bucket_of_values(values) for values in itertools.product(*choices))


def _hash_fixed(h: U64, part: FixedPart) -> None:
    words = part.words
    if words.itemsize < 8:
        words = words.view(_SIGNED[words.itemsize]).astype(np.int64).view(np.uint64)
    # In blocks, because three multiplications' worth of passes over memory would otherwise be bound by memory.
    spare = np.empty(min(len(h), _BLOCK_ROWS), np.uint64)
    for first in range(0, len(h), _BLOCK_ROWS):
        block = h[first : first + _BLOCK_ROWS]
        np.bitwise_xor(block, words[first : first + _BLOCK_ROWS], out=block)
        _mix(block, spare[: len(block)])


def _hash_bytes(h: U64, part: BytesPart) -> None:
    h ^= part.lengths.view(np.uint64)
    spare = np.empty(len(h), np.uint64)
    _mix(h, spare)
    if len(h):
        lengths, starts, words = part.lengths, part.starts, part.words()
        shortest, longest = int(lengths.min()), int(lengths.max())
        for offset in range(0, longest, 8):
            if shortest >= offset + 8:
                _fold(h, words[starts + offset])
            elif shortest > offset:
                _fold(h, words[starts + offset] & _WORD_MASKS.take(np.minimum(lengths - offset, 8)))
            else:  # only rows that reach so far: a row's hash must not depend on its batch mates
                reach = np.flatnonzero(lengths > offset)
                tail = words[starts[reach] + offset] & _WORD_MASKS.take(np.minimum(lengths[reach] - offset, 8))
                some = h[reach]
                _fold(some, tail)
                h[reach] = some
    _mix(h, spare)


def _fold(h: U64, words: U64) -> None:
    h ^= words
    h *= _U64_GOLDEN
    h ^= h >> _U32


def _mix(h: U64, spare: U64) -> None:
    np.right_shift(h, _U30, out=spare)
    np.bitwise_xor(h, spare, out=h)
    np.multiply(h, _U64_MUL_1, out=h)
    np.right_shift(h, _U27, out=spare)
    np.bitwise_xor(h, spare, out=h)
    np.multiply(h, _U64_MUL_2, out=h)
    np.right_shift(h, _U31, out=spare)
    np.bitwise_xor(h, spare, out=h)


def _mix_one(x: int) -> int:
    x ^= x >> 30
    x = (x * _MUL_1) & _MASK64
    x ^= x >> 27
    x = (x * _MUL_2) & _MASK64
    return x ^ (x >> 31)


def _hash_value(h: int, column: ColumnSchema, value: object) -> int:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        h = _mix_one(h ^ len(value))
        for i in range(0, len(value), 8):
            h = ((h ^ int.from_bytes(value[i : i + 8], "little")) * _GOLDEN) & _MASK64
            h ^= h >> 32
        return _mix_one(h)
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(column.scale, decimal.Context(prec=76)))
        h = _mix_one(h ^ ((unscaled >> 64) & _MASK64))
        return _mix_one(h ^ (unscaled & _MASK64))
    if isinstance(value, datetime.datetime):
        value = micros_since_epoch(value)
    elif isinstance(value, datetime.date):
        value = days_since_epoch(value)
    assert isinstance(value, int), value
    return _mix_one(h ^ (value & _MASK64))


# -- ranges --------------------------------------------------------------------------------------------------------------


class _RangeIndex:
    """Cuts the range keys into segments at every bound of every partition, so that one search places a row."""

    def __init__(self, schema: Schema | None, positions: tuple[int, ...], boundaries: list[bytes]) -> None:
        """
        Args:
            schema: the range columns; None if there are none.
            positions: where the range columns stand in the table's key.
            boundaries: rising; segment i holds the keys from boundary i - 1 (inclusive) to boundary i (exclusive).
        """
        self._schema = schema
        self._positions = positions
        self._boundaries = boundaries
        self.segment_count = len(boundaries) + 1
        self._prefixes = np.array([_prefix(boundary) for boundary in boundaries], np.uint64)
        # With keys of one width up to eight bytes a prefix is the whole key, and ties are decided.
        width = 9
        if schema is not None and all(column.type not in BYTES_TYPES for column in schema.columns):
            width = sum(encoded_width(column) for column in schema.columns)
        self._prefix_decides = width <= 8 and all(len(boundary) == width for boundary in boundaries)

    @classmethod
    def of(cls, schema: Schema, partition_schema: PartitionSchema, partitions: Sequence[Partition]) -> _RangeIndex:
        bounds = {p.range_lower for p in partitions} | {p.range_upper for p in partitions}
        boundaries = sorted(bounds - {b""})
        if not partition_schema.range_columns:
            assert not boundaries, "range bounds without range columns"
            return cls(None, (), [])
        positions = tuple(schema.position(name) for name in partition_schema.range_columns)
        return cls(partition_schema.range_schema(schema), positions, boundaries)

    def segments_of(self, partition: Partition) -> tuple[int, int]:
        """The segments [first, last) that a partition holds."""
        first = bisect_right(self._boundaries, partition.range_lower) if partition.range_lower else 0
        if not partition.range_upper:
            return first, self.segment_count
        return first, bisect_right(self._boundaries, partition.range_upper)

    def find(self, key_columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """int64[n]: each row's segment, that is, the number of boundaries at or below its key."""
        assert self._schema is not None
        keys = encode_keys(self._schema, [key_columns[i] for i in self._positions]).array
        prefixes = _prefixes(keys)
        segments = np.searchsorted(self._prefixes, prefixes, side="right")
        if self._prefix_decides:
            return segments
        # Boundaries with a smaller prefix are below, with a greater one above; those that share it are compared in full.
        below = np.searchsorted(self._prefixes, prefixes, side="left")
        tied = np.flatnonzero(below != segments)
        if len(tied):
            tied_keys = keys.take(pa.array(tied))
            counts = below[tied]
            for i in np.unique(np.concatenate([np.arange(below[r], segments[r]) for r in _one_each(below, tied)])):
                shares = prefixes[tied] == self._prefixes[i]
                at_or_above = pc.greater_equal(tied_keys, pa.scalar(self._boundaries[i], pa.binary()))
                counts += shares & at_or_above.to_numpy(zero_copy_only=False)
            segments[tied] = counts
        return segments

    def find_one(self, key: Sequence[object]) -> int:
        """The segment of one key, given by the canonical values of all key columns."""
        assert self._schema is not None
        values = [key[i] for i in self._positions]
        return bisect_right(self._boundaries, _encode_values(self._schema, values))

    def bounds(self, limits: dict[str, _Limits]) -> tuple[bytes, bytes | None]:
        """Encoded [lower, upper) that holds every key within the limits; None: no upper bound."""
        if self._schema is None:
            return b"", None
        columns = self._schema.columns
        least = [least_value(column) for column in columns]
        prefix: list[object] = []
        limit: _Limits | None = None
        for column in columns:
            limit = limits.get(column.name)
            if limit is None or limit.values is None or len(limit.values) != 1:
                break
            prefix.append(limit.values[0])
            limit = None
        at = len(prefix)
        lower_value, lower_inclusive = limit.lowest() if limit is not None else (None, True)
        upper_value, upper_inclusive = limit.highest() if limit is not None else (None, True)
        lower = b""
        if lower_value is not None:
            above = None if lower_inclusive else successor(columns[at], lower_value)
            lower = encode_key(self._schema, [*prefix, lower_value if above is None else above, *least[at + 1 :]])
        elif prefix:
            lower = encode_key(self._schema, [*prefix, *least[at:]])
        if upper_value is not None:
            if not upper_inclusive:
                return lower, encode_key(self._schema, [*prefix, upper_value, *least[at + 1 :]])
            return lower, self._after([*prefix, upper_value])
        return lower, self._after(prefix) if prefix else None

    def _after(self, prefix: list[object]) -> bytes | None:
        """The least bytes above every key that begins with these values; None if there are none."""
        assert self._schema is not None
        columns = self._schema.columns
        rest = [least_value(column) for column in columns[len(prefix) :]]
        encoded = encode_key(self._schema, [*prefix, *rest])
        if not rest:
            return encoded + b"\0"
        rest_bytes = len(encode_key(Schema(columns[len(prefix) :], len(rest)), rest))
        shared = encoded[: len(encoded) - rest_bytes].rstrip(b"\xff")
        return shared[:-1] + bytes([shared[-1] + 1]) if shared else None


def _one_each(below: npt.NDArray[np.int64], tied: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One of the tied rows for each distinct prefix that they share with boundaries."""
    return tied[np.unique(below[tied], return_index=True)[1]]


def _prefix(key: bytes) -> int:
    return int.from_bytes(key[:8].ljust(8, b"\0"), "big")


def _prefixes(keys: pa.Array) -> U64:
    """uint64[n]: the first eight bytes of each key, big-endian, short ones filled with zeros."""
    n = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + n + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    memory = np.zeros(last - first + 8, np.uint8)
    if last > first:
        memory[: last - first] = np.frombuffer(keys.buffers()[2], np.uint8)[first:last]
    starts = offsets[:-1] - first
    words = np.ndarray((memory.size - 7,), "<u8", buffer=memory.data, strides=(1,))[starts]
    words &= _WORD_MASKS.take(np.minimum(np.diff(offsets), 8))
    return words.byteswap()


def _encode_values(schema: Schema, values: Sequence[object]) -> bytes:
    """`encode_key` in plain Python for the usual columns: a tenth of the time."""
    last = len(values) - 1
    out = []
    for i, (column, value) in enumerate(zip(schema.columns, values, strict=True)):
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            out.append(value if i == last else value.replace(b"\0", b"\0\1") + b"\0\0")
            continue
        if isinstance(value, datetime.datetime):
            value = micros_since_epoch(value)
        elif isinstance(value, datetime.date):
            value = days_since_epoch(value)
        elif isinstance(value, decimal.Decimal):
            value = int(value.scaleb(column.scale, decimal.Context(prec=76)))
        assert isinstance(value, int), value
        width = encoded_width(column)
        out.append((value + (1 << (8 * width - 1))).to_bytes(width, "big"))
    return b"".join(out)


# -- limits on columns ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Limits:
    """What a conjunction of predicates says of one key column.

    Attributes:
        values: the only values that are left, rising, or None if they are not finitely many.
        lower, upper: bounds, None if there are none, and whether they are values themselves.
        impossible: no value is left.
    """

    values: list[object] | None = None
    lower: object | None = None
    lower_inclusive: bool = True
    upper: object | None = None
    upper_inclusive: bool = True
    impossible: bool = False
    column: ColumnSchema | None = field(default=None, repr=False)

    @classmethod
    def by_column(cls, schema: Schema, predicates: Sequence[Predicate]) -> dict[str, _Limits]:
        """The limits of the key columns that predicates name."""
        keys = {column.name: column for column in schema.key_columns}
        limits: dict[str, _Limits] = {}
        for predicate in predicates:
            column = keys.get(predicate.column)
            if column is not None:
                limits.setdefault(predicate.column, cls(column=column)).narrow(predicate)
        for limit in limits.values():
            limit.settle()
        return limits

    def narrow(self, predicate: Predicate) -> None:
        """Takes one more predicate in."""
        assert self.column is not None
        values: list[object] = [canonical(self.column, value) for value in predicate.values]
        op = predicate.op
        if op is PredicateOp.IS_NULL:
            self.impossible = True  # key columns hold no nulls
        elif op is PredicateOp.EQ or op is PredicateOp.IN:
            left = set(values) if self.values is None else set(values) & set(self.values)
            self.values = list(left)
        elif op is PredicateOp.GE or op is PredicateOp.GT:
            inclusive = op is PredicateOp.GE
            if self.lower is None or _above(values[0], self.lower) or (values[0] == self.lower and not inclusive):
                self.lower, self.lower_inclusive = values[0], inclusive
        elif op is PredicateOp.LE or op is PredicateOp.LT:
            inclusive = op is PredicateOp.LE
            if self.upper is None or _above(self.upper, values[0]) or (values[0] == self.upper and not inclusive):
                self.upper, self.upper_inclusive = values[0], inclusive

    def settle(self) -> None:
        """Draws the conclusions, once all predicates are in."""
        if self.values is not None:
            self.values = sorted((v for v in self.values if self._admits(v)), key=_SortKey)
            self.impossible |= not self.values
        elif self.lower is not None and self.upper is not None:
            empty = _above(self.lower, self.upper) or (
                self.lower == self.upper and not (self.lower_inclusive and self.upper_inclusive)
            )
            self.impossible |= empty

    def lowest(self) -> tuple[object | None, bool]:
        """The lower bound and whether it is inclusive; None: unbounded."""
        return (self.values[0], True) if self.values else (self.lower, self.lower_inclusive)

    def highest(self) -> tuple[object | None, bool]:
        """The upper bound and whether it is inclusive; None: unbounded."""
        return (self.values[-1], True) if self.values else (self.upper, self.upper_inclusive)

    def _admits(self, value: object) -> bool:
        if self.lower is not None and not (_above(value, self.lower) or (value == self.lower and self.lower_inclusive)):
            return False
        return self.upper is None or _above(self.upper, value) or (value == self.upper and self.upper_inclusive)


def _above(a: object, b: object) -> bool:
    """a > b for two canonical values of one column."""
    return bool(a > b)  # type: ignore[operator]


class _SortKey:
    """Orders canonical values of one column, which share a type that mypy cannot know."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __lt__(self, other: _SortKey) -> bool:
        return _above(other.value, self.value)


def _require_key_column(schema: Schema, keys: set[str], name: str, what: str) -> None:
    schema.column(name)
    if name not in keys:
        raise _invalid(f"column {name!r} is not part of the primary key and cannot be a {what} partition column")


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, message)
