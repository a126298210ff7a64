"""`FilePins`: files of a replica's rows that somebody still hands out, and that are therefore not removed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class FilePins:
    """Counted claims on files by name; names are never used twice. All on the loop, so that taking note of what a
    superblock names and pinning it is one step.
    """

    def __init__(self) -> None:
        self._claims: Counter[str] = Counter()
        self._unnamed: set[str] = set()

    def __len__(self) -> int:
        return len(self._claims)

    def hold(self, names: Iterable[str]) -> None:
        """From now on these are kept, until each `hold` has had its `release`."""
        self._claims.update(names)

    def release(self, names: Iterable[str]) -> list[str]:
        """Ends a `hold`; gives those that were to be removed meanwhile and that nobody else holds."""
        free: list[str] = []
        for name in names:
            assert self._claims[name] > 0, f"{name} is not held"
            self._claims[name] -= 1
            if not self._claims[name]:
                del self._claims[name]
                if name in self._unnamed:
                    self._unnamed.discard(name)
                    free.append(name)
        return free

    def removable(self, names: Sequence[str]) -> list[str]:
        """Those of the files that are no longer named which may be removed now; the others are given by `release`."""
        self._unnamed.update(name for name in names if name in self._claims)
        return [name for name in names if name not in self._claims]
