"""What a benchmark run yields: named figures, printed as a table and written to `build/bench.json`."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    Attributes:
        name: unique in a run.
        unit: such as "rows/s", "ms", "bytes".
        better: which way is an improvement.
        params: what was run.
        bound_by: what keeps it from being better, as profiled; empty if not known.
    """

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    params: dict[str, object] = field(default_factory=dict)
    bound_by: str = ""


class Results:
    """Figures of one run, shown as they come."""

    def __init__(self) -> None:
        self.taken: list[Result] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        better: Literal["higher", "lower"],
        *,
        bound_by: str = "",
        **params: object,
    ) -> None:
        """Keeps a figure and prints it; the same name twice is a mistake of the benchmark."""
        assert all(result.name != name for result in self.taken), name
        self.taken.append(Result(name, value, unit, better, params, bound_by))
        shown = f"{value:>14,.0f}" if abs(value) >= 100 else f"{value:>14,.3f}"
        print(f"{name:<32} {shown} {unit:<8} {' '.join(f'{k}={v}' for k, v in params.items())}", flush=True)

    def write(self, path: Path = FILE) -> None:
        """Writes the file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine(), "results": [asdict(result) for result in self.taken]}
        temporary = path.with_suffix(".partial")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(path)
        print(f"written to {path}")


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("grpcio", "pyarrow", "numpy", "protobuf", "uvloop")},
    }


def percentile(values: list[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
