"""Progress of what takes long: one line that says how far it is, and where it goes."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from typing import Final, TextIO

from kudu_py.cli.amounts import bytes_text, duration_text, time_left_s
from kudu_py.cli.console import CLEAR_LINE

ID_CHARACTERS: Final = 8
"""What is shown of an id where there is no room for all of it; commands take it for the whole."""
DOING_CHARACTERS_MIN: Final = 20
_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")

PIPED_INTERVAL_S: Final = 5.0
"""How often a line is added where it cannot be rewritten."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is.

    Attributes:
        doing: what it does now, for people.
        steps_done, steps_total: 0 of 0: it has none.
        bytes_done, bytes_total, bytes_per_s: of the copies under way; 0 of 0: there are none.
        log_lag_entries: what the new replica's log still lacks.
    """

    doing: str
    steps_done: int = 0
    steps_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: int = 0
    log_lag_entries: int = 0

    @property
    def text(self) -> str:
        """Such as `1 of 3: copying; 120 MB of 1.2 GB (10 %), 52 MB/s, 21 s left; 1,204 entries behind`."""
        return self._steps + self.doing + self._figures

    def fitted(self, width: int) -> str:
        """`text` in `width` characters: ids are shortened, then what is done, and figures come last."""
        if len(self.text) <= width:
            return self.text
        doing = _ID.sub(lambda found: found[0][:ID_CHARACTERS], self.doing)
        room = max(width - len(self._steps) - len(self._figures), DOING_CHARACTERS_MIN)
        if len(doing) > room:
            doing = doing[: room - 1] + "…"
        return (self._steps + doing + self._figures)[:width]

    @property
    def _steps(self) -> str:
        return f"{self.steps_done} of {self.steps_total}: " if self.steps_total else ""

    @property
    def _figures(self) -> str:
        parts: list[str] = []
        if self.bytes_total:
            parts.append(copy_text(self.bytes_done, self.bytes_total, self.bytes_per_s))
        if self.log_lag_entries:
            parts.append(f"{self.log_lag_entries:,} {'entry' if self.log_lag_entries == 1 else 'entries'} behind")
        return "".join(f"; {part}" for part in parts)


def copy_text(done: int, total: int, per_s: int) -> str:
    """How far a copy is: bytes, rate, time left."""
    share = f" ({done * 100 // total} %)" if total else ""
    parts = [f"{bytes_text(done)} of {bytes_text(total)}{share}"]
    if done < total:
        parts.append(f"{bytes_text(per_s)}/s")
        left = time_left_s(done, total, per_s)
        if left is not None:
            parts.append(f"{duration_text(left)} left")
    return ", ".join(parts)


class ProgressLine:
    """Where progress is shown: standard error, for results go to standard output.

    On a terminal one line is rewritten; elsewhere a line is added when what is being done changes, and every
    `PIPED_INTERVAL_S` in between.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown: Progress | None = None
        self._shown_at = 0.0
        self._is_open = False

    def show(self, progress: Progress, now: float) -> None:
        """`progress` is how it stands at `now`, in seconds of any clock that does not go back."""
        if self._is_terminal:
            self._stream.write(CLEAR_LINE + progress.fitted(shutil.get_terminal_size().columns - 1))
            self._stream.flush()
            self._is_open = True
            return
        before = self._shown
        is_news = before is None or (before.doing, before.steps_done) != (progress.doing, progress.steps_done)
        if is_news or (progress != before and now - self._shown_at >= PIPED_INTERVAL_S):
            print(progress.text, file=self._stream, flush=True)
            self._shown, self._shown_at = progress, now

    def end(self) -> None:
        """What is printed next begins a line of its own; the last progress stays readable. Idempotent."""
        if self._is_open:
            self._stream.write("\n")
            self._stream.flush()
            self._is_open = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
