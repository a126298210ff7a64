"""`kudu-py local_replica`: the replicas in the data directory of a server that does not run.

All commands take the directory's lock, so that a running server is refused, and finish first what a crash interrupted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kudu_py.cli.amounts import bytes_text, instant_text
from kudu_py.cli.arguments import FormatOption, ReportFormat, TabletArgument, YesOption, check_address
from kudu_py.cli.console import make_console, plain_table, say
from kudu_py.cli.progress import Progress, ProgressLine
from kudu_py.cli.remote_replica import server_uuid
from kudu_py.cli.unsafe_config import DELETES_A_MEMBER, FORGETS_ITS_VOTES, NO_WAY_BACK, confirm, now_micros
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, is_id

# The files of replicas are Arrow's, which costs a quarter of a second to import: only commands that run pay.
if TYPE_CHECKING:
    from kudu_py.consensus.core.model import Member
    from kudu_py.consensus.metadata import ConsensusRecord
    from kudu_py.tablet.local_files import LocalFiles, LocalReplicaFiles
    from kudu_py.tablet.metadata import Superblock
    from kudu_py.tablet.quarantine import QuarantineEntry
    from kudu_py.tablet.tablet_copy.board import CopyProgress

COPY_AGAIN: Final = "what was fetched is kept; the same command goes on with it"

app = typer.Typer(help="The replicas in the directory of a server that does not run.", no_args_is_help=True)
cmeta_app = typer.Typer(help="Term, vote and members of a replica.", no_args_is_help=True)
app.add_typer(cmeta_app, name="cmeta")

DirectoryOption = Annotated[
    Path, typer.Option("--fs_wal_dir", help="The server's data directory, as its own flag has it.", resolve_path=True)
]


@contextmanager
def opened(directory: Path) -> Iterator[LocalFiles]:
    """The files of the server, its directory locked meanwhile.

    Raises:
        KuduError: CONFIGURATION_ERROR that names the directory: it is none of a server, or its server runs.
    """
    from kudu_py.daemon import layout, logs
    from kudu_py.env.posix_disk import PosixDisk
    from kudu_py.tablet.directories import ReplicaDirectories
    from kudu_py.tablet.local_files import LocalFiles

    logs.configure_for_tools()
    disk = PosixDisk()
    owned = layout.open_existing(disk, str(directory))
    try:
        yield LocalFiles(disk, ReplicaDirectories(owned.root), owned.uuid)
    finally:
        owned.close()


@app.command("list")
def list_(directory: DirectoryOption, format_: FormatOption = ReportFormat.TEXT) -> None:
    """List the replicas, deleted ones too, and the size of the quarantine; exits 1 if one is damaged.

    Example: kudu-py local_replica list --fs_wal_dir /data/kudu
    """
    with opened(directory) as files:
        replicas, quarantine = files.replicas(), files.quarantine()
        ends = {replica.tablet_id: _end_of_log(files, replica) for replica in replicas}
    if format_ is ReportFormat.JSON:
        shown = {
            "replicas": [replica_json(replica, ends[replica.tablet_id]) for replica in replicas],
            "quarantine": [quarantine_json(entry) for entry in quarantine],
        }
        print(json.dumps(shown, indent=2))
    else:
        titles = ("TABLET", "TABLE", "STATE", "LAST", "TERM", "CONFIG", "LOG", "ROWS", "ERROR")
        rows = [_row(replica, ends[replica.tablet_id]) for replica in replicas]
        make_console().print(plain_table(titles, rows, numbers=("TERM", "CONFIG", "LOG", "ROWS")))
        if quarantine:
            size = bytes_text(sum(entry.size_bytes for entry in quarantine))
            say(f"quarantine: {size} in {counted(len(quarantine), 'part')}; `purge_quarantine` removes it")
    raise typer.Exit(1 if any(replica.error for replica in replicas) else 0)


def _end_of_log(files: LocalFiles, replica: LocalReplicaFiles) -> str | None:
    if replica.superblock is None:
        return None
    last = files.last_op_id(replica.tablet_id)
    return str(last) if last is not None else None


def _row(replica: LocalReplicaFiles, end: str | None) -> tuple[str, ...]:
    superblock, record = replica.superblock, replica.consensus
    return (
        replica.tablet_id,
        superblock.table_name if superblock is not None else "-",
        superblock.data_state.value if superblock is not None else "-",
        end or "-",
        str(record.hard_state.term) if record is not None else "-",
        str(record.config.config_index) if record is not None else "-",
        bytes_text(replica.log_bytes),
        bytes_text(replica.row_bytes),
        replica.error,
    )


def replica_json(replica: LocalReplicaFiles, end: str | None) -> dict[str, object]:
    """For programs; keys are stable."""
    superblock, record = replica.superblock, replica.consensus
    return {
        "tablet": replica.tablet_id,
        "table": superblock.table_name if superblock is not None else None,
        "data_state": superblock.data_state.value if superblock is not None else None,
        "last_op_id": end,
        "consensus": record_json(record) if record is not None else None,
        "log_bytes": replica.log_bytes,
        "row_bytes": replica.row_bytes,
        "error": replica.error,
    }


def quarantine_json(entry: QuarantineEntry) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "tablet": entry.name.tablet_id,
        "kind": entry.name.kind.value,
        "created_micros": entry.name.created_micros,
        "bytes": entry.size_bytes,
    }


@app.command()
def delete(
    tablet: TabletArgument,
    directory: DirectoryOption,
    clean_unsafe: Annotated[
        bool, typer.Option("--clean-unsafe", help="Forget its votes as well; never of a replica that was counted.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a replica: rows and log go to quarantine; it goes on voting when its server runs again.

    Example: kudu-py local_replica delete TABLET --fs_wal_dir /data/kudu
    """
    forgets = " and forget what it voted" if clean_unsafe else ""
    with opened(directory) as files:
        say(FORGETS_ITS_VOTES if clean_unsafe else DELETES_A_MEMBER)
        confirm(f"Delete the replica of tablet {tablet} in {directory}{forgets}?", yes=yes)
        superblock = files.delete(tablet, now_micros=now_micros(), is_forgotten=clean_unsafe)
    print(_deleted_text(superblock, is_forgotten=clean_unsafe))


def _deleted_text(superblock: Superblock, *, is_forgotten: bool) -> str:
    head = f"the replica of tablet {superblock.tablet_id} is deleted"
    if is_forgotten:
        return f"{head}, and its votes are forgotten"
    if superblock.tombstone_last_op_id is None:
        return f"{head}; where its log ended is not known, so it will not vote"
    return f"{head}; its log ended at {superblock.tombstone_last_op_id}, and it will vote"


@app.command("purge_quarantine")
def purge_quarantine(
    directory: DirectoryOption,
    tablet: Annotated[str, typer.Argument(metavar="[TABLET]", help="Only what is left of this tablet.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is; remove nothing.")] = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Remove what deleted replicas and unfinished copies have left.

    Example: kudu-py local_replica purge_quarantine --fs_wal_dir /data/kudu --dry-run
    """
    with opened(directory) as files:
        if dry_run:
            chosen = [entry for entry in files.quarantine() if tablet in ("", entry.name.tablet_id)]
        else:
            chosen = files.purge_quarantine(tablet or None)
    if format_ is ReportFormat.JSON:
        print(json.dumps([quarantine_json(entry) for entry in chosen], indent=2))
        return
    titles = ("TABLET", "LEFT BY", "SINCE", "SIZE")
    rows = [
        (
            entry.name.tablet_id,
            "a copy" if entry.name.kind.value == "copy" else "a deletion",
            instant_text(entry.name.created_micros),
            bytes_text(entry.size_bytes),
        )
        for entry in chosen
    ]
    if rows:
        make_console().print(plain_table(titles, rows, numbers=("SIZE",)))
    size = bytes_text(sum(entry.size_bytes for entry in chosen))
    say(f"{counted(len(chosen), 'part')}, {size}{'' if dry_run else ' removed'}")


@app.command("copy_from_remote")
def copy_from_remote(
    tablet: TabletArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A running tablet server that has it, host:port.")],
    directory: DirectoryOption,
) -> None:
    """Fetch a replica from a running server; the one here must be deleted, or never have been.

    Example: kudu-py local_replica copy_from_remote TABLET 127.0.0.1:7050 --fs_wal_dir /data/kudu
    """
    check_address(source, "SOURCE")
    with opened(directory) as files:
        try:
            superblock = asyncio.run(_copy(files, tablet, source))
        except KeyboardInterrupt:
            say(COPY_AGAIN)
            raise
        last = files.last_op_id(tablet)
    print(f"tablet {tablet} of table {superblock.table_name} is copied from {source}, up to {last}")


async def _copy(files: LocalFiles, tablet_id: str, source: str) -> Superblock:
    from kudu_py.env.clock import SystemClock
    from kudu_py.env.posix_disk import PosixDiskThreads
    from kudu_py.rpc.dialer import GrpcDialer
    from kudu_py.tablet.context import ReplicaOptions

    loop = asyncio.get_running_loop()
    threads, dialer = PosixDiskThreads(), GrpcDialer()
    begun_at = loop.time()
    with ProgressLine() as line:

        def show(copied: CopyProgress) -> None:
            line.show(_progress(copied, loop.time() - begun_at), loop.time())

        try:
            return await files.copy_from_remote(
                tablet_id,
                source_uuid=ServerId(await server_uuid(dialer, source)),
                source_address=source,
                threads=threads,
                dialer=dialer,
                clock=SystemClock(),
                options=ReplicaOptions(),
                on_progress=show,
            )
        finally:
            await dialer.close()
            threads.close()


def _progress(copied: CopyProgress, seconds: float) -> Progress:
    fetched = copied.bytes_done - copied.bytes_resumed
    return Progress(
        "copying",
        bytes_done=copied.bytes_done,
        bytes_total=copied.bytes_total,
        bytes_per_s=round(fetched / seconds) if seconds > 0 else 0,
    )


@cmeta_app.command("print")
def print_(tablet: TabletArgument, directory: DirectoryOption, format_: FormatOption = ReportFormat.TEXT) -> None:
    """Print term, vote and committed config of a replica.

    Example: kudu-py local_replica cmeta print TABLET --fs_wal_dir /data/kudu
    """
    with opened(directory) as files:
        record = files.consensus(tablet)
    if format_ is ReportFormat.JSON:
        print(json.dumps(record_json(record), indent=2))
    else:
        print("\n".join(record_lines(record)))


@cmeta_app.command("rewrite_raft_config")
def rewrite_raft_config(
    tablet: TabletArgument,
    peers: Annotated[
        list[str],
        typer.Argument(metavar="PEER...", help="The members: uuid:host:port, or the uuid alone of one that is one."),
    ],
    directory: DirectoryOption,
    yes: YesOption = False,
) -> None:
    """Make these the members of the tablet, without asking them. Acknowledged writes may be lost.

    All of them become voters. What it does is in force when the server starts.
    `cluster recover_majority_loss` does the same on running servers, and
    chooses the replica.

    Example: kudu-py local_replica cmeta rewrite_raft_config TABLET PEER --fs_wal_dir /data/kudu
    """
    with opened(directory) as files:
        before = files.consensus(tablet)
        known = {str(member.uuid): member.address for member in before.config.members}
        members = [parse_peer(peer, known) for peer in peers]
        for text in (*record_lines(before), "", NO_WAY_BACK):
            say(text)
        confirm(f"Make {', '.join(member.uuid for member in members)} the members of tablet {tablet}?", yes=yes)
        after = files.rewrite_raft_config(tablet, members)
    print("\n".join(record_lines(after)))


def parse_peer(text: str, known: Mapping[str, str]) -> Member:
    """A voter out of `uuid:host:port`, or the uuid of a member whose address is known.

    Raises:
        KuduError: INVALID_ARGUMENT that shows it.
    """
    from kudu_py.consensus.core.model import Member, MemberType
    from kudu_py.rpc.address import parse_address

    uuid, _, address = text.partition(":")
    address = address or known.get(uuid, "")
    if not is_id(uuid) or not address:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"{text[:128]!r} is no uuid:host:port and no member's uuid; the members are {', '.join(known) or 'none'}",
        )
    return Member(ServerId(uuid), MemberType.VOTER, str(parse_address(address, what="the peer's address")))


def record_lines(record: ConsensusRecord) -> list[str]:
    """Term, vote and members of a replica, for people."""
    vote = record.hard_state.voted_for
    return [
        f"tablet {record.tablet_id}",
        f"term {record.hard_state.term}, {f'voted for {vote}' if vote else 'no vote given'}",
        f"committed config {record.config.config_index}",
        *[f"  {member.member_type.value:<9} {member.uuid} at {member.address}" for member in record.config.members],
    ]


def record_json(record: ConsensusRecord) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "tablet": record.tablet_id,
        "term": record.hard_state.term,
        "voted_for": record.hard_state.voted_for,
        "config_index": record.config.config_index,
        "members": [
            {
                "uuid": member.uuid,
                "type": member.member_type.value,
                "address": member.address,
                "promote": member.promote,
                "replace": member.replace,
            }
            for member in record.config.members
        ],
    }
