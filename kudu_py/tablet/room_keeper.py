"""`RoomKeeper`: purges the quarantine, and opens again what found no room to be opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.disk import Disk
from kudu_py.env.sparing_disk import require_free
from kudu_py.tablet import quarantine
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.quarantine import QuarantineEntry
from kudu_py.tablet.replica_map import ReplicaMap
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica

_log = structlog.get_logger(__name__)

NEW_REPLICA_BYTES = 64 << 10
"""What an empty replica takes on the disk at most: three small files and two directories, each some blocks."""


class RoomKeeper:
    """The room of one server's disk, as far as replicas are concerned that do not run."""

    def __init__(
        self, context: ServerContext, hosted: ReplicaMap, open_replica: Callable[[TabletReplica], Awaitable[None]]
    ) -> None:
        """Args: open_replica: starts a replica, when it is its turn."""
        self._context = context
        self._hosted = hosted
        self._open = open_replica

    def require_room(self, disk: Disk, tablet_id: str) -> None:
        """Refuses to create a replica in what is kept free for votes and superblocks of those there are. Blocks.

        Raises:
            KuduError: DISK_FULL, try later.
        """
        context = self._context
        try:
            require_free(disk, context.directories.root, NEW_REPLICA_BYTES, context.options.wal.disk_reserved_bytes)
        except OSError as error:
            raise KuduError(
                ErrorCode.DISK_FULL,
                f"tablet {tablet_id} is not created on a full disk: {error.strerror}",
                verdict=Verdict.TRY_LATER,
            ) from error

    async def purge_quarantine(self) -> list[QuarantineEntry]:
        """Removes from the quarantine what is too old, too much, or in the way of replicas that need room.

        Returns:
            what went.
        """
        context = self._context
        disk, directories, options = context.threads.disk, context.directories, context.options
        # Room for the next log segments and flushes, well before anything has to wait.
        wanted_bytes = 2 * options.wal.disk_reserved_bytes

        def look() -> tuple[list[QuarantineEntry], int]:
            return quarantine.entries(disk, directories), disk.free_bytes(directories.root)

        try:
            found, free_bytes = await context.threads.run(look)
        except OSError as error:
            # What cannot be looked at takes space; nothing that lives depends on it.
            _log.warning("quarantine_unreadable", error=str(error))
            return []
        expired = quarantine.choose_expired(
            found,
            options.quarantine,
            now_micros=context.clock.wall_micros(),
            missing_bytes=max(0, wanted_bytes - free_bytes),
            in_use=self._hosted.changing,
        )
        return [entry for entry in expired if await self._purge(entry)]

    async def _purge(self, entry: QuarantineEntry) -> bool:
        """Removes one directory, unless somebody works with the tablet's files."""
        tablet_id, context = entry.name.tablet_id, self._context
        if tablet_id in self._hosted.changing or self._hosted.is_stopping:
            return False
        try:
            with self._hosted.purging(tablet_id):
                await context.threads.run(
                    lambda: quarantine.remove(context.threads.disk, context.directories, entry.name)
                )
        except OSError as error:
            # It takes space until the next time; nothing depends on it.
            _log.warning("quarantine_not_purged", name=str(entry.name), error=str(error))
            return False
        _log.info("quarantine_purged", name=str(entry.name), size_bytes=entry.size_bytes)
        return True

    async def reopen(self) -> int:
        """Opens replicas again that FAILED because the disk was full, once it is not; how many run now."""
        context, hosted = self._context, self._hosted
        full = [replica for replica in hosted.replicas.values() if lacks_room(replica)]
        reopened = 0
        for failed in full:
            tablet_id = failed.tablet_id
            free_bytes = await context.threads.run(lambda: context.threads.disk.free_bytes(context.directories.root))
            if free_bytes < context.options.wal.disk_reserved_bytes + NEW_REPLICA_BYTES:
                break
            if tablet_id in hosted.changing or hosted.is_stopping or hosted.replicas.get(tablet_id) is not failed:
                continue
            with hosted.transition(tablet_id, "being opened"):
                await failed.stop()
                replica = hosted.become_replica(TabletReplica(context, failed.superblock))
                await self._open(replica)
            reopened += replica.state is ReplicaState.RUNNING
        return reopened


def lacks_room(replica: TabletReplica) -> bool:
    """Whether it FAILED only because the disk was full: it is whole, and needs room and nothing else."""
    error = replica.error
    return replica.state is ReplicaState.FAILED and isinstance(error, KuduError) and error.code is ErrorCode.DISK_FULL
