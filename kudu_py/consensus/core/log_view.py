"""`LogView`: the log as the machine sees it, terms by index and the marks of its progress. No payloads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kudu_py.common.opid import MIN_OP_ID, OpId


class LogView:
    """Which term each entry has, and how far the log has got.

    Terms are kept as runs (first index, term), since a log has many entries and few terms; so a view costs memory per
    term and not per entry, and need not be told when old segments are collected.

    Marks, between any two steps: ``applied <= committed <= last`` and ``durable <= last``. Nothing orders committed and
    durable: a majority may be durable before the own disk is.

    Attributes:
        preceding: OpId before the first entry whose term is known; `(0, 0)` unless the log was collected before the
            start. Committed.
        last: OpId of the last entry accepted, which the log has been asked to append.
        durable_index: the log is synced up to here, in the state it has now.
        committed_index: never falls.
        applied_index: never falls.
    """

    __slots__ = (
        "_overwritten",
        "_run_starts",
        "_run_terms",
        "_truncated_to",
        "applied_index",
        "committed_index",
        "durable_index",
        "last",
        "preceding",
    )

    def __init__(
        self,
        *,
        runs: Sequence[tuple[int, int]] = (),
        last_index: int = 0,
        preceding: OpId = MIN_OP_ID,
        committed_index: int = 0,
        applied_index: int | None = None,
    ) -> None:
        """A view of a log read from disk, all of which is durable.

        Args:
            runs: (first index, term) for each stretch of entries of one term, ascending in both.
            last_index: of the last entry; `preceding.index` if there is none.
            preceding: OpId before the first entry.
            committed_index: what is known to be committed; raised to `preceding.index`, since only committed entries
                are collected.
            applied_index: what the state machine holds; `committed_index` if not given.
        """
        self.preceding = preceding
        self._run_starts = [start for start, _ in runs]
        self._run_terms = [term for _, term in runs]
        self.last = OpId(self._run_terms[-1], last_index) if runs else preceding
        self.durable_index = self.last.index
        self.committed_index = max(committed_index, preceding.index)
        self.applied_index = self.committed_index if applied_index is None else applied_index
        # Runs (first index, last index, term) that were cut off before they were reported durable; see `mark_durable`.
        self._overwritten: list[tuple[int, int, int]] = []
        self._truncated_to = 0
        assert self.last.index == max(last_index, preceding.index), f"log ends at {last_index}, its runs at {self.last}"
        self.check()

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.last.index

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(first index, term) for each stretch of entries of one term."""
        return list(zip(self._run_starts, self._run_terms, strict=True))

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None if there is no such entry or it lies before `preceding`."""
        if index > self.last.index or index < self.preceding.index:
            return None
        if index == self.preceding.index:
            return self.preceding.term
        if index >= self._run_starts[-1]:
            return self._run_terms[-1]
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def op_id_at(self, index: int) -> OpId:
        """The OpId of the entry at `index`, which must be at `preceding` or in the log."""
        term = self.term_at(index)
        assert term is not None, f"no entry at {index} in ({self.preceding}, {self.last}]"
        return OpId(term, index)

    def holds(self, op_id: OpId) -> bool:
        """Whether the entry at this index is known and has this term."""
        return self.term_at(op_id.index) == op_id.term

    def last_at_or_below(self, index: int, term: int) -> OpId:
        """The last entry at or below `index` with a term not above `term`; `preceding` if there is none."""
        run = bisect_right(self._run_terms, term) - 1
        if run < 0:
            return self.preceding
        end = self._run_starts[run + 1] - 1 if run + 1 < len(self._run_starts) else self.last.index
        index = min(index, end)
        return self.op_id_at(index) if index > self.preceding.index else self.preceding

    def append(self, op_id: OpId) -> None:
        """Takes the next entry."""
        last = self.last
        assert op_id.index == last.index + 1, f"entry {op_id} does not follow {last}"
        if op_id.term != last.term or not self._run_terms:
            assert op_id.term >= last.term, f"term of entry {op_id} is below that of {last}"
            self._run_starts.append(op_id.index)
            self._run_terms.append(op_id.term)
        self.last = op_id

    def truncate_after(self, index: int) -> None:
        """Forgets all entries above `index`, none of which may be committed."""
        assert self.committed_index <= index < self.last.index, (
            f"cannot cut ({self.preceding}, {self.last}] after {index}, committed {self.committed_index}"
        )
        self._overwritten.extend(self._undurable_runs(index))
        self._truncated_to = index
        while self._run_starts and self._run_starts[-1] > index:
            self._run_starts.pop()
            self._run_terms.pop()
        self.last = self.preceding if index == self.preceding.index else OpId(self._run_terms[-1], index)
        self.durable_index = min(self.durable_index, index)

    def mark_durable(self, op_id: OpId) -> None:
        """The log reports, in the order of the appends, that it is synced up to `op_id`.

        A report may come late, for an entry that was overwritten since: then the log does not hold it, and the report
        says nothing. It may even be for an entry that was cut off and appended *again* since, of which the report may
        mean either time; such a report is not believed, the next one for an entry appended after the cut settles it.
        """
        term, index = op_id
        if self.term_at(index) != term:
            return
        if self._overwritten and index > self._truncated_to:
            if any(first <= index <= last and term == of for first, last, of in self._overwritten):
                return
            self._overwritten.clear()
        if index > self.durable_index:
            self.durable_index = index

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed; at least as far as before."""
        assert self.committed_index <= index <= self.last.index, (
            f"commit index cannot go from {self.committed_index} to {index}, log ends at {self.last}"
        )
        self.committed_index = index

    def mark_applied(self, index: int) -> None:
        """Everything up to `index` is applied."""
        assert self.applied_index <= index <= self.committed_index, (
            f"applied index cannot go from {self.applied_index} to {index}, committed {self.committed_index}"
        )
        self.applied_index = index

    def check(self) -> None:
        """Asserts what must hold between any two steps."""
        last, preceding = self.last, self.preceding
        assert preceding.index <= self.committed_index <= last.index, (
            f"committed {self.committed_index} is outside of [{preceding}, {last}]"
        )
        assert 0 <= self.applied_index <= self.committed_index, (
            f"applied {self.applied_index}, committed {self.committed_index}"
        )
        assert preceding.index <= self.durable_index <= last.index, (
            f"durable {self.durable_index} is outside of [{preceding}, {last}]"
        )
        previous = preceding
        for start, term in zip(self._run_starts, self._run_terms, strict=True):
            first = previous is preceding
            assert start == preceding.index + 1 if first else start > previous.index, f"runs out of order: {self.runs}"
            assert term >= previous.term if first else term > previous.term, f"terms out of order: {self.runs}"
            previous = OpId(term, start)
        assert last == preceding or (last.term == previous.term and last.index >= previous.index), (
            f"{last} is not in {self.runs}"
        )

    def _undurable_runs(self, after: int) -> Iterator[tuple[int, int, int]]:
        first_lost = max(after, self.durable_index) + 1
        end = self.last.index
        for start, term in zip(reversed(self._run_starts), reversed(self._run_terms), strict=True):
            if end < first_lost:
                return
            yield max(start, first_lost), end, term
            end = start - 1
