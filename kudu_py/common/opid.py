"""`OpId`: the place of an operation in a replicated log."""

from __future__ import annotations

from typing import NamedTuple


class OpId(NamedTuple):
    """Term and absolute index of a log entry, ordered as Raft orders logs: by term, then by index (section 5.4.1).

    Both fields are at least 0 and fit 63 bits; `(0, 0)` is the OpId before the first entry.
    """

    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which makes no sense for an OpId

    def __str__(self) -> str:
        return f"{self.term}.{self.index}"


MIN_OP_ID = OpId(0, 0)
