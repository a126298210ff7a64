"""`python -m tests.bench.peers`: the same work on this project and on what our users would run instead; the ratios.

Every round starts each system afresh in turn and does the work on it, so that a drift of the machine meets all alike;
figures are medians over the rounds, and the ratios are what to look at. Upstream's log is synced before each
acknowledgement (--log_force_fsync_all), as ours is; Delta Lake syncs nothing. What is needed is fetched once, into
build/peers. A peer that cannot be fetched, started or measured is named with the reason, the others go on, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from dataclasses import dataclass, field
from types import FrameType

from kudu_py.rpc import grpc_environment

grpc_environment.silence()  # before anything imports gRPC

from tests.bench.peers.fetch import Missing, Peers  # noqa: E402
from tests.bench.peers.spark import Delta, Figures  # noqa: E402
from tests.bench.peers.systems import Etcd, KuduCpp, KuduPy  # noqa: E402
from tests.bench.results import ROOT, machine  # noqa: E402

FILE = ROOT / "build" / "bench-peers.json"

SYSTEMS = (KuduPy, KuduCpp, Etcd, Delta)
"""Ours first."""
LEAST = 1000
"""Rows or calls of a work, however small the scale."""


@dataclass(frozen=True)
class Comparison:
    """A piece of work.

    Attributes:
        says: what it is, for the help.
        method: does it; a system without it has no counterpart.
        count: rows or calls at scale 1; 0 if the work has no size.
        figures: of what it gives, those that are compared (others are kept).
        is_rate: more is better.
        options: of the method.
    """

    name: str
    says: str
    method: str
    count: int
    figures: tuple[str, ...]
    is_rate: bool
    options: dict[str, bool] = field(default_factory=dict)

    def measure(self, system: object, scale: float) -> Figures:
        do = getattr(system, self.method)
        return do(max(LEAST, int(self.count * scale)), **self.options) if self.count else do()

    def ratio(self, ours: float, theirs: float) -> float:
        """Above 1: ours is better."""
        return ours / theirs if self.is_rate else theirs / ours


_RATE = ("rows_per_s",)
COMPARISONS = (
    Comparison(
        "ingest_sequential", "2 M rows in batches, keys in order", "ingest", 2_000_000, _RATE, True,
        {"is_random": False},
    ),
    Comparison(
        "ingest_random", "2 M rows in batches, random keys", "ingest", 2_000_000, _RATE, True, {"is_random": True}
    ),
    Comparison("lone_write", "2,000 rows, one a call, one caller", "lone_writes", 2_000, ("mean_ms",), False),
    Comparison("small_writes", "40,000 rows, one a call, 64 callers", "small_writes", 40_000, ("calls_per_s",), True),
    Comparison("scan", "all of 10 M rows to the client", "scan", 10_000_000, _RATE, True),
    Comparison("failover", "kill -9 of the leader to the next acknowledged row", "failover", 0, ("seconds",), False),
    Comparison(
        "spark", "3 M rows written by Spark, and summed up by it", "spark", 3_000_000,
        ("write_rows_per_s", "scan_rows_per_s"), True,
    ),
)  # fmt: skip


def main() -> None:
    given = _arguments()
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    peers = Peers()
    taken: dict[str, dict[str, list[Figures]]] = {}
    failed: dict[str, str] = {}
    for comparison in COMPARISONS:
        if comparison.name not in given.only:
            continue
        of_systems = taken[comparison.name] = {}
        lacking = set()
        for _ in range(given.rounds):
            for kind in SYSTEMS:
                if kind in lacking or not hasattr(kind, comparison.method):
                    continue
                try:
                    with kind.running(peers) as system:
                        figures = comparison.measure(system, given.scale)
                except Exception as error:  # the other systems and works are wanted all the same
                    if isinstance(error, Missing):
                        lacking.add(kind)
                    what = f"{comparison.name} of {kind.name}"
                    failed[what] = str(error) or type(error).__name__
                    print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                else:
                    of_systems.setdefault(kind.name, []).append(figures)
                    print(f"{comparison.name:<18} {kind.name:<9}{_line(figures)}", flush=True)
        _show(comparison, of_systems)
    _write(taken, given.scale)
    if failed:
        lines = [f"  {what}: {reason.splitlines()[0][:200]}" for what, reason in failed.items()]
        sys.exit("\n".join(["not measured, or not in every round:", *lines]))


def _arguments() -> argparse.Namespace:
    names = [comparison.name for comparison in COMPARISONS]
    works = []
    for comparison in COMPARISONS:
        systems = ", ".join(kind.name for kind in SYSTEMS if hasattr(kind, comparison.method))
        works.append(f"  {comparison.name:<18} {comparison.says} ({systems})")
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers",
        description=__doc__,
        epilog="\n".join(["works, at scale 1:", *works]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="WORK", help="these works, not all")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system is measured (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows and calls (default: 1)")
    given = parser.parse_args()
    if given.rounds < 1 or given.scale <= 0:
        parser.error("--rounds and --scale must be positive")
    return given


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Unwinds what runs, so that every system is stopped; a second Ctrl-C must not cut that short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("stopping what was started ...", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


def _medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _ratios(comparison: Comparison, medians: dict[str, Figures]) -> dict[str, Figures]:
    """By peer and figure; nothing if ours is not known."""
    ours = medians.get(KuduPy.name)
    if ours is None:
        return {}
    return {
        name: {figure: comparison.ratio(ours[figure], theirs[figure]) for figure in comparison.figures}
        for name, theirs in medians.items()
        if name != KuduPy.name
    }


def _line(figures: Figures) -> str:
    return "".join(f" {key} {value:>12,.2f}" for key, value in figures.items())


def _show(comparison: Comparison, of_systems: dict[str, list[Figures]]) -> None:
    medians = {name: _medians(rounds) for name, rounds in of_systems.items()}
    ratios = _ratios(comparison, medians)
    for name, values in medians.items():
        line = f"{comparison.name:<18} {name:<9}{_line(values)}   median"
        if name in ratios:
            line += ", ours is " + ", ".join(f"{ratio:.2f}" for ratio in ratios[name].values()) + " times as good"
        print(line, flush=True)


def _write(taken: dict[str, dict[str, list[Figures]]], scale: float) -> None:
    results = []
    for comparison in COMPARISONS:
        of_systems = taken.get(comparison.name)
        if not of_systems:
            continue
        medians = {name: _medians(rounds) for name, rounds in of_systems.items()}
        results.append(
            {
                "name": comparison.name,
                "figures": comparison.figures,
                "better": "higher" if comparison.is_rate else "lower",
                "medians": medians,
                "ratios": _ratios(comparison, medians),
                "rounds": of_systems,
            }
        )
    FILE.parent.mkdir(parents=True, exist_ok=True)
    temporary = FILE.with_suffix(".partial")
    temporary.write_text(json.dumps({"machine": machine(), "scale": scale, "results": results}, indent=2) + "\n")
    temporary.replace(FILE)
    print(f"written to {FILE}")


if __name__ == "__main__":
    main()
