"""`KillPoint`: the process ends itself, as by `kill -9`, at a line of its log.

Upstream's daemons have `--fault_crash_…` flags at a few places; here every logged event is such a place, so that a
test can end a daemon after a step of a copy or a deletion exactly, and not whenever a watcher of the log gets its turn.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from kudu_py.common.errors import ErrorCode, KuduError


def kill_self() -> None:
    """SIGKILL, which nothing can catch: no buffer is flushed, no file closed in order."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class KillPoint:
    """Counts events of one name.

    Attributes:
        event: the name.
        occurrences_left: how many lines of this name are still to be written; the process ends at the last of them.
        kill: what ends it.
    """

    event: str
    occurrences_left: int = 1
    kill: Callable[[], None] = kill_self

    def see(self, _: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog: takes note of an event that is about to be written."""
        if event.get("event") == self.event:
            self.occurrences_left -= 1
        return event

    def line_written(self) -> None:
        """Ends the process if the line that was written is the one."""
        if self.occurrences_left <= 0:
            self.kill()


def parse_kill_point(text: str) -> KillPoint | None:
    """`EVENT` or `EVENT:N`, the Nth line of that name; empty: none.

    Raises:
        KuduError: INVALID_ARGUMENT.
    """
    if not text:
        return None
    event, _, count = text.partition(":")
    if not event.replace("_", "").isalnum() or (":" in text and not (count.isdecimal() and int(count))):
        raise KuduError(ErrorCode.INVALID_ARGUMENT, "must be EVENT or EVENT:N, the name of a log event")
    return KillPoint(event, int(count or 1))
