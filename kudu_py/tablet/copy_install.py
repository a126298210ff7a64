"""Putting a fetched replica in place (seed 002, "Follower Tablet Copy"), as one change that a crash undoes or not.

In this order, while the superblock says COPYING:
 1. The fetched log is read, as at any start: what cannot be opened, or does not reach from the checkpoint to what this
    server had acknowledged, is refused while going back costs nothing.
 2. Consensus metadata, merged: the higher term, the own vote, the source's config. Before the superblock, since a
    replica that lives with an older term than it knows might vote twice.
 3. Rows and log, moved by renaming, both places synced.
 4. The superblock, READY: from here on the replica lives. A crash before this finds COPYING, takes files that were
    moved back to where they were gathered, and a tombstone votes as before, with the merged metadata: nothing in it was
    taken back.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord, merge
from kudu_py.env.disk import Disk
from kudu_py.tablet import metadata, quarantine
from kudu_py.tablet.directories import ReplicaDirectories, remove_tree
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineKind
from kudu_py.tablet.tablet_copy.client import FetchedReplica
from kudu_py.wal.recovery import recover

_log = structlog.get_logger(__name__)


def begin_copying(
    disk: Disk, directories: ReplicaDirectories, remembered: Superblock, source: ServerId, now_micros: int
) -> Superblock:
    """Writes the superblock COPYING of what is a tombstone, or nothing at all yet; what it is then. Blocks.

    Args:
        remembered: the tombstone, or `never_hosted`.

    Raises:
        OSError: whether it is COPYING is not known before a restart; fatal for the process.
    """
    tablet_id = remembered.tablet_id
    name = quarantine.open_directory(disk, directories, tablet_id, QuarantineKind.COPY, now_micros)
    path = directories.consensus_metadata_path(tablet_id)
    if not disk.exists(path):
        # Before the superblock: a replica that votes, and be it as a tombstone, has its memory on disk.
        ConsensusMetadata.create(disk, path, ConsensusRecord(tablet_id, HardState(0, None), RaftConfig(0, ())))
    copying = remembered.as_copying(source, name)
    metadata.write(disk, directories.superblock_path(tablet_id), copying)
    _log.debug("copy_marked", tablet=tablet_id, source=source)
    return copying


def never_hosted(tablet_id: TabletId) -> Superblock:
    """What is remembered of a tablet that was never here. It never acknowledged anything, so if the copy fails it may
    vote for anybody, once a term.
    """
    return replace(Superblock.unknown(tablet_id, DataState.DELETED), tombstone_last_op_id=MIN_OP_ID)


def last_op_id_of_log(disk: Disk, directory: str, tablet_id: TabletId) -> OpId:
    """The last entry of a log that nobody has open; its torn tail is cut, as at any start. Blocks: for disk jobs.

    Raises:
        KuduError: CORRUPTION. OSError: the disk could not be read.
    """
    recovered = recover(disk, directory, tablet_id, start_after=MIN_OP_ID)
    for segment in (*recovered.segments, *((recovered.spare,) if recovered.spare is not None else ())):
        segment.end_use()
    return recovered.last


def known_end_of_log(disk: Disk, directories: ReplicaDirectories, superblock: Superblock) -> OpId | None:
    """The end of the log of a READY replica that does not run; None if it cannot be told, and then nobody must pretend:
    a vote given in its name could elect a leader that lacks what it acknowledged. Blocks: for disk jobs.

    A log without any entry is not believed: it looks the same as one whose files are gone.
    """
    tablet_id = superblock.tablet_id
    directory = directories.log_directory(tablet_id)
    try:
        last = last_op_id_of_log(disk, directory, tablet_id) if disk.exists(directory) else MIN_OP_ID
    except (KuduError, OSError) as error:
        _log.warning("end_of_log_unknown", tablet=tablet_id, error=str(error))
        return None
    return last if last > MIN_OP_ID and last >= superblock.checkpoint else None


def last_op_id_fetched(disk: Disk, fetched: FetchedReplica) -> OpId:
    """Step 1: the end of the fetched log. Blocks: for disk jobs.

    Raises:
        KuduError: CORRUPTION that says what does not fit. OSError: the disk could not be read.
    """
    superblock, tablet_id = fetched.superblock, fetched.superblock.tablet_id
    if superblock.data_state is not DataState.READY or fetched.consensus.tablet_id != tablet_id:
        raise _misfit(tablet_id, f"its superblock is {superblock.data_state.value}")
    last = last_op_id_of_log(disk, fetched.log_directory, tablet_id)
    if last < superblock.checkpoint:
        raise _misfit(tablet_id, f"its log ends at {last}, before its checkpoint {superblock.checkpoint}")
    if last.index < fetched.consensus.config.config_index:
        raise _misfit(
            tablet_id, f"its log ends at {last}, before its committed config {fetched.consensus.config.config_index}"
        )
    return last


def put_in_place(
    disk: Disk, directories: ReplicaDirectories, local: ConsensusRecord | None, fetched: FetchedReplica
) -> Superblock:
    """Steps 2 to 4; the superblock as it is then. Blocks: for disk jobs.

    Raises:
        OSError: which of its metadata holds is not known before a restart; fatal for the process.
    """
    tablet_id = fetched.superblock.tablet_id
    ConsensusMetadata.create(disk, directories.consensus_metadata_path(tablet_id), merge(local, fetched.consensus))
    _log.debug("copy_metadata_merged", tablet=tablet_id)
    for what, gathered, place in (
        ("rows", fetched.rows_directory, directories.row_directory(tablet_id)),
        ("log", fetched.log_directory, directories.log_directory(tablet_id)),
    ):
        remove_tree(disk, place)  # nothing that counts: the replica was deleted before
        disk.rename(gathered, place)
        disk.sync_dir(place.rpartition("/")[0])
        disk.sync_dir(gathered.rpartition("/")[0])
        _log.debug("copy_moved", tablet=tablet_id, what=what)
    ready = replace(
        fetched.superblock,
        data_state=DataState.READY,
        tombstone_last_op_id=None,
        quarantine="",
        copy_source=None,
        is_forgotten=False,
    )
    metadata.write(disk, directories.superblock_path(tablet_id), ready)
    _log.debug("copy_ready", tablet=tablet_id)
    return ready


def _misfit(tablet_id: TabletId, why: str) -> KuduError:
    return KuduError(ErrorCode.CORRUPTION, f"what was copied of tablet {tablet_id} is no whole replica: {why}")
