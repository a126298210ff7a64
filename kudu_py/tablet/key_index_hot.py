"""`HotIndex`: the part of the key index that is in memory, for the rows of one MemRowSet.

A table of buckets of eight 64-bit entries, one cache line each, worked on for whole batches at once in NumPy. An entry
is

    hash[63:32] | displacement (4 bits) | row id relative to the MemRowSet (28 bits)

A bucket fills from its first slot and nothing is ever taken out of it but by a tombstone, so that "the number of
non-zero slots" is the next free one. A full bucket overflows to another bucket of the same segment, an odd step away
that the hash gives (`displacement` times), and after fifteen of those to a side table: whatever the hashes, insert
works. The table grows by segments that split a few at a time (linear hashing over the top bits of the hash), so that no
batch pays for all rows; a split needs no hash of a key, because the entry has every bit that decides its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kudu_py.common.key_encoding import I64, U64, Bools

Verify = Callable[[I64, I64], Bools]
"""verify(rows of the batch, candidate row ids) -> bool[]: whether that row's key is that row id's key, and live."""

_BUCKET_BITS = 9
_BUCKETS = 1 << _BUCKET_BITS
_BUCKET_MASK = np.int64(_BUCKETS - 1)
_SLOTS = _BUCKETS * 8
_SPLIT_ROWS = 250
"""Rows inserted per split while the table grows; a doubling is spread over the insertion of an eighth of its rows."""
_MAX_DISPLACEMENT = 15
_ROW_BITS = 28
_ROW_MASK = np.uint64((1 << _ROW_BITS) - 1)
_ROW_MASK_INT = (1 << _ROW_BITS) - 1
_DISPLACEMENT_SHIFT = np.uint64(_ROW_BITS)
_DISPLACEMENT_MASK = np.uint64(15 << _ROW_BITS)
_TOMBSTONE = np.uint64(2)
"""Its upper half is zero, which no hash has (`KeyBatch.hashes`), so it matches nothing."""
_LOW = np.uint64(0xFFFFFFFF)
_ONES = np.uint64(0x0101010101010101)
_32 = np.uint64(32)
_56 = np.uint64(56)
_BUCKET_SHIFT = np.uint64(32 - _BUCKET_BITS)
_STEP_MASK = np.uint32(_BUCKETS - 1)
_BUCKET_SHIFT_INT = 32 - _BUCKET_BITS
_BUCKET_MASK_INT = _BUCKETS - 1
_EMPTY_SLOT = bytes(8)
MAX_ROWS = 1 << _ROW_BITS


class HotIndex:
    """Hashes to row ids relative to one MemRowSet.

    At most one entry per live key; only the loop's thread changes it.
    """

    def __init__(self, expected_rows: int = 0) -> None:
        level = max(0, (2 * expected_rows // _SLOTS).bit_length())
        self._level = level
        self._next_split = 0
        self._splitting = False
        self._segments = 1 << level
        self._table: U64 = np.zeros((self._segments * _BUCKETS, 8), np.uint64)
        self._flat: U64 = self._table.reshape(-1)
        self._memory: memoryview = self._flat.data
        self._bytes: memoryview = self._memory.cast("B")
        self._directory_bits = level + 1
        self._directory: I64 = np.repeat(np.arange(self._segments, dtype=np.int64) * _BUCKETS, 2)
        self._directory_view: memoryview = self._directory.data
        self._used = 0
        self._spilled: dict[int, list[int]] = {}
        """The side table: upper half of the hash to row ids. (A split has no more of the hash than that.)"""

    @property
    def memory_bytes(self) -> int:
        """Bytes in use. A table that was made large from the start takes memory only where entries were put."""
        return min(self._segments * _SLOTS * 8, self._used * 128 + _SLOTS * 8) + self._directory.nbytes

    @property
    def spilled(self) -> bool:
        """Whether the side table is in use."""
        return bool(self._spilled)

    # -- batches ------------------------------------------------------------------------------------------------------

    def find(self, hashes: U64, verify: Verify) -> I64:
        """int64[n]: the row id of each row's key, -1 if it has none here."""
        found = np.full(len(hashes), -1, np.int64)
        if not self._used and not self._spilled:
            return found
        buckets = self._home(hashes)
        prints = (hashes >> _32).astype(np.uint32)
        rows: I64 | None = None
        for _ in range(_MAX_DISPLACEMENT + 1):
            lines = self._table.take(buckets, axis=0)
            matches = lines.view(np.uint32)[:, 1::2] == (prints if rows is None else prints[rows])[:, None]
            hits = np.flatnonzero(matches.view(np.uint64).reshape(-1))
            if len(hits):
                _resolve(lines, matches, hits, hits if rows is None else rows[hits], found, verify)
            full = lines[:, 7] != 0
            if rows is None:
                further = np.flatnonzero(full & (found < 0))
                rows = further
            else:
                further = np.flatnonzero(full & (found[rows] < 0))
                rows = rows[further]
            if not len(rows):
                break
            buckets = _step(buckets[further], prints[rows])
        if self._spilled:
            self._find_spilled(hashes, found, verify)
        return found

    def insert(self, hashes: U64, row_ids: I64) -> None:
        """Adds keys that are not here, all different from one another; `row_ids` rise."""
        n = len(hashes)
        if not n:
            return
        self._grow(n)
        if int(row_ids[-1]) >= MAX_ROWS:
            self._spill(hashes, row_ids)
            return
        self._used += n
        entries = (hashes & ~_LOW) | row_ids.view(np.uint64)
        prints = (hashes >> _32).astype(np.uint32)
        buckets = self._home(hashes)
        displaced: U64 | None = None
        while True:
            lines = self._table.take(buckets, axis=0)
            counts = (((lines != 0).view(np.uint64).reshape(-1) * _ONES) >> _56).view(np.int64)
            written = entries if displaced is None else entries | (displaced << _DISPLACEMENT_SHIFT)
            full = np.flatnonzero(counts == 8)
            if not len(full):
                slots = (buckets << 3) + counts
                self._flat[slots] = written
                left = np.flatnonzero(self._flat.take(slots) != written)
            else:
                room = np.flatnonzero(counts < 8)
                slots = (buckets[room] << 3) + counts[room]
                self._flat[slots] = written[room]
                lost = np.ones(len(entries), np.bool_)
                lost[room] = self._flat.take(slots) != written[room]
                if displaced is None:
                    displaced = np.zeros(len(entries), np.uint64)
                displaced[full] += np.uint64(1)
                buckets[full] = _step(buckets[full], prints[full])
                homeless = full[displaced[full] > _MAX_DISPLACEMENT]
                if len(homeless):
                    lost[homeless] = False
                    self._spill(hashes[homeless], (entries[homeless] & _ROW_MASK).view(np.int64))
                left = np.flatnonzero(lost)
            # Rows that met in one slot: the last one written has it, the others look again.
            if not len(left):
                return
            hashes, entries, prints, buckets = hashes[left], entries[left], prints[left], buckets[left]
            displaced = None if displaced is None else displaced[left]

    def remove(self, hashes: U64, row_ids: I64) -> None:
        """Takes out entries that are here."""
        buckets = self._home(hashes)
        prints = (hashes >> _32).astype(np.uint32)
        left = np.arange(len(hashes))
        for _ in range(_MAX_DISPLACEMENT + 1):
            lines = self._table.take(buckets[left], axis=0)
            matches = (lines & _ROW_MASK) == row_ids[left].view(np.uint64)[:, None]
            matches &= (lines >> _32).astype(np.uint32) == prints[left][:, None]
            hit = matches.any(axis=1)
            hits = np.flatnonzero(hit)
            self._flat[(buckets[left[hits]] << 3) + matches[hits].argmax(axis=1)] = _TOMBSTONE
            left = left[~hit]
            if not len(left):
                return
            buckets[left] = _step(buckets[left], prints[left])
        for row in left.tolist():
            self._spilled[int(hashes[row]) >> 32].remove(int(row_ids[row]))

    def row_ids(self) -> Iterator[I64]:
        """All row ids, in pieces and in no order; for a frozen index, from any thread."""
        for first in range(0, self._segments * _SLOTS, 1 << 16):
            entries = self._flat[first : min(first + (1 << 16), self._segments * _SLOTS)]
            entries = entries[entries > _TOMBSTONE]
            if len(entries):
                yield (entries & _ROW_MASK).view(np.int64)
        spilled = [row_id for row_ids in self._spilled.values() for row_id in row_ids]
        if spilled:
            yield np.array(sorted(spilled), np.int64)

    # -- single rows, in plain Python: a few of them cost less than one NumPy pass -------------------------------------

    def candidates_of(self, hashes: Sequence[int]) -> dict[int, list[int]]:
        """Per place in `hashes` the row ids of which one may be that of a key with this hash, the likelier first.

        Places without any, as of most new keys, are left out.
        """
        found: dict[int, list[int]] = {}
        table, directory, shift = self._bytes, self._directory_view, 64 - self._directory_bits
        spilled = self._spilled
        for place, key_hash in enumerate(hashes):
            print_ = key_hash >> 32
            at = (directory[key_hash >> shift] + (key_hash >> _BUCKET_SHIFT_INT & _BUCKET_MASK_INT)) << 6
            line = table[at : at + 64].tobytes()
            # One search in the line tells nearly always that there is nothing.
            if print_.to_bytes(4, "little") in line or spilled or not line.endswith(_EMPTY_SLOT):
                some = self._candidates(key_hash)
                if some:
                    found[place] = some
        return found

    def _candidates(self, key_hash: int) -> list[int]:
        print_ = key_hash >> 32
        bucket = self._home_one(key_hash)
        found: list[int] = []
        for _ in range(_MAX_DISPLACEMENT + 1):
            entries = self._memory[bucket * 8 : bucket * 8 + 8].tolist()
            found.extend(entry & _ROW_MASK_INT for entry in entries if entry >> 32 == print_)
            if not entries[7]:
                break
            bucket = _step_one(bucket, print_)
        found.extend(self._spilled.get(print_, ()))
        return found

    def remove_one(self, key_hash: int, row_id: int) -> None:
        """As `remove` for one row."""
        memory = self._memory
        print_ = key_hash >> 32
        bucket = self._home_one(key_hash)
        for _ in range(_MAX_DISPLACEMENT + 1):
            for slot in range(bucket * 8, bucket * 8 + 8):
                entry = memory[slot]
                if entry >> 32 == print_ and entry & _ROW_MASK_INT == row_id:
                    memory[slot] = int(_TOMBSTONE)
                    return
            bucket = _step_one(bucket, print_)
        self._spilled[print_].remove(row_id)

    # -- places -------------------------------------------------------------------------------------------------------

    def _home(self, hashes: U64) -> I64:
        buckets = self._directory.take((hashes >> np.uint64(64 - self._directory_bits)).view(np.int64))
        buckets += (hashes >> _BUCKET_SHIFT).view(np.int64) & _BUCKET_MASK
        return buckets

    def _home_one(self, key_hash: int) -> int:
        segment: int = self._directory_view[key_hash >> (64 - self._directory_bits)]
        return segment + ((key_hash >> (32 - _BUCKET_BITS)) & (_BUCKETS - 1))

    def _spill(self, hashes: U64, row_ids: I64) -> None:
        for print_, row_id in zip((hashes >> _32).tolist(), row_ids.tolist(), strict=True):
            self._spilled.setdefault(print_, []).append(row_id)

    def _find_spilled(self, hashes: U64, found: I64, verify: Verify) -> None:
        for row in np.flatnonzero(found < 0).tolist():
            candidates = np.array(self._spilled.get(int(hashes[row]) >> 32, ()), np.int64)
            if len(candidates):
                true = np.flatnonzero(verify(np.full(len(candidates), row), candidates))
                if len(true):
                    found[row] = candidates[true[0]]

    # -- growth -------------------------------------------------------------------------------------------------------

    def _grow(self, rows: int) -> None:
        """Before the insertion of `rows`: splits a number of segments that is in proportion to them."""
        needed = 2 * (self._used + rows)
        if needed > self._segments * _SLOTS:
            self._splitting = True
        if not self._splitting:
            return
        splits = -(-rows // _SPLIT_ROWS)
        # A batch that is large beside the table splits as much as it needs, or its rows would crowd the side table.
        while splits > 0 or 2 * needed > 3 * self._segments * _SLOTS:
            count = min(max(splits, 1), (1 << self._level) - self._next_split, 32)
            self._split(count)
            splits -= count
            if self._next_split == 0 and needed <= self._segments * _SLOTS:
                self._splitting = False
                return

    def _split(self, count: int) -> None:
        """Splits the next `count` segments, which are all of this level."""
        if self._directory_bits == self._level:
            self._directory = np.repeat(self._directory, 2)
            self._directory_view = self._directory.data
            self._directory_bits += 1
        width = 1 << (self._directory_bits - self._level)
        prefixes = np.arange(self._next_split, self._next_split + count, dtype=np.int64) * width
        old = self._directory[prefixes]
        new = (self._segments + np.arange(count, dtype=np.int64)) * _BUCKETS
        self._reserve(self._segments + count)
        # Everything below is relative: buckets 0.._BUCKETS of the old segment, then those of the new one, per segment.
        lines = self._table.reshape(-1, _SLOTS)[old >> _BUCKET_BITS]
        flat = lines.reshape(-1)
        places = np.flatnonzero(flat > _TOMBSTONE)
        entries = flat[places]
        # Tombstones go.
        self._used -= int(np.count_nonzero(flat)) - len(places)
        places >>= 3
        segment = places >> _BUCKET_BITS
        home = places & _BUCKET_MASK
        displacement = (entries & _DISPLACEMENT_MASK) >> _DISPLACEMENT_SHIFT
        moved = np.flatnonzero(displacement)
        if len(moved):
            steps = ((entries[moved] >> _32).view(np.int64) & _BUCKET_MASK) | 1
            home[moved] = (home[moved] - displacement[moved].view(np.int64) * steps) & _BUCKET_MASK
            entries[moved] &= ~_DISPLACEMENT_MASK
        upper = ((entries >> np.uint64(63 - self._level)) & np.uint64(1)).view(np.int64)
        target = (segment << (_BUCKET_BITS + 1)) | (upper << _BUCKET_BITS) | home
        order = np.argsort(target.astype(np.uint16), kind="stable")
        target, entries = target[order], entries[order]
        firsts = np.zeros(count * 2 * _BUCKETS + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=count * 2 * _BUCKETS), out=firsts[1:])
        rank = np.arange(len(target)) - firsts[target]
        base = np.where(
            (target >> _BUCKET_BITS) & 1, new[target >> (_BUCKET_BITS + 1)], old[target >> (_BUCKET_BITS + 1)]
        )
        bucket = base + (target & _BUCKET_MASK)
        self._table.reshape(-1, _SLOTS)[old >> _BUCKET_BITS] = 0
        fits = np.flatnonzero(rank < 8)
        self._flat[(bucket[fits] << 3) + rank[fits]] = entries[fits]
        self._segments += count
        for i, prefix in enumerate(prefixes.tolist()):
            self._directory[prefix + width // 2 : prefix + width] = new[i]
        over = np.flatnonzero(rank >= 8)
        for place, entry in zip(bucket[over].tolist(), entries[over].tolist(), strict=True):
            self._overflow(place, entry)
        self._next_split += count
        if self._next_split == 1 << self._level:
            self._next_split = 0
            self._level += 1

    def _overflow(self, bucket: int, entry: int) -> None:
        """Finds another place in its segment for an entry whose home was full after a split."""
        memory = self._memory
        for displacement in range(1, _MAX_DISPLACEMENT + 1):
            bucket = _step_one(bucket, entry >> 32)
            entries = memory[bucket * 8 : bucket * 8 + 8].tolist()
            if not entries[7]:
                memory[bucket * 8 + entries.index(0)] = entry | (displacement << _ROW_BITS)
                return
        self._used -= 1
        self._spilled.setdefault(entry >> 32, []).append(entry & _ROW_MASK_INT)

    def _reserve(self, segments: int) -> None:
        have = len(self._table) // _BUCKETS
        if segments <= have:
            return
        table = np.zeros((max(segments, 2 * have) * _BUCKETS, 8), np.uint64)
        table[: len(self._table)] = self._table
        self._table = table
        self._flat = table.reshape(-1)
        self._memory = self._flat.data
        self._bytes = self._memory.cast("B")


def _step(buckets: I64, prints: npt.NDArray[np.uint32]) -> I64:
    """The next bucket of the same segment for each row: an odd step, so that all buckets are reached."""
    steps = (prints & _STEP_MASK).astype(np.int64) | 1
    return (buckets & ~_BUCKET_MASK) | ((buckets + steps) & _BUCKET_MASK)


def _step_one(bucket: int, print_: int) -> int:
    return (bucket & ~(_BUCKETS - 1)) | ((bucket + ((print_ & (_BUCKETS - 1)) | 1)) & (_BUCKETS - 1))


def _resolve(lines: U64, matches: Bools, hits: I64, rows: I64, found: I64, verify: Verify) -> None:
    """Verifies fingerprint matches: `hits` are the lines that have one, `rows` the batch rows of those lines."""
    columns = matches[hits].argmax(axis=1)
    candidates = (lines[hits, columns] & _ROW_MASK).view(np.int64)
    true = verify(rows, candidates)
    if true.all():
        found[rows] = candidates
        return
    found[rows[true]] = candidates[true]
    # A fingerprint met by chance: look at the other matches of the line.
    for i in np.flatnonzero(~true).tolist():
        for column in np.flatnonzero(matches[hits[i]]).tolist():
            candidate = np.array([int(lines[hits[i], column]) & _ROW_MASK_INT])
            if verify(rows[i : i + 1], candidate)[0]:
                found[rows[i]] = candidate[0]
                break
