"""`kudu-py cluster`: the health and the balance of a whole cluster, and its recovery from the worst."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console

from kudu_py.cli import ksck as checker
from kudu_py.cli.arguments import FormatOption, MastersArgument, ReportFormat, YesOption, split_addresses
from kudu_py.cli.balance_report import balance_json, print_balance
from kudu_py.cli.console import make_console, plain_table, say
from kudu_py.cli.ksck import CALL_TIMEOUT_S, Report
from kudu_py.cli.majority_loss import Loss, TabletSeen, loss_lines
from kudu_py.cli.majority_recovery import Outcome, bring_back, look, losses, outcome_text, recovery_json, still_as_seen
from kudu_py.cli.masters import Masters, run_with_masters
from kudu_py.cli.op import EXIT_INTERRUPTED
from kudu_py.cli.unsafe_config import NO_WAY_BACK, caller_id, confirm, now_micros
from kudu_py.common.counted import counted
from kudu_py.pb import master_pb2

app = typer.Typer(help="Health and balance of a whole cluster, and recovery from the worst.", no_args_is_help=True)


@app.command()
def ksck(
    masters: MastersArgument,
    format_: FormatOption = ReportFormat.TEXT,
    checksum_scan: Annotated[bool, typer.Option(help="Compare the rows of all replicas at one snapshot.")] = False,
) -> None:
    """Check masters, tablet servers, tablets and replicas; exits 0 if healthy, 1 if not, 3 if no master answers."""
    report = checker.assess(asyncio.run(checker.gather(split_addresses(masters), checksum=checksum_scan)))
    if format_ is ReportFormat.JSON:
        print(json.dumps(as_json(report), indent=2))
    else:
        print_text(report)
    raise typer.Exit(0 if report.is_healthy else 1)


@app.command()
def rebalance(
    masters: MastersArgument,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Show what the masters' rebalancer would do next; change nothing.")
    ] = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Show how replicas and leaders are spread, and what the masters would do about it.

    The masters balance by themselves; --report-only is a must.

    Example: kudu-py cluster rebalance 127.0.0.1:7051 --report-only
    """
    if not report_only:
        raise typer.BadParameter(
            "the masters balance by themselves (--auto_rebalancing_enabled); this command only shows what they would "
            "do: add --report-only",
            param_hint="--report-only",
        )

    async def body(masters: Masters) -> master_pb2.GetBalanceResponse:
        request = master_pb2.GetBalanceRequest()
        return await masters.ask(lambda stub: stub.GetBalance(request, timeout=CALL_TIMEOUT_S))

    balance = run_with_masters(split_addresses(masters), body)
    if format_ is ReportFormat.JSON:
        print(json.dumps(balance_json(balance), indent=2))
    else:
        print_balance(balance)


@app.command("recover_majority_loss")
def recover_majority_loss(
    masters: MastersArgument,
    table: Annotated[list[str] | None, typer.Option(help="Only this table; may be given several times.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be lost; change nothing.")] = False,
    yes: YesOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Bring back tablets that have lost the majority of their voters for good. Acknowledged writes may be lost.

    Of each it finds the most up-to-date replica that is left, and says what
    would be lost. After a yes it makes what is left the whole group, which then
    takes writes again, and waits until the masters have copied it to other
    servers. Run again, it goes on where it was. Exits 1 if a tablet cannot be
    brought back.

    Example: kudu-py cluster recover_majority_loss 127.0.0.1:7051 --dry-run
    """
    addresses = split_addresses(masters)

    async def find(masters: Masters) -> list[TabletSeen]:
        return await look(masters, table or [])

    tablets = run_with_masters(addresses, find)
    found = losses(tablets)
    is_json = format_ is ReportFormat.JSON
    if not is_json or not dry_run:
        _say_losses(tablets, found)
    hopeless = [loss for loss in found if not loss.kept]
    possible = [loss for loss in found if loss.kept]
    outcomes: list[Outcome] = []
    if possible and not dry_run:
        say(f"\n{NO_WAY_BACK}")
        confirm(f"Give up what is lost, and go on with what is left of {counted(len(possible), 'tablet')}?", yes=yes)
        # Whoever was asked may have thought for long, and a server may have come back meanwhile.
        unchanged = still_as_seen(possible, losses(run_with_masters(addresses, find)))
        for loss in possible:
            if loss not in unchanged:
                say(f"tablet {loss.tablet.tablet_id} is left alone: it changed meanwhile; run the same command again")
        outcomes = _recover(addresses, unchanged)
    if is_json:
        print(json.dumps(recovery_json(tablets, found, outcomes), indent=2))
    else:
        for outcome in outcomes:
            print(outcome_text(outcome))
    failed = [outcome for outcome in outcomes if not outcome.voters]
    raise typer.Exit(1 if hopeless or failed else 0)


def _say_losses(tablets: list[TabletSeen], found: list[Loss]) -> None:
    """Before anything is asked: to standard error, for standard output is for what was done."""
    whole = counted(len(tablets), "tablet")
    if not found:
        say(f"no majority is lost: each of {whole} can elect a leader" if tablets else "there is no tablet to look at")
        return
    say(f"{len(found)} of {whole} cannot elect a leader:")
    now = now_micros()
    for loss in found:
        say("\n" + "\n".join(loss_lines(loss, now)))


def _recover(addresses: list[str], possible: list[Loss]) -> list[Outcome]:
    async def body(masters: Masters) -> list[Outcome]:
        return await bring_back(masters, possible, caller_id=caller_id("recover_majority_loss"))

    try:
        return run_with_masters(addresses, body)
    except KeyboardInterrupt:
        say("what was begun goes on by itself. Run the same command again for the rest, and to see how it stands")
        raise typer.Exit(EXIT_INTERRUPTED) from None


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
