"""`kudu-py playground`: start, stop, restart and show a local cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kudu_py.cli import playground
from kudu_py.cli.console import command_name, make_console, plain_table, say
from kudu_py.cli.playground import PlaygroundRecord

app = typer.Typer(help="A local cluster of real processes.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--dir", help="Where data, logs and playground.json lie.", resolve_path=True)]


@app.command()
def start(
    directory: Directory,
    masters: Annotated[int, typer.Option(min=1, help="Number of masters; only 1 is supported yet.")] = 1,
    tservers: Annotated[
        int | None, typer.Option(min=1, help="Number of tablet servers. Default: those there are, 3 in a new one.")
    ] = None,
    fault_domains: Annotated[
        int, typer.Option(min=0, help="Deal the tablet servers of a new one to so many fault domains; 0: one each.")
    ] = 0,
    detach: Annotated[bool, typer.Option(help="Return when all serve, and leave them running.")] = False,
    flag: Annotated[
        list[str] | None, typer.Option(help="A flag for every daemon, such as --flag=--log_format=json.")
    ] = None,
) -> None:
    """Start a cluster on 127.0.0.1, or start one again with all its data."""
    if masters > 1:
        raise typer.BadParameter("clusters of several masters are not supported yet; use 1", param_hint="--masters")
    record = playground.prepare(
        directory,
        master_count=masters,
        tserver_count=tservers,
        fault_domains=fault_domains,
        extra_flags=flag or [],
    )
    record = playground.start(directory, record, say)
    show(record, directory)
    if detach:
        return
    say("Ctrl-C stops it.")
    playground.watch(record, say)
    # Pids may have changed: `restart` writes the file while we wait.
    playground.stop(directory, playground.load(directory), say)


@app.command()
def stop(directory: Directory) -> None:
    """Stop every daemon of a playground cleanly; its data stays."""
    playground.stop(directory, playground.load(directory), say)


@app.command()
def restart(
    name: Annotated[str, typer.Argument(help="Such as tserver-1 or master-1, or a uuid.")], directory: Directory
) -> None:
    """Start one daemon again, whether it runs or has died; returns when it serves."""
    daemon = playground.restart(directory, name)
    say(f"{daemon.name} serves at {daemon.rpc_address}, pid {daemon.pid}")


@app.command("add_tserver")
def add_tserver(
    directory: Directory,
    fault_domain: Annotated[
        str, typer.Option(help="What it fails as one with. Default: as at the start, in turn, or one of its own.")
    ] = "",
) -> None:
    """Start one more tablet server; returns when it serves. The masters move replicas to it by and by.

    Example: kudu-py playground add_tserver --dir play
    """
    daemon = playground.add_tserver(directory, fault_domain=fault_domain)
    say(f"{daemon.name} serves at {daemon.rpc_address}, uuid {daemon.uuid}, pid {daemon.pid}")


@app.command()
def status(directory: Directory) -> None:
    """Show the daemons of a playground; exits 1 if one is not running."""
    record = playground.load(directory)
    show(record, directory)
    if not all(daemon.is_running() for daemon in record.daemons):
        raise typer.Exit(1)


def show(record: PlaygroundRecord, directory: Path) -> None:
    """The table of daemons, and what to try next."""
    rows = [
        (
            daemon.name,
            daemon.uuid[:8] or "-",
            daemon.rpc_address,
            f"http://{daemon.http_address}",
            str(daemon.pid or "-"),
            "serving" if daemon.is_running() else "stopped",
        )
        for daemon in record.daemons
    ]
    console = make_console()
    console.print(plain_table(("NAME", "UUID", "RPC", "WEB", "PID", "STATE"), rows))
    masters = record.master_addresses
    console.print(f"Data and logs: {directory}", highlight=False)
    console.print("Try next:", highlight=False)
    kudu_py = command_name()
    for line in (
        f"{kudu_py} cluster ksck {masters}",
        f"{kudu_py} table list {masters}",
        f"grpcurl -plaintext {record.masters[0].rpc_address} list",
        f"{kudu_py} playground stop --dir {directory}",
    ):
        console.print(f"  {line}", highlight=False)
