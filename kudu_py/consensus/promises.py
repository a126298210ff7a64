"""`Promises`: what may leave only once the disk has it.

A vote, an acknowledgement of entries and a request for votes leave when everything that was handed to the log and every
term and vote that was handed to the consensus metadata, up to and including their own output's, are durable. They leave
in the order in which they were held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kudu_py.consensus.core.output import Message, Reply


@dataclass(frozen=True, slots=True)
class Promise:
    """Messages and replies of one output.

    Attributes:
        appends, hard_states: how many of each must be durable.
    """

    appends: int
    hard_states: int
    messages: Sequence[Message]
    replies: Sequence[Reply]


class Promises:
    """A queue of outputs that wait for the disk.

    Attributes:
        appends_durable, hard_states_durable: how many are on disk. Neither falls.
    """

    def __init__(self, release: Callable[[Sequence[Message], Sequence[Reply]], None]) -> None:
        self._release = release
        self._held: deque[Promise] = deque()
        self.appends_durable = 0
        self.hard_states_durable = 0

    def hold(self, promise: Promise) -> None:
        """Releases the promise when its time has come, which may be now."""
        self._held.append(promise)
        self.release_due()

    def note_appends_durable(self, appends: int) -> None:
        """So many appends are on disk."""
        assert appends >= self.appends_durable, f"{appends} appends are durable after {self.appends_durable}"
        self.appends_durable = appends

    def note_hard_states_durable(self, hard_states: int) -> None:
        """So many hard states are on disk."""
        assert hard_states >= self.hard_states_durable, (
            f"{hard_states} hard states are durable after {self.hard_states_durable}"
        )
        self.hard_states_durable = hard_states

    def release_due(self) -> None:
        """Lets go what the disk has."""
        held = self._held
        while held:
            first = held[0]
            if first.appends > self.appends_durable or first.hard_states > self.hard_states_durable:
                return
            held.popleft()
            self._release(first.messages, first.replies)
