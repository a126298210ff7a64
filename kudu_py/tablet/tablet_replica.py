"""`TabletReplica`: joins Tablet, Log and RaftConsensus; `write`, `scan`, `start`, `stop`.

It is the state machine that consensus drives: `apply` is called once for each committed entry, in log order, on every
replica. Whatever `apply` decides depends on the entries so far and on nothing else: no clock, no option, no memory
pressure.

*Reads.* A snapshot that this replica may give is one at which it has applied everything and below which nothing will
ever be
written: at or below its safe time. The latest such snapshot at a leader, taken after a read barrier (the leadership
was confirmed by a majority after the request came, and everything committed by then is applied), holds every
acknowledged write. So reading the latest state waits for the barrier and nothing else. Reading at a given time T waits
for safe time to reach it; a leader need not wait for that: it moves its clock to T, so that it writes nothing more at
or below, has its leadership confirmed, and applies what its log holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, unique

import pyarrow as pa
import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.futures import settle
from kudu_py.common.hybrid_time import HybridTime, physical_micros
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import OpId
from kudu_py.common.row_batch import RowBatch
from kudu_py.common.schema import Schema
from kudu_py.common.wire import schema_from_pb
from kudu_py.consensus.core.model import EntryKind, Role
from kudu_py.consensus.entry import Entry
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.consensus.rounds import Round
from kudu_py.pb import common_pb2, tserver_pb2
from kudu_py.tablet.bootstrap import OpenedReplica, open_replica
from kudu_py.tablet.checkpointer import Checkpointer, CheckpointState
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.first_leader import first_leader, with_head_start
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.retained_results import ROW_ERROR_TO_PB, Answer, RowErrors
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet import Tablet
from kudu_py.tablet.write_intake import WriteIntake, WriteOp, WriteOutcome, schema_mismatch
from kudu_py.tablet.write_result import WriteResult
from kudu_py.wal.log import Log

_log = structlog.get_logger(__name__)

_METADATA_TIMEOUT_S = 5.0


@unique
class ReplicaState(Enum):
    """What a replica is doing; upstream's `TabletStatePB`."""

    NOT_STARTED = "NOT_STARTED"
    COPYING = "COPYING"
    """Its files are fetched from another server; another `TabletReplica` takes its place when they are there."""
    BOOTSTRAPPING = "BOOTSTRAPPING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    """It could not be opened, or was found damaged; the reason is kept, the files are left as they are."""
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as its server sees it; for lists, reports and pages."""

    tablet_id: TabletId
    table_id: str
    table_name: str
    data_state: DataState
    state: ReplicaState
    error: str
    superblock: Superblock
    schema_version: int
    row_count: int
    on_disk_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a running replica is made of."""

    tablet: Tablet
    log: Log
    consensus: RaftConsensus
    intake: WriteIntake
    checkpointer: Checkpointer


class TabletReplica:
    """One replica of one tablet, from opening to stopping; a stopped one is not started again."""

    def __init__(self, context: ServerContext, superblock: Superblock) -> None:
        self._context = context
        self._superblock = superblock
        self._opened: OpenedReplica | None = None
        self._parts: _Parts | None = None
        self._applied = superblock.checkpoint
        self._applied_timestamp = superblock.checkpoint_timestamp
        self._memory_bytes = 0
        self._is_released = False
        self.state = ReplicaState.NOT_STARTED
        self.error: KuduError | OSError | None = None
        """Why it FAILED."""
        self._bound_log = _log.bind(tablet=superblock.tablet_id, server=context.uuid)

    @staticmethod
    def unreadable(context: ServerContext, tablet_id: TabletId, error: KuduError) -> TabletReplica:
        """A FAILED replica whose superblock cannot be read, so that nothing but its id and the reason is known."""
        replica = TabletReplica(context, Superblock.unknown(tablet_id, DataState.READY))
        replica.state, replica.error = ReplicaState.FAILED, error
        _log.error("replica_failed", tablet=tablet_id, error=str(error))
        return replica

    @staticmethod
    def copying(context: ServerContext, superblock: Superblock) -> TabletReplica:
        """A replica whose files are being fetched: there to be seen, of no other use."""
        assert superblock.data_state is DataState.COPYING, superblock.data_state
        replica = TabletReplica(context, superblock)
        replica.state = ReplicaState.COPYING
        return replica

    # What it is.

    @property
    def tablet_id(self) -> TabletId:
        """The tablet's id."""
        return self._superblock.tablet_id

    @property
    def superblock(self) -> Superblock:
        """The superblock as it is on disk."""
        return self._parts.checkpointer.superblock if self._parts is not None else self._superblock

    @property
    def schema(self) -> Schema:
        """The tablet's schema at this moment."""
        return self._parts.tablet.schema if self._parts is not None else self._superblock.schema

    @property
    def consensus(self) -> RaftConsensus:
        """The replica's consensus; raises as `running`."""
        return self.running().consensus

    @property
    def tablet(self) -> Tablet:
        """The rows; raises as `running`."""
        return self.running().tablet

    @property
    def log(self) -> Log:
        """The log; raises as `running`."""
        return self.running().log

    @property
    def checkpointer(self) -> Checkpointer:
        """What flushes and compacts; raises as `running`."""
        return self.running().checkpointer

    @property
    def applied(self) -> OpId:
        """The last entry applied."""
        return self._applied

    @property
    def retries_answered(self) -> int:
        """Writes that had come before, since the replica last started to run."""
        return self._parts.intake.retries_answered if self._parts is not None else 0

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._parts is not None and self._parts.consensus.role is Role.LEADER

    @property
    def can_hand_over(self) -> bool:
        """Whether it leads a group that has another voter."""
        return self.is_leader and len(self.consensus.active_config.voters) > 1

    def running(self) -> _Parts:
        """The parts of a replica that runs.

        Raises:
            KuduError: TABLET_NOT_RUNNING, or TABLET_FAILED with the reason.
        """
        if self._parts is not None and self.state is ReplicaState.RUNNING:
            return self._parts
        if self.state is ReplicaState.FAILED:
            raise KuduError(
                ErrorCode.TABLET_FAILED,
                f"the replica of tablet {self.tablet_id} has failed: {self.error}",
                verdict=Verdict.TRY_LATER,
                details=dict(self.error.details) if isinstance(self.error, KuduError) else None,
            )
        raise KuduError(
            ErrorCode.TABLET_NOT_RUNNING,
            f"the replica of tablet {self.tablet_id} is {self.state.value}",
            verdict=Verdict.TRY_LATER,
            details={"data_state": self.superblock.data_state.value},
        )

    @property
    def opened_log(self) -> Log | None:
        """Its log if it could be opened, even if the replica FAILED afterwards; closed once it is stopped."""
        return self._opened.log if self._opened is not None else None

    def status(self) -> ReplicaStatus:
        """Itself, for lists, reports and pages."""
        superblock, parts = self.superblock, self._parts
        return ReplicaStatus(
            tablet_id=self.tablet_id,
            table_id=superblock.table_id,
            table_name=superblock.table_name,
            data_state=superblock.data_state,
            state=self.state,
            error=str(self.error) if self.error is not None else "",
            superblock=superblock,
            schema_version=self.schema.version,
            row_count=parts.tablet.row_count if parts is not None else 0,
            on_disk_bytes=(parts.tablet.on_disk_bytes + parts.log.size_bytes) if parts is not None else 0,
            memory_bytes=parts.tablet.memory_bytes if parts is not None else 0,
        )

    # Its life.

    async def start(self) -> None:
        """Opens the files and joins the group. Returns with the replica RUNNING or FAILED; never raises what the world
        did.
        """
        assert self.state is ReplicaState.NOT_STARTED, self.state
        self._set_state(ReplicaState.BOOTSTRAPPING)
        try:
            self._opened = await open_replica(
                self._context, self._superblock, on_durable=self._on_log_durable, on_failure=self._on_log_failure
            )
            self._parts = self._join(self._opened)
            await self._parts.consensus.start()
        except (KuduError, OSError) as error:
            self.error = error
            self._bound_log.error("replica_failed", error=str(error))
            await self._release()
            self._set_state(ReplicaState.FAILED)
            return
        if self.error is None:
            self._set_state(ReplicaState.RUNNING)

    def _join(self, opened: OpenedReplica) -> _Parts:
        context = self._context
        first = first_leader(
            opened.consensus_metadata.committed_config, self._superblock.table_id, self._superblock.partition
        )
        raft = with_head_start(context.options.consensus.raft, uuid=context.uuid, first=first)
        consensus = RaftConsensus(
            uuid=context.uuid,
            tablet_id=self.tablet_id,
            address=context.address,
            metadata=opened.consensus_metadata,
            log=opened.log,
            threads=context.threads,
            clock=context.clock,
            hybrid_clock=context.hybrid_clock,
            rng=context.rng,
            links=context.peer_links,
            options=replace(context.options.consensus, raft=raft),
            state_machine=self,
            bootstrap=opened.bootstrap,
            on_role_change=lambda _: context.on_report(self.tablet_id),
            on_fatal=self._on_consensus_failure,
            on_members_change=lambda: context.on_report(self.tablet_id),
            has_room=context.memory.has_room_to_follow,
            memory=context.memory,
        )
        intake = WriteIntake(context, consensus, opened.tablet, opened.retained, self.tablet_id)
        checkpointer = Checkpointer(
            context=context,
            superblock=self._superblock,
            tablet=opened.tablet,
            log=opened.log,
            consensus=consensus,
            consensus_metadata=opened.consensus_metadata,
            retained=opened.retained,
            state=lambda: CheckpointState(self._applied, self._applied_timestamp),
            on_memory_changed=self._account_memory,
        )
        return _Parts(opened.tablet, opened.log, consensus, intake, checkpointer)

    async def stop(self) -> None:
        """Leaves the group and closes the files. Waiting writers get "outcome unknown". Idempotent."""
        if self.state in (ReplicaState.STOPPED, ReplicaState.STOPPING):
            return
        self._set_state(ReplicaState.STOPPING)
        if not self._is_released:
            await self._release()
        self._set_state(ReplicaState.STOPPED)

    def fail(self, error: KuduError) -> None:
        """A file of it was found damaged: it leaves its group without a word, and the others go on.

        Not fatal for the process: it would find the same damage after each start, and take its other replicas along.
        """
        if self._parts is not None:
            self._parts.consensus.fail(error)

    def _on_consensus_failure(self, error: BaseException) -> None:
        if not isinstance(error, KuduError) or error.code is not ErrorCode.CORRUPTION:
            self._context.on_fatal(error)
            return
        self.error = error
        self._bound_log.error("replica_failed", error=str(error))
        if self.state in (ReplicaState.BOOTSTRAPPING, ReplicaState.RUNNING):
            self._set_state(ReplicaState.FAILED)

    async def _release(self) -> None:
        self._is_released = True
        if self._parts is not None:
            await self._parts.consensus.stop()
            await self._parts.checkpointer.stop()
            # Whoever opens these files next must be their only writer. After a failure this would never end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_METADATA_TIMEOUT_S):
                    await metadata_durable(self._parts.consensus.metadata)
        if self._opened is not None:
            await self._opened.log.close()
            self._context.memory.change(-self._memory_bytes)
            self._memory_bytes = 0

    def _set_state(self, state: ReplicaState) -> None:
        self.state = state
        self._context.on_report(self.tablet_id)

    def _on_log_durable(self, op_id: OpId) -> None:
        assert self._parts is not None, "nothing is appended before there is consensus"
        self._parts.consensus.entries_durable(op_id)
        self._parts.checkpointer.note_durable(op_id)

    def _on_log_failure(self, error: BaseException) -> None:
        self._bound_log.critical("log_failed", error=str(error))
        if self._parts is not None:
            self._parts.consensus.log_failed(error)  # falls silent at once, and tells the process
        else:
            self._context.on_fatal(error)

    # The state machine.

    def apply(self, entry: Entry) -> object:
        """Carries out a committed entry; see `consensus.applier.StateMachine`."""
        assert entry.op_id.index == self._applied.index + 1, f"{entry.op_id} is applied after {self._applied}"
        assert self._parts is not None, "an entry came before the replica was put together"
        outcome: WriteOutcome | None = None
        if entry.kind is EntryKind.WRITE:
            outcome = self._apply_write(entry)
            self._account_memory()
        elif entry.kind is EntryKind.ALTER_SCHEMA:
            outcome = self._apply_schema(entry)
        self._applied, self._applied_timestamp = entry.op_id, entry.timestamp
        self._parts.checkpointer.note_applied(entry.op_id.index, len(entry.record))
        return outcome

    def _apply_write(self, entry: Entry) -> WriteOutcome:
        opened = self._opened
        assert opened is not None
        op = entry.prepared if isinstance(entry.prepared, WriteOp) else WriteOp.of_payload(entry.payload)
        identity, timestamp = op.identity, entry.timestamp
        if identity is not None:
            try:
                known = opened.retained.lookup(identity, timestamp)
            except KuduError as error:
                return WriteOutcome(timestamp, WriteResult(), error)
            if known is not None:
                return WriteOutcome(known.timestamp, WriteResult(known.row_errors))
        # An ALTER TABLE may have come between this write's check and its place in the log.
        mismatch = schema_mismatch(opened.tablet.schema, op.request.schema_version)
        if mismatch is not None:
            return WriteOutcome(timestamp, WriteResult(), mismatch)
        result = opened.tablet.apply(op.rows(opened.tablet.reader), timestamp, entry.op_id)
        if identity is not None:
            opened.retained.remember(identity, timestamp, result)
        return WriteOutcome(timestamp, result)

    def _apply_schema(self, entry: Entry) -> WriteOutcome:
        opened = self._opened
        assert opened is not None
        schema = schema_from_pb(common_pb2.Schema.FromString(entry.payload))
        error: KuduError | None = None
        if schema.version > opened.tablet.schema.version:
            try:
                opened.tablet.alter_schema(schema, entry.op_id)
            except KuduError as refused:  # by what the schemas say, so by every replica alike
                error = refused
            self._context.on_report(self.tablet_id)
        return WriteOutcome(entry.timestamp, WriteResult(), error)

    def _account_memory(self) -> None:
        assert self._opened is not None
        now_bytes = self._opened.tablet.memory_bytes
        if now_bytes != self._memory_bytes:
            before, self._memory_bytes = self._memory_bytes, now_bytes
            self._context.memory.change(now_bytes - before)

    # Writes.

    async def write(self, request: tserver_pb2.WriteRequest) -> tserver_pb2.WriteResponse:
        """Applies a client's rows through the group; durable on a majority and applied here on return.

        Cancelling ends the waiting, not the write.

        Raises:
            KuduError: as `WriteIntake.begin` with nothing changed; OPERATION_ABORTED if another leader's entry took its
                place; TIMED_OUT or SHUTTING_DOWN with the outcome unknown.
        """
        answered: asyncio.Future[tserver_pb2.WriteResponse] = asyncio.get_running_loop().create_future()
        self.begin_write(request, lambda answer: settle(answered, answer))
        return await answered

    def begin_write(
        self, request: tserver_pb2.WriteRequest, respond: Callable[[tserver_pb2.WriteResponse | KuduError], None]
    ) -> None:
        """As `write`, without waiting: `respond` is called once with what `write` would return or raise, maybe at once.

        Raises:
            KuduError: as `WriteIntake.begin`; `respond` is not called then.
        """
        pending = self.running().intake.begin(request)
        if isinstance(pending, Answer):
            respond(_response(pending.timestamp, pending.row_errors))
            return

        def decided(outcome: WriteOutcome | KuduError) -> None:
            if isinstance(outcome, KuduError):
                respond(outcome)
            else:
                respond(_response(outcome.timestamp, outcome.result.row_errors))

        self._when_decided(pending, decided)

    async def write_batch(self, batch: RowBatch) -> WriteResult:
        """As `write` for the house itself, without an identity: the caller knows what to do when the outcome is
        unknown.
        """
        decided: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self._when_decided(self.running().intake.begin_batch(batch), lambda outcome: settle(decided, outcome))
        return (await decided).result

    def _when_decided(self, pending: Round, tell: Callable[[WriteOutcome | KuduError], None]) -> None:
        """Tells once what became of a round, or that it took too long. Several attempts may wait for one."""
        is_told = False

        def settled(future: asyncio.Future[object]) -> None:
            if is_told:
                return  # decided in the very turn of the time-out: its callbacks were on their way already
            timer.cancel()
            tell(_outcome_of(future))

        def expired() -> None:
            nonlocal is_told
            is_told = True
            pending.future.remove_done_callback(settled)
            tell(
                KuduError(
                    ErrorCode.TIMED_OUT,
                    f"write {pending.op_id} of tablet {self.tablet_id} was not decided in time; it may yet be",
                    verdict=Verdict.UNKNOWN,
                )
            )

        timer = asyncio.get_running_loop().call_later(self._context.options.write_timeout_s, expired)
        pending.future.add_done_callback(settled)

    # Reads.

    async def latest_snapshot(self) -> HybridTime:
        """A snapshot that holds every write acknowledged before the call (linearizable); only from the leader.

        Raises:
            KuduError: NOT_THE_LEADER with a hint, or TIMED_OUT if no majority confirmed the leadership.
        """
        parts = self.running()
        parts.intake.require_leader()
        try:
            async with asyncio.timeout(self._context.options.read_timeout_s):
                await parts.consensus.read_index()
        except TimeoutError as error:
            raise KuduError(
                ErrorCode.TIMED_OUT,
                f"no majority of tablet {self.tablet_id} confirmed in time that this server still leads it",
                verdict=Verdict.TRY_LATER,
            ) from error
        return parts.consensus.safe_time

    async def snapshot_at(self, timestamp: HybridTime, *, allow_follower: bool = False) -> HybridTime:
        """Waits until the snapshot at `timestamp` is complete here and will stay as it is.

        Raises:
            KuduError: INVALID_SNAPSHOT if it is too far ahead or older than the history; NOT_THE_LEADER; TIMED_OUT.
        """
        parts, options = self.running(), self._context.options
        if not allow_follower:
            parts.intake.require_leader()
        self.require_history(timestamp)
        ahead = physical_micros(timestamp) - self._context.clock.wall_micros()
        if ahead > options.clock_ahead_s_max * 1e6:
            raise KuduError(
                ErrorCode.INVALID_SNAPSHOT,
                f"the snapshot is {ahead / 1e6:.1f} s in the future; at most {options.clock_ahead_s_max:g} s are taken",
            )
        await parts.consensus.wait_safe_time(timestamp, options.read_timeout_s)
        return timestamp

    def require_history(self, timestamp: HybridTime) -> None:
        """Refuses a snapshot whose history may be gone.

        Raises:
            KuduError: INVALID_SNAPSHOT.
        """
        oldest = max(self.running().tablet.records.history_start, self._context.history_begin())
        if timestamp < oldest:
            raise KuduError(
                ErrorCode.INVALID_SNAPSHOT,
                f"the snapshot at {physical_micros(timestamp)} µs is older than the history that is kept, which begins "
                f"at {physical_micros(oldest)} µs",
                details={"oldest_timestamp": str(oldest)},
            )

    def scan(self, spec: ScanSpec) -> Iterator[pa.RecordBatch]:
        """The rows at `spec.timestamp`, which `latest_snapshot` or `snapshot_at` gave.

        The iterator holds the snapshot, and the files it needs, until it is exhausted or closed.

        Raises:
            KuduError: COLUMN_NOT_FOUND, INVALID_SCAN_SPEC or INVALID_ARGUMENT, naming what is wrong; INVALID_SNAPSHOT.
        """
        parts = self.running()
        self.require_history(spec.timestamp)
        return parts.tablet.scan(spec)


def _outcome_of(decided: asyncio.Future[object]) -> WriteOutcome | KuduError:
    error = decided.exception()
    if error is not None:
        assert isinstance(error, KuduError), error
        return error
    outcome = decided.result()
    assert isinstance(outcome, WriteOutcome), outcome
    return outcome if outcome.error is None else outcome.error


def _response(timestamp: HybridTime, row_errors: RowErrors) -> tserver_pb2.WriteResponse:
    response = tserver_pb2.WriteResponse(timestamp=timestamp)
    for row, code in row_errors:
        response.row_errors.add(row_index=row, code=ROW_ERROR_TO_PB[code])
    return response
