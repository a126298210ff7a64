"""How far a long piece of work is, in one line."""

from __future__ import annotations

import io

from kudu_py.cli.progress import Progress, ProgressLine

COPYING = Progress("copying", 1, 3, bytes_done=120_000_000, bytes_total=1_200_000_000, bytes_per_s=52_000_000)


class Terminal(io.StringIO):
    """A stream that can rewrite its line."""

    def isatty(self) -> bool:
        return True


def test_a_line_says_step_bytes_rate_time_left_and_lag():
    assert COPYING.text == "1 of 3: copying; 120 MB of 1.2 GB (10 %), 52 MB/s, 21 s left"
    assert Progress("catching up", log_lag_entries=1204).text == "catching up; 1,204 entries behind"
    assert Progress("catching up", log_lag_entries=1).text == "catching up; 1 entry behind"


def test_what_is_copied_has_no_rate_any_more_and_what_stands_still_no_time_left():
    assert Progress("opening", bytes_done=5, bytes_total=5, bytes_per_s=9).text == "opening; 5 B of 5 B (100 %)"
    assert Progress("copying", bytes_done=5, bytes_total=10).text == "copying; 5 B of 10 B (50 %), 0 B/s"


def test_a_pipe_gets_a_line_when_the_work_changes_and_every_few_seconds():
    piped = io.StringIO()
    with ProgressLine(piped) as line:
        line.show(Progress("copying", bytes_done=1, bytes_total=9), 0.0)
        line.show(Progress("copying", bytes_done=2, bytes_total=9), 0.5)
        line.show(Progress("copying", bytes_done=3, bytes_total=9), 5.0)
        line.show(Progress("copying", bytes_done=3, bytes_total=9), 20.0)
        line.show(Progress("promoted", bytes_done=3, bytes_total=9), 20.1)

    shown = [text.split(";")[0] + text[text.index(";") : text.index(" of")] for text in piped.getvalue().splitlines()]
    assert shown == ["copying; 1 B", "copying; 3 B", "promoted; 3 B"]


def test_a_terminal_gets_one_line_rewritten_and_left_readable(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    with ProgressLine(terminal) as line:
        line.show(COPYING, 0.0)
        line.show(Progress("done"), 0.1)

    rewritten, last = terminal.getvalue().split("\r\x1b[2K")[1:]
    assert len(rewritten) == 29
    assert last == "done\n"


def test_a_narrow_terminal_gets_short_ids_and_figures_before_words():
    copying = Progress(f"copying to {'a' * 32}", 1, 3, bytes_done=1, bytes_total=2)

    assert copying.fitted(80) == copying.text
    assert copying.fitted(60) == "1 of 3: copying to aaaaaaaa; 1 B of 2 B (50 %), 0 B/s"
    long = Progress("many words about what is being done", bytes_done=1, bytes_total=2)
    assert long.fitted(50) == "many words about what i…; 1 B of 2 B (50 %), 0 B/s"
