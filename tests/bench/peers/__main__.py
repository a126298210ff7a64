"""`python -m tests.bench.peers [FIGURE...] [--rounds N] [--scale F]`: this project beside Apache Kudu (C++) and etcd.

Every round starts a fresh cluster of each system in turn and does the same work on it, so that a drift of the machine
meets all alike; the figures are medians over the rounds, and the ratios are what to look at. Writes
`build/bench-peers.json`. Upstream's log is synced before each acknowledgement (`--log_force_fsync_all`), as ours is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kudu_py.daemon import grpc_environment

grpc_environment.apply()  # before anything imports gRPC

from tests.bench.peers.fetch import Peers, fetch  # noqa: E402
from tests.bench.peers.systems import Etcd, Figures, KuduCpp, KuduPy  # noqa: E402
from tests.bench.results import ROOT, machine  # noqa: E402

FILE = ROOT / "build" / "bench-peers.json"


@dataclass(frozen=True)
class Comparison:
    """A piece of work.

    Attributes:
        measure: does it on a system; nothing if the system has no counterpart.
        figure: of what it gives, the one that is compared (others are kept).
        is_rate: more is better.
    """

    name: str
    measure: Callable[[object, float], Figures]
    figure: str
    is_rate: bool


def _on(method: str, count: int, **more: object) -> Callable[[object, float], Figures]:
    def measure(system: object, scale: float) -> Figures:
        do = getattr(system, method, None)
        if do is None:
            return {}
        return do(max(1000, int(count * scale)), **more) if count else do()

    return measure


COMPARISONS = (
    Comparison("ingest_sequential", _on("ingest", 2_000_000, is_random=False), "rows_per_s", True),
    Comparison("ingest_random", _on("ingest", 2_000_000, is_random=True), "rows_per_s", True),
    Comparison("lone_write", _on("lone_writes", 2_000), "mean_ms", False),
    Comparison("small_writes", _on("small_writes", 40_000), "calls_per_s", True),
    Comparison("scan", _on("scan", 10_000_000), "rows_per_s", True),
    Comparison("failover", _on("failover", 0), "seconds", False),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(c.name for c in COMPARISONS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each system is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows and calls")
    given = parser.parse_args()
    unknown = sorted(set(given.figures) - {comparison.name for comparison in COMPARISONS})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    peers = fetch()
    taken: dict[str, dict[str, list[Figures]]] = {}
    failed = []
    for comparison in COMPARISONS:
        if given.figures and comparison.name not in given.figures:
            continue
        for _ in range(given.rounds):
            for name, running in _systems(peers, comparison.name):
                try:
                    with running() as system:
                        figures = comparison.measure(system, given.scale)
                except Exception as error:  # the other systems and figures are wanted all the same
                    failed.append(f"{comparison.name} of {name}")
                    print(f"{comparison.name} of {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                if figures:
                    taken.setdefault(comparison.name, {}).setdefault(name, []).append(figures)
        _show(comparison, taken.get(comparison.name, {}))
    _write(taken)
    if failed:
        sys.exit(f"not measured: {', '.join(dict.fromkeys(failed))}")


def _systems(peers: Peers, comparison: str):
    """Ours first, then the peers that are there and have a counterpart."""
    yield KuduPy.name, KuduPy.running
    if peers.kudu_home is not None:
        yield KuduCpp.name, lambda: KuduCpp.running(peers)
    if peers.etcd is not None and peers.etcdput is not None and comparison in ("lone_write", "small_writes"):
        yield Etcd.name, lambda: Etcd.running(peers)


def _medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _show(comparison: Comparison, taken: dict[str, list[Figures]]) -> None:
    for name, rounds in taken.items():
        values = _medians(rounds)
        line = f"{comparison.name:<20} {name:<10}" + "".join(f" {key} {value:>12,.2f}" for key, value in values.items())
        if name != KuduPy.name and KuduPy.name in taken:
            ours = _medians(taken[KuduPy.name])[comparison.figure]
            theirs = values[comparison.figure]
            ratio = ours / theirs if comparison.is_rate else theirs / ours
            line += f"   ours is {ratio:.2f} times as good"
        print(line, flush=True)


def _write(taken: dict[str, dict[str, list[Figures]]]) -> None:
    results = []
    for comparison in COMPARISONS:
        systems = taken.get(comparison.name)
        if not systems:
            continue
        ours = _medians(systems[KuduPy.name])[comparison.figure] if KuduPy.name in systems else None
        entry: dict[str, object] = {
            "name": comparison.name,
            "figure": comparison.figure,
            "better": "higher" if comparison.is_rate else "lower",
            "medians": {name: _medians(rounds) for name, rounds in systems.items()},
            "rounds": systems,
        }
        if ours is not None:
            # Above 1: ours is better.
            entry["ratios"] = {
                name: ours / theirs if comparison.is_rate else theirs / ours
                for name, rounds in systems.items()
                if name != KuduPy.name
                for theirs in [_medians(rounds)[comparison.figure]]
            }
        results.append(entry)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    temporary = FILE.with_suffix(".partial")
    temporary.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    temporary.replace(FILE)
    print(f"written to {FILE}")


if __name__ == "__main__":
    main()
