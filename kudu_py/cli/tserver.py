"""`kudu-py tserver`: run one, list them, send them to maintenance, retire them."""

from __future__ import annotations

import json

import typer

from kudu_py.cli import op
from kudu_py.cli.amounts import duration_text
from kudu_py.cli.arguments import (
    FormatOption,
    MastersArgument,
    ReportFormat,
    ServerArgument,
    WaitOption,
    split_addresses,
)
from kudu_py.cli.console import make_console, plain_table
from kudu_py.cli.daemons import PASS_THROUGH, run_tserver
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.masters import Masters, ServerSeen, run_with_masters
from kudu_py.pb import master_pb2

app = typer.Typer(help="Run a tablet server; list, maintain and retire them.", no_args_is_help=True)
app.command("run", context_settings=PASS_THROUGH, add_help_option=False)(run_tserver)


@app.command("list")
def list_(masters: MastersArgument, format_: FormatOption = ReportFormat.TEXT) -> None:
    """List the tablet servers that the masters know, alive or not.

    Example: kudu-py tserver list 127.0.0.1:7051
    """

    async def body(masters: Masters) -> list[ServerSeen]:
        return await masters.servers()

    servers = run_with_masters(split_addresses(masters), body)
    if format_ is ReportFormat.JSON:
        print(json.dumps([server_json(server) for server in servers], indent=2))
        return
    rows = [
        (
            server.uuid,
            server.rpc_address,
            server.http_address,
            master_pb2.TabletServerState.Name(server.state),
            mode_text(server),
            f"{duration_text(server.millis_since_heartbeat / 1000)} ago",
            server.fault_domain,
            str(server.live_tablet_count),
            str(server.leader_count),
        )
        for server in servers
    ]
    titles = ("UUID", "RPC", "WEB", "STATE", "MODE", "HEARTBEAT", "DOMAIN", "TABLETS", "LEADERS")
    make_console().print(plain_table(titles, rows, numbers=("TABLETS", "LEADERS")))


@app.command("enter_maintenance")
def enter_maintenance(masters: MastersArgument, tserver: ServerArgument) -> None:
    """Expect a tablet server to be away: its replicas are not replaced, and it gets no new ones.

    Say it before a server is off for longer than the masters wait
    (--follower_unavailable_considered_failed_sec).

    Example: kudu-py tserver enter_maintenance 127.0.0.1:7051 TSERVER
    """
    print(f"tablet server {_set_mode(masters, tserver, master_pb2.MAINTENANCE)} is in maintenance")


@app.command("exit_maintenance")
def exit_maintenance(masters: MastersArgument, tserver: ServerArgument) -> None:
    """Take a tablet server back, from maintenance or after it was retired.

    Example: kudu-py tserver exit_maintenance 127.0.0.1:7051 TSERVER
    """
    print(f"tablet server {_set_mode(masters, tserver, master_pb2.NORMAL)} takes part in everything")


@app.command()
def retire(
    masters: MastersArgument,
    tserver: ServerArgument,
    wait: WaitOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Move all replicas away from a tablet server, which can be stopped then. Goes on without its caller.

    Example: kudu-py tserver retire 127.0.0.1:7051 TSERVER --wait
    """
    addresses = split_addresses(masters)

    async def body(masters: Masters) -> str:
        request = master_pb2.RetireTabletServerRequest(ts_uuid=await masters.server_uuid(tserver))
        return (await masters.tell(lambda stub: stub.RetireTabletServer(request, timeout=CALL_TIMEOUT_S))).operation_id

    op.begun(addresses, run_with_masters(addresses, body), wait=wait, format_=format_)


def _set_mode(masters: str, tserver: str, mode: master_pb2.TabletServerMode.ValueType) -> str:
    """The uuid of the server whose mode was changed."""

    async def body(masters: Masters) -> str:
        request = master_pb2.ChangeTabletServerModeRequest(ts_uuid=await masters.server_uuid(tserver), mode=mode)
        await masters.tell(lambda stub: stub.ChangeTabletServerMode(request, timeout=CALL_TIMEOUT_S))
        return request.ts_uuid

    return run_with_masters(split_addresses(masters), body)


def mode_text(server: ServerSeen) -> str:
    """What an operator decided about the server: `NORMAL` where a master does not say."""
    return master_pb2.TabletServerMode.Name(server.mode or master_pb2.NORMAL)


def server_json(server: ServerSeen) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "uuid": server.uuid,
        "rpc_address": server.rpc_address,
        "http_address": server.http_address,
        "state": master_pb2.TabletServerState.Name(server.state),
        "mode": mode_text(server),
        "millis_since_heartbeat": server.millis_since_heartbeat,
        "fault_domain": server.fault_domain,
        "version": server.software_version,
        "tablets": server.live_tablet_count,
        "leaders": server.leader_count,
    }
