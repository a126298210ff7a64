"""What people see: one console and one form of table for all commands."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

CLEAR_LINE = "\r\x1b[2K"
"""What makes a terminal forget the line it is on."""

_PIPED_WIDTH = 100_000
"""Nothing is cut off or wrapped for a program that reads our output."""


def say(text: str) -> None:
    """One line of progress or advice, on standard error: standard output is for results.

    On a terminal it takes the place of a line of progress that is being rewritten there.
    """
    print(f"{CLEAR_LINE}{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def make_console() -> Console:
    """Standard output, coloured on a terminal; whole lines wherever they go."""
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def plain_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> Table:
    """A table without lines; the columns in `numbers` are set to the right. Ids are shown whole, however narrow the
    terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ignore", justify="right" if title in numbers else "left")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])  # what servers say is no markup
    return table


def command_name() -> str:
    """How this command is called from here: its name if the shell finds it, else its path."""
    if shutil.which("kudu-py"):
        return "kudu-py"
    beside = Path(sys.executable).parent / "kudu-py"
    if not beside.exists():
        return f"{sys.executable} -m kudu_py.cli.main"
    near = Path.cwd()
    return str(beside.relative_to(near)) if beside.is_relative_to(near) else str(beside)
