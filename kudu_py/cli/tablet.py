"""`kudu-py tablet`: the replicas of one tablet: added, removed, moved, copied, and who leads."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Final

import typer

from kudu_py.cli import copies, op
from kudu_py.cli.arguments import (
    FormatOption,
    MastersArgument,
    ReportFormat,
    ServerArgument,
    TabletArgument,
    WaitOption,
    YesOption,
    split_addresses,
)
from kudu_py.cli.console import command_name, make_console, plain_table, say
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.majority_loss import Loss, Standing, TabletSeen, by_log, can_elect, loss_lines
from kudu_py.cli.majority_recovery import look_at, still_as_seen
from kudu_py.cli.masters import Masters, match_server, run_with_masters
from kudu_py.cli.membership import config_json, config_text, wait_for_member
from kudu_py.cli.unsafe_config import NO_WAY_BACK, caller_id, confirm, now_micros, unsafe_change_config
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import consensus_pb2, master_pb2, tablet_copy_pb2, tablet_copy_pb2_grpc
from kudu_py.pb.consensus_pb2 import RaftConfig
from kudu_py.pb.tablet_copy_pb2 import CopySession
from kudu_py.rpc.call import call

CHANGE_TIMEOUT_S: Final = 60.0

app = typer.Typer(help="Add, remove and move the replicas of a tablet.", no_args_is_help=True)

ExpectedConfigIndex = Annotated[
    int | None,
    typer.Option(min=0, metavar="INDEX", help="Refuse unless the tablet's committed config has this index."),
]
Timeout = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long the change itself may take.")]


class ReplicaType(StrEnum):
    """How a member counts."""

    VOTER = "VOTER"
    PRE_VOTER = "PRE_VOTER"

    @property
    def member_type(self) -> consensus_pb2.MemberType.ValueType:
        """On the wire."""
        return consensus_pb2.MemberType.Value(self.value)


_TYPE_HELP = "VOTER, or PRE_VOTER, which gets every write and is counted nowhere."


@app.command("add_replica")
def add_replica(
    masters: MastersArgument,
    tablet: TabletArgument,
    tserver: ServerArgument,
    replica_type: Annotated[
        ReplicaType, typer.Argument(metavar="[TYPE]", case_sensitive=False, help=_TYPE_HELP)
    ] = ReplicaType.VOTER,
    expected_config_index: ExpectedConfigIndex = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress until its rows are copied and it counts.")
    ] = False,
    timeout: Timeout = CHANGE_TIMEOUT_S,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Add a replica; returns when it is a member. A VOTER joins as PRE_VOTER, and is promoted.

    The tablet is meant to have one voter more from then on. With --wait, of a
    replica that is a member already, it only waits.

    Example: kudu-py tablet add_replica 127.0.0.1:7051 TABLET TSERVER --wait
    """
    addresses = split_addresses(masters)

    async def body(masters: Masters) -> RaftConfig:
        server = match_server(await masters.servers(), tserver)
        request = master_pb2.AddReplicaRequest(
            tablet_id=tablet,
            ts_uuid=server.uuid,
            member_type=replica_type.member_type,
            expected_config_index=expected_config_index,
        )
        joined_index = None
        try:
            answer = await masters.tell(lambda stub: stub.AddReplica(request, timeout=timeout))
        except KuduError as error:
            if not wait or error.code is not ErrorCode.ALREADY_PRESENT:
                raise
            say(error.message)
        else:
            if not wait:
                return answer.config
            joined_index = answer.config.config_index
        wanted = replica_type.member_type
        return await wait_for_member(
            masters, tablet, server.uuid, server.rpc_address, wanted, joined_index=joined_index
        )

    try:
        config = run_with_masters(addresses, body)
    except KeyboardInterrupt:
        say("the copy goes on by itself. Come back to it with the same command, or see how far it is:")
        say(f"  {command_name()} tablet copy_sessions {','.join(addresses)} {tablet}")
        raise typer.Exit(op.EXIT_INTERRUPTED) from None
    _print_config(tablet, config, format_)
    if not wait:
        say("its rows are copied by themselves; see how far they are:")
        say(f"  {command_name()} tablet copy_sessions {','.join(addresses)} {tablet}")


@app.command("remove_replica")
def remove_replica(
    masters: MastersArgument,
    tablet: TabletArgument,
    tserver: ServerArgument,
    expected_config_index: ExpectedConfigIndex = None,
    timeout: Timeout = CHANGE_TIMEOUT_S,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Remove a replica; returns when it is no member any more. A leader hands over first.

    The tablet is meant to have one voter less from then on.

    Example: kudu-py tablet remove_replica 127.0.0.1:7051 TABLET TSERVER
    """

    async def body(masters: Masters) -> RaftConfig:
        request = master_pb2.RemoveReplicaRequest(
            tablet_id=tablet,
            ts_uuid=await masters.server_uuid(tserver),
            expected_config_index=expected_config_index,
        )
        return (await masters.tell(lambda stub: stub.RemoveReplica(request, timeout=timeout))).config

    _print_config(tablet, run_with_masters(split_addresses(masters), body), format_)


@app.command("change_replica_type")
def change_replica_type(
    masters: MastersArgument,
    tablet: TabletArgument,
    tserver: ServerArgument,
    replica_type: Annotated[ReplicaType, typer.Argument(metavar="TYPE", case_sensitive=False, help=_TYPE_HELP)],
    expected_config_index: ExpectedConfigIndex = None,
    timeout: Timeout = CHANGE_TIMEOUT_S,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Make a replica a VOTER or a PRE_VOTER; returns when it is.

    Example: kudu-py tablet change_replica_type 127.0.0.1:7051 TABLET TSERVER VOTER
    """

    async def body(masters: Masters) -> RaftConfig:
        request = master_pb2.ChangeReplicaTypeRequest(
            tablet_id=tablet,
            ts_uuid=await masters.server_uuid(tserver),
            member_type=replica_type.member_type,
            expected_config_index=expected_config_index,
        )
        return (await masters.tell(lambda stub: stub.ChangeReplicaType(request, timeout=timeout))).config

    _print_config(tablet, run_with_masters(split_addresses(masters), body), format_)


@app.command("move_replica")
def move_replica(
    masters: MastersArgument,
    tablet: TabletArgument,
    from_tserver: Annotated[str, typer.Argument(metavar="FROM", help="The tablet server that has the replica.")],
    to_tserver: Annotated[str, typer.Argument(metavar="TO", help="The tablet server that gets it.")],
    wait: WaitOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Move a replica: a new one is copied and promoted, then the old one is removed. Goes on without its caller.

    Example: kudu-py tablet move_replica 127.0.0.1:7051 TABLET FROM TO --wait
    """
    addresses = split_addresses(masters)

    async def body(masters: Masters) -> str:
        request = master_pb2.MoveReplicaRequest(
            tablet_id=tablet,
            from_ts_uuid=await masters.server_uuid(from_tserver),
            to_ts_uuid=await masters.server_uuid(to_tserver),
        )
        return (await masters.tell(lambda stub: stub.MoveReplica(request, timeout=CALL_TIMEOUT_S))).operation_id

    op.begun(addresses, run_with_masters(addresses, body), wait=wait, format_=format_)


@app.command("change_voter_count")
def change_voter_count(
    masters: MastersArgument,
    tablet: TabletArgument,
    count: Annotated[int, typer.Argument(min=1, help="How many voters it is to have; odd.")],
    wait: WaitOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Change how many voters a tablet has; `table set_replication_factor` does it for a whole table.

    Example: kudu-py tablet change_voter_count 127.0.0.1:7051 TABLET 5 --wait
    """
    addresses = split_addresses(masters)

    async def body(masters: Masters) -> str:
        request = master_pb2.ChangeVotingReplicaCountRequest(tablet_id=tablet, count=count)
        answer = await masters.tell(lambda stub: stub.ChangeVotingReplicaCount(request, timeout=CALL_TIMEOUT_S))
        return answer.operation_id

    op.begun(addresses, run_with_masters(addresses, body), wait=wait, format_=format_)


@app.command("leader_step_down")
def leader_step_down(
    masters: MastersArgument,
    tablet: TabletArgument,
    new_leader: Annotated[
        str, typer.Option("--new-leader", metavar="TSERVER", help="Who is to lead next; else the most up to date one.")
    ] = "",
    timeout: Timeout = CHANGE_TIMEOUT_S,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Make another replica lead; returns when it does.

    Example: kudu-py tablet leader_step_down 127.0.0.1:7051 TABLET
    """

    async def body(masters: Masters) -> master_pb2.LeaderStepDownResponse:
        request = master_pb2.LeaderStepDownRequest(
            tablet_id=tablet, new_leader_uuid=await masters.server_uuid(new_leader) if new_leader else ""
        )
        return await masters.tell(lambda stub: stub.LeaderStepDown(request, timeout=timeout))

    answer = run_with_masters(split_addresses(masters), body)
    if format_ is ReportFormat.JSON:
        print(json.dumps({"tablet": tablet, "leader": answer.leader_uuid, "term": answer.term}))
    else:
        print(f"tablet {tablet}: {answer.leader_uuid} leads in term {answer.term}")


@app.command("copy_sessions")
def copy_sessions(
    masters: MastersArgument,
    tablet: Annotated[str, typer.Argument(metavar="[TABLET]", help="Only copies of this tablet.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Those that ended lately, too.")] = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """List copies of replicas between tablet servers; exits 1 if a live server does not tell of its own.

    Example: kudu-py tablet copy_sessions 127.0.0.1:7051 --all
    """

    async def body(masters: Masters) -> tuple[list[CopySession], list[str]]:
        live = [server for server in await masters.servers() if server.state == master_pb2.LIVE]
        return await copies.gather_copies(masters.dialer, live)

    found, errors = run_with_masters(split_addresses(masters), body)
    shown = [
        session
        for session in found
        if (not tablet or session.tablet_id == tablet) and (all_ or session.state in copies.GOING_ON)
    ]
    if format_ is ReportFormat.JSON:
        print(json.dumps({"sessions": [copies.session_json(session) for session in shown], "errors": errors}, indent=2))
    elif shown:
        rows = [
            (
                session.tablet_id,
                session.table_name,
                session.source_uuid,
                session.target_uuid,
                tablet_copy_pb2.CopySessionState.Name(session.state),
                copies.how_far_text(session),
            )
            for session in shown
        ]
        make_console().print(plain_table(("TABLET", "TABLE", "FROM", "TO", "STATE", "HOW FAR"), rows))
    else:
        say("nothing is being copied" + ("" if all_ else "; --all shows what ended lately"))
    for error in errors:
        say(f"no answer: {error}")
    raise typer.Exit(1 if errors else 0)


@app.command("cancel_copy")
def cancel_copy(masters: MastersArgument, tablet: TabletArgument, tserver: ServerArgument) -> None:
    """Cancel the copy of a tablet to a server; what it has fetched is kept there for the next.

    Who asked for it may ask again: a tablet's leader does, of a member that
    needs a copy. `remove_replica` ends that.

    Example: kudu-py tablet cancel_copy 127.0.0.1:7051 TABLET TSERVER
    """

    async def body(masters: Masters) -> str:
        server = match_server(await masters.servers(), tserver)
        stub = tablet_copy_pb2_grpc.TabletCopyServiceStub(masters.dialer.channel(server.rpc_address))
        request = tablet_copy_pb2.CancelCopyRequest(dest_uuid=server.uuid, tablet_id=tablet)
        await call(stub.CancelCopy(request, timeout=CALL_TIMEOUT_S), address=server.rpc_address, wrote=True)
        return server.uuid

    print(f"the copy of tablet {tablet} to {run_with_masters(split_addresses(masters), body)} is cancelled")


@app.command("unsafe_replace_config")
def unsafe_replace_config(
    masters: MastersArgument,
    tablet: TabletArgument,
    tservers: Annotated[
        list[str], typer.Argument(metavar="TSERVER...", help="The members that stay; all of them must run.")
    ],
    yes: YesOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Give up all members of a tablet but these, without asking them. Acknowledged writes may be lost.

    For a tablet without a majority where `cluster recover_majority_loss`
    will not decide.

    Example: kudu-py tablet unsafe_replace_config 127.0.0.1:7051 TABLET TSERVER
    """
    addresses = split_addresses(masters)

    async def find(masters: Masters) -> Loss:
        uuids = [await masters.server_uuid(tserver) for tserver in tservers]
        return keep_only(await look_at(masters, tablet), uuids)

    loss = run_with_masters(addresses, find)
    for line in (*loss_lines(loss, now_micros()), "", NO_WAY_BACK):
        say(line)
    kept = counted(len(loss.kept), "member")
    confirm(f"Make these {kept} the only ones of tablet {tablet}?", yes=yes)
    if not still_as_seen([loss], [run_with_masters(addresses, find)]):
        raise KuduError(ErrorCode.ILLEGAL_STATE, f"nothing was done: tablet {tablet} changed meanwhile; look again")

    async def body(masters: Masters) -> RaftConfig:
        return await unsafe_change_config(
            masters.dialer,
            uuid=loss.survivor.uuid,
            address=loss.survivor.address,
            tablet_id=tablet,
            member_uuids=[replica.uuid for replica in loss.kept],
            caller_id=caller_id("unsafe_replace_config"),
        )

    _print_config(tablet, run_with_masters(addresses, body), format_)


def keep_only(tablet: TabletSeen, uuids: list[str]) -> Loss:
    """The loss of all members but these.

    Raises:
        KuduError: ILLEGAL_STATE if the tablet can elect a leader, which a rewritten config would not stop: two groups
            would come of one. NOT_FOUND or ILLEGAL_STATE that names the one that cannot stay.
    """
    if can_elect(tablet.voters):
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"tablet {tablet.tablet_id} has a majority that can elect a leader; `tablet remove_replica` gives up a "
            "member of such a tablet, and loses nothing",
        )
    for uuid in uuids:
        replica = tablet.replica(uuid)
        if replica is None:
            members = ", ".join(member.uuid for member in tablet.replicas)
            raise KuduError(
                ErrorCode.NOT_FOUND, f"{uuid} is no member of tablet {tablet.tablet_id}; its members are {members}"
            )
        if not replica.is_voter or replica.standing is not Standing.RUNS:
            why = replica.why or "is a PRE_VOTER"
            raise KuduError(ErrorCode.ILLEGAL_STATE, f"{uuid} cannot stay: it {why}")
    return Loss(tablet, tuple(by_log([replica for replica in tablet.voters if replica.uuid in uuids])))


def _print_config(tablet_id: str, config: RaftConfig, format_: ReportFormat) -> None:
    if format_ is ReportFormat.JSON:
        print(json.dumps({"tablet": tablet_id, **config_json(config)}, indent=2))
    else:
        print(f"tablet {tablet_id}: {config_text(config)}")
