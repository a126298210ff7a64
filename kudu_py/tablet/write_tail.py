"""`WriteTail`: small batches that are applied but not yet arrays.

Turning a few rows into arrays costs more than everything else that is done for them, and the same for hundreds. So a
small batch is decided row by row on plain values, its effects are noted, and the arrays are made of many batches at
once when somebody needs them: a scan, a flush, a batch that is not small, or the bound.

Nothing that can be observed depends on when that is. Row ids, results and the marks of deleted rows of before are
settled at apply; the arrays hold the same rows at the same row ids and timestamps whatever they are made of together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kudu_py.common.key_encoding import I64, U64, Bools, hash_scalars
from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.small_batch import SMALL_ROWS_MAX, BatchKind, Key, SmallBatch, join
from kudu_py.tablet.deltas import DeltaBlock, deletes_at, updates_of
from kudu_py.tablet.key_index import KeyIndex
from kudu_py.tablet.write_result import RowErrorCode, WriteResult

TAIL_ROWS_MAX = 1024
"""Arrays of so many rows hold the loop up for some 2 ms; of half as many they cost a third more a row."""
TAIL_BYTES_MAX = 1 << 20
_BATCH_OVERHEAD_BYTES = 512
_ROW_OVERHEAD_BYTES = 256
"""A key as Python values, its entry in a dict, and the numbers noted."""

_INSERTS = frozenset({1, 5, 10, 13})
_INSERT_CODES = bytes(_INSERTS)
_UPSERTS = frozenset({5, 13})
_DELETES = frozenset({3, 12})
_NEEDS_KEY = frozenset({2, 3})
assert frozenset(RowOperation) == _INSERTS | _DELETES | {RowOperation.UPDATE, RowOperation.UPDATE_IGNORE}
_INSERTED = [WriteResult((), rows) for rows in range(SMALL_ROWS_MAX + 1)]
"""What most batches end in."""


class _Part(NamedTuple):
    """What one batch did of one kind.

    Attributes:
        kind: of the batch; parts of one kind become arrays together.
        batch: where the cells are.
        rows: rows of the batch, rising.
        row_ids: of the rows that they change; none for inserted rows.
        timestamp: of the batch.
    """

    kind: BatchKind
    batch: SmallBatch
    rows: Sequence[int]
    row_ids: Sequence[int]
    timestamp: int


class Inserted(NamedTuple):
    """Inserted rows, in the order of their row ids.

    Attributes:
        batch: where their cells are.
        rows: int64[i], rows of `batch`, rising.
        timestamps: uint64[i].
        indexed: bool[i], whether the row is live; None: all are.
    """

    batch: RowBatch
    rows: I64
    timestamps: U64
    indexed: Bools | None


class WriteTail:
    """The effects of small batches since the last arrays. Only the loop's thread uses it.

    Attributes:
        live: row ids by key, of rows that were inserted here and not deleted since.
        memory_bytes: about what it takes.
        rows: rows of its batches, with effect or without.
    """

    def __init__(self, first_row_id: int) -> None:
        self._first_row_id = first_row_id
        self.live: dict[Key, int] = {}
        self.memory_bytes = 0
        self.rows = 0
        self._inserts: list[_Part] = []
        self._updates: list[_Part] = []
        self._deletes: list[tuple[int, int]] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time for arrays."""
        return self.rows >= TAIL_ROWS_MAX or self.memory_bytes >= TAIL_BYTES_MAX

    def apply(self, batch: SmallBatch, timestamp: int, index: KeyIndex, next_row_id: int, above: int) -> WriteResult:
        """Applies a batch: each row by its operation, rows of one key in order.

        Args:
            index: where all live keys are that are not of rows inserted here; rows deleted there are taken out.
            next_row_id: of the first inserted row; the others follow.
            above: no key whose first word is above this, by the key's order, is in `index`; of no importance for keys
                with byte strings.

        Raises:
            KuduError: CORRUPTION if a key that must be compared cannot be read from disk any more.
        """
        live, keys, operations = self.live, batch.keys, batch.operations
        n = len(keys)
        self.rows += n
        self.memory_bytes += len(batch.payload) + _BATCH_OVERHEAD_BYTES + _ROW_OVERHEAD_BYTES * n
        are_new = live.keys().isdisjoint(keys)
        rows: Sequence[int] = range(n) if are_new else [row for row, key in enumerate(keys) if key not in live]
        flips = batch.kind.flips
        if flips is not None:
            # Keys that only rise are common: above every key ever indexed, they need no search.
            flip = flips[0]
            rows = [row for row in rows if keys[row][0] ^ flip <= above]  # type: ignore[operator]
        older = index.find_few(keys, rows)
        if are_new and not older and not operations.translate(None, _INSERT_CODES) and len(set(keys)) == n:
            live.update(zip(keys, range(next_row_id, next_row_id + n), strict=True))
            self._inserts.append(_Part(batch.kind, batch, range(n), (), timestamp))
            return _INSERTED[n]
        return self._apply_rows(batch, timestamp, index, next_row_id, older)

    def _apply_rows(
        self, batch: SmallBatch, timestamp: int, index: KeyIndex, next_row_id: int, older: dict[int, int]
    ) -> WriteResult:
        """As `apply`, row by row; `older`: row ids by row of keys that were live in `index` before the batch."""
        live = self.live
        gone: set[Key] = set()
        """Keys that were deleted from `index` by rows before."""
        inserts: list[int] = []
        updates: list[int] = []
        update_ids: list[int] = []
        errors: list[tuple[int, RowErrorCode]] = []
        deleted = 0
        for row, (key, operation) in enumerate(zip(batch.keys, batch.operations, strict=True)):
            existing = live.get(key, -1)
            is_mine = existing >= 0
            if not is_mine and row in older and key not in gone:
                existing = older[row]
            if operation in _INSERTS:
                if existing < 0:
                    live[key] = next_row_id
                    next_row_id += 1
                    inserts.append(row)
                    continue
                if operation not in _UPSERTS:
                    if operation == RowOperation.INSERT:
                        errors.append((row, RowErrorCode.ALREADY_PRESENT))
                    continue
            elif existing < 0:
                if operation in _NEEDS_KEY:
                    errors.append((row, RowErrorCode.NOT_FOUND))
                continue
            elif operation in _DELETES:
                deleted += 1
                self._deletes.append((existing, timestamp))
                if is_mine:
                    del live[key]
                else:
                    index.remove_one(hash_scalars(key), existing)
                    gone.add(key)
                continue
            updates.append(row)
            update_ids.append(existing)
        if inserts:
            self._inserts.append(_Part(batch.kind, batch, inserts, (), timestamp))
        if updates:
            self._updates.append(_Part(batch.kind, batch, updates, update_ids, timestamp))
        return WriteResult(tuple(errors), len(inserts), len(updates), deleted)

    def inserted(self) -> Iterator[Inserted]:
        """All inserted rows, in the order of their row ids."""
        indexed = self._indexed()
        first = 0
        for parts in _by_kind(self._inserts):
            batch, rows, timestamps = _joined(parts)
            last = first + len(rows)
            yield Inserted(batch, rows, timestamps, None if indexed is None else indexed[first:last])
            first = last

    def deltas(self) -> Iterator[DeltaBlock]:
        """All updates and deletions; those of one row in order of time, since a deletion is a row's last delta."""
        for parts in _by_kind(self._updates):
            batch, rows, timestamps = _joined(parts)
            row_ids = np.array([row_id for part in parts for row_id in part.row_ids], np.int64)
            yield replace(updates_of(batch, rows, row_ids, 0), timestamps=timestamps)
        if self._deletes:
            row_ids = np.array([row_id for row_id, _ in self._deletes], np.int64)
            yield deletes_at(row_ids, np.array([timestamp for _, timestamp in self._deletes], np.uint64))

    def _indexed(self) -> Bools | None:
        inserted = sum(len(part.rows) for part in self._inserts)
        if len(self.live) == inserted:
            return None
        indexed = np.zeros(inserted, np.bool_)
        indexed[np.array(list(self.live.values()), np.int64) - self._first_row_id] = True
        return indexed


_kind_of: Callable[[_Part], BatchKind] = attrgetter("kind")


def _by_kind(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Runs of parts of the same kind."""
    for _, run in groupby(parts, _kind_of):
        yield list(run)


def _joined(parts: list[_Part]) -> tuple[RowBatch, I64, U64]:
    """The batches of the parts as one, and the parts' rows in it with their timestamps."""
    rows: list[int] = []
    first = 0
    for part in parts:
        rows.extend([first + row for row in part.rows])
        first += part.batch.plan.rows
    counts = [len(part.rows) for part in parts]
    timestamps = np.repeat(np.array([part.timestamp for part in parts], np.uint64), counts)
    return join([part.batch for part in parts]), np.array(rows, np.int64), timestamps
