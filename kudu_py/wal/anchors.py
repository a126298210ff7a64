"""`LogAnchors`: who still needs which log entries."""

from __future__ import annotations

from collections.abc import Iterator


class Anchor:
    """A claim on the entry at `index` and all after it, until it is released."""

    __slots__ = ("_anchors", "_index", "owner")

    def __init__(self, anchors: LogAnchors, index: int, owner: str) -> None:
        self._anchors = anchors
        self._index = index
        self.owner = owner

    @property
    def index(self) -> int:
        return self._index

    def update(self, index: int) -> None:
        """Moves the claim. Upwards only: what is below may be gone already."""
        assert index >= self._index, f"the anchor of {self.owner} cannot go back from {self._index} to {index}"
        self._index = index

    def release(self) -> None:
        """Ends the claim. Idempotent."""
        self._anchors._held.pop(self, None)


class LogAnchors:
    """The anchors of one log. A handful at a time: rowsets in memory, lagging peers, tablet copies."""

    def __init__(self) -> None:
        self._held: dict[Anchor, None] = {}  # a dict, because the order of a set is chance

    def register(self, index: int, owner: str = "") -> Anchor:
        """A new anchor at `index`; `owner` is for operators. The caller makes sure the log still has the entry."""
        assert index >= 0, index
        anchor = Anchor(self, index, owner)
        self._held[anchor] = None
        return anchor

    def lowest(self) -> int | None:
        """The lowest index that anybody needs; None if nobody does."""
        return min((anchor.index for anchor in self._held), default=None)

    def __iter__(self) -> Iterator[Anchor]:
        return iter(tuple(self._held))
