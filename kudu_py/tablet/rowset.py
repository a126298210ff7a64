"""`RowSource`: what every rowset answers to a scan, wherever its rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from kudu_py.common.key_encoding import I64, U64
from kudu_py.common.predicate import BoundPredicate
from kudu_py.common.schema import ColumnSchema
from kudu_py.tablet.deltas import DeltaBlock
from kudu_py.tablet.records import RowIdRange


class Chunk(Protocol):
    """Consecutive base rows of a rowset."""

    @property
    def first(self) -> int:
        """Position of the first row in the rowset."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def max_timestamp(self) -> int:
        """No row was inserted after this."""

    def timestamps(self) -> U64:
        """uint64[rows]: when each row was inserted."""

    def column(self, column: ColumnSchema) -> pa.Array | None:
        """The base values of a column; None if the rows are older than the column."""

    def may_match(self, predicate: BoundPredicate) -> bool:
        """Whether a base row may satisfy the predicate, by statistics; True when in doubt."""


class RowSource(Protocol):
    """A frozen view of one rowset's rows and deltas, from which a scan reads.

    Valid from any thread, as long as it is held.
    """

    @property
    def row_ranges(self) -> Sequence[RowIdRange]:
        """The row ids that may be here, rising."""

    @property
    def key_ordered(self) -> bool:
        """Whether rows lie in key order."""

    def positions(self, row_ids: I64) -> I64:
        """Where rows lie; -1 for those that are gone."""

    def chunks(self) -> Iterator[Chunk]:
        """All base rows, by rising position."""

    def redo(self) -> Sequence[DeltaBlock]:
        """Deltas that apply to the base rows, in order of time."""

    def undo(self, timestamp: int) -> Sequence[DeltaBlock]:
        """What leads from the base rows back to the snapshot, oldest first; empty if nothing has to be undone."""
