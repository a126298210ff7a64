"""`ReadQueue`: linearizable reads on their way to a confirmed index (dissertation section 6.4).

A round of messages confirms for all reads that wait when it starts that no other leader has been elected until then;
the commit index noted at its start is therefore at least that of any write acknowledged before those reads arrived. A
read that arrives during a round waits for the next one: the messages of a round that had left before it prove nothing
for it.
"""

from __future__ import annotations

from kudu_py.consensus.core.events import Token
from kudu_py.consensus.core.output import ReadReady


class ReadQueue:
    """Reads in two places: waiting for a round, and in the round that is being confirmed.

    Attributes:
        waiting: tokens of reads that no round has been started for.
        confirming: tokens of the reads of the current round; empty if there is none.
        index: commit index when the round started.
        after: highest number of a message when the round started; answers to later ones confirm it.
    """

    __slots__ = ("after", "confirming", "index", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Token] = []
        self.confirming: list[Token] = []
        self.index = 0
        self.after = 0

    def open_round(self, *, commit_index: int, last_request: int) -> None:
        """Moves all waiting reads into a new round."""
        assert self.waiting, "a round without reads"
        assert not self.confirming, f"the round of {self.confirming} is still open"
        self.confirming, self.waiting = self.waiting, []
        self.index, self.after = commit_index, last_request

    def close_round(self) -> list[ReadReady]:
        """The round is confirmed: its reads, with the index they may be served from."""
        ready = [ReadReady(token, self.index) for token in self.confirming]
        self.confirming = []
        return ready

    def take_all(self) -> list[Token]:
        """Empties the queue; the caller refuses what it held."""
        tokens = self.confirming + self.waiting
        self.confirming, self.waiting = [], []
        return tokens
