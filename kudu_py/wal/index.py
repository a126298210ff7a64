"""Where an entry is: `TermRuns` maps indexes to terms, `SegmentIndex` maps them to batches of one segment.

Compact: arrays of numbers, one pair a batch and one a change of term, no object an entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kudu_py.common.opid import OpId


class TermRuns:
    """The term of every index from some first one on, as runs of equal terms."""

    __slots__ = ("firsts", "terms")

    def __init__(self, firsts: array[int] | None = None, terms: array[int] | None = None) -> None:
        self.firsts = firsts if firsts is not None else array("Q")
        self.terms = terms if terms is not None else array("Q")

    def add(self, index: int, term: int) -> None:
        """From `index` on the term is `term`; indexes rise from call to call."""
        if not self.terms or self.terms[-1] != term:
            assert not self.firsts or index > self.firsts[-1], (index, self.firsts[-1])
            self.firsts.append(index)
            self.terms.append(term)

    def truncate_after(self, index: int) -> None:
        while self.firsts and self.firsts[-1] > index:
            self.firsts.pop()
            self.terms.pop()

    def drop_before(self, index: int) -> None:
        """Forgets runs that end before `index`."""
        ended = max(0, bisect_right(self.firsts, index) - 1)
        del self.firsts[:ended]
        del self.terms[:ended]

    def term_at(self, index: int) -> int:
        """The term of an index that is covered."""
        return self.terms[bisect_right(self.firsts, index) - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.firsts, self.terms, strict=True)


class BatchPlace(NamedTuple):
    """A batch and those of its indexes that no later batch of the segment overwrote: `first` to before `end`."""

    offset: int
    first: int
    end: int


class SegmentIndex:
    """The batches of a segment as they are on the disk, without what later ones among them overwrote.

    Attributes:
        lowest: of all OpIds that precede its batches the one with the lowest index; its own entries are above it.
        last: the last OpId of the log after its last batch.
    """

    __slots__ = ("firsts", "last", "lowest", "offsets", "runs")

    def __init__(self, lowest: OpId, last: OpId) -> None:
        self.lowest = lowest
        self.last = last
        self.firsts: array[int] = array("Q")
        self.offsets: array[int] = array("Q")
        self.runs = TermRuns()

    def add(self, *, preceding: OpId, offset: int, runs: Iterable[tuple[int, int]], last: OpId) -> None:
        """Takes in the next batch: first it makes everything above `preceding` void, then it adds its own entries."""
        if preceding.index < self.last.index:
            while self.firsts and self.firsts[-1] > preceding.index:
                self.firsts.pop()
                self.offsets.pop()
            self.runs.truncate_after(preceding.index)
            if preceding.index < self.lowest.index:
                self.lowest = preceding
        if last.index > preceding.index:
            self.firsts.append(preceding.index + 1)
            self.offsets.append(offset)
            for index, term in runs:
                self.runs.add(index, term)
        self.last = last

    def position_of(self, index: int) -> int:
        """The position, for `place`, of the batch that holds `index`, which must be an own entry."""
        assert self.lowest.index < index <= self.last.index, (self.lowest, index, self.last)
        return bisect_right(self.firsts, index) - 1

    def place(self, position: int) -> BatchPlace:
        end = self.firsts[position + 1] if position + 1 < len(self.firsts) else self.last.index + 1
        return BatchPlace(self.offsets[position], self.firsts[position], end)

    def copy(self) -> SegmentIndex:
        """A copy for a reader that goes on while batches are added."""
        copied = SegmentIndex(self.lowest, self.last)
        copied.firsts, copied.offsets = self.firsts[:], self.offsets[:]
        return copied

    def __len__(self) -> int:
        return len(self.firsts)
