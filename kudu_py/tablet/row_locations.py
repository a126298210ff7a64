"""`RowLocations`: row ids of rows on disk to the rowset that holds each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kudu_py.common.key_encoding import I64, Bools, KeyBatch
from kudu_py.tablet.diskrowset import DiskRowSet


class RowLocations:
    """An immutable map over the disk rowsets of one moment; flush and compaction make a new one."""

    def __init__(self, rowsets: Sequence[DiskRowSet]) -> None:
        self.rowsets = tuple(rowsets)
        spans = sorted(
            (span.first, span.first + span.count, i)
            for i, rowset in enumerate(self.rowsets)
            for span in rowset.record.row_ids
        )
        self._firsts = np.array([first for first, _, _ in spans], np.int64)
        self._ends = np.array([end for _, end, _ in spans], np.int64)
        self._owners = np.array([owner for _, _, owner in spans], np.int64)

    @property
    def first_row_id(self) -> int | None:
        """The smallest row id of any rowset; None if there is no rowset."""
        return int(self._firsts[0]) if len(self._firsts) else None

    def owners(self, row_ids: I64) -> I64:
        """int64[n]: the number of the rowset in whose ranges each row id lies; -1: none, the row is gone."""
        if not len(self._firsts):
            return np.full(len(row_ids), -1, np.int64)
        span = np.searchsorted(self._firsts, row_ids, side="right") - 1
        owner = self._owners.take(span)
        outside = (span < 0) | (row_ids >= self._ends.take(span))
        if outside.any():
            owner[outside] = -1
        return owner

    def equal(self, keys: KeyBatch, rows: I64, row_ids: I64) -> Bools:
        """bool[n]: whether the key of row `rows[i]` of `keys` is that of row id `row_ids[i]`, which is not gone."""
        result = np.zeros(len(rows), np.bool_)
        owner = self.owners(row_ids)
        for number in np.unique(owner).tolist():
            if number < 0:
                continue
            rowset = self.rowsets[number]
            here = np.flatnonzero(owner == number)
            positions = rowset.positions(row_ids[here])
            if (positions < 0).any():
                here, positions = here[positions >= 0], positions[positions >= 0]
                if not len(here):
                    continue
            result[here] = keys.take(rows[here]).equal(rowset.keys.gather(positions))
        return result

    def key_of(self, row_id: int) -> tuple[int | bytes, ...] | None:
        """The key of a row as plain values; None if it is gone."""
        row_ids = np.array([row_id])
        number = int(self.owners(row_ids)[0])
        if number < 0:
            return None
        rowset = self.rowsets[number]
        positions = rowset.positions(row_ids)
        return None if positions[0] < 0 else rowset.keys.gather(positions).scalars()[0]

    def gone(self, row_ids: I64) -> Bools:
        """bool[n]: whether compaction has dropped the row."""
        result = np.ones(len(row_ids), np.bool_)
        owner = self.owners(row_ids)
        for number in np.unique(owner).tolist():
            if number >= 0:
                here = np.flatnonzero(owner == number)
                result[here] = self.rowsets[number].positions(row_ids[here]) < 0
        return result
