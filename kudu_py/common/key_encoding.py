"""Primary keys of whole batches: hashed, compared and ordered column-wise, and their encoded form.

`KeyBatch` is how the row engine sees keys: per key column either unsigned words or places of bytes, so that hashing,
equality and ordering run in NumPy over whole batches and no encoded key is built on the way of a write. The *encoded*
key
is for what leaves a batch: bounds, resume points, statistics. Its bytes order (memcmp) as the keys do, and it is
upstream's format (`key_encoder.h`): integers big-endian with the sign bit flipped; strings but the last with 00 escaped
as 00 01 and ended by 00 00; the last column's bytes as they are.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.schema import ColumnSchema, DataType, Schema

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.unsignedinteger[Any]]

_MULTIPLIER_A = 0x9E3779B97F4A7C15
_MULTIPLIER_B = 0xD6E8FEB86659FD93
_A = np.uint64(_MULTIPLIER_A)
_B = np.uint64(_MULTIPLIER_B)
_32 = np.uint64(32)
_NEVER_EMPTY = np.uint64(1 << 32)
"""Set in every hash: the upper half is never zero, so that an index entry made of it never looks like an empty slot."""
_MASK64 = (1 << 64) - 1
_BYTE_MASKS = np.array([(1 << (8 * i)) - 1 for i in range(9)], dtype=np.uint64)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
BYTES_TYPES = frozenset({DataType.STRING, DataType.VARCHAR, DataType.BINARY})


@dataclass(frozen=True, slots=True, eq=False)
class FixedPart:
    """One fixed-width word per row: the native bits of the value, unsigned.

    Attributes:
        words: uint8, 16, 32 or 64 [n].
        signed: the bits are two's complement; order flips the top bit.
    """

    words: Words
    signed: bool


@dataclass(frozen=True, slots=True, eq=False)
class BytesPart:
    """One byte string per row, by its place in shared memory.

    Attributes:
        starts: int64[n], offset of the first byte in `memory`.
        lengths: int64[n].
        memory: uint8; readable for at least eight bytes after the end of every string.
    """

    starts: I64
    lengths: I64
    memory: npt.NDArray[np.uint8]

    def words(self) -> U64:
        """Every offset of `memory` as the start of an unaligned little-endian word; a view, not a copy."""
        return np.ndarray((self.memory.size - 7,), "<u8", buffer=self.memory.data, strides=(1,))


KeyPart = FixedPart | BytesPart


@dataclass(frozen=True, slots=True, eq=False)
class KeyBatch:
    """The keys of n rows, column-wise. Immutable; may share memory with the arrays that it was made of.

    Attributes:
        parts: one per key column, in key order, but two (high word signed, low word) for a DECIMAL.
        rows: n.
    """

    parts: tuple[KeyPart, ...]
    rows: int

    @classmethod
    def of(cls, schema: Schema, columns: Sequence[pa.Array]) -> KeyBatch:
        """The keys of Arrow arrays: at least the key columns, first, in order, with the schema's types and no nulls."""
        parts: list[KeyPart] = []
        for column, cells in zip(schema.key_columns, columns, strict=False):
            parts.extend(parts_of(column, cells))
        return cls(tuple(parts), len(columns[0]))

    def take(self, rows: npt.NDArray[np.int64]) -> KeyBatch:
        """The keys of some rows, in that order."""
        return KeyBatch(tuple(_take(part, rows) for part in self.parts), len(rows))

    def equal(self, other: KeyBatch) -> Bools:
        """bool[n]: row i here is row i there; both have n rows of one schema."""
        assert self.rows == other.rows, (self.rows, other.rows)
        result: Bools | None = None
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            if isinstance(mine, FixedPart):
                assert isinstance(theirs, FixedPart)
                same: Bools = mine.words == theirs.words
            else:
                assert isinstance(theirs, BytesPart)
                same = _equal_bytes(mine, theirs)
            result = same if result is None else result & same
        assert result is not None
        return result

    def hashes(self) -> U64:
        """uint64[n].

        A row's hash depends on its key only, never on its batch; stored in key index runs, so never changed.
        """
        return hash_parts(self.parts)

    def order(self) -> I64:
        """int64[n]: row numbers in key order; equal keys keep their order."""
        columns = [_rank_words(part) for part in self.parts]
        return _lexical_order(columns)

    def ascending(self) -> bool:
        """Whether every key is above the one before it. False may also mean "not cheap to tell" (byte strings)."""
        if self.rows == 1:
            return True
        if len(self.parts) == 1 and isinstance(self.parts[0], FixedPart):
            words = _ordered(self.parts[0])
            return bool((words[1:] > words[:-1]).all())
        if any(isinstance(part, BytesPart) for part in self.parts):
            return False
        above = np.zeros(self.rows - 1, np.bool_)
        equal = np.ones(self.rows - 1, np.bool_)
        for part in self.parts:
            assert isinstance(part, FixedPart)
            words = _ordered(part)
            above |= equal & (words[1:] > words[:-1])
            equal &= words[1:] == words[:-1]
        return bool(above.all())

    def ordinal(self, row: int) -> tuple[int, ...] | None:
        """Integers that order as the keys do, for keys of fixed width.

        None if there is a byte string among the columns.
        """
        result = []
        for part in self.parts:
            if isinstance(part, BytesPart):
                return None
            value = int(part.words[row])
            result.append(value ^ (1 << (part.words.itemsize * 8 - 1)) if part.signed else value)
        return tuple(result)

    def largest(self) -> tuple[int, ...] | None:
        """The largest `ordinal` of all rows; None if there is a byte string among the columns."""
        candidates: I64 | None = None
        result = []
        for part in self.parts:
            if isinstance(part, BytesPart):
                return None
            words = _ordered(part)
            if candidates is not None:
                words = words.take(candidates)
            top = words.max()
            result.append(int(top))
            if len(self.parts) > 1:
                best = np.flatnonzero(words == top)
                candidates = best if candidates is None else candidates[best]
        return tuple(result)

    def scalars(self) -> list[tuple[int | bytes, ...]]:
        """The keys as tuples of plain integers (unsigned bits) and bytes; for a handful of rows."""
        columns: list[list[int] | list[bytes]] = []
        for part in self.parts:
            if isinstance(part, FixedPart):
                columns.append(part.words.tolist())
            else:
                memory = part.memory
                columns.append(
                    [
                        memory[start : start + length].tobytes()
                        for start, length in zip(part.starts.tolist(), part.lengths.tolist(), strict=True)
                    ]
                )
        return list(zip(*columns, strict=True))


def hash_parts(parts: Sequence[KeyPart]) -> U64:
    """uint64[n]: a hash over the parts of each row."""
    h: U64 | None = None
    for part in parts:
        if isinstance(part, FixedPart):
            words = part.words.astype(np.uint64)
            h = _mix(words if h is None else h ^ words)
        else:
            h = _hash_bytes(h, part)
    assert h is not None
    h *= _B
    h ^= h >> _32
    h |= _NEVER_EMPTY
    return h


def hash_scalars(key: tuple[int | bytes, ...]) -> int:
    """The hash of one key as given by `KeyBatch.scalars`; the same number as `KeyBatch.hashes` gives."""
    h = 0
    for value in key:
        if isinstance(value, int):
            h = ((h ^ value) * _MULTIPLIER_A) & _MASK64
            h ^= h >> 32
        else:
            length = len(value)
            h = ((h ^ length) * _MULTIPLIER_A) & _MASK64
            h ^= h >> 32
            for i in range(0, length, 8):
                h = ((h ^ int.from_bytes(value[i : i + 8], "little")) * _MULTIPLIER_A) & _MASK64
                h ^= h >> 32
    h = (h * _MULTIPLIER_B) & _MASK64
    h ^= h >> 32
    return h | (1 << 32)


def hashes_of(keys: Sequence[tuple[int | bytes, ...]]) -> list[int]:
    """As `hash_scalars` for the keys of a few rows."""
    first = keys[0]
    if len(first) > 1 or not isinstance(first[0], int):
        return [hash_scalars(key) for key in keys]
    hashes = []
    for (word,) in keys:
        h = word * _MULTIPLIER_A & _MASK64  # type: ignore[operator]
        h = (h ^ h >> 32) * _MULTIPLIER_B & _MASK64
        hashes.append((h ^ h >> 32) | 1 << 32)
    return hashes


def _mix(h: U64) -> U64:
    h = h * _A
    h ^= h >> _32
    return h


def _hash_bytes(h: U64 | None, part: BytesPart) -> U64:
    lengths = part.lengths
    h = _mix(lengths.view(np.uint64) if h is None else h ^ lengths.view(np.uint64))
    if not len(lengths):
        return h
    longest = int(lengths.max())
    shortest = int(lengths.min())
    words = part.words()
    for offset in range(0, longest, 8):
        if shortest >= offset + 8:
            h = _mix(h ^ words[part.starts + offset])
        elif shortest > offset:
            tail = words[part.starts + offset] & _BYTE_MASKS.take(np.minimum(lengths - offset, 8))
            h = _mix(h ^ tail)
        else:  # only the rows that reach this word: the hash must not depend on batch mates
            reach = np.flatnonzero(lengths > offset)
            tail = words[part.starts[reach] + offset] & _BYTE_MASKS.take(np.minimum(lengths[reach] - offset, 8))
            h[reach] = _mix(h[reach] ^ tail)
    return h


def _equal_bytes(a: BytesPart, b: BytesPart) -> Bools:
    same: Bools = a.lengths == b.lengths
    candidates = np.flatnonzero(same & (a.lengths > 0))
    if not len(candidates):
        return same
    a_starts, b_starts, lengths = a.starts, b.starts, a.lengths
    if len(candidates) < len(same):
        a_starts, b_starts, lengths = a_starts[candidates], b_starts[candidates], lengths[candidates]
    differs = np.zeros(len(candidates), np.bool_)
    a_words, b_words = a.words(), b.words()
    shortest, longest = int(lengths.min()), int(lengths.max())
    for offset in range(0, longest, 8):
        if shortest > offset:
            x = a_words[a_starts + offset] ^ b_words[b_starts + offset]
            if shortest < offset + 8:
                x &= _BYTE_MASKS.take(np.minimum(lengths - offset, 8))
            differs |= x != 0
        else:
            reach = np.flatnonzero(lengths > offset)
            x = a_words[a_starts[reach] + offset] ^ b_words[b_starts[reach] + offset]
            x &= _BYTE_MASKS.take(np.minimum(lengths[reach] - offset, 8))
            differs[reach] |= x != 0
    same[candidates] &= ~differs
    return same


def _take(part: KeyPart, rows: I64) -> KeyPart:
    if isinstance(part, FixedPart):
        return FixedPart(part.words.take(rows), part.signed)
    return BytesPart(part.starts.take(rows), part.lengths.take(rows), part.memory)


def parts_of(column: ColumnSchema, cells: pa.Array) -> list[KeyPart]:
    """The cells of one column of any type but BOOL as key parts; nulls read anything.

    Buffers are read by count: Arrow lets them be longer than their cells by any number of bytes.
    """
    n = len(cells)
    buffers = cells.buffers()
    if column.type in BYTES_TYPES:
        if n == 0:
            nothing = np.zeros(0, np.int64)
            return [BytesPart(nothing, nothing, np.zeros(8, np.uint8))]
        offsets = np.frombuffer(buffers[1], np.int32, n + 1, 4 * cells.offset)
        first, last = int(offsets[0]), int(offsets[-1])
        # Copied, so that words can be read past the end, whoever owns the buffer.
        memory = np.zeros(last - first + 8, np.uint8)
        if last > first:
            memory[: last - first] = np.frombuffer(buffers[2], np.uint8)[first:last]
        starts = offsets[:-1].astype(np.int64)
        starts -= first
        return [BytesPart(starts, np.diff(offsets).astype(np.int64), memory)]
    if column.type is DataType.DECIMAL:
        if n == 0:
            return [FixedPart(np.zeros(0, np.uint64), True), FixedPart(np.zeros(0, np.uint64), False)]
        pairs = np.frombuffer(buffers[1], np.uint64, 2 * n, 16 * cells.offset).reshape(-1, 2)
        return [FixedPart(np.ascontiguousarray(pairs[:, 1]), True), FixedPart(np.ascontiguousarray(pairs[:, 0]), False)]
    kind = _UNSIGNED[cells.type.bit_width // 8]
    if n == 0:
        return [FixedPart(np.zeros(0, kind), True)]
    width = np.dtype(kind).itemsize
    return [FixedPart(np.frombuffer(buffers[1], kind, n, width * cells.offset), True)]


# -- order ------------------------------------------------------------------------------------------------------------


def _ordered(part: FixedPart) -> Words:
    """Words whose unsigned order is the order of the values."""
    if not part.signed:
        return part.words
    top = part.words.dtype.type(1 << (part.words.itemsize * 8 - 1))
    return part.words ^ top


def _rank_words(part: KeyPart) -> U64:
    if isinstance(part, FixedPart):
        return _ordered(part).astype(np.uint64)
    encoded = bytes_array(part).dictionary_encode()
    sorted_places = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(sorted_places), np.uint64)
    ranks[sorted_places] = np.arange(len(sorted_places), dtype=np.uint64)
    result: U64 = ranks.take(encoded.indices.to_numpy())
    return result


def _lexical_order(columns: list[U64]) -> I64:
    order = radix_order(columns[0])
    if len(columns) == 1:
        return order
    first = columns[0].take(order)
    same = first[1:] == first[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    rows = order[places]
    inner = np.lexsort([column.take(rows) for column in reversed(columns)])
    order[places] = rows[inner]
    return order


def radix_order(words: U64) -> I64:
    """Stable argsort of uint64[n]: two passes of 16 bits over the top 32 significant ones, then timsort repairs rare
    ties.

    Half the time of `argsort` on random words, and all of its kernels release the GIL.
    """
    if not len(words):
        return np.zeros(0, np.int64)
    low = words.min()
    spread = int(words.max()) - int(low)
    if spread == 0:
        return np.arange(len(words), dtype=np.int64)
    if len(words) < 4096:
        return np.argsort(words, kind="stable")
    shift = max(0, spread.bit_length() - 32)
    top = ((words - low) >> np.uint64(shift)).astype(np.uint32)
    order = np.argsort(top.astype(np.uint16), kind="stable")
    if spread >> shift > 0xFFFF:
        order = order[np.argsort((top >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    if shift:
        placed = words[order]
        if (placed[1:] < placed[:-1]).any():
            order = order[np.argsort(placed, kind="stable")]
    return order


def bytes_array(part: BytesPart) -> pa.Array:
    """A binary array of the strings; one copy of their bytes unless they lie one after another."""
    n = len(part.starts)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(part.lengths, out=offsets[1:])
    total = int(offsets[-1])
    base = int(part.starts[0]) if n else 0
    if n and np.array_equal(part.starts - base, offsets[:-1]):
        memory = part.memory[base : base + total]
    else:
        places = np.repeat(part.starts - offsets[:-1], part.lengths)
        places += np.arange(total)
        memory = part.memory.take(places)
    kind = pa.large_binary()
    return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(memory))])


# -- the encoded form -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EncodedKeys:
    """Encoded keys of n rows; comparing two of them as bytes compares the keys.

    Attributes:
        array: pa.binary()[n], no nulls.
    """

    array: pa.Array

    @cached_property
    def rows(self) -> int:
        """n."""
        return len(self.array)

    def bytes_at(self, row: int) -> bytes:
        """The encoded key of one row."""
        value: bytes = self.array[row].as_py()
        return value


def encode_keys(schema: Schema, columns: Sequence[pa.Array]) -> EncodedKeys:
    """Encodes whole key columns; `columns` holds at least the key columns, first, in order, without nulls."""
    pieces: list[pa.Array | pa.Scalar] = []
    last = schema.key_count - 1
    for i, (column, cells) in enumerate(zip(schema.key_columns, columns, strict=False)):
        if column.type in BYTES_TYPES:
            raw = cells.cast(pa.binary())
            if i < last:
                raw = pc.replace_substring(raw, b"\0", b"\0\1")
                pieces.extend((raw, pa.scalar(b"\0\0", pa.binary())))
            else:
                pieces.append(raw)
        else:
            pieces.append(_encode_fixed(column, cells))
    if len(pieces) == 1:
        return EncodedKeys(pieces[0])
    return EncodedKeys(pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())))


def encode_key(schema: Schema, values: Sequence[object]) -> bytes:
    """Encodes one key of Python values as Arrow gives them (`int`, `str`, `bytes`, `datetime`, `date`, `Decimal`)."""
    columns = [pa.array([value], column.arrow_type) for column, value in zip(schema.key_columns, values, strict=True)]
    return encode_keys(schema, columns).bytes_at(0)


def decode_key(schema: Schema, encoded: bytes) -> tuple[object, ...]:
    """The Python values of an encoded key. Raises ValueError if the bytes are no key of this schema."""
    values: list[object] = []
    at = 0
    last = schema.key_count - 1
    for i, column in enumerate(schema.key_columns):
        if column.type in BYTES_TYPES:
            raw, at = (encoded[at:], len(encoded)) if i == last else _unescape(encoded, at)
            values.append(raw if column.type is DataType.BINARY else raw.decode())
            continue
        width = encoded_width(column)
        if at + width > len(encoded):
            raise ValueError(f"the encoded key ends inside column {column.name!r}")
        number = int.from_bytes(encoded[at : at + width], "big") - (1 << (8 * width - 1))
        at += width
        values.append(_python_value(column, number))
    if at != len(encoded):
        raise ValueError(f"{len(encoded) - at} bytes follow the encoded key")
    return tuple(values)


def encoded_width(column: ColumnSchema) -> int:
    """Bytes that a fixed-width key column takes in the encoded key."""
    if column.type is DataType.DECIMAL:
        return 4 if column.precision <= 9 else 8 if column.precision <= 18 else 16
    width: int = column.arrow_type.bit_width // 8
    return width


def _encode_fixed(column: ColumnSchema, cells: pa.Array) -> pa.Array:
    n = len(cells)
    width = encoded_width(column)
    raw = np.empty((n, width), np.uint8)
    if n:
        native = cells.type.bit_width // 8
        little = np.frombuffer(cells.buffers()[1], np.uint8)[cells.offset * native : (cells.offset + n) * native]
        raw[:] = little.reshape(n, native)[:, width - 1 :: -1] if width < native else little.reshape(n, native)[:, ::-1]
        raw[:, 0] ^= 0x80
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])


def _unescape(encoded: bytes, at: int) -> tuple[bytes, int]:
    out = bytearray()
    while True:
        zero = encoded.find(b"\0", at)
        if zero < 0 or zero + 1 >= len(encoded):
            raise ValueError("a string in the encoded key has no end")
        out += encoded[at:zero]
        at = zero + 2
        if encoded[zero + 1] == 0:
            return bytes(out), at
        if encoded[zero + 1] != 1:
            raise ValueError("a string in the encoded key has a bad escape")
        out.append(0)


def _python_value(column: ColumnSchema, number: int) -> object:
    if column.type is DataType.UNIXTIME_MICROS:
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return epoch + datetime.timedelta(microseconds=number)
    if column.type is DataType.DATE:
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=number)
    if column.type is DataType.DECIMAL:
        return decimal.Decimal(number).scaleb(-column.scale, decimal.Context(prec=76))
    return number
