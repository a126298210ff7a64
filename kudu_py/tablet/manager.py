"""`TabletManager`: open, create, delete; provides `ReplicaLookup` in both daemons.

The replicas of a server by tablet id. Whatever changes the set of files of a tablet (creating, deleting, copying)
holds the tablet's *transition* meanwhile; a second one is told to come back. A replica that cannot be opened is FAILED
and reported with its reason, the others run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum, unique
from typing import TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.workers import Workers
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.dialer import Dialer
from kudu_py.tablet import bootstrap, deletion, metadata
from kudu_py.tablet.context import ReplicaOptions, ServerContext
from kudu_py.tablet.copies_to_here import CopiesToHere
from kudu_py.tablet.copy_order import (
    CopyOrder,
    already_in_progress,
)
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineEntry
from kudu_py.tablet.replica_map import ReplicaMap
from kudu_py.tablet.replica_remover import ReplicaRemover
from kudu_py.tablet.room_keeper import RoomKeeper
from kudu_py.tablet.tablet_copy.board import CopyProgressBoard
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tablet.tombstone import TombstoneVoters
from kudu_py.wal.recent import CacheBudget

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_HANDOVER_POLL_S = 0.02


@unique
class DeleteType(Enum):
    """How thoroughly a replica is deleted; upstream's `TabletDataState` of a DeleteTablet."""

    TOMBSTONED = "TOMBSTONED"
    """Rows and log go; term, vote and last OpId stay for ever, and it votes."""
    DELETED_COMPLETELY = "DELETED_COMPLETELY"
    """What it promised goes too: only if it never was counted, or never will be again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTablet:
    """A tablet to create: what it is a part of, and who its first members are."""

    tablet_id: TabletId
    table_id: str
    table_name: str
    schema: Schema
    partition_schema: PartitionSchema
    partition: Partition
    config: RaftConfig


class TabletManager:
    """All replicas of a server. See `ReplicaLookup` for what consensus wants of it."""

    def __init__(
        self,
        *,
        uuid: ServerId,
        address: str,
        directories: ReplicaDirectories,
        threads: DiskThreads,
        workers: Workers,
        dialer: Dialer,
        clock: Clock,
        hybrid_clock: HybridClock,
        rng: Chance,
        options: ReplicaOptions,
        memory: MemoryBudget,
        on_report: Callable[[TabletId], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """A manager that hosts nothing yet; see `start`.

        Args:
            uuid, address: of this server.
            directories: where the replicas' files are; made if they are missing.
            on_report: told of each tablet whose role, term, config or state changed. Called from within changes: only
                note it.
            on_fatal: told that the process has to end: a log or metadata could not be written, or a replica broke.
        """
        self._links = PeerLinks(dialer=dialer, clock=clock, options=options.links)
        self._context = ServerContext(
            uuid=uuid,
            address=address,
            directories=directories,
            threads=threads,
            workers=workers,
            peer_links=self._links,
            clock=clock,
            hybrid_clock=hybrid_clock,
            rng=rng,
            options=options,
            memory=memory,
            log_cache=CacheBudget(options.log_cache_bytes_max),
            copies=CopyProgressBoard(uuid=uuid, clock=clock, options=options.copy),
            on_report=on_report,
            on_fatal=on_fatal,
        )
        self._hosted = ReplicaMap()
        self._opening = asyncio.Semaphore(options.open_concurrently_max)
        self._voters = TombstoneVoters(self._context, self._remembered)
        self._remover = ReplicaRemover(self._context, self._hosted)
        self._room = RoomKeeper(self._context, self._hosted, self._open)
        self._copies = CopiesToHere(
            context=self._context,
            dialer=dialer,
            hosted=self._hosted,
            voters=self._voters,
            remover=self._remover,
            open_replica=self._open,
        )
        self._tasks: set[asyncio.Task[object]] = set()

    # Its life.

    async def start(self) -> None:
        """Opens all replicas, some at a time. Returns when each is RUNNING or FAILED.

        Raises:
            KuduError: CONFIGURATION_ERROR: the terms and votes, or the logs, are gone as a whole.
            OSError: the directories could not be read or made.
        """
        superblocks = await self._context.threads.run(self._read_superblocks)
        for tablet_id, superblock in superblocks.items():
            if isinstance(superblock, KuduError):
                self._hosted.become_replica(TabletReplica.unreadable(self._context, tablet_id, superblock))
            elif superblock.data_state is DataState.DELETED:
                self._hosted.become_tombstone(superblock)
            else:
                self._hosted.become_replica(TabletReplica(self._context, superblock))
        self._hosted.is_listed = True
        starting = [replica for replica in self._hosted.replicas.values() if replica.state is ReplicaState.NOT_STARTED]
        async with asyncio.TaskGroup() as opening:
            for replica in starting:
                opening.create_task(self._open_at_start(replica), name=f"open {replica.tablet_id}")
        _log.info(
            "replicas_opened",
            running=sum(replica.state is ReplicaState.RUNNING for replica in self._hosted.replicas.values()),
            failed=sum(replica.state is ReplicaState.FAILED for replica in self._hosted.replicas.values()),
            tombstones=len(self._hosted.tombstones),
        )

    def _read_superblocks(self) -> dict[TabletId, Superblock | KuduError]:
        disk, directories = self._context.threads.disk, self._context.directories
        bootstrap.require_promises(disk, directories)
        directories.create(disk)
        found: dict[TabletId, Superblock | KuduError] = {}
        for tablet_id in directories.tablet_ids(disk):
            try:
                superblock = metadata.read(disk, directories.superblock_path(tablet_id), tablet_id)
            except KuduError as error:
                found[tablet_id] = error
            else:
                rolled = deletion.roll_forward(disk, directories, superblock)
                if rolled is not None:
                    found[tablet_id] = rolled
        for path in bootstrap.remove_unfinished_creations(disk, directories):
            _log.error("files_without_superblock", path=path)
        return found

    async def _open_at_start(self, replica: TabletReplica) -> None:
        """Calls arrive while replicas are being opened: none may delete or exchange the files under one's feet."""
        if not self._hosted.is_stopping:
            with self._hosted.transition(replica.tablet_id, "being opened"):
                await self._open(replica)

    async def _open(self, replica: TabletReplica) -> None:
        async with self._opening:
            if not self._hosted.is_stopping:
                await replica.start()

    async def step_down_all(self, timeout_s: float = 3.0) -> int:
        """Asks every leader here to hand over to another voter, for a process on its way out; waits until they have.

        Returns:
            leaders that are left: there was no other voter, or none that could take over in time.
        """
        leaders = [replica for replica in self._hosted.replicas.values() if replica.can_hand_over]
        results = await asyncio.gather(
            *(replica.consensus.leader_step_down() for replica in leaders), return_exceptions=True
        )
        for replica, result in zip(leaders, results, strict=True):
            if isinstance(result, KuduError):
                _log.info("step_down_refused", tablet=replica.tablet_id, error=str(result))
            elif isinstance(result, BaseException):
                raise result
        until = self._context.clock.monotonic() + timeout_s
        while self._context.clock.monotonic() < until and any(  # noqa: ASYNC110  # a few times in the process's life
            replica.can_hand_over for replica in leaders
        ):
            await asyncio.sleep(_HANDOVER_POLL_S)
        return sum(replica.is_leader for replica in self._hosted.replicas.values())

    async def stop(self) -> None:
        """Stops all replicas and closes their files. Idempotent."""
        self._hosted.is_stopping = True
        await self._copies.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # their callers have the errors
        await asyncio.gather(*(replica.stop() for replica in self._hosted.replicas.values()))
        await self._links.close()

    # What it hosts.

    @property
    def context(self) -> ServerContext:
        """What the replicas share."""
        return self._context

    def replica(self, tablet_id: str) -> TabletReplica:
        """The replica of a tablet, whatever its state.

        Raises:
            KuduError: TABLET_NOT_FOUND (also of a tombstone); TABLET_NOT_RUNNING while the server starts.
        """
        return self._hosted.replica(tablet_id)

    def replicas(self) -> list[TabletReplica]:
        """All replicas, whatever their state, by tablet id."""
        return [replica for _, replica in sorted(self._hosted.replicas.items())]

    def logs_without_room(self) -> int:
        """How many replicas wait for room on the disk before they take more."""
        return sum(
            replica.state is ReplicaState.RUNNING and replica.log.waits_for_room
            for replica in self._hosted.replicas.values()
        )

    def tombstones(self) -> list[Superblock]:
        """All deleted replicas, by tablet id."""
        return [superblock for _, superblock in sorted(self._hosted.tombstones.items())]

    # `ReplicaLookup`.

    @property
    def uuid(self) -> ServerId:
        """The server's own."""
        return self._context.uuid

    def consensus(self, tablet_id: TabletId) -> RaftConsensus:
        """The replica's consensus; raises as `replica` and `TabletReplica.running`."""
        return self.replica(tablet_id).consensus

    def consensus_all(self) -> Iterable[tuple[TabletId, RaftConsensus]]:
        """All replicas that run, by tablet id."""
        return [
            (replica.tablet_id, replica.consensus)
            for replica in self.replicas()
            if replica.state is ReplicaState.RUNNING
        ]

    async def tombstone_vote(
        self, tablet_id: TabletId, request: consensus_pb2.RequestVoteRequest
    ) -> consensus_pb2.RequestVoteResponse | None:
        """The vote of a deleted replica; None if there is none or the end of its log is not known."""
        return await self._voters.vote(tablet_id, request)

    def _remembered(self, tablet_id: TabletId) -> Superblock | None:
        """The tombstone that may vote now. While it is copied to it is the same one, until it is exchanged."""
        target = self._copies.target(tablet_id)
        if target is not None:
            return target.remembered
        return None if tablet_id in self._hosted.changing else self._hosted.tombstones.get(tablet_id)

    # Creating and deleting.

    async def create_tablet(self, new: NewTablet) -> TabletReplica:
        """Creates an empty replica and starts it; durable on return. Cancelling ends the waiting, not the creation.

        Raises:
            KuduError: TABLET_ALREADY_EXISTS (also of a tombstone), INVALID_CONFIG, INVALID_SCHEMA,
                ALREADY_IN_PROGRESS, and what the disk says.
        """
        tablet_id = TabletId(require_id(new.tablet_id, "tablet_id"))
        new.schema.validate()
        new.partition_schema.validate(new.schema)
        if new.config.member(self.uuid) is None:
            raise KuduError(
                ErrorCode.INVALID_CONFIG, f"server {self.uuid} is no member of the config of tablet {tablet_id}"
            )
        is_tombstone = tablet_id in self._hosted.tombstones
        if is_tombstone or tablet_id in self._hosted.replicas:
            raise KuduError(
                ErrorCode.TABLET_ALREADY_EXISTS,
                f"this server {'deleted' if is_tombstone else 'has'} a replica of tablet {tablet_id}",
                details={"data_state": "DELETED" if is_tombstone else "READY"},
            )
        superblock = Superblock(
            tablet_id=tablet_id,
            table_id=new.table_id,
            table_name=new.table_name,
            schema=new.schema,
            partition_schema=new.partition_schema,
            partition=new.partition,
            data_state=DataState.READY,
        )
        return await self._undisturbed(self._create(superblock, new.config), f"create {tablet_id}")

    async def _create(self, superblock: Superblock, config: RaftConfig) -> TabletReplica:
        context, tablet_id = self._context, superblock.tablet_id
        with self._hosted.transition(tablet_id, "being created"):
            async with self._opening:
                await context.threads.run(lambda: self._create_files(superblock, config))
                replica = self._hosted.become_replica(TabletReplica(context, superblock))
                await replica.start()
        _log.info("replica_created", tablet=tablet_id, table=superblock.table_name)
        return replica

    def _create_files(self, superblock: Superblock, config: RaftConfig) -> None:
        disk = self._context.threads.disk
        self._room.require_room(disk, superblock.tablet_id)
        bootstrap.create_files(disk, self._context.directories, superblock, config)

    async def delete_tablet(
        self,
        tablet_id: str,
        *,
        reason: str = "",
        expected_config_index_max: int | None = None,
        delete_type: DeleteType = DeleteType.TOMBSTONED,
    ) -> None:
        """Deletes a replica; durable on return. Of one that is deleted so far already: nothing to do. Cancelling as of
        `create_tablet`. A copy to it that is under way is cancelled.

        Args:
            reason: for the log.
            expected_config_index_max: refused if the replica's committed config is later than this. What is being
                copied here has one that is not known yet: it is not forgotten then, but its copy ends, which costs
                nothing but the way that a next one has to go on from.

        Raises:
            KuduError: TABLET_NOT_FOUND, CAS_FAILED, ALREADY_IN_PROGRESS.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        if self._copies.target(key) is not None:
            if expected_config_index_max is not None and delete_type is not DeleteType.TOMBSTONED:
                raise already_in_progress(key)
            await self._copies.cancel(key)
        if key in self._hosted.tombstones and key not in self._hosted.changing and delete_type is DeleteType.TOMBSTONED:
            return
        await self._undisturbed(
            self._delete(key, reason, expected_config_index_max, delete_type), f"delete {tablet_id}"
        )

    async def _delete(
        self, key: TabletId, reason: str, expected_config_index_max: int | None, delete_type: DeleteType
    ) -> None:
        is_forgotten = delete_type is DeleteType.DELETED_COMPLETELY
        replica = None if is_forgotten and key in self._hosted.tombstones else self.replica(key)
        with self._hosted.transition(key, "being deleted"):
            if replica is not None and expected_config_index_max is not None:
                _require_config_index(key, await self._config_index(replica), expected_config_index_max)
            if key in self._hosted.replicas:
                await self._remover.tombstone(key, is_forgotten=is_forgotten)
            elif is_forgotten and key in self._hosted.tombstones:
                await self._voters.dismiss(key)
                await self._remover.forget(key)
            self._copies.forget_error(key)
        _log.info("replica_deleted", tablet=key, reason=reason, delete_type=delete_type.value)
        self._context.on_report(key)

    async def _config_index(self, replica: TabletReplica) -> int:
        """Of the committed config, also of one that does not run: it may count all the same. 0 if nobody can say."""
        if replica.state is ReplicaState.RUNNING:
            return replica.consensus.committed_config.config_index
        try:
            return (await self._voters.load(replica.tablet_id)).durable.config.config_index
        except (KuduError, OSError):
            return 0  # Without what it promised it never runs again.

    # Copying.

    async def start_tablet_copy(self, request: consensus_pb2.StartTabletCopyRequest) -> None:
        """Makes this server fetch its replica of a tablet from another; begun on return. Idempotent.

        Raises:
            KuduError: INVALID_ARGUMENT, ALREADY_IN_PROGRESS, ILLEGAL_STATE, INVALID_TERM; SERVER_TOO_BUSY, as too many
                wait for their turn. Nothing was changed.
        """
        await self._copies.start(CopyOrder.from_pb(request))

    async def cancel_copy(self, tablet_id: str) -> None:
        """Ends a copy to this server; on return its replica is what it was when the copy began to fetch, a tombstone.
        What was fetched is kept for the next.

        Raises:
            KuduError: NOT_FOUND; ILLEGAL_STATE: all is fetched, and the replica is about to run.
        """
        await self._copies.cancel(TabletId(require_id(tablet_id, "tablet_id")))

    def copy_error(self, tablet_id: str) -> str:
        """Why the last copy of this tablet to this server failed; empty if it did not, or there was none."""
        return self._copies.error(TabletId(tablet_id))

    # Room.

    async def purge_quarantine(self) -> list[QuarantineEntry]:
        """Removes from the quarantine what is too old, too much, or in the way; what went."""
        return await self._room.purge_quarantine()

    async def reopen_for_room(self) -> int:
        """Opens replicas again that FAILED because the disk was full, once it is not; how many run now."""
        return await self._room.reopen()

    # Inside.

    async def _undisturbed(self, work: Coroutine[object, object, T], name: str) -> T:
        """Work that goes on when its caller gives up: half of it would leave jobs at work on files that others may
        touch.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _require_config_index(tablet_id: TabletId, found: int, expected_max: int) -> None:
    if found > expected_max:
        raise KuduError(
            ErrorCode.CAS_FAILED,
            f"the committed config of tablet {tablet_id} has index {found}, above {expected_max}",
            details={"config_index": str(found)},
        )
