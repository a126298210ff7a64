"""`CopyRefusals`: servers to which copies came to nothing, and for how long they are left alone.

A server may live and answer and yet take no copy: its disk is full, or something of the tablet is left there that it
will not give up. Whoever only looks at what is missing asks it again and again, and holds the tablet up each time for
as long as a copy is waited for. So each failure doubles the pause, up to a bound; a copy that has succeeded ends it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.ids import ServerId

_DOUBLED_MAX = 3


@dataclass(slots=True)
class _Refused:
    count: int = 0
    until_s: float = 0.0


class CopyRefusals:
    """Failed copies in a row, by server.

    Args:
        first_s: the pause after the first failure; the longest is eight times as long.
    """

    def __init__(self, first_s: float) -> None:
        assert first_s > 0, first_s
        self._first_s = first_s
        self._refused: dict[ServerId, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, server: ServerId, now_s: float) -> float:
        """A copy to the server came to nothing; answers for how long it is left alone from now on.

        Of several that fail together, as those of many tablets do, one counts.
        """
        refused = self._refused.setdefault(server, _Refused())
        if now_s >= refused.until_s:
            refused.until_s = now_s + self._first_s * 2.0 ** min(refused.count, _DOUBLED_MAX)
            refused.count += 1
        return refused.until_s - now_s

    def forgive(self, server: ServerId) -> None:
        """A copy to the server has succeeded."""
        self._refused.pop(server, None)

    def count(self, server: ServerId) -> int:
        """Failures in a row."""
        refused = self._refused.get(server)
        return 0 if refused is None else refused.count

    def left_alone(self, now_s: float) -> frozenset[ServerId]:
        """Servers that are asked for nothing now."""
        return frozenset(server for server, refused in self._refused.items() if now_s < refused.until_s)
