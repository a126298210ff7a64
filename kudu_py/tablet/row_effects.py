"""What each row of a batch does, decided for the whole batch at once: pure arithmetic on operations and row ids.

Rows of the same key take effect in order, as if they came one by one. Whether a key exists before a row is what the
last INSERT, UPSERT or DELETE of that key before it in the batch left behind (an UPDATE changes nothing about it), or
else what the tablet held; so a running maximum over each key's rows replaces the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kudu_py.common.key_encoding import I64, U64, Bools, KeyBatch
from kudu_py.common.row_batch import RowOperation
from kudu_py.tablet.write_result import RowErrorCode

Codes = npt.NDArray[np.uint8]


def _table(*operations: RowOperation) -> Bools:
    table = np.zeros(256, np.bool_)
    table[list(operations)] = True
    return table


INSERTS = _table(RowOperation.INSERT, RowOperation.INSERT_IGNORE, RowOperation.UPSERT, RowOperation.UPSERT_IGNORE)
UPSERTS = _table(RowOperation.UPSERT, RowOperation.UPSERT_IGNORE)
UPDATES = _table(RowOperation.UPDATE, RowOperation.UPDATE_IGNORE)
DELETES = _table(RowOperation.DELETE, RowOperation.DELETE_IGNORE)
NEEDS_KEY = _table(RowOperation.UPDATE, RowOperation.DELETE)


@dataclass(frozen=True, slots=True, eq=False)
class RowEffects:
    """Who inserts, updates and deletes what.

    Attributes:
        inserts: int64[i], row numbers that insert, rising; the k-th gets the k-th new row id.
        indexed: None if all inserted rows are live after the batch, else bool[i].
        updates, update_ids: int64[u] each: row numbers, rising, and the row ids that they change.
        deletes, delete_ids: int64[d] each: the same for deletions.
        errors: (row number, code) of rows without effect, rising.
    """

    inserts: I64
    indexed: Bools | None
    updates: I64
    update_ids: I64
    deletes: I64
    delete_ids: I64
    errors: tuple[tuple[int, RowErrorCode], ...]


_NOTHING = np.zeros(0, np.int64)


def of_distinct(operations: Codes, single: RowOperation | None, existing: I64) -> RowEffects:
    """The effects of a batch in which no key occurs twice.

    Args:
        operations: uint8[n].
        single: the operation of all rows, if they share one.
        existing: int64[n], the row id of each row's key before the batch, -1 if it is not live.
    """
    exists = existing >= 0
    if single is not None:
        present, absent = np.flatnonzero(exists), np.flatnonzero(~exists)
        ids = existing[present]
        if INSERTS[single]:
            if UPSERTS[single]:
                return RowEffects(absent, None, present, ids, _NOTHING, _NOTHING, ())
            errors = _errors(present, RowErrorCode.ALREADY_PRESENT) if single is RowOperation.INSERT else ()
            return RowEffects(absent, None, _NOTHING, _NOTHING, _NOTHING, _NOTHING, errors)
        errors = _errors(absent, RowErrorCode.NOT_FOUND) if NEEDS_KEY[single] else ()
        if UPDATES[single]:
            return RowEffects(_NOTHING, None, present, ids, _NOTHING, _NOTHING, errors)
        return RowEffects(_NOTHING, None, _NOTHING, _NOTHING, present, ids, errors)
    updates = np.flatnonzero(exists & (UPSERTS[operations] | UPDATES[operations]))
    deletes = np.flatnonzero(exists & DELETES[operations])
    return RowEffects(
        np.flatnonzero(~exists & INSERTS[operations]),
        None,
        updates,
        existing[updates],
        deletes,
        existing[deletes],
        _mixed_errors(operations, exists),
    )


def of_repeated(operations: Codes, existing: I64, groups: I64, next_row_id: int) -> RowEffects:
    """The effects of a batch in which keys occur more than once.

    Args:
        operations: uint8[n].
        existing: int64[n], as in `of_distinct`.
        groups: int64[n], equal numbers for equal keys.
        next_row_id: the row id that the first inserted row gets.
    """
    n = len(operations)
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    starts = np.ones(n, np.bool_)
    starts[1:] = sorted_groups[1:] != sorted_groups[:-1]
    places = np.arange(n)
    group_start = np.maximum.accumulate(np.where(starts, places, 0))
    ops = operations[order]
    decides = INSERTS[ops] | DELETES[ops]
    decided = np.maximum.accumulate(np.where(decides, places, -1))
    before = np.empty(n, np.int64)
    before[0] = -1
    before[1:] = decided[:-1]
    within = before >= group_start
    exists_sorted = np.where(within, INSERTS[ops[before]], existing[order] >= 0)
    exists = np.empty(n, np.bool_)
    exists[order] = exists_sorted

    inserting = ~exists & INSERTS[operations]
    inserts = np.flatnonzero(inserting)
    new_ids = np.full(n, -1, np.int64)
    new_ids[inserts] = next_row_id + np.arange(len(inserts))
    # The row id that a later row of the key changes: of the last row of the group that inserted, else the existing one.
    inserted_at = np.maximum.accumulate(np.where(inserting[order], places, -1))
    insert_before = np.empty(n, np.int64)
    insert_before[0] = -1
    insert_before[1:] = inserted_at[:-1]
    target_sorted = np.where(insert_before >= group_start, new_ids[order][insert_before], existing[order])
    targets = np.empty(n, np.int64)
    targets[order] = target_sorted
    updates = np.flatnonzero(exists & (UPSERTS[operations] | UPDATES[operations]))
    deletes = np.flatnonzero(exists & DELETES[operations])
    delete_ids = targets[deletes]
    indexed: Bools | None = None
    died = delete_ids[delete_ids >= next_row_id]
    if len(died):
        indexed = np.ones(len(inserts), np.bool_)
        indexed[died - next_row_id] = False
    return RowEffects(
        inserts, indexed, updates, targets[updates], deletes, delete_ids, _mixed_errors(operations, exists)
    )


def equal_key_groups(hashes: U64, keys: KeyBatch) -> I64 | None:
    """int64[n], equal numbers for equal keys; None if all keys of the batch are different."""
    ordered = np.sort(hashes)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    same = ordered[1:] == ordered[:-1]
    later = np.flatnonzero(same) + 1
    if keys.take(order[later]).equal(keys.take(order[later - 1])).all():
        numbers = np.zeros(len(hashes), np.int64)
        numbers[1:] = np.cumsum(~same)
        groups = np.empty(len(hashes), np.int64)
        groups[order] = numbers
        return groups
    # Two keys with one 64-bit hash: does not happen by chance, but may be made to happen.
    seen: dict[tuple[int | bytes, ...], int] = {}
    exact = np.array([seen.setdefault(key, len(seen)) for key in keys.scalars()], np.int64)
    return None if len(seen) == len(hashes) else exact


def _mixed_errors(operations: Codes, exists: Bools) -> tuple[tuple[int, RowErrorCode], ...]:
    present = exists & (operations == RowOperation.INSERT)
    missing = ~exists & NEEDS_KEY[operations]
    rows = np.flatnonzero(present | missing).tolist()
    return tuple((row, RowErrorCode.ALREADY_PRESENT if present[row] else RowErrorCode.NOT_FOUND) for row in rows)


def _errors(rows: I64, code: RowErrorCode) -> tuple[tuple[int, RowErrorCode], ...]:
    return tuple((row, code) for row in rows.tolist())
