"""`TabletManager`: open, create, delete; provides `ReplicaLookup` in both daemons.

The replicas of a server by tablet id. Whatever changes the set of files of a tablet (creating, deleting, later
copying) holds the tablet's *transition* meanwhile; a second one is told to come back. A replica that cannot be opened
is FAILED and reported with its reason, the others run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import OpId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.workers import Workers
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.dialer import Dialer
from kudu_py.tablet import bootstrap, metadata
from kudu_py.tablet.context import ReplicaOptions, ServerContext
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.tablet_copy.board import CopyProgressBoard
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tablet.tombstone import Tombstone
from kudu_py.wal.recent import CacheBudget

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_HANDOVER_POLL_S = 0.02


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
        self._replicas: dict[TabletId, TabletReplica] = {}
        self._tombstones: dict[TabletId, Superblock] = {}
        self._voters: dict[TabletId, Tombstone] = {}
        self._transitions: dict[TabletId, str] = {}
        self._opening = asyncio.Semaphore(options.open_concurrently_max)
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_listed = False
        self._is_stopping = False

    # Its life.

    async def start(self) -> None:
        """Opens all replicas, some at a time. Returns when each is RUNNING or FAILED.

        Raises:
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
        directories.create(disk)
        found: dict[TabletId, Superblock | KuduError] = {}
        for tablet_id in directories.tablet_ids(disk):
            try:
                superblock = metadata.read(disk, directories.superblock_path(tablet_id), tablet_id)
            except KuduError as error:
                found[tablet_id] = error
            else:
                found[tablet_id] = bootstrap.roll_forward(disk, directories, superblock)
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
        superblock = self._tombstones.get(tablet_id)
        if superblock is None or superblock.tombstone_last_op_id is None or tablet_id in self._transitions:
            return None
        voter = self._voters.get(tablet_id)
        if voter is None:
            path = self._context.directories.consensus_metadata_path(tablet_id)
            disk = self._context.threads.disk
            try:
                record = await self._context.threads.run(lambda: ConsensusMetadata.load(disk, path, tablet_id))
            except (KuduError, OSError) as error:
                _log.error("tombstone_unreadable", tablet=tablet_id, error=str(error))
                return None
            # Another request may have loaded it meanwhile, or the tombstone be gone; there must be one writer of the
            # file.
            if self._tombstones.get(tablet_id) is not superblock:
                return None
            voter = self._voters.setdefault(
                tablet_id, Tombstone(self._context, tablet_id, record, superblock.tombstone_last_op_id)
            )
        return await voter.vote(request)

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
                await context.threads.run(
                    lambda: bootstrap.create_files(context.threads.disk, context.directories, superblock, config)
                )
                replica = TabletReplica(context, superblock)
                self._replicas[tablet_id] = replica
                await replica.start()
        _log.info("replica_created", tablet=tablet_id, table=superblock.table_name)
        return replica

    async def delete_tablet(
        self, tablet_id: str, *, reason: str = "", expected_config_index_max: int | None = None
    ) -> None:
        """Turns a replica into a tombstone; durable on return. Of a tombstone: nothing to do. Cancelling as of
        `create_tablet`.

        Args:
            reason: for the log.
            expected_config_index_max: refused if the replica's committed config is later than this.

        Raises:
            KuduError: TABLET_NOT_FOUND, CAS_FAILED, ALREADY_IN_PROGRESS.
        """
        require_id(tablet_id, "tablet_id")
        if tablet_id in self._tombstones and tablet_id not in self._transitions:
            return
        await self._undisturbed(
            self._delete(TabletId(tablet_id), reason, expected_config_index_max), f"delete {tablet_id}"
        )

    async def _delete(self, key: TabletId, reason: str, expected_config_index_max: int | None) -> None:
        replica = self.replica(key)
        with self._transition(key, "being deleted"):
            self._require_config_index(replica, expected_config_index_max)
            last_op_id = await self._stop_for_deletion(replica)
            context = self._context
            try:
                tombstone = await context.threads.run(
                    lambda: bootstrap.delete_files(
                        context.threads.disk, context.directories, replica.superblock, last_op_id
                    )
                )
            except OSError as error:
                # Whether the superblock says DELETED is not known before a restart, which rolls forward if it does.
                context.on_fatal(error)
                raise
            del self._replicas[key]
            self._tombstones[key] = tombstone
        _log.info("replica_deleted", tablet=key, reason=reason, last_op_id=str(last_op_id))
        context.on_report(key)

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
            await replica.stop()
            return None
        consensus = replica.consensus
        await replica.stop()
        # Votes given before the stop may still be on their way to the disk; nothing new comes.
        await metadata_durable(consensus.metadata)
        return consensus.last_op_id

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
