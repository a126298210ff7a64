"""`kudu-py cluster`: the health of a whole cluster."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from kudu_py.cli import ksck as checker
from kudu_py.cli.console import make_console, plain_table
from kudu_py.cli.ksck import Report
from kudu_py.common.counted import counted

app = typer.Typer(help="The health of a whole cluster.", no_args_is_help=True)

Masters = Annotated[str, typer.Argument(help="Comma-separated master addresses, host:port.", metavar="MASTERS")]


class ReportFormat(StrEnum):
    """How the report is printed."""

    TEXT = "text"
    JSON = "json"


def split_addresses(masters: str) -> list[str]:
    """The addresses of a comma-separated list.

    Raises:
        typer.BadParameter: one is no host:port.
    """
    addresses = [address.strip() for address in masters.split(",") if address.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise typer.BadParameter(f"{address!r} is no host:port, such as 127.0.0.1:7051", param_hint="MASTERS")
    if not addresses:
        raise typer.BadParameter("give at least one master address, such as 127.0.0.1:7051", param_hint="MASTERS")
    return addresses


@app.command()
def ksck(
    masters: Masters,
    format_: Annotated[
        ReportFormat, typer.Option("--format", help="Text for people, or JSON for programs.")
    ] = ReportFormat.TEXT,
    checksum_scan: Annotated[bool, typer.Option(help="Compare the rows of all replicas at one snapshot.")] = False,
) -> None:
    """Check masters, tablet servers, tablets and replicas; exits 0 if healthy, 1 if not, 3 if no master answers."""
    report = checker.assess(asyncio.run(checker.gather(split_addresses(masters), checksum=checksum_scan)))
    if format_ is ReportFormat.JSON:
        print(json.dumps(as_json(report), indent=2))
    else:
        print_text(report)
    raise typer.Exit(0 if report.is_healthy else 1)


def as_json(report: Report) -> dict[str, object]:
    """The report for programs; keys are stable."""
    seen = report.seen
    return {
        "cluster_id": seen.cluster_id,
        "healthy": report.is_healthy,
        "problems": report.problems,
        "notes": report.notes,
        "masters": [{"address": m.address, "uuid": m.uuid, "role": m.role, "error": m.error} for m in seen.masters],
        "tservers": [
            {
                "uuid": s.uuid,
                "address": s.address,
                "state": s.state,
                "serving": s.is_serving,
                "replicas": len(s.replicas),
                "error": s.error,
            }
            for s in seen.servers
        ],
        "tables": [
            {"id": t.table_id, "name": t.name, "num_replicas": t.num_replicas, "tablets": len(t.tablets)}
            for t in seen.tables
        ],
        "tablets": [
            {
                "id": v.tablet_id,
                "table": v.table_name,
                "leader": v.leader,
                "replicas": v.replicas,
                "rows": v.row_count,
                "verdict": v.verdict,
                "problems": v.problems,
            }
            for v in report.tablets
        ],
        "checksums": None
        if seen.checksums is None
        else {
            "snapshot_timestamp": seen.snapshot_timestamp,
            "replicas": [
                {
                    "tablet": c.tablet_id,
                    "tserver": c.ts_uuid,
                    "checksum": f"{c.checksum:016x}",
                    "rows": c.row_count,
                    "error": c.error,
                }
                for c in seen.checksums
            ],
        },
    }


def _section(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    console.print(plain_table(columns, rows, numbers=("TABLETS", "REPLICAS", "HEALTHY", "ROWS")))


def print_text(report: Report) -> None:
    """The report for people: one section a kind of thing, the verdict last."""
    seen = report.seen
    console = make_console()
    _section(
        console, "Masters", ["ADDRESS", "UUID", "ROLE"], [[m.address, m.uuid or "-", m.role] for m in seen.masters]
    )
    _section(
        console,
        "Tablet servers",
        ["ADDRESS", "UUID", "STATE", "REPLICAS"],
        [[s.address, s.uuid, "UNREACHABLE" if s.error else s.state, str(len(s.replicas))] for s in seen.servers],
    )
    _section(
        console,
        "Tables",
        ["NAME", "TABLETS", "REPLICATION", "HEALTHY", "ROWS"],
        [
            [
                t.name,
                str(len(t.tablets)),
                str(t.num_replicas),
                str(sum(v.verdict == "HEALTHY" for v in report.tablets if v.table_name == t.name)),
                f"{sum(v.row_count for v in report.tablets if v.table_name == t.name):,}",
            ]
            for t in seen.tables
        ],
    )
    unhealthy = [v for v in report.tablets if v.problems]
    if unhealthy:
        _section(
            console,
            "Tablets that need care",
            ["TABLET", "TABLE", "VERDICT", "WHY"],
            [[v.tablet_id, v.table_name, v.verdict, v.problems[0]] for v in unhealthy],
        )
    if seen.checksums is not None:
        compared = [c for c in seen.checksums if not c.error]
        console.print(
            f"\nChecksums: {counted(len(compared), 'replica')}, {counted(sum(c.row_count for c in compared), 'row')}, "
            f"snapshot {seen.snapshot_timestamp}"
        )
    for note in report.notes:
        console.print(f"note: {note}")
    if report.is_healthy:
        console.print("\n[green]OK[/green]")
    else:
        console.print(f"\n[red]FAILED[/red]: {counted(len(report.problems), 'problem')}")
        for problem in report.problems:
            console.print(f"  {problem}")
