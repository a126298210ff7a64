"""Deleting a replica: to a tombstone that votes, or altogether; rolled forward after a crash at any step.

*To a tombstone* (seed 002, "Tablet deletion"), after the replica has stopped and its consensus metadata is durable, so
that no vote it gave is forgotten:
 1. A directory in the quarantine, durable: what follows names it.
 2. A copy of the superblock in it, durable: afterwards nobody knows which files the rows were.
 3. The superblock, DELETED, with the last OpId of the log and the name of the directory: the point of no return. The
    OpId is needed to judge candidates once the log is gone; an earlier removal of the log could leave a replica that
    looks alive without it. A crash before this leaves the replica as it was, and a directory that is purged in time.
 4. A copy of the consensus metadata in the quarantine. The file itself stays for ever: a tombstone votes, and a replica
    that comes back must not have forgotten.
 5. The log, then the rows, moved there by renaming. Which of the two steps a crash interrupted is seen from what is
    left in the old place; `roll_forward` goes on from there.
Without a quarantine 1, 2 and 4 are left out and 5 removes.

*Altogether*: the same with a superblock that says so too, and then
 6. the consensus metadata, and last the superblock: while it is there, what is left of this is done by the next start.
Only for a replica that never was counted, or for an administrator who knows that it never will be again.

*A copy that failed* goes back to DELETED: what had been put in place already is moved back to where it was gathered,
for the next copy, and then the superblock says DELETED again.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import structlog

from kudu_py.common.opid import OpId
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.env.disk import Disk
from kudu_py.tablet import metadata, quarantine
from kudu_py.tablet.directories import ReplicaDirectories, remove_tree
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineKind, QuarantineName
from kudu_py.tablet.tablet_copy.landing import LandingDirectory

_log = structlog.get_logger(__name__)


def delete_files(
    disk: Disk,
    directories: ReplicaDirectories,
    superblock: Superblock,
    last: OpId | None,
    *,
    quarantined_at_micros: int | None = None,
    is_forgotten: bool = False,
) -> Superblock:
    """Turns a stopped replica into a tombstone, durably; the order is explained above. Blocks: for disk jobs.

    Args:
        last: the end of its log; None if it is not known.
        quarantined_at_micros: now, if its files go to the quarantine; None: they are removed.
        is_forgotten: nothing stays of it.

    Raises:
        OSError: whether it is DELETED is not known before a restart; fatal for the process.
    """
    name = ""
    if quarantined_at_micros is not None:
        name = quarantine.open_directory(
            disk, directories, superblock.tablet_id, QuarantineKind.DELETED, quarantined_at_micros
        )
        _copy_file(
            disk,
            directories.superblock_path(superblock.tablet_id),
            quarantine.path_of(directories, name),
            quarantine.SUPERBLOCK_NAME,
        )
        _log.debug("deletion_quarantine_made", tablet=superblock.tablet_id, quarantine=name)
    tombstone = replace(superblock.as_tombstone(last, name), is_forgotten=is_forgotten)
    metadata.write(disk, directories.superblock_path(superblock.tablet_id), tombstone)
    _log.debug("deletion_marked", tablet=superblock.tablet_id)
    _finish(disk, directories, tombstone)
    return tombstone


def abandon_copy(disk: Disk, directories: ReplicaDirectories, copying: Superblock) -> Superblock:
    """Takes a COPYING replica back to the tombstone that it was, durably. Blocks: for disk jobs.

    Raises:
        OSError: as `delete_files`.
    """
    assert copying.data_state is DataState.COPYING, copying.data_state
    tablet_id, name = copying.tablet_id, QuarantineName.parse(copying.quarantine)
    if name is not None and copying.copy_source is not None:
        gathered = LandingDirectory(quarantine.path_of(directories, str(name)), copying.copy_source)
        if disk.exists(gathered.path):
            _move(disk, directories.log_directory(tablet_id), gathered.log)
            _move(disk, directories.row_directory(tablet_id), gathered.rows)
    tombstone = copying.as_tombstone(copying.tombstone_last_op_id)
    metadata.write(disk, directories.superblock_path(tablet_id), tombstone)
    _finish(disk, directories, tombstone)
    return tombstone


def forget(disk: Disk, directories: ReplicaDirectories, tombstone: Superblock) -> None:
    """Removes what a tombstone remembers, and with it the tombstone. Blocks: for disk jobs.

    Raises:
        OSError: as `delete_files`.
    """
    assert tombstone.data_state is DataState.DELETED, tombstone.data_state
    forgotten = replace(tombstone, is_forgotten=True)
    metadata.write(disk, directories.superblock_path(tombstone.tablet_id), forgotten)
    _finish(disk, directories, forgotten)


def roll_forward(disk: Disk, directories: ReplicaDirectories, superblock: Superblock) -> Superblock | None:
    """Finishes what a crash interrupted (seed 002, "Tablet startup"). Blocks: for disk jobs.

    Returns:
        the superblock as it is then; None if the replica was to be forgotten.
    """
    if superblock.data_state is DataState.COPYING:
        return abandon_copy(disk, directories, superblock)
    if superblock.data_state is DataState.DELETED:
        _finish(disk, directories, superblock)
        return None if superblock.is_forgotten else superblock
    return superblock


def _finish(disk: Disk, directories: ReplicaDirectories, tombstone: Superblock) -> None:
    """Steps 4 to 6; each finds out whether it was done."""
    tablet_id = tombstone.tablet_id
    log, rows = directories.log_directory(tablet_id), directories.row_directory(tablet_id)
    name = QuarantineName.parse(tombstone.quarantine)
    into = quarantine.path_of(directories, str(name)) if name is not None else ""
    if into and disk.exists(into):
        if disk.exists(log) or disk.exists(rows):
            path = directories.consensus_metadata_path(tablet_id)
            _copy_file(disk, path, into, quarantine.CONSENSUS_METADATA_NAME)
            _log.debug("deletion_metadata_saved", tablet=tablet_id)
        if _move(disk, log, f"{into}/{quarantine.LOG_NAME}"):
            _log.debug("deletion_log_moved", tablet=tablet_id)
        if _move(disk, rows, f"{into}/{quarantine.ROWS_NAME}"):
            _log.debug("deletion_rows_moved", tablet=tablet_id)
    else:
        remove_tree(disk, log)
        remove_tree(disk, rows)
    if tombstone.is_forgotten:
        ConsensusMetadata.delete(disk, directories.consensus_metadata_path(tablet_id))
        disk.unlink(directories.superblock_path(tablet_id))
        disk.sync_dir(directories.superblocks)


def _copy_file(disk: Disk, path: str, into: str, name: str) -> None:
    """Copies a small file as it is, damaged or not, durably; nothing if there is none."""
    if not disk.exists(path):
        return
    source = disk.open(path)
    try:
        content = source.read(0, source.size())
    finally:
        source.close()
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(f"{into}/{name}")
    target = disk.create(f"{into}/{name}")
    try:
        target.write(0, [content])
        target.sync()
    finally:
        target.close()
    disk.sync_dir(into)


def _move(disk: Disk, path: str, to: str) -> bool:
    """Moves a directory, durably; whether it was there."""
    if not disk.exists(path):
        return False
    disk.rename(path, to)
    disk.sync_dir(to.rpartition("/")[0])  # before where it comes from: a crash in between must not find it nowhere
    disk.sync_dir(path.rpartition("/")[0])
    return True
