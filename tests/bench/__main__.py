"""`python -m tests.bench [NAME...] [--scale F]`: the project's figures, printed and written to `build/bench.json`.

NAME is a figure (`scan_rows_per_s`) or a group of them (`ingest`); without names all are taken. A scale below 1 takes
fewer rows and calls, for a quick look: such figures are not comparable, and go to the file all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from kudu_py.rpc import grpc_environment

grpc_environment.silence()  # before anything imports gRPC

from tests.bench import failover, ingest, large_table, small_writes, spark, tablet_copy  # noqa: E402
from tests.bench.results import Results  # noqa: E402


@dataclass(frozen=True)
class Group:
    """Figures that are taken together.

    Attributes:
        run: adds the figures to the results; is given the scale.
    """

    name: str
    figures: tuple[str, ...]
    run: Callable[[Results, float], Awaitable[None]]


GROUPS = (
    Group("small_writes", ("write_p50_ms", "write_p99_ms", "small_writes_per_s"), small_writes.run),
    Group("ingest", ("ingest_sequential_rows_per_s", "ingest_random_rows_per_s"), ingest.run),
    Group("large_table", ("tserver_peak_rss_bytes", "scan_rows_per_s"), large_table.run),
    Group("failover", ("failover_s",), failover.run),
    Group(
        "tablet_copy",
        ("tablet_copy_bytes_per_s", "raw_stream_bytes_per_s", "raw_disk_write_bytes_per_s"),
        tablet_copy.run,
    ),
    Group("spark", ("spark_write_rows_per_s", "spark_scan_rows_per_s"), spark.run),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures or groups; all if none is given")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows and calls")
    given = parser.parse_args()
    known = {name for group in GROUPS for name in (group.name, *group.figures)}
    unknown = sorted(set(given.names) - known)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    results = Results()
    failed = []
    for group in GROUPS:
        if given.names and not {group.name, *group.figures} & set(given.names):
            continue
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(group.run(results, given.scale))
        except Exception as error:  # the other figures are wanted all the same
            failed.append(group.name)
            print(f"{group.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    results.write()
    if failed:
        sys.exit(f"no figures of {', '.join(failed)}")


if __name__ == "__main__":
    main()
