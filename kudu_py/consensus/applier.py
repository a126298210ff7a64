"""`Applier`: gives committed entries to the state machine, in log order, without holding the loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from kudu_py.common.opid import OpId
from kudu_py.consensus.codec import decode_record
from kudu_py.consensus.entry import Entry
from kudu_py.consensus.rounds import Rounds
from kudu_py.env.clock import Clock
from kudu_py.wal.log import Log


class StateMachine(Protocol):
    """What a replicated log drives."""

    def apply(self, entry: Entry) -> object:
        """Carries out one committed entry, of whatever kind. Its result goes to whoever proposed it.

        Synchronous, deterministic, in log order, each entry once. An exception ends the replica: the others carry the
        same entry out, and this one must not go on without it.
        """


class MemoryAccount(Protocol):
    """Where memory is accounted for, over all replicas of a server."""

    def has_room_to_keep(self) -> bool:
        """Whether entries may stay in memory; they can be read from the log again."""

    def change(self, delta_bytes: int) -> None:
        """Memory was taken or given back."""


class NoAccount:
    """Of a replica whose memory nobody bounds."""

    def has_room_to_keep(self) -> bool:
        return True

    def change(self, delta_bytes: int) -> None:
        pass


class Applier:
    """The way of entries from the log into the state machine.

    Entries are kept in memory between append and apply, up to a bound and while the server has memory; the others, and
    those found in the log at a start, are read from the log again. Refusing instead would not do: servers full of each
    other's entries would wait for each other. Invariant: ``applied_index <= committed_index``.

    Attributes:
        applied_index: the last entry applied.
        committed_index: the last entry that may be.
        kept_bytes: of the entries in memory.
    """

    def __init__(
        self,
        *,
        state_machine: StateMachine,
        log: Log,
        clock: Clock,
        rounds: Rounds,
        applied_index: int,
        slice_s: float,
        lazy_s: float,
        lazy_bytes_max: int,
        kept_bytes_max: int,
        on_applied: Callable[[Entry], None],
        on_slice: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        spawn: Callable[[Coroutine[object, object, None], str], None],
        memory: MemoryAccount,
    ) -> None:
        """An applier that holds nothing yet.

        Args:
            slice_s: after so long the loop gets its turn, so that heartbeats are not starved.
            lazy_s: what nobody waits for is applied this much later, together with what came meanwhile.
            lazy_bytes_max: while entries in memory take no more than this.
            on_applied: told of each entry. on_slice: told of the last index of each slice.
            on_failure: told, once, that an entry could not be applied.
            spawn: owns the task that reads from the log.
            memory: gets the size of entries kept for other leaders; what this replica proposed, its proposer accounts
                for until it is applied.
        """
        self._state_machine, self._log, self._clock, self._rounds = state_machine, log, clock, rounds
        self._slice_s, self._kept_bytes_max = slice_s, kept_bytes_max
        self._lazy_s, self._lazy_bytes_max = lazy_s, lazy_bytes_max
        self._on_applied, self._on_slice, self._on_failure, self._spawn = on_applied, on_slice, on_failure, spawn
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, Entry] = {}
        # There is something to apply; the loop was asked for a turn; the last slice took all of its time.
        self._is_scheduled = self._is_called = self._is_late = False
        self._is_loading = False
        self._is_stopped = False
        self._later: asyncio.TimerHandle | None = None
        self.applied_index = self.committed_index = applied_index
        self.kept_bytes = 0
        self._followed_bytes = self._accounted_bytes = 0

    def keep(self, entry: Entry) -> None:
        """An entry was appended; it will be wanted soon."""
        if self.kept_bytes + len(entry.record) <= self._kept_bytes_max and self._memory.has_room_to_keep():
            self._hold(entry)
            self._account()

    def drop_after(self, index: int) -> None:
        """Entries above `index` were overwritten."""
        assert index >= self.committed_index, f"committed entries after {index} cannot be overwritten"
        for dropped in [kept for kept in self._kept if kept > index]:
            self._let_go(self._kept.pop(dropped))
        self._account()

    def kept(self, index: int) -> Entry | None:
        """The entry at `index` if it waits in memory."""
        return self._kept.get(index)

    def commit_to(self, index: int, *, is_awaited: bool) -> None:
        """Everything up to `index` may be applied; it will be at the next turn of the loop, or by `apply_now`.

        What nobody waits for is put off for a moment, if it is little: a follower's share in acknowledging the next
        write then does not stand behind the application of the last one, and several small entries in a row cost far
        less than each on its own.
        """
        assert index >= self.committed_index, f"commit index fell from {self.committed_index} to {index}"
        self.committed_index = index
        if is_awaited or self.kept_bytes > self._lazy_bytes_max:
            self._schedule()
        elif self._later is None:
            self._later = self._loop.call_later(self._lazy_s, self._on_later)

    def hurry(self) -> None:
        """Somebody waits now: what was put off is applied at the loop's next turn."""
        if self.applied_index < self.committed_index:
            self._schedule()

    def apply_now(self) -> None:
        """Applies a first slice without waiting for the loop's next turn, if there is something to apply."""
        if self._is_scheduled and not self._is_late:
            self._run()

    def stop(self) -> None:
        """Applies nothing any more, and keeps nothing."""
        self._is_stopped = True
        self._kept.clear()
        self.kept_bytes = self._followed_bytes = 0
        self._account()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _on_later(self) -> None:
        self._later = None
        self.hurry()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_loading:
            self._is_scheduled = True
            if not self._is_called:
                self._is_called = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_called = False
        if self._is_scheduled:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = self._is_late = False
        if self._is_stopped:
            return
        first = self.applied_index
        until = self._clock.monotonic() + self._slice_s
        try:
            while self.applied_index < self.committed_index:
                entry = self._kept.pop(self.applied_index + 1, None)
                if entry is None:
                    self._load()
                    break
                self._let_go(entry)
                self._apply(entry)
                if self._clock.monotonic() >= until and self.applied_index < self.committed_index:
                    self._schedule()
                    self._is_late = True
                    break
        except Exception as error:
            self.stop()
            self._on_failure(error)
            return
        self._account()
        if self.applied_index > first:
            self._on_slice(self.applied_index)

    def _apply(self, entry: Entry) -> None:
        result = self._state_machine.apply(entry)
        self.applied_index = entry.op_id.index
        self._on_applied(entry)
        self._rounds.resolve(entry.op_id, result)

    def _load(self) -> None:
        self._is_loading = True
        self._spawn(self._read(), "read committed entries")

    async def _read(self) -> None:
        first = self.applied_index + 1
        last = min([index for index in self._kept if index > first], default=self.committed_index + 1) - 1
        try:
            # At least one entry, however large; and no more than memory was granted.
            records = await self._log.read(first, min(last, self.committed_index), max(1, self._kept_bytes_max // 4))
            expected: OpId | None = None
            for record in records:
                entry = decode_record(record.payload)
                assert entry.op_id.index == (first if expected is None else expected.index + 1), (
                    f"the log gave {entry.op_id} when it was asked for {first}"
                )
                expected = entry.op_id
                self._hold(entry)
        except Exception as error:
            if not self._is_stopped:
                self.stop()
                self._on_failure(error)
            return
        finally:
            self._is_loading = False
        self._account()
        self._schedule()

    def _hold(self, entry: Entry) -> None:
        if self._is_stopped:
            return
        self._kept[entry.op_id.index] = entry
        self.kept_bytes += len(entry.record)
        if entry.prepared is None:
            self._followed_bytes += len(entry.record)

    def _let_go(self, entry: Entry) -> None:
        self.kept_bytes -= len(entry.record)
        if entry.prepared is None:
            self._followed_bytes -= len(entry.record)

    def _account(self) -> None:
        if self._followed_bytes != self._accounted_bytes:
            before, self._accounted_bytes = self._accounted_bytes, self._followed_bytes
            self._memory.change(self._followed_bytes - before)
