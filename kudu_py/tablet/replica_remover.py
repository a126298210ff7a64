"""`ReplicaRemover`: stops replicas and turns them into tombstones, or removes what tombstones remember.

Whoever asks holds the tablet's transition. The order on disk is explained in `deletion.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from kudu_py.common.ids import TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.tablet import copy_install, deletion
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.replica_map import ReplicaMap
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica

_log = structlog.get_logger(__name__)
T = TypeVar("T")


async def change_files(context: ServerContext, job: Callable[[], T]) -> T:
    """A job after whose failure nobody knows what the metadata on disk says: the process has to end. A restart finds
    out, and rolls forward.

    Raises:
        OSError: it was fatal.
    """
    try:
        return await context.threads.run(job)
    except OSError as error:
        context.on_fatal(error)
        raise


class ReplicaRemover:
    """The deletions of one server."""

    def __init__(self, context: ServerContext, hosted: ReplicaMap) -> None:
        self._context = context
        self._hosted = hosted

    async def tombstone(self, tablet_id: TabletId, *, is_forgotten: bool = False) -> Superblock:
        """Stops a replica and turns it into a tombstone; durable on return.

        Args:
            is_forgotten: the tombstone is gone as well on return.

        Raises:
            OSError: fatal.
        """
        context, stopping = self._context, self._hosted.replicas[tablet_id]
        last_op_id = await self._stop(stopping)
        now = context.clock.wall_micros() if context.options.quarantine.keeps else None
        tombstone = await change_files(
            context,
            lambda: deletion.delete_files(
                context.threads.disk,
                context.directories,
                stopping.superblock,
                last_op_id,
                quarantined_at_micros=now,
                is_forgotten=is_forgotten,
            ),
        )
        self._hosted.become_tombstone(tombstone)
        if is_forgotten:
            del self._hosted.tombstones[tablet_id]
        _log.info("replica_tombstoned", tablet=tablet_id, last_op_id=str(last_op_id), quarantine=tombstone.quarantine)
        return tombstone

    async def forget(self, tablet_id: TabletId) -> None:
        """Removes a tombstone that nobody asks for votes any more.

        Raises:
            OSError: fatal.
        """
        context, tombstone = self._context, self._hosted.tombstones[tablet_id]
        await change_files(context, lambda: deletion.forget(context.threads.disk, context.directories, tombstone))
        del self._hosted.tombstones[tablet_id]

    async def last_op_id(self, replica: TabletReplica) -> OpId | None:
        """The end of the log of a replica that does not run; None if it cannot be told."""
        log, context, superblock = replica.opened_log, self._context, replica.superblock
        if log is not None:
            return log.last_op_id if log.last_op_id > MIN_OP_ID else None
        return await context.threads.run(
            lambda: copy_install.known_end_of_log(context.threads.disk, context.directories, superblock)
        )

    async def _stop(self, replica: TabletReplica) -> OpId | None:
        """Stops the replica; the end of its log, or None if it is not known."""
        if replica.state is not ReplicaState.RUNNING:
            last_op_id = await self.last_op_id(replica)
            await replica.stop()
            return last_op_id
        consensus = replica.consensus
        await replica.stop()
        # Votes given before the stop may still be on their way to the disk; nothing new comes.
        await metadata_durable(consensus.metadata)
        return consensus.last_op_id
