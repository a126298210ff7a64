"""`KeyIndex`: encoded keys to row ids for whole batches at once, one per tablet.

Three places are asked, youngest first: the hot index of the MemRowSet that takes inserts, that of the one being
flushed, and the cold runs on disk. A key is live in at most one place, so the first verified match is the answer; every
match is verified against the row's true key. A deleted row leaves the hot index of the active MemRowSet at once;
elsewhere nothing is changed in place, and `DeadRows` remembers which row ids no longer answer for their key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kudu_py.common.key_encoding import I64, U64, Bools, KeyBatch, hashes_of
from kudu_py.tablet.key_index_cold import KeyRun
from kudu_py.tablet.memrowset import MemRowSet
from kudu_py.tablet.row_locations import RowLocations

Key = tuple[int | bytes, ...]
"""A key as `KeyBatch.scalars` gives it."""


class DeadRows:
    """Row ids that were deleted, as bits over the row ids that the tablet still holds.

    Only the loop's thread uses it.
    """

    def __init__(self) -> None:
        self._base = 0
        self._bits: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.count = 0

    @property
    def memory_bytes(self) -> int:
        """Memory that the bits take."""
        return self._bits.nbytes

    def add(self, row_ids: I64) -> None:
        """Marks rows as deleted."""
        if not len(row_ids):
            return
        low, high = int(row_ids.min()), int(row_ids.max())
        if not len(self._bits):
            self._base = low & ~7
        if low < self._base:
            more = (self._base - (low & ~7)) >> 3
            self._bits = np.concatenate([np.zeros(more, np.uint8), self._bits])
            self._base = low & ~7
        needed = ((high - self._base) >> 3) + 1
        if needed > len(self._bits):
            grown = np.zeros(max(needed, 2 * len(self._bits), 64), np.uint8)
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        at = row_ids - self._base
        np.bitwise_or.at(self._bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))
        self.count += len(row_ids)

    def add_one(self, row_id: int) -> None:
        """As `add` for one row."""
        at = row_id - self._base
        if 0 <= at < 8 * len(self._bits):
            self._bits[at >> 3] |= np.uint8(1 << (at & 7))
            self.count += 1
        else:
            self.add(np.array([row_id]))

    def contains(self, row_ids: I64) -> Bools:
        """bool[n]."""
        at = row_ids - self._base
        known = (at >= 0) & (at < 8 * len(self._bits))
        if not known.all():
            at = np.where(known, at, 0)
        if not len(self._bits):
            return np.zeros(len(row_ids), np.bool_)
        result: Bools = ((self._bits.take(at >> 3) >> (at & 7).astype(np.uint8)) & 1).view(np.bool_) & known
        return result

    def contains_one(self, row_id: int) -> bool:
        """As `contains` for one row."""
        at = row_id - self._base
        return 0 <= at < 8 * len(self._bits) and bool((int(self._bits[at >> 3]) >> (at & 7)) & 1)

    def forget_below(self, row_id: int) -> None:
        """Row ids below are gone altogether: their bits are not needed."""
        cut = (row_id - self._base) >> 3
        # Only if it frees at least half, so that this is amortised.
        if cut > 0 and 2 * cut >= len(self._bits):
            self._bits = self._bits[cut:].copy()
            self._base += cut << 3


class KeyIndex:
    """The key index of one tablet. The tablet replaces its parts at freeze, flush and merge."""

    def __init__(self, active: MemRowSet) -> None:
        self.active = active
        self.frozen: tuple[MemRowSet, ...] = ()
        self.runs: tuple[KeyRun, ...] = ()
        self.locations = RowLocations(())
        self.dead = DeadRows()

    @property
    def memory_bytes(self) -> int:
        """Memory of the cold part: filters and dead rows (the hot part counts with its MemRowSet)."""
        return self.dead.memory_bytes + sum(run.memory_bytes for run in self.runs)

    def find(self, hashes: U64, keys: KeyBatch) -> I64:
        """int64[n]: the row id where each key is live, -1 if it is nowhere."""
        found = self._find_active(hashes, keys)
        if not self.frozen and not self.runs:
            return found
        for memrowset in self.frozen:
            absent = np.flatnonzero(found < 0)
            if not len(absent):
                return found
            found[absent] = self._find_frozen(memrowset, hashes[absent], keys.take(absent))
        absent = np.flatnonzero(found < 0)
        if len(absent) and self.runs:
            if len(absent) < len(found):
                hashes, keys = hashes[absent], keys.take(absent)
            self._find_cold(hashes, keys, found, absent)
        return found

    def find_few(self, keys: Sequence[Key], rows: Sequence[int]) -> dict[int, int]:
        """As `find` for some rows of a few keys, in plain Python: row ids by row, without keys that are nowhere."""
        if not rows:
            return {}
        hashes = hashes_of([keys[row] for row in rows])
        active, found = self.active, {}
        for place, candidates in active.index.candidates_of(hashes).items():
            row = rows[place]
            for position in candidates:
                if active.key_at(position) == keys[row]:
                    found[row] = position + active.first_row_id
                    break
        if self.frozen or self.runs:
            for row, key_hash in zip(rows, hashes, strict=True):
                if row not in found and (row_id := self._find_older(key_hash, keys[row])) >= 0:
                    found[row] = row_id
        return found

    def _find_older(self, key_hash: int, key: Key) -> int:
        dead = self.dead
        for memrowset in self.frozen:
            first = memrowset.first_row_id
            for position in memrowset.index.candidates_of((key_hash,)).get(0, ()):
                if not dead.contains_one(position + first) and memrowset.key_at(position) == key:
                    return position + first
        for run in self.runs:
            row_id = run.find_one(key_hash, lambda at: not dead.contains_one(at) and self.locations.key_of(at) == key)
            if row_id >= 0:
                return row_id
        return -1

    def remove_one(self, key_hash: int, row_id: int) -> None:
        """As `remove` for one row."""
        if row_id >= self.active.first_row_id:
            self.active.index.remove_one(key_hash, row_id - self.active.first_row_id)
        else:
            self.dead.add_one(row_id)

    def remove(self, hashes: U64, row_ids: I64) -> None:
        """The rows were deleted: their keys are no longer found."""
        mine = row_ids >= self.active.first_row_id
        if mine.all():
            self.active.index.remove(hashes, row_ids - self.active.first_row_id)
            return
        self.dead.add(row_ids[~mine])
        if mine.any():
            self.active.index.remove(hashes[mine], row_ids[mine] - self.active.first_row_id)

    def _find_active(self, hashes: U64, keys: KeyBatch) -> I64:
        active = self.active

        def verify(rows: I64, candidates: I64) -> Bools:
            return _equal(active, keys, rows, candidates)

        found = active.index.find(hashes, verify)
        if active.first_row_id:
            found[found >= 0] += active.first_row_id
        return found

    def _find_frozen(self, memrowset: MemRowSet, hashes: U64, keys: KeyBatch) -> I64:
        first = memrowset.first_row_id

        def verify(rows: I64, candidates: I64) -> Bools:
            return _equal(memrowset, keys, rows, candidates) & ~self.dead.contains(candidates + first)

        found = memrowset.index.find(hashes, verify)
        found[found >= 0] += first
        return found

    def _find_cold(self, hashes: U64, keys: KeyBatch, found: I64, rows_of: I64) -> None:
        """Asks the runs; writes answers to `found[rows_of[i]]` for row i."""

        left = np.arange(len(hashes))

        def verify(rows: I64, candidates: I64) -> Bools:
            rows = left[rows]
            live = np.flatnonzero(~self.dead.contains(candidates)) if self.dead.count else None
            if live is None or len(live) == len(rows):
                return self.locations.equal(keys, rows, candidates)
            same = np.zeros(len(rows), np.bool_)
            if len(live):
                same[live] = self.locations.equal(keys, rows[live], candidates[live])
            return same

        for run in self.runs:
            rows, row_ids = run.find(hashes[left] if len(left) < len(hashes) else hashes, verify)
            if len(rows):
                found[rows_of[left[rows]]] = row_ids
                missing = np.ones(len(left), np.bool_)
                missing[rows] = False
                left = left[missing]
                if not len(left):
                    return


def _equal(memrowset: MemRowSet, keys: KeyBatch, rows: I64, positions: I64) -> Bools:
    # Rows rise unless they are one row again and again: these ends mean all rows, in order.
    whole = len(rows) == keys.rows and rows[0] == 0 and rows[-1] == keys.rows - 1
    mine = keys if whole else keys.take(rows)
    return mine.equal(memrowset.keys_at(positions))


def runs_by_size(runs: Sequence[KeyRun]) -> tuple[KeyRun, ...]:
    """Largest first: most keys of a large tablet are there."""
    return tuple(sorted(runs, key=lambda run: (-run.entries, run.run_id)))
