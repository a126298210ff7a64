"""Creating a replica's files, and superblock, consensus metadata and log to what a running replica is made of.

*Creating* a replica, in this order:
 1. Consensus metadata. A replica without it might vote twice in a term.
 2. The directories of log and rows, empty: whatever an unfinished creation left there goes.
 3. The superblock, READY. From here on the replica exists. Only now may it vote or take entries, so a crash before
    this leaves nothing that anybody relies on, and creating again is safe. A READY superblock without a log directory
    was never written, so finding one later means that a log was lost: that is refused, not repaired, for the replica
    may have acknowledged entries.

*Opening* a READY replica:
 1. Consensus metadata.
 2. Files that the superblock does not name are removed: a flush or compaction did not get as far as the superblock.
    Before the rows are opened, so that no new file meets an old one of its name.
 3. The rows, as of the checkpoint F.
 4. The log, whose torn tail is cut. Entries after F are *not* applied here: nothing on this disk says which of them are
    committed. Consensus finds that out (from the leader, or by committing an entry of its own term) and then applies
    them from the log, in bounded batches. So a replica that has joined its group is RUNNING, and its rows catch up
    before it
    serves: a leader by its own no-op, a follower by safe time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId, is_id
from kudu_py.common.opid import OpId
from kudu_py.consensus.bootstrap import BootstrapResult, read_bootstrap
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord
from kudu_py.env.disk import Disk
from kudu_py.tablet import metadata
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.directories import ReplicaDirectories, empty_tree, is_directory
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.retained_results import RetainedResults
from kudu_py.tablet.tablet import Tablet
from kudu_py.wal.log import Log

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedReplica:
    """What a replica is made of before it joins its group; rows and results as of the checkpoint."""

    consensus_metadata: ConsensusMetadata
    tablet: Tablet
    retained: RetainedResults
    log: Log
    bootstrap: BootstrapResult


def create_files(disk: Disk, directories: ReplicaDirectories, superblock: Superblock, config: RaftConfig) -> None:
    """Creates an empty replica, durably; the order is explained above. Blocks: for disk jobs."""
    assert superblock.data_state is DataState.READY, superblock.data_state
    tablet_id = superblock.tablet_id
    record = ConsensusRecord(tablet_id, HardState(0, None), config)
    consensus_metadata_path = directories.consensus_metadata_path(tablet_id)
    require_no_promises(disk, consensus_metadata_path, tablet_id)
    ConsensusMetadata.create(disk, consensus_metadata_path, record)
    for path in (directories.log_directory(tablet_id), directories.row_directory(tablet_id)):
        disk.make_dir(path)
        empty_tree(disk, path)
        disk.sync_dir(path)
    disk.sync_dir(directories.logs)
    disk.sync_dir(directories.rows)
    metadata.write(disk, directories.superblock_path(tablet_id), superblock)


def require_promises(disk: Disk, directories: ReplicaDirectories) -> None:
    """Refuses directories that have lost the memory of what their replicas promised. Blocks: for disk jobs.

    A replica without its term and vote may vote twice, one without its log may have acknowledged what it no longer has;
    one alone is FAILED and replaced. A new disk in the place of a broken one, or one that is not mounted, does that to
    all replicas at once, and then the server must not speak under its old name (seed 002, "Failure of a disk with
    consensus metadata is a catastrophic failure").

    Raises:
        KuduError: CONFIGURATION_ERROR that says what to do.
    """
    if not disk.exists(directories.superblocks):
        return
    promising, ready = set(), set()
    for tablet_id in directories.tablet_ids(disk):
        try:
            superblock = metadata.read(disk, directories.superblock_path(tablet_id), tablet_id)
        except KuduError:
            continue
        if not superblock.is_forgotten:
            promising.add(tablet_id)
        if superblock.data_state is DataState.READY:
            ready.add(tablet_id)
    for tablet_ids, path, what in (
        (promising, directories.consensus_metadata, "terms and votes"),
        (ready, directories.logs, "logs"),
    ):
        if tablet_ids and not (disk.exists(path) and tablet_ids.intersection(disk.list_dir(path))):
            raise _all_lost(directories, path, what)


def _all_lost(directories: ReplicaDirectories, path: str, what: str) -> KuduError:
    return KuduError(
        ErrorCode.CONFIGURATION_ERROR,
        f"{path} holds nothing of the replicas that {directories.superblocks} names: their {what} are lost, and a "
        "server that does not know what it promised must not speak under its old name. If a file system is not "
        f"mounted, mount it. If it is gone for good, remove everything in {directories.root} and start again: the "
        "server comes up with a new uuid, and its old replicas are replaced",
        details={"path": path},
    )


def remove_unfinished_creations(disk: Disk, directories: ReplicaDirectories) -> list[str]:
    """Removes what creations that were cut short left: empty directories. Blocks: for disk jobs.

    Returns:
        directories that no superblock speaks of but that are not empty. No creation leaves such; a superblock may have
        been lost, so they are not touched.
    """
    known = set(directories.tablet_ids(disk))
    lost: list[str] = []
    for parent in (directories.logs, directories.rows):
        for name in disk.list_dir(parent):
            path = f"{parent}/{name}"
            if name in known or not is_id(name) or not is_directory(disk, path):
                continue
            if disk.list_dir(path):
                lost.append(path)
            else:
                disk.remove_dir(path)
    return lost


async def open_replica(
    context: ServerContext,
    superblock: Superblock,
    *,
    on_durable: Callable[[OpId], None],
    on_failure: Callable[[BaseException], None],
) -> OpenedReplica:
    """Opens a READY replica; the order is explained above.

    Args:
        on_durable, on_failure: what the log reports once entries are appended.

    Raises:
        KuduError: CORRUPTION that names the file. OSError: the disk could not be read. Everything opened is closed
        then.
    """
    assert superblock.data_state is DataState.READY, superblock.data_state
    tablet_id, directories, disk = superblock.tablet_id, context.directories, context.threads.disk

    def open_rows() -> tuple[ConsensusMetadata, Tablet]:
        consensus_metadata = _load_consensus_metadata(disk, directories, tablet_id)
        _require_directory(disk, directories.log_directory(tablet_id), "log")
        _require_directory(disk, directories.row_directory(tablet_id), "rows")
        _remove_unnamed(disk, directories.row_directory(tablet_id), superblock)
        tablet = Tablet.open(
            schema=superblock.schema,
            options=context.options.tablet,
            directory=directories.row_directory(tablet_id),
            disk=disk,
            records=superblock.rows,
        )
        return consensus_metadata, tablet

    consensus_metadata, tablet = await context.threads.run(open_rows)
    log = await Log.open(
        directory=directories.log_directory(tablet_id),
        tablet_id=tablet_id,
        threads=context.threads,
        options=context.options.wal,
        on_durable=on_durable,
        on_failure=on_failure,
        cache_budget=context.log_cache,
    )
    if (torn := log.torn_tail) is not None:
        # Usual after a power cut while writing. Worth a line, for it is also what rot at the very end looks like.
        _log.warning(
            "log_tail_cut",
            tablet=tablet_id,
            path=torn.path,
            offset=torn.offset,
            announced=str(torn.last_op_id) if torn.last_op_id is not None else "",
            last=str(log.last_op_id),
        )
    try:
        bootstrap = await read_bootstrap(
            log, applied=superblock.checkpoint, applied_timestamp=superblock.checkpoint_timestamp
        )
    except BaseException:
        await log.close()
        raise
    return OpenedReplica(consensus_metadata, tablet, RetainedResults(superblock.retained), log, bootstrap)


def _load_consensus_metadata(disk: Disk, directories: ReplicaDirectories, tablet_id: TabletId) -> ConsensusMetadata:
    path = directories.consensus_metadata_path(tablet_id)
    try:
        return ConsensusMetadata.load(disk, path, tablet_id)
    except FileNotFoundError as error:
        raise _lost(path, "the consensus metadata (term and vote)") from error


def require_no_promises(disk: Disk, path: str, tablet_id: TabletId) -> None:
    """Refuses to create where another replica made promises: its superblock was lost, and they may not be forgotten."""
    try:
        found = ConsensusMetadata.load(disk, path, tablet_id).hard_state
    except FileNotFoundError:
        return
    if found.term > 0:
        raise KuduError(
            ErrorCode.CORRUPTION,
            f"{path} remembers term {found.term} of a replica whose superblock is missing; move it away only if that "
            "replica is gone from its group's config",
            details={"path": path},
        )


def _require_directory(disk: Disk, path: str, what: str) -> None:
    if not disk.exists(path):
        raise _lost(path, f"the directory of the {what}")


def _lost(path: str, what: str) -> KuduError:
    return KuduError(
        ErrorCode.CORRUPTION,
        f"{path}: {what} is missing; the replica may have made promises that it no longer knows, so it is not started",
        details={"path": path},
    )


def _remove_unnamed(disk: Disk, path: str, superblock: Superblock) -> None:
    named = {file.name for file in superblock.rows.files}
    unnamed = [name for name in disk.list_dir(path) if name not in named]
    for name in unnamed:
        disk.unlink(f"{path}/{name}")
    if unnamed:
        disk.sync_dir(path)
        _log.info("unnamed_files_removed", tablet=superblock.tablet_id, files=len(unnamed))
