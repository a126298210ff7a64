"""The gate: every check in order, nothing written to the tree. `make check` runs it.

Each step prints one line and, if it fails, all of its output; all steps run, so that one sees everything at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "--quiet", ".")),
    ("lint", ("ruff", "check", "--quiet", ".")),
    ("proto lint", ("buf", "lint")),
    ("generated code", ("python", "protos/generate.py", "--check")),
    ("import layers", ("lint-imports", "--no-cache")),
    ("types", ("mypy",)),
    ("fast tests", ("python", "-m", "pytest", "-q", "-n", "2", "-m", "not integration and not spark and not slow")),
)


def main() -> int:
    """Runs the steps; the number of failed ones is the exit status."""
    failed = []
    for name, (program, *arguments) in STEPS:
        started = time.monotonic()
        done = subprocess.run(
            [BIN / program, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        verdict = "ok" if done.returncode == 0 else "FAILED"
        print(f"{name:<16} {verdict:<7} {time.monotonic() - started:6.1f} s", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout)
        elif name == "fast tests":
            print(done.stdout.strip().splitlines()[-1])
    print("the gate is open" if not failed else f"the gate is closed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
