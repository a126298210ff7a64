"""`KeyRun`: an immutable part of the key index on disk, written at flush or by merging runs.

File: lines of eight 64-bit entries (one cache line), the filter, checksums of the lines by 64 KiB, a trailer. An entry
is

    hash[63:28] | row id relative to the run's first one (28 bits)

Entries lie in order, each at or after its home line `hash[63:32] * lines >> 32` (ordered linear probing at a load of
three quarters), so that a probe reads one line, rarely two, and a merge reads entries in order without sorting keys.
The filter has one 64-bit word per four entries (16 bits a row), of which a key sets up to five bits; it is kept in
memory, 2 bytes a row, and everything else stays in the page cache. Lines are verified against their checksum when they
are first met, the filter and the trailer at open.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import xxhash

from kudu_py.common.key_encoding import I64, U64, Bools
from kudu_py.env.disk import Disk
from kudu_py.tablet.block_file import CHECKED_BLOCK_BYTES, BlockFileWriter, CheckedBlocks, as_bytes, damaged
from kudu_py.tablet.records import KeyIndexRecord

Verify = Callable[[I64, I64], Bools]
"""verify(rows, candidate row ids of the tablet) -> bool[]."""

ROW_BITS = 28
MAX_ROW_SPAN = 1 << ROW_BITS
_ROW_MASK = np.uint64(MAX_ROW_SPAN - 1)
_HASH_MASK = ~_ROW_MASK
_LOAD = 0.75
_FILTER_BITS_PER_ROW = 16
_MASK_BITS = 14
_MASK_INDEX = np.uint64((1 << _MASK_BITS) - 1)
_28 = np.uint64(ROW_BITS)
_32 = np.uint64(32)
_BLOCK_BYTES = CHECKED_BLOCK_BYTES
_BLOCK_LINE_SHIFT = 10
_STEP_ROWS = 1 << 16
_MAGIC = b"kudupyKR"
_VERSION = 1
_TRAILER = struct.Struct("<8sIIQQQQQQQ")


def _filter_masks() -> U64:
    """Up to five bits of 64 for each of 16,384 hash patterns; part of the file format."""
    x = np.arange(1, (1 << _MASK_BITS) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    masks = np.zeros(1 << _MASK_BITS, np.uint64)
    for i in range(5):
        masks |= np.uint64(1) << ((x >> np.uint64(6 * i)) & np.uint64(63))
    return masks


_MASKS = _filter_masks()
_MASK_WORDS = _MASKS.data
_MASK_INDEX_INT = int(_MASK_INDEX)


def _scaled(hashes: U64, count: int) -> I64:
    """The upper half of each hash scaled to 0..count."""
    return (((hashes >> _32) * np.uint64(count)) >> _32).view(np.int64)


class KeyRunWriter:
    """Writes entries that come in order, in pieces."""

    def __init__(self, disk: Disk, directory: str, run_id: int, *, first_row_id: int, max_entries: int) -> None:
        self._file = BlockFileWriter(disk, directory, f"{run_id}.run")
        self._run_id = run_id
        self._first_row_id = first_row_id
        self._lines = max(8, int(max_entries / 8 / _LOAD) + 1)
        self._filter: U64 = np.zeros(max(8, max_entries * _FILTER_BITS_PER_ROW // 64), np.uint64)
        self._tail: U64 = np.zeros(0, np.uint64)
        self._tail_first = 0
        self._next = 0
        self._entries = 0
        self._spread = 0
        self._row_span = 0
        self._checksums: list[int] = []

    def add(self, entries: U64) -> None:
        """Adds entries that are in order and not below those before."""
        for first in range(0, len(entries), _STEP_ROWS):
            self._add(entries[first : first + _STEP_ROWS])

    def _add(self, entries: U64) -> None:
        home = _scaled(entries, self._lines) << 3
        numbers = np.arange(len(entries), dtype=np.int64)
        places = home - numbers
        places[0] = max(int(places[0]), self._next)
        np.maximum.accumulate(places, out=places)
        places += numbers
        self._spread = max(self._spread, int((places - home).max()))
        self._next = int(places[-1]) + 1
        buffer = np.zeros(self._next - self._tail_first, np.uint64)
        buffer[: len(self._tail)] = self._tail
        buffer[places - self._tail_first] = entries
        self._tail = buffer
        self._entries += len(entries)
        self._row_span = max(self._row_span, int((entries & _ROW_MASK).max()))
        self._write_blocks(len(buffer) * 8 // _BLOCK_BYTES)
        words = _scaled(entries, len(self._filter))
        starts = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
        masks = _MASKS.take(((entries >> _28) & _MASK_INDEX).view(np.int64))
        self._filter[words[starts]] |= np.bitwise_or.reduceat(masks, starts)

    def _write_blocks(self, blocks: int) -> None:
        slots = _BLOCK_BYTES // 8
        for i in range(blocks):
            block = as_bytes(self._tail[i * slots : (i + 1) * slots])
            self._checksums.append(xxhash.xxh3_64_intdigest(block))
            self._file.append(block)
        self._tail_first += blocks * slots
        self._tail = self._tail[blocks * slots :]

    def finish(self) -> KeyIndexRecord:
        """Writes the rest and syncs."""
        # One empty line at the end stops every probe.
        total = max(self._lines * 8, self._next) + 8
        total = -(-total * 8 // _BLOCK_BYTES) * _BLOCK_BYTES // 8
        self._tail = np.concatenate([self._tail, np.zeros(total - self._tail_first - len(self._tail), np.uint64)])
        self._write_blocks(len(self._tail) * 8 // _BLOCK_BYTES)
        filter_bytes = as_bytes(self._filter)
        checksums = as_bytes(np.array(self._checksums, np.uint64))
        self._file.append(filter_bytes)
        self._file.append(checksums)
        digest = xxhash.xxh3_64(filter_bytes)
        digest.update(checksums)
        fields = (self._entries, self._lines, total, len(self._filter), self._spread, self._first_row_id)
        digest.update(struct.pack("<6QI", *fields, self._row_span))
        self._file.append(_TRAILER.pack(_MAGIC, _VERSION, self._row_span, *fields, digest.intdigest()))
        record = self._file.finish()
        return KeyIndexRecord(self._run_id, record, self._first_row_id, self._entries)

    def abandon(self) -> None:
        """Closes after a failure."""
        self._file.abandon()


class KeyRun:
    """A run that is open: its filter in memory, its lines mapped."""

    def __init__(self, disk: Disk, directory: str, record: KeyIndexRecord) -> None:
        path = f"{directory}/{record.file.name}"
        content = disk.map(path)
        if len(content) != record.file.size_bytes or len(content) < _TRAILER.size:
            raise damaged(path, f"it has {len(content)} bytes instead of {record.file.size_bytes}")
        magic, version, row_span, *fields, checksum = _TRAILER.unpack(content[-_TRAILER.size :])
        if magic != _MAGIC or version != _VERSION:
            raise damaged(path, "its trailer is not that of a key index run")
        entries, lines, total, words, spread, first_row_id = fields
        end = total * 8
        blocks = end // _BLOCK_BYTES
        middle = content[end : len(content) - _TRAILER.size]
        digest = xxhash.xxh3_64(middle)
        digest.update(struct.pack("<6QI", *fields, row_span))
        if len(middle) != 8 * (words + blocks) or digest.intdigest() != checksum:
            raise damaged(path, "the checksum of its filter is wrong")
        self.record = record
        self.run_id = record.run_id
        self.entries: int = entries
        self.first_row_id: int = first_row_id
        self.last_row_id: int = first_row_id + row_span
        self._lines: int = lines
        self._spread: int = spread
        self._flat: U64 = np.frombuffer(content, np.uint64, total)
        self._table: U64 = self._flat.reshape(-1, 8)
        self._filter: U64 = np.frombuffer(middle, np.uint64, words).copy()
        self._filter_words: memoryview = self._filter.data
        self._blocks = CheckedBlocks(path, content, end, np.frombuffer(middle, np.uint64, blocks, 8 * words))

    @property
    def memory_bytes(self) -> int:
        """Memory that the filter takes."""
        return self._filter.nbytes

    def find(self, hashes: U64, verify: Verify) -> tuple[I64, I64]:
        """Rows whose key is here, and their row ids."""
        masks = _MASKS.take(((hashes >> _28) & _MASK_INDEX).view(np.int64))
        rows = np.flatnonzero((self._filter.take(_scaled(hashes, len(self._filter))) & masks) == masks)
        found = np.full(len(rows), -1, np.int64)
        if not len(rows):
            return rows, found
        wanted = hashes[rows] & _HASH_MASK
        lines = _scaled(wanted, self._lines)
        left = np.arange(len(rows))
        while len(left):
            self._blocks.require(lines >> _BLOCK_LINE_SHIFT)
            entries = self._table.take(lines, axis=0)
            differing = entries ^ wanted[:, None]
            matches = differing <= _ROW_MASK
            hits = np.flatnonzero(matches.view(np.uint64).reshape(-1))
            if len(hits):
                self._resolve(differing, matches, hits, left[hits], rows, found, verify)
            last = entries[:, 7]
            more = (last != 0) & (last <= (wanted | _ROW_MASK)) & (found[left] < 0)
            on = np.flatnonzero(more)
            left, lines, wanted = left[on], lines[on] + 1, wanted[on]
        here = np.flatnonzero(found >= 0)
        return rows[here], found[here]

    def _resolve(
        self, differing: U64, matches: Bools, hits: I64, places: I64, rows: I64, found: I64, verify: Verify
    ) -> None:
        columns = matches[hits].argmax(axis=1)
        candidates = differing[hits, columns].view(np.int64) + self.first_row_id
        true = verify(rows[places], candidates)
        found[places[true]] = candidates[true]
        for i in np.flatnonzero(~true).tolist():
            # Equal in 36 bits but another key, or a deleted row of the same key: look at the line's other matches.
            for column in np.flatnonzero(matches[hits[i]]).tolist()[1:]:
                candidate = np.array([int(differing[hits[i], column]) + self.first_row_id])
                if verify(rows[places[i] : places[i] + 1], candidate)[0]:
                    found[places[i]] = candidate[0]
                    break

    def find_one(self, key_hash: int, verify: Callable[[int], bool]) -> int:
        """As `find` for one row: its row id, or -1."""
        mask = _MASK_WORDS[(key_hash >> ROW_BITS) & _MASK_INDEX_INT]
        upper = key_hash >> 32
        words = self._filter_words
        if words[(upper * len(words)) >> 32] & mask != mask:
            return -1
        wanted = key_hash >> ROW_BITS
        line = (upper * self._lines) >> 32
        while True:
            self._blocks.require_one(line >> _BLOCK_LINE_SHIFT)
            entries = self._table[line].tolist()
            for entry in entries:
                if entry >> ROW_BITS == wanted:
                    row_id = (entry & (MAX_ROW_SPAN - 1)) + self.first_row_id
                    if verify(row_id):
                        return int(row_id)
            if not entries[7] or entries[7] >> ROW_BITS > wanted:
                return -1
            line += 1

    def entries_between(self, low: int, high: int) -> U64:
        """Entries whose hash is in [low, high), in order; `high` may be 2**64."""
        first = ((low >> 32) * self._lines) >> 32
        last = (((high - 1) >> 32) * self._lines >> 32) + 1 + (self._spread >> 3) + 1
        last = min(last, len(self._table))
        self._blocks.require(np.arange(first >> _BLOCK_LINE_SHIFT, ((last - 1) >> _BLOCK_LINE_SHIFT) + 1))
        entries = self._flat[first << 3 : last << 3]
        entries = entries[entries != 0]
        start = int(entries.searchsorted(np.uint64(low)))
        end = len(entries) if high >> 64 else int(entries.searchsorted(np.uint64(high)))
        result: U64 = entries[start:end]
        return result


def write_run(
    disk: Disk, directory: str, run_id: int, *, first_row_id: int, pieces: Iterator[tuple[U64, I64]]
) -> KeyIndexRecord | None:
    """Writes a run of (hashes, row ids of the tablet), in any order; None if there are none."""
    parts = [(hashes & _HASH_MASK) | (row_ids - first_row_id).view(np.uint64) for hashes, row_ids in pieces]
    if not parts:
        return None
    entries = np.concatenate(parts)
    entries.sort()
    writer = KeyRunWriter(disk, directory, run_id, first_row_id=first_row_id, max_entries=len(entries))
    try:
        writer.add(entries)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def merge_runs(
    disk: Disk, directory: str, run_id: int, runs: Sequence[KeyRun], gone: Callable[[I64], Bools]
) -> KeyIndexRecord:
    """Merges runs by ranges of the hash, leaving out rows that are `gone`; memory is bounded by one range."""
    first_row_id = min(run.first_row_id for run in runs)
    total = sum(run.entries for run in runs)
    writer = KeyRunWriter(disk, directory, run_id, first_row_id=first_row_id, max_entries=total)
    try:
        steps = max(1, total // _STEP_ROWS)
        bounds = [(i << 64) // steps for i in range(steps)] + [1 << 64]
        for low, high in pairwise(bounds):
            # Cut where the 36 bits of an entry cut, so that each entry is in one range.
            low, high = low >> ROW_BITS << ROW_BITS, high >> ROW_BITS << ROW_BITS
            parts = []
            for run in runs:
                part = run.entries_between(low, high)
                if len(part):
                    part = part + np.uint64(run.first_row_id - first_row_id)
                    parts.append(part)
            if not parts:
                continue
            entries = np.concatenate(parts)
            entries.sort()
            dropped = gone((entries & _ROW_MASK).view(np.int64) + first_row_id)
            if dropped.any():
                entries = entries[~dropped]
            if len(entries):
                writer.add(entries)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def may_merge(runs: Sequence[KeyRun]) -> bool:
    """Whether the row ids of these runs fit one run."""
    return max(run.last_row_id for run in runs) - min(run.first_row_id for run in runs) < MAX_ROW_SPAN
