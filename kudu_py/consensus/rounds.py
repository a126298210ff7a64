"""Pending rounds: index to future, resolved at apply, failed at overwrite."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId


@dataclass(slots=True, eq=False)
class Round:
    """A proposal on its way through consensus.

    Attributes:
        op_id: the entry it became.
        timestamp: its hybrid time.
        future: resolves with what the state machine's `apply` returned; fails with OPERATION_ABORTED if the entry was
            overwritten, with verdict UNKNOWN if the replica stopped before it was decided. For one waiter. Cancelling
            it (or whoever awaits it) ends the waiting, never the round.
        size_bytes: of its record, counted against the bound of what is in flight.
    """

    op_id: OpId
    timestamp: HybridTime
    future: asyncio.Future[object]
    size_bytes: int


class Rounds:
    """The rounds of this replica's own proposals that are not applied yet.

    Attributes:
        size_bytes: of their records together.
    """

    def __init__(self) -> None:
        self._by_index: dict[int, Round] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._by_index)

    def add(self, pending: Round) -> None:
        """Takes a round; the one before at this index, if any, was aborted."""
        assert pending.op_id.index not in self._by_index, f"two rounds at {pending.op_id.index}"
        self._by_index[pending.op_id.index] = pending
        self.size_bytes += pending.size_bytes

    def resolve(self, op_id: OpId, result: object) -> None:
        """The entry was applied: whoever waits for it gets `result`."""
        pending = self._by_index.pop(op_id.index, None)
        if pending is None:
            return
        assert pending.op_id == op_id, f"round {pending.op_id} is still pending where {op_id} was applied"
        self.size_bytes -= pending.size_bytes
        if not pending.future.done():
            pending.future.set_result(result)

    def abort_after(self, index: int) -> None:
        """The entries above `index` were overwritten. The latest first: it may build on the ones before."""
        for overwritten in sorted((i for i in self._by_index if i > index), reverse=True):
            self._fail(
                overwritten,
                KuduError(
                    ErrorCode.OPERATION_ABORTED,
                    f"operation {self._by_index[overwritten].op_id} was overwritten by another leader",
                ),
            )

    def fail_all(self, why: str) -> None:
        """The replica stops: what becomes of the rounds is decided without it."""
        for index in sorted(self._by_index, reverse=True):
            self._fail(index, KuduError(ErrorCode.SHUTTING_DOWN, why, verdict=Verdict.UNKNOWN))

    def _fail(self, index: int, error: KuduError) -> None:
        pending = self._by_index.pop(index)
        self.size_bytes -= pending.size_bytes
        if not pending.future.done():
            pending.future.set_exception(error)
            pending.future.exception()  # nobody may be waiting any more, and that is not worth a warning
