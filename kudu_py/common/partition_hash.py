"""The hash of hash partitioning: part of the data's layout, never changed.

All arithmetic is on unsigned 64-bit integers:

    mix(x):   x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
    start:    h = mix(seed + 0x9E3779B97F4A7C15)
    column:   INT*, UNIXTIME_MICROS, DATE   h = mix(h ^ v), v sign-extended to 64 bits
              DECIMAL                       h = mix(h ^ high), then h = mix(h ^ low), of the unscaled 128-bit integer
              STRING, VARCHAR, BINARY       h = mix(h ^ length); for each 8 bytes w, little-endian, zero-padded:
                                            h = (h ^ w) * 0x9E3779B97F4A7C15, h ^= h >> 32; then h = mix(h)
    bucket:   ((h >> 32) * bucket_count) >> 32

`mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, constants by Stafford). It is not the hash of the key
index: rows of one tablet share their bucket, and an index that used the same bits would be filled unevenly.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kudu_py.common.key_encoding import BytesPart, FixedPart, KeyBatch
from kudu_py.common.key_limits import KeyLimits
from kudu_py.common.partition import HashLevel
from kudu_py.common.schema import ColumnSchema, Schema
from kudu_py.common.values import days_since_epoch, micros_since_epoch

MAX_PRUNED_COMBINATIONS = 4096
"""Value combinations of IN lists that pruning looks at per hash level; beyond, the level is not pruned."""

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

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class HashLevelBuckets:
    """A hash level bound to a schema: where its columns stand in the key."""

    positions: tuple[int, ...]
    columns: tuple[ColumnSchema, ...]
    key: Schema
    bucket_count: int
    start: int

    @classmethod
    def of(cls, schema: Schema, level: HashLevel) -> HashLevelBuckets:
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

    def possible_buckets(self, limits: Mapping[str, KeyLimits]) -> frozenset[int] | None:
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
