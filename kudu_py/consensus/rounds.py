"""Pending rounds: index to future, resolved at apply.

That an entry was overwritten *here* decides nothing: with five replicas another one may hold it, lead later, and commit
it after all. An overwritten round fails only when an entry is committed that excludes it. Telling its caller "nothing
was changed" any earlier could be wrong.
"""

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
        future: resolves with what the state machine's `apply` returned; fails with OPERATION_ABORTED if another entry
            was committed in its place, with verdict UNKNOWN if the replica stopped before it was decided. For one
            waiter. Cancelling it (or whoever awaits it) ends the waiting, never the round.
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
        self._overwritten: list[Round] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._by_index) + len(self._overwritten)

    def add(self, pending: Round) -> None:
        """Takes a round; the one before at this index, if any, was overwritten."""
        assert pending.op_id.index not in self._by_index, f"two rounds at {pending.op_id.index}"
        self._by_index[pending.op_id.index] = pending
        self.size_bytes += pending.size_bytes

    def resolve(self, op_id: OpId, result: object) -> None:
        """The entry was applied: whoever waits for it gets `result`."""
        if self._overwritten:
            self._decide_overwritten(op_id, result)
        pending = self._by_index.pop(op_id.index, None)
        if pending is None:
            return
        assert pending.op_id == op_id, f"round {pending.op_id} is still pending where {op_id} was applied"
        self._resolve(pending, result)

    def overwrite_after(self, index: int) -> None:
        """The entries above `index` were overwritten in the own log; what is committed decides about them."""
        for overwritten in sorted(i for i in self._by_index if i > index):
            self._overwritten.append(self._by_index.pop(overwritten))

    def fail_all(self, why: str) -> None:
        """The replica stops: what becomes of the rounds is decided without it."""
        rounds = [*self._overwritten, *(self._by_index[index] for index in sorted(self._by_index))]
        self._overwritten.clear()
        self._by_index.clear()
        for pending in reversed(rounds):
            self._fail(pending, KuduError(ErrorCode.SHUTTING_DOWN, why, verdict=Verdict.UNKNOWN))

    def _decide_overwritten(self, committed: OpId, result: object) -> None:
        """A log that holds a round's entry has at any index below it a term that is not above the entry's."""
        rounds, self._overwritten = self._overwritten, []
        excluded: list[Round] = []
        for pending in rounds:
            op_id = pending.op_id
            if op_id == committed:
                self._resolve(pending, result)
            elif op_id.index == committed.index or (op_id.index > committed.index and op_id.term < committed.term):
                excluded.append(pending)
            else:
                self._overwritten.append(pending)
        # The latest first: it may build on the ones before.
        for pending in reversed(excluded):
            message = f"another leader's entry {committed} was committed where {pending.op_id} would have to be"
            self._fail(pending, KuduError(ErrorCode.OPERATION_ABORTED, message))

    def _resolve(self, pending: Round, result: object) -> None:
        self.size_bytes -= pending.size_bytes
        if not pending.future.done():
            pending.future.set_result(result)

    def _fail(self, pending: Round, error: KuduError) -> None:
        self.size_bytes -= pending.size_bytes
        if not pending.future.done():
            pending.future.set_exception(error)
            pending.future.exception()  # nobody may be waiting any more, and that is not worth a warning
