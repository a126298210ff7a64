"""`kudu-py tserver`: run one, list them."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from kudu_py.cli.cluster import Masters, ReportFormat, split_addresses
from kudu_py.cli.console import make_console, plain_table
from kudu_py.cli.daemons import PASS_THROUGH, run_tserver
from kudu_py.cli.ksck import CALL_TIMEOUT_S, leader_master
from kudu_py.pb import master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

app = typer.Typer(help="Run a tablet server, or list them.", no_args_is_help=True)
app.command("run", context_settings=PASS_THROUGH, add_help_option=False)(run_tserver)


@app.command("list")
def list_(
    masters: Masters,
    format_: Annotated[
        ReportFormat, typer.Option("--format", help="Text for people, or JSON for programs.")
    ] = ReportFormat.TEXT,
) -> None:
    """List the tablet servers that the masters know, alive or not."""
    servers = asyncio.run(_servers(split_addresses(masters)))
    if format_ is ReportFormat.JSON:
        shown = [
            {
                "uuid": s.uuid,
                "rpc_address": s.rpc_address,
                "http_address": s.http_address,
                "state": master_pb2.TabletServerState.Name(s.state),
                "millis_since_heartbeat": s.millis_since_heartbeat,
                "fault_domain": s.fault_domain,
                "version": s.software_version,
                "tablets": s.live_tablet_count,
                "leaders": s.leader_count,
            }
            for s in servers
        ]
        print(json.dumps(shown, indent=2))
        return
    rows = [
        (
            s.uuid,
            s.rpc_address,
            s.http_address,
            master_pb2.TabletServerState.Name(s.state),
            f"{s.millis_since_heartbeat / 1000:.1f} s ago",
            s.fault_domain,
            str(s.live_tablet_count),
            str(s.leader_count),
        )
        for s in servers
    ]
    titles = ("UUID", "RPC", "WEB", "STATE", "HEARTBEAT", "DOMAIN", "TABLETS", "LEADERS")
    make_console().print(plain_table(titles, rows, numbers=("TABLETS", "LEADERS")))


async def _servers(addresses: list[str]) -> list[master_pb2.ListTabletServersResponse.Server]:
    dialer = GrpcDialer()
    try:
        leader, _, _ = await leader_master(dialer, addresses)
        stub = master_pb2_grpc.MasterServiceStub(dialer.channel(leader))
        answer = await call(stub.ListTabletServers(master_pb2.ListTabletServersRequest(), timeout=CALL_TIMEOUT_S))
        return list(answer.servers)
    finally:
        await dialer.close()
