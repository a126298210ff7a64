"""Golden transcripts: each file under `interaction/` is replayed; every decision must be the one written there.

`KUDU_REWRITE_TRANSCRIPTS=1` writes what is decided now. A rewritten file is committed only when the change in it is
understood.
"""

import os
from pathlib import Path

import pytest

from kudu_py.testing.core_script import CoreScript

TRANSCRIPTS = sorted((Path(__file__).parent / "interaction").glob("*.txt"))


def replay(text: str) -> str:
    """The transcript of the commands (lines that begin with "> ") and comments in `text`."""
    script, lines = CoreScript(), []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += ["", line, *script.run(line[2:])]
        elif line.startswith("#"):
            lines += ([""] if lines and not lines[-1].startswith("#") else []) + [line]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_every_decision_is_the_one_in_the_transcript(path):
    written = path.read_text()
    decided = replay(written)
    if os.environ.get("KUDU_REWRITE_TRANSCRIPTS"):
        path.write_text(decided)
        return
    assert decided == written


def test_there_are_transcripts():
    assert TRANSCRIPTS
