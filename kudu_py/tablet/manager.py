"""`TabletManager`: open, create, delete; provides `ReplicaLookup` in both daemons.

The replicas of a server by tablet id. Whatever changes the set of files of a tablet (creating, deleting, copying)
holds the tablet's *transition* meanwhile; a second one is told to come back. A replica that cannot be opened is FAILED
and reported with its reason, the others run.

*Copying* (seed 002), of which `start_tablet_copy` returns once it has begun:
 1. Every check, before the first change; and again once it is the copy's turn, which may be long after.
 2. A replica that lives is deleted to a tombstone: its data is worth nothing any more, its promises are.
 3. The superblock, COPYING, with what the tombstone remembers. From here to 5 it votes as a tombstone.
 4. All is fetched, into the quarantine.
 5. It is put in place (`copy_install.py`), opened, and joins its group.
Whatever fails before the superblock says READY leads back to the tombstone, and what was fetched waits for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.sparing_disk import require_free
from kudu_py.env.workers import Workers
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.dialer import Dialer
from kudu_py.tablet import bootstrap, copy_install, deletion, metadata, quarantine
from kudu_py.tablet.context import ReplicaOptions, ServerContext
from kudu_py.tablet.copy_order import (
    CopyOrder,
    LocalReplica,
    already_in_progress,
    require_foreign_source,
    require_nothing_forgotten,
    require_obedience,
)
from kudu_py.tablet.copy_target import CopyTarget, to_its_end
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineEntry
from kudu_py.tablet.tablet_copy.board import Copy, CopyProgressBoard
from kudu_py.tablet.tablet_copy.client import FetchedReplica, fetch
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tablet.tombstone import Tombstone
from kudu_py.wal.recent import CacheBudget

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_HANDOVER_POLL_S = 0.02
_NEW_REPLICA_BYTES = 64 << 10
"""What an empty replica takes on the disk at most: three small files and two directories, each some blocks."""


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
        self._dialer = dialer
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
        self._replicas: dict[TabletId, TabletReplica] = {}
        self._tombstones: dict[TabletId, Superblock] = {}
        self._voters: dict[TabletId, Tombstone] = {}
        self._copies: dict[TabletId, CopyTarget] = {}
        self._copy_errors: dict[TabletId, str] = {}
        self._transitions: dict[TabletId, str] = {}
        self._purging: set[TabletId] = set()
        self._opening = asyncio.Semaphore(options.open_concurrently_max)
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_listed = False
        self._is_stopping = False

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
                self._replicas[tablet_id] = TabletReplica.unreadable(self._context, tablet_id, superblock)
            elif superblock.data_state is DataState.DELETED:
                self._tombstones[tablet_id] = superblock
            else:
                self._replicas[tablet_id] = TabletReplica(self._context, superblock)
        self._is_listed = True
        starting = [replica for replica in self._replicas.values() if replica.state is ReplicaState.NOT_STARTED]
        async with asyncio.TaskGroup() as opening:
            for replica in starting:
                opening.create_task(self._open(replica), name=f"open {replica.tablet_id}")
        _log.info(
            "replicas_opened",
            running=sum(replica.state is ReplicaState.RUNNING for replica in self._replicas.values()),
            failed=sum(replica.state is ReplicaState.FAILED for replica in self._replicas.values()),
            tombstones=len(self._tombstones),
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

    async def _open(self, replica: TabletReplica) -> None:
        async with self._opening:
            if not self._is_stopping:
                await replica.start()

    async def step_down_all(self, timeout_s: float = 3.0) -> int:
        """Asks every leader here to hand over to another voter, for a process on its way out; waits until they have.

        Returns:
            leaders that are left: there was no other voter, or none that could take over in time.
        """
        leaders = [replica for replica in self._replicas.values() if replica.can_hand_over]
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
        return sum(replica.is_leader for replica in self._replicas.values())

    async def stop(self) -> None:
        """Stops all replicas and closes their files. Idempotent."""
        self._is_stopping = True
        for target in self._copies.values():
            with contextlib.suppress(KuduError):  # one that is about to run is let through
                target.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # their callers have the errors
        await asyncio.gather(*(replica.stop() for replica in self._replicas.values()))
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
        replica = self._replicas.get(TabletId(tablet_id))
        if replica is not None:
            return replica
        require_id(tablet_id, "tablet_id")
        if not self._is_listed:
            # "Not found" would make a leader copy the tablet here.
            raise KuduError(
                ErrorCode.TABLET_NOT_RUNNING,
                f"the server is starting; tablet {tablet_id} is not opened yet",
                verdict=Verdict.TRY_LATER,
            )
        doing = self._transitions.get(TabletId(tablet_id))
        if doing is not None:
            raise KuduError(
                ErrorCode.TABLET_NOT_RUNNING,
                f"the replica of tablet {tablet_id} is {doing}",
                verdict=Verdict.TRY_LATER,
            )
        is_tombstone = TabletId(tablet_id) in self._tombstones
        raise KuduError(
            ErrorCode.TABLET_NOT_FOUND,
            f"this server has {'deleted its' if is_tombstone else 'no'} replica of tablet {tablet_id}",
            details={"data_state": "DELETED" if is_tombstone else "DOES_NOT_EXIST"},
        )

    def replicas(self) -> list[TabletReplica]:
        """All replicas, whatever their state, by tablet id."""
        return [replica for _, replica in sorted(self._replicas.items())]

    def logs_without_room(self) -> int:
        """How many replicas wait for room on the disk before they take more."""
        return sum(
            replica.state is ReplicaState.RUNNING and replica.log.waits_for_room for replica in self._replicas.values()
        )

    def tombstones(self) -> list[Superblock]:
        """All deleted replicas, by tablet id."""
        return [superblock for _, superblock in sorted(self._tombstones.items())]

    def copy_error(self, tablet_id: str) -> str:
        """Why the last copy of this tablet to this server failed; empty if it did not, or there was none."""
        return self._copy_errors.get(TabletId(tablet_id), "")

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
        superblock = self._remembered(tablet_id)
        if superblock is None or superblock.tombstone_last_op_id is None:
            return None
        voter = self._voters.get(tablet_id)
        if voter is None:
            try:
                record = await self._load_promises(tablet_id)
            except (KuduError, OSError) as error:
                _log.error("tombstone_unreadable", tablet=tablet_id, error=str(error))
                return None
            # Another request may have loaded it meanwhile, or the tombstone be gone; there must be one writer of the
            # file.
            if self._remembered(tablet_id) is not superblock:
                return None
            voter = self._voters.setdefault(
                tablet_id, Tombstone(self._context, tablet_id, record, superblock.tombstone_last_op_id)
            )
        return await voter.vote(request)

    def _remembered(self, tablet_id: TabletId) -> Superblock | None:
        """The tombstone that may vote now. While it is copied to it is the same one, until it is exchanged."""
        target = self._copies.get(tablet_id)
        if target is not None:
            return target.remembered
        return None if tablet_id in self._transitions else self._tombstones.get(tablet_id)

    async def _load_promises(self, tablet_id: TabletId) -> ConsensusMetadata:
        path, disk = self._context.directories.consensus_metadata_path(tablet_id), self._context.threads.disk
        return await self._context.threads.run(lambda: ConsensusMetadata.load(disk, path, tablet_id))

    async def _dismiss_voter(self, tablet_id: TabletId) -> None:
        """Ends the voting of a tombstone that gets no requests any more: its votes are durable, its file is free."""
        voter = self._voters.pop(tablet_id, None)
        if voter is not None:
            await metadata_durable(voter.metadata)

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
        if tablet_id in self._replicas or tablet_id in self._tombstones:
            raise KuduError(
                ErrorCode.TABLET_ALREADY_EXISTS,
                f"this server {'deleted' if tablet_id in self._tombstones else 'has'} a replica of tablet {tablet_id}",
                details={"data_state": "DELETED" if tablet_id in self._tombstones else "READY"},
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
        with self._transition(tablet_id, "being created"):
            async with self._opening:
                await context.threads.run(lambda: self._create_files(superblock, config))
                replica = TabletReplica(context, superblock)
                self._replicas[tablet_id] = replica
                await replica.start()
        _log.info("replica_created", tablet=tablet_id, table=superblock.table_name)
        return replica

    def _create_files(self, superblock: Superblock, config: RaftConfig) -> None:
        disk, directories = self._context.threads.disk, self._context.directories
        try:
            # What is kept free is for votes and superblocks of replicas that are there.
            require_free(disk, directories.root, _NEW_REPLICA_BYTES, self._context.options.wal.disk_reserved_bytes)
        except OSError as error:
            raise KuduError(
                ErrorCode.DISK_FULL,
                f"tablet {superblock.tablet_id} is not created on a full disk: {error.strerror}",
                verdict=Verdict.TRY_LATER,
            ) from error
        bootstrap.create_files(disk, directories, superblock, config)

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
            expected_config_index_max: refused if the replica's committed config is later than this; what is being
                copied here has one that is not known yet.

        Raises:
            KuduError: TABLET_NOT_FOUND, CAS_FAILED, ALREADY_IN_PROGRESS.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        target = self._copies.get(key)
        if target is not None:
            if expected_config_index_max is not None:
                raise already_in_progress(key)
            await self._end_copy(target)
        if key in self._tombstones and key not in self._transitions and delete_type is DeleteType.TOMBSTONED:
            return
        await self._undisturbed(
            self._delete(key, reason, expected_config_index_max, delete_type), f"delete {tablet_id}"
        )

    async def _delete(
        self, key: TabletId, reason: str, expected_config_index_max: int | None, delete_type: DeleteType
    ) -> None:
        is_forgotten = delete_type is DeleteType.DELETED_COMPLETELY
        if not (is_forgotten and key in self._tombstones):
            self._require_config_index(self.replica(key), expected_config_index_max)
        with self._transition(key, "being deleted"):
            if key in self._replicas:
                await self._tombstone(key, is_forgotten=is_forgotten)
            elif is_forgotten and key in self._tombstones:
                await self._dismiss_voter(key)
                tombstone = self._tombstones[key]
                await self._change_files(
                    lambda: deletion.forget(self._context.threads.disk, self._context.directories, tombstone)
                )
            if is_forgotten:
                self._tombstones.pop(key, None)
            self._copy_errors.pop(key, None)
        _log.info("replica_deleted", tablet=key, reason=reason, delete_type=delete_type.value)
        self._context.on_report(key)

    async def _tombstone(self, key: TabletId, *, is_forgotten: bool = False) -> Superblock:
        """Stops a replica and turns it into a tombstone; its transition is held."""
        context, stopping = self._context, self._replicas[key]
        last_op_id = await self._stop_for_deletion(stopping)
        now = context.clock.wall_micros() if context.options.quarantine.keeps else None
        tombstone = await self._change_files(
            lambda: deletion.delete_files(
                context.threads.disk,
                context.directories,
                stopping.superblock,
                last_op_id,
                quarantined_at_micros=now,
                is_forgotten=is_forgotten,
            )
        )
        del self._replicas[key]
        self._tombstones[key] = tombstone
        _log.info("replica_tombstoned", tablet=key, last_op_id=str(last_op_id), quarantine=tombstone.quarantine)
        return tombstone

    async def _change_files(self, job: Callable[[], T]) -> T:
        """A job after whose failure nobody knows what the metadata on disk says: the process has to end. A restart
        finds out, and rolls forward.
        """
        try:
            return await self._context.threads.run(job)
        except OSError as error:
            self._context.on_fatal(error)
            raise

    def _require_config_index(self, replica: TabletReplica, expected_max: int | None) -> None:
        if expected_max is None or replica.state is not ReplicaState.RUNNING:
            return
        found = replica.consensus.committed_config.config_index
        if found > expected_max:
            raise KuduError(
                ErrorCode.CAS_FAILED,
                f"the committed config of tablet {replica.tablet_id} has index {found}, above {expected_max}",
                details={"config_index": str(found)},
            )

    async def _stop_for_deletion(self, replica: TabletReplica) -> OpId | None:
        """Stops the replica; the end of its log, or None if it is not known."""
        if replica.state is not ReplicaState.RUNNING:
            last_op_id = await self._last_op_id(replica)
            await replica.stop()
            return last_op_id
        consensus = replica.consensus
        await replica.stop()
        # Votes given before the stop may still be on their way to the disk; nothing new comes.
        await metadata_durable(consensus.metadata)
        return consensus.last_op_id

    async def _last_op_id(self, replica: TabletReplica) -> OpId | None:
        """The end of the log of a replica that does not run; None if it cannot be told."""
        log, context = replica.opened_log, self._context
        if log is not None:
            return log.last_op_id if log.last_op_id > MIN_OP_ID else None
        superblock = replica.superblock
        return await context.threads.run(
            lambda: copy_install.known_end_of_log(context.threads.disk, context.directories, superblock)
        )

    # Copying.

    async def start_tablet_copy(self, request: consensus_pb2.StartTabletCopyRequest) -> None:
        """Makes this server fetch its replica of a tablet from another; begun on return. Idempotent.

        Raises:
            KuduError: INVALID_ARGUMENT, ALREADY_IN_PROGRESS, ILLEGAL_STATE, INVALID_TERM; nothing was changed.
        """
        order = CopyOrder.from_pb(request)
        require_foreign_source(order, self.uuid)
        if order.tablet_id in self._copies:
            raise already_in_progress(order.tablet_id)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._copy(order, begun), name=f"copy {order.tablet_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(begun)

    async def cancel_copy(self, tablet_id: str) -> None:
        """Ends a copy to this server; on return its replica is what it was when the copy began to fetch, a tombstone.
        What was fetched is kept for the next.

        Raises:
            KuduError: NOT_FOUND; ILLEGAL_STATE: all is fetched, and the replica is about to run.
        """
        target = self._copies.get(TabletId(require_id(tablet_id, "tablet_id")))
        if target is None:
            raise KuduError(ErrorCode.NOT_FOUND, f"tablet {tablet_id} is not being copied to this server")
        await self._end_copy(target)

    async def _end_copy(self, target: CopyTarget) -> None:
        target.cancel()
        await asyncio.shield(target.ended)

    async def _copy(self, order: CopyOrder, begun: asyncio.Future[None]) -> None:
        tablet_id, target = order.tablet_id, None
        try:
            with self._transition(tablet_id, "being copied"):
                require_obedience(order, await self._local(tablet_id))
                target = self._copies[tablet_id] = CopyTarget(order, self._tombstones.get(tablet_id))
                self._copy_errors.pop(tablet_id, None)
                begun.set_result(None)
                try:
                    await self._carry_out(target)
                finally:
                    del self._copies[tablet_id]
        except Exception as error:
            if begun.done():
                self._context.on_fatal(error)
            else:
                begun.set_exception(error)
        finally:
            begun.cancel()  # if it came to neither
            if target is not None:
                target.ended.set_result(None)
        self._context.on_report(tablet_id)

    async def _carry_out(self, target: CopyTarget) -> None:
        order, context = target.order, self._context
        tablet_id = order.tablet_id
        bound_log = _log.bind(tablet=tablet_id, source=order.source)
        try:
            async with context.copies.copying(tablet_id, order.source, self._table_name(tablet_id)) as shown:
                local = await self._local(tablet_id)  # its turn may have come late
                require_obedience(order, local)
                await to_its_end(self._become_copying(target))
                bound_log.info("copy_accepted", caller=order.caller, term=order.caller_term)
                fetched = await self._fetch(target, local, shown)
                await target.begin_install()
                shown.note_installing()
                ready = await self._install(target, local, fetched)
        except (KuduError, OSError, asyncio.CancelledError) as error:
            why = target.failed(error)
            bound_log.warning("copy_failed", error=str(why))
            self._copy_errors[tablet_id] = str(why)
            await self._abandon(target)
            return
        bound_log.info("copy_installed", checkpoint=str(ready.checkpoint))
        replica = self._replicas[tablet_id] = TabletReplica(context, ready)
        context.on_report(tablet_id)
        await self._open(replica)

    def _table_name(self, tablet_id: TabletId) -> str:
        if tablet_id in self._replicas:
            return self._replicas[tablet_id].superblock.table_name
        return self._tombstones[tablet_id].table_name if tablet_id in self._tombstones else ""

    async def _local(self, tablet_id: TabletId) -> LocalReplica:
        """What is here of a tablet whose transition is held.

        Raises:
            KuduError: CORRUPTION: term and vote of what is here are lost, so that a copy of it might vote twice.
        """
        replica_here, tombstone = self._replicas.get(tablet_id), self._tombstones.get(tablet_id)
        if replica_here is not None and replica_here.state is ReplicaState.RUNNING:
            consensus = replica_here.consensus
            return LocalReplica(
                data_state=DataState.READY,
                term=consensus.term,
                last_op_id=consensus.last_op_id,
                committed_op_id=consensus.last_committed_op_id,
                is_leader=replica_here.is_leader,
            )
        if replica_here is not None:
            return LocalReplica(
                data_state=DataState.READY,
                term=(await self._promises(tablet_id)).term,
                last_op_id=await self._last_op_id(replica_here),
            )
        if tombstone is not None:
            return LocalReplica(
                data_state=DataState.DELETED,
                term=(await self._promises(tablet_id)).term,
                last_op_id=tombstone.tombstone_last_op_id,
            )
        context = self._context
        path = context.directories.consensus_metadata_path(tablet_id)
        await context.threads.run(lambda: bootstrap.require_no_promises(context.threads.disk, path, tablet_id))
        return LocalReplica()

    async def _promises(self, tablet_id: TabletId) -> HardState:
        voter = self._voters.get(tablet_id)
        if voter is not None:
            return voter.metadata.hard_state
        try:
            return (await self._load_promises(tablet_id)).hard_state
        except (KuduError, OSError) as error:
            raise KuduError(
                ErrorCode.CORRUPTION,
                f"term and vote of the replica of tablet {tablet_id} cannot be read here ({error}): it must not come "
                "back under the uuid of this server, which might vote twice. Remove it from its group's config; "
                "another server can take its place",
            ) from error

    async def _become_copying(self, target: CopyTarget) -> None:
        """Deletes what lives, and writes the superblock COPYING."""
        tablet_id, context = target.order.tablet_id, self._context
        if tablet_id in self._replicas:
            target.remembered = await self._tombstone(tablet_id)
        remembered = target.remembered or copy_install.never_hosted(tablet_id)
        target.copying = await self._change_files(
            lambda: copy_install.begin_copying(
                context.threads.disk,
                context.directories,
                remembered,
                target.order.source,
                context.clock.wall_micros(),
            )
        )
        target.remembered = remembered
        self._tombstones.pop(tablet_id, None)
        self._replicas[tablet_id] = TabletReplica.copying(context, target.copying)
        context.on_report(tablet_id)

    async def _fetch(self, target: CopyTarget, local: LocalReplica, shown: Copy) -> FetchedReplica:
        order, context, copying = target.order, self._context, target.copying
        assert copying is not None, "the superblock says COPYING before anything is fetched"
        return await fetch(
            context=context,
            dialer=self._dialer,
            tablet_id=order.tablet_id,
            source_uuid=order.source,
            source_address=order.source_address,
            committed_op_id=max(
                order.committed_op_id or MIN_OP_ID, local.committed_op_id, key=lambda op_id: op_id.index
            ),
            directory=quarantine.path_of(context.directories, copying.quarantine),
            on_progress=shown.note_progress,
        )

    async def _install(self, target: CopyTarget, local: LocalReplica, fetched: FetchedReplica) -> Superblock:
        """Puts what was fetched in place; nobody votes meanwhile."""
        context, tablet_id = self._context, target.order.tablet_id
        disk, directories = context.threads.disk, context.directories
        last = await context.threads.run(lambda: copy_install.last_op_id_fetched(disk, fetched))
        require_nothing_forgotten(local, last, target.order.source)
        await self._dismiss_voter(tablet_id)
        promised = (await self._load_promises(tablet_id)).durable
        return await self._change_files(lambda: copy_install.put_in_place(disk, directories, promised, fetched))

    async def _abandon(self, target: CopyTarget) -> None:
        """Back to the tombstone, if the superblock says COPYING; the next start does it for a server that stops."""
        tablet_id, copying, context = target.order.tablet_id, target.copying, self._context
        if copying is None or self._is_stopping:
            return
        target.remembered = None
        await self._dismiss_voter(tablet_id)
        tombstone = await self._change_files(
            lambda: deletion.abandon_copy(context.threads.disk, context.directories, copying)
        )
        del self._replicas[tablet_id]
        self._tombstones[tablet_id] = tombstone

    # The quarantine.

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

        found, free_bytes = await context.threads.run(look)
        expired = quarantine.choose_expired(
            found,
            options.quarantine,
            now_micros=context.clock.wall_micros(),
            missing_bytes=max(0, wanted_bytes - free_bytes),
            in_use=self._transitions.keys(),
        )
        return [entry for entry in expired if await self._purge(entry)]

    async def _purge(self, entry: QuarantineEntry) -> bool:
        """Removes one directory, unless somebody works with the tablet's files; nobody begins to meanwhile."""
        tablet_id, context = entry.name.tablet_id, self._context
        if tablet_id in self._transitions or self._is_stopping:
            return False
        self._purging.add(tablet_id)
        try:
            await context.threads.run(lambda: quarantine.remove(context.threads.disk, context.directories, entry.name))
        except OSError as error:
            # It takes space until the next time; nothing depends on it.
            _log.warning("quarantine_not_purged", name=str(entry.name), error=str(error))
            return False
        finally:
            self._purging.discard(tablet_id)
        _log.info("quarantine_purged", name=str(entry.name), size_bytes=entry.size_bytes)
        return True

    # Room.

    async def reopen_for_room(self) -> int:
        """Opens replicas again that FAILED because the disk was full, once it is not; how many run now."""
        context = self._context
        full = [
            replica
            for replica in self.replicas()
            if replica.state is ReplicaState.FAILED
            and isinstance(replica.error, KuduError)
            and replica.error.code is ErrorCode.DISK_FULL
        ]
        reopened = 0
        for failed in full:
            tablet_id = failed.tablet_id
            free_bytes = await context.threads.run(lambda: context.threads.disk.free_bytes(context.directories.root))
            if free_bytes < context.options.wal.disk_reserved_bytes + _NEW_REPLICA_BYTES:
                break
            if tablet_id in self._transitions or self._is_stopping or self._replicas.get(tablet_id) is not failed:
                continue
            with self._transition(tablet_id, "being opened"):
                await failed.stop()
                replica = self._replicas[tablet_id] = TabletReplica(context, failed.superblock)
                await self._open(replica)
            reopened += replica.state is ReplicaState.RUNNING
        return reopened

    # Inside.

    async def _undisturbed(self, work: Coroutine[object, object, T], name: str) -> T:
        """Work that goes on when its caller gives up: half of it would leave jobs at work on files that others may
        touch.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    @contextlib.contextmanager
    def _transition(self, tablet_id: TabletId, doing: str) -> Iterator[None]:
        already = self._transitions.get(tablet_id)
        if already is None and tablet_id in self._purging:
            already = "giving back room: its quarantine is being removed"
        if already is not None or self._is_stopping or not self._is_listed:
            what = already or ("stopping with its server" if self._is_stopping else "waiting for its server to start")
            raise KuduError(
                ErrorCode.ALREADY_IN_PROGRESS,
                f"the replica of tablet {tablet_id} is {what}",
                verdict=Verdict.TRY_LATER,
            )
        self._transitions[tablet_id] = doing
        try:
            yield
        finally:
            del self._transitions[tablet_id]
