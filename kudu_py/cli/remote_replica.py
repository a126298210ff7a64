"""`kudu-py remote_replica`: the replicas of one running tablet server, without the masters.

For those who must: the masters know nothing of what is done here, and may undo it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Annotated, Final, TypeVar

import typer

from kudu_py.cli.amounts import bytes_text
from kudu_py.cli.arguments import AddressArgument, FormatOption, ReportFormat, TabletArgument, YesOption, check_address
from kudu_py.cli.console import make_console, plain_table, say
from kudu_py.cli.copies import copies_of, under_way
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.membership import config_json, config_text
from kudu_py.cli.op import EXIT_INTERRUPTED
from kudu_py.cli.progress import Progress, ProgressLine
from kudu_py.cli.unsafe_config import (
    DELETES_A_MEMBER,
    FORGETS_ITS_VOTES,
    NO_WAY_BACK,
    caller_id,
    confirm,
    unsafe_change_config,
)
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import mint_id
from kudu_py.common.opid import OpId
from kudu_py.pb import (
    consensus_pb2,
    consensus_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tablet_copy_pb2,
    tserver_admin_pb2,
    tserver_admin_pb2_grpc,
    tserver_pb2,
    tserver_pb2_grpc,
)
from kudu_py.pb.tserver_pb2 import TabletStatus
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

T = TypeVar("T")

POLL_INTERVAL_S: Final = 0.5
DELETE_TIMEOUT_S: Final = 60.0

app = typer.Typer(help="The replicas of one running tablet server, past the masters.", no_args_is_help=True)


def _run(body: Callable[[GrpcDialer], Coroutine[object, object, T]]) -> T:
    async def main() -> T:
        dialer = GrpcDialer()
        try:
            return await body(dialer)
        finally:
            await dialer.close()

    return asyncio.run(main())


async def server_uuid(dialer: GrpcDialer, address: str) -> str:
    """Who lives at the address.

    Raises:
        KuduError: it does not answer.
    """
    stub = server_pb2_grpc.GenericServiceStub(dialer.channel(address))
    answer = await call(stub.GetStatus(server_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S), address=address)
    return answer.registration.uuid


async def replicas_of(dialer: GrpcDialer, address: str) -> list[TabletStatus]:
    """The replicas of the server, deleted ones too.

    Raises:
        KuduError: it does not answer, or is no tablet server.
    """
    stub = tserver_pb2_grpc.TabletServerServiceStub(dialer.channel(address))
    answer = await call(stub.ListTablets(tserver_pb2.ListTabletsRequest(), timeout=CALL_TIMEOUT_S), address=address)
    return list(answer.tablets)


@app.command("list")
def list_(
    tserver: AddressArgument,
    table: Annotated[str, typer.Option(help="Only replicas of this table.")] = "",
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """List the replicas of a server, deleted ones too, and where their logs end.

    Example: kudu-py remote_replica list 127.0.0.1:7050
    """
    address = check_address(tserver, "TSERVER")
    found = [each for each in _run(lambda dialer: replicas_of(dialer, address)) if table in ("", each.table_name)]
    if format_ is ReportFormat.JSON:
        print(json.dumps([replica_json(replica) for replica in found], indent=2))
        return
    titles = ("TABLET", "TABLE", "STATE", "ROLE", "TERM", "LAST", "COMMITTED", "CONFIG", "ROWS", "ON DISK", "ERROR")
    rows = [_row(replica) for replica in found]
    make_console().print(plain_table(titles, rows, numbers=("TERM", "COMMITTED", "CONFIG", "ROWS", "ON DISK")))


def _row(replica: TabletStatus) -> tuple[str, ...]:
    head = (replica.tablet_id, replica.table_name, state_text(replica))
    last = last_op_id_text(replica)
    if replica.state != tserver_pb2.RUNNING:
        return (*head, "-", "-", last, "-", "-", "-", "-", replica.error)
    state = replica.consensus_state
    return (
        *head,
        consensus_pb2.Role.Name(state.role),
        str(state.term),
        last,
        str(state.committed_index),
        str(state.committed_config.config_index),
        f"{replica.row_count:,}",
        bytes_text(replica.on_disk_bytes),
        replica.error,
    )


def state_text(replica: TabletStatus) -> str:
    """What the replica is doing, or, where its files are no whole replica, what they amount to."""
    if replica.data_state in (tserver_pb2.DELETED, tserver_pb2.COPYING):
        return tserver_pb2.TabletDataState.Name(replica.data_state)
    return tserver_pb2.TabletState.Name(replica.state)


def last_op_id_text(replica: TabletStatus) -> str:
    """Where its log ends, or ended: `5.1234`; `-` if nobody can say."""
    if replica.HasField("tombstone_last_op_id"):
        return str(OpId(replica.tombstone_last_op_id.term, replica.tombstone_last_op_id.index))
    if replica.state == tserver_pb2.RUNNING:
        last = replica.consensus_state.last_op_id
        return str(OpId(last.term, last.index))
    return "-"


def replica_json(replica: TabletStatus) -> dict[str, object]:
    """For programs; keys are stable."""
    state = replica.consensus_state
    last = last_op_id_text(replica)
    return {
        "tablet": replica.tablet_id,
        "table": replica.table_name,
        "state": tserver_pb2.TabletState.Name(replica.state),
        "data_state": tserver_pb2.TabletDataState.Name(replica.data_state),
        "error": replica.error,
        "role": consensus_pb2.Role.Name(state.role),
        "term": state.term,
        "leader": state.leader_uuid,
        "last_op_id": None if last == "-" else last,
        "committed_index": state.committed_index,
        "applied_index": state.applied_index,
        "config": config_json(state.committed_config),
        "rows": replica.row_count,
        "on_disk_bytes": replica.on_disk_bytes,
        "memory_bytes": replica.memory_bytes,
    }


@app.command()
def copy(
    tablet: TabletArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The tablet server that has it, host:port.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The tablet server that fetches it, host:port.")],
    force: Annotated[
        bool, typer.Option("--force-copy", help="Even if the target has a replica that is whole; it is deleted first.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until the copy has ended.")] = True,
) -> None:
    """Make a server fetch its replica of a tablet from another.

    It takes the source's config, and need not be a member of it.

    Example: kudu-py remote_replica copy TABLET 127.0.0.1:7050 127.0.0.1:7350
    """
    check_address(source, "SOURCE")
    if check_address(target, "TARGET") == source:
        raise typer.BadParameter("a replica is copied from another server", param_hint="TARGET")

    async def body(dialer: GrpcDialer) -> str:
        target_uuid, session_id = await begin_copy(dialer, tablet, source, target, force=force)
        if not wait:
            return f"tablet {tablet} is being copied to {target_uuid}"
        return await _await_copy(dialer, tablet, target_uuid, target, since=session_id)

    try:
        print(_run(body))
    except KeyboardInterrupt:
        say(f"the copy goes on by itself; `remote_replica list {target}` shows what became of it")
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def begin_copy(
    dialer: GrpcDialer, tablet_id: str, source: str, target: str, *, force: bool
) -> tuple[str, frozenset[str]]:
    """Begins a copy; the target's uuid, and the sessions that it knew before.

    Raises:
        KuduError: ILLEGAL_STATE if the target has a whole replica and `force` is not set; what a server refuses.
    """
    source_uuid, target_uuid = await server_uuid(dialer, source), await server_uuid(dialer, target)
    theirs = next((each for each in await replicas_of(dialer, source) if each.tablet_id == tablet_id), None)
    if theirs is None or theirs.state != tserver_pb2.RUNNING:
        has = "no replica" if theirs is None else f"a replica that is {state_text(theirs)}"
        raise KuduError(
            ErrorCode.ILLEGAL_STATE, f"the source {source} has {has} of tablet {tablet_id}: nothing to copy"
        )
    own = next((each for each in await replicas_of(dialer, target) if each.tablet_id == tablet_id), None)
    state = expected_state(own)
    if state == consensus_pb2.READY and not force:
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the target {target} has a replica of tablet {tablet_id}; --force-copy deletes it and copies it anew",
        )
    known = frozenset(session.session_id for session in await copies_of(dialer, target_uuid, target))
    request = consensus_pb2.StartTabletCopyRequest(
        dest_uuid=target_uuid,
        tablet_id=tablet_id,
        caller_uuid=mint_id(random.SystemRandom()),
        caller_term=theirs.consensus_state.term,
        expected_state=state,
        source_uuid=source_uuid,
        source_address=source,
    )
    stub = consensus_pb2_grpc.ConsensusServiceStub(dialer.channel(target))
    await call(stub.StartTabletCopy(request, timeout=CALL_TIMEOUT_S), address=target, wrote=True)
    return target_uuid, known


def expected_state(replica: TabletStatus | None) -> consensus_pb2.CopyTargetState.ValueType:
    """What a caller that has seen this expects of the target when the copy begins."""
    if replica is None:
        return consensus_pb2.DOES_NOT_EXIST
    return {
        tserver_pb2.DELETED: consensus_pb2.DELETED,
        tserver_pb2.COPYING: consensus_pb2.COPYING,
    }.get(replica.data_state, consensus_pb2.READY)


async def _await_copy(
    dialer: GrpcDialer, tablet_id: str, target_uuid: str, target: str, *, since: frozenset[str]
) -> str:
    """Shows progress until the copy has ended, and says how.

    Raises:
        KuduError: it failed.
    """
    loop = asyncio.get_running_loop()
    with ProgressLine() as line:
        while True:
            sessions = await copies_of(dialer, target_uuid, target)
            session = under_way(sessions, tablet_id, target_uuid)
            if session is None:
                own = next((each for each in await replicas_of(dialer, target) if each.tablet_id == tablet_id), None)
                if own is not None and own.state == tserver_pb2.RUNNING:
                    return f"tablet {tablet_id} is copied to {target_uuid}: {own.row_count:,} rows"
                failed = [s for s in sessions if s.tablet_id == tablet_id and s.session_id not in since and s.error]
                if failed or (own is not None and own.state == tserver_pb2.FAILED):
                    assert own is not None or failed
                    reason = failed[0].error if failed or own is None else own.error
                    raise KuduError(ErrorCode.IO_ERROR, f"tablet {tablet_id} was not copied to {target_uuid}: {reason}")
                line.show(Progress("opening the replica"), loop.time())
            else:
                doing = tablet_copy_pb2.CopySessionState.Name(session.state).lower()
                line.show(
                    Progress(
                        doing,
                        bytes_done=session.bytes_done,
                        bytes_total=session.bytes_total,
                        bytes_per_s=session.bytes_per_s,
                    ),
                    loop.time(),
                )
            await asyncio.sleep(POLL_INTERVAL_S)


@app.command()
def delete(
    tserver: AddressArgument,
    tablet: TabletArgument,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why, for the server's log.")],
    clean_unsafe: Annotated[
        bool, typer.Option("--clean-unsafe", help="Forget its votes as well; never of a replica that was counted.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a replica: rows and log go to quarantine for a while; it goes on voting.

    A member that is deleted is copied again by its leader: to be rid of it,
    use `tablet remove_replica`.

    Example: kudu-py remote_replica delete 127.0.0.1:7350 TABLET 'left over from a test'
    """
    address = check_address(tserver, "TSERVER")
    kind = tserver_admin_pb2.DELETED_COMPLETELY if clean_unsafe else tserver_admin_pb2.TOMBSTONED
    forgets = " and forget what it voted" if clean_unsafe else ""
    say(FORGETS_ITS_VOTES if clean_unsafe else DELETES_A_MEMBER)
    confirm(f"Delete the replica of tablet {tablet} on {address}{forgets}?", yes=yes)

    async def body(dialer: GrpcDialer) -> str:
        uuid = await server_uuid(dialer, address)
        stub = tserver_admin_pb2_grpc.TabletServerAdminServiceStub(dialer.channel(address))
        request = tserver_admin_pb2.DeleteTabletRequest(
            dest_uuid=uuid, tablet_id=tablet, reason=f"{reason} ({caller_id('delete')})", delete_type=kind
        )
        await call(stub.DeleteTablet(request, timeout=DELETE_TIMEOUT_S), address=address, wrote=True)
        return uuid

    print(f"the replica of tablet {tablet} on {_run(body)} is deleted")


@app.command("unsafe_change_config")
def unsafe_change_config_(
    tserver: AddressArgument,
    tablet: TabletArgument,
    members: Annotated[
        list[str], typer.Argument(metavar="UUID...", help="The members that stay; the server itself is one of them.")
    ],
    yes: YesOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Make a replica the leader of these members without asking them. Acknowledged writes may be lost.

    `cluster recover_majority_loss` chooses the replica for you, and says what
    would be lost.

    Example: kudu-py remote_replica unsafe_change_config 127.0.0.1:7050 TABLET UUID
    """
    address = check_address(tserver, "TSERVER")
    say(NO_WAY_BACK)
    confirm(f"Make {', '.join(members)} the only members of tablet {tablet}?", yes=yes)

    async def body(dialer: GrpcDialer) -> consensus_pb2.RaftConfig:
        return await unsafe_change_config(
            dialer,
            uuid=await server_uuid(dialer, address),
            address=address,
            tablet_id=tablet,
            member_uuids=members,
            caller_id=caller_id("unsafe_change_config"),
        )

    config = _run(body)
    if format_ is ReportFormat.JSON:
        print(json.dumps({"tablet": tablet, **config_json(config)}, indent=2))
    else:
        print(f"tablet {tablet}: {config_text(config)}")
