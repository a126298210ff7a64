"""`WriteIntake`: what stands between a Write and the log of the leader.

Everything that can be wrong with a write is found before it enters the log, because afterwards it is applied, on every
replica. The order of the checks, and why:
 1. Does this replica lead, and has it applied its own no-op? Before that it may not know what earlier leaders
    committed.
 2. Is it a retry: answered before, or on its way right now? A retry must get its answer also when the schema has
    changed since, or the server is short of memory.
 3. Is there room? Cheap, and asked before the rows are decoded: that is the work an overloaded server must not do.
 4. Schema version, size, and every row against the catalog's schema.
Between the first check and `propose` nothing is awaited, so that what was checked still holds when the entry is made.
The identity is decided once more at apply, alike on every replica.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kudu_py.common.errors import ErrorCode, KuduError, Verdict, not_the_leader
from kudu_py.common.hybrid_time import HybridTime, physical_micros
from kudu_py.common.ids import is_id
from kudu_py.common.row_batch import RowBatch, validate
from kudu_py.common.schema import Schema
from kudu_py.common.small_batch import SMALL_ROWS_MAX, SmallBatch, SmallBatchReader
from kudu_py.consensus.core.model import EntryKind, Role
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.consensus.rounds import Round
from kudu_py.pb import tserver_pb2
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.retained_results import (
    CLIENT_CLOCK_AHEAD_MICROS_MAX,
    Answer,
    RequestIdentity,
    RetainedResults,
    id_reused,
    identity_of,
)
from kudu_py.tablet.tablet import Tablet
from kudu_py.tablet.write_result import WriteResult


@dataclass(frozen=True, slots=True, eq=False)
class WriteOp:
    """A Write as an entry carries it.

    Attributes:
        request: as the client sent it.
        identity: None if a retry need not be told from a new write.
        batch: its rows; None on a replica that only has the entry's bytes, which decodes them at apply.
    """

    request: tserver_pb2.WriteRequest
    identity: RequestIdentity | None
    batch: RowBatch | SmallBatch | None

    @staticmethod
    def of_payload(payload: bytes) -> WriteOp:
        """What followers and restarted replicas find in an entry.

        Raises:
            KuduError: CORRUPTION; the leader made the payload, so this is no client's mistake.
        """
        try:
            request = tserver_pb2.WriteRequest.FromString(payload)
        except DecodeError as error:
            raise KuduError(ErrorCode.CORRUPTION, f"a payload of {len(payload)} bytes is no WriteRequest") from error
        return WriteOp(request, identity_of(request), None)

    def rows(self, reader: SmallBatchReader) -> RowBatch | SmallBatch:
        """The rows, opened now if they were not."""
        return self.batch if self.batch is not None else rows_of(reader, self.request)


@dataclass(frozen=True, slots=True, eq=False)
class WriteOutcome:
    """What became of a write at apply.

    Attributes:
        timestamp: of the write.
        result: of its rows.
        error: why nothing was applied, if it was not; alike on every replica.
    """

    timestamp: HybridTime
    result: WriteResult
    error: KuduError | None = None


def rows_of(reader: SmallBatchReader, request: tserver_pb2.WriteRequest) -> RowBatch | SmallBatch:
    """The rows of a request, opened against the catalog's schema; a `RowBatch` is not validated yet.

    Raises as `row_batch.decode`.
    """
    return reader.open(request.rows, tuple(request.column_ids), has_unset=request.has_unset_column)


class WriteIntake:
    """The writes of one tablet on their way. Lives as long as the replica's consensus.

    Attributes:
        retries_answered: writes that had come before, and got the same answer instead of a second effect.
    """

    def __init__(
        self,
        context: ServerContext,
        consensus: RaftConsensus,
        tablet: Tablet,
        retained: RetainedResults,
        tablet_id: str,
    ) -> None:
        self._context = context
        self._options = context.options
        self._consensus = consensus
        self._tablet = tablet
        self._retained = retained
        self._tablet_id = tablet_id
        self._in_flight: dict[tuple[str, int], tuple[bytes, Round]] = {}
        self.retries_answered = 0

    def begin(self, request: tserver_pb2.WriteRequest) -> Round | Answer:
        """Checks a write and hands it to consensus, or finds its answer. Does not wait; nothing is durable yet.

        Raises:
            KuduError: with the verdict that nothing was changed, or REQUEST_STALE.
        """
        self.require_leader()
        identity = self._identity_of(request)
        if identity is not None and (known := self._known(identity)) is not None:
            self.retries_answered += 1
            return known
        size = request.ByteSize()
        self._context.memory.require_room()
        self._consensus.check_room(size)
        self._check_schema(request)
        self._check_size(size)
        batch = rows_of(self._tablet.reader, request)
        if isinstance(batch, RowBatch):
            validate(batch)
        return self._propose(WriteOp(request, identity, batch))

    def begin_batch(self, batch: RowBatch) -> Round:
        """As `begin` for a batch of the house itself (the catalog's), without an identity."""
        self.require_leader()
        validate(batch)
        request = tserver_pb2.WriteRequest(
            tablet_id=self._tablet_id,
            schema_version=batch.schema.version,
            rows=batch.encode(),
            column_ids=batch.column_ids,
            has_unset_column=batch.unset is not None,
        )
        self._check_schema(request)
        self._check_size(request.ByteSize())
        is_small = batch.row_count <= SMALL_ROWS_MAX
        return self._propose(WriteOp(request, None, rows_of(self._tablet.reader, request) if is_small else batch))

    def require_leader(self) -> None:
        """Refuses unless this replica leads and has applied the first entry of its own term.

        Raises:
            KuduError: NOT_THE_LEADER with a hint, UNAVAILABLE while it is not ready; both try later.
        """
        consensus = self._consensus
        if consensus.is_leader_ready():
            return
        if consensus.role is Role.LEADER:
            raise KuduError(
                ErrorCode.UNAVAILABLE,
                f"tablet {self._tablet_id} has just elected this server, which is not ready yet",
                verdict=Verdict.TRY_LATER,
            )
        raise not_the_leader(f"tablet {self._tablet_id}", consensus.leader, consensus.leader_address, consensus.term)

    def _identity_of(self, request: tserver_pb2.WriteRequest) -> RequestIdentity | None:
        identity = identity_of(request)
        if identity is None:
            return None
        if not is_id(identity.client_id) or not identity.sequence or not identity.first_attempt_time:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT,
                "a write that names a client_id (32 lower-case hexadecimal characters) also has a sequence from 1 and "
                "the hybrid time of its first attempt (microseconds since the epoch shifted left by 12)",
            )
        ahead = physical_micros(identity.first_attempt_time) - self._context.clock.wall_micros()
        if ahead > CLIENT_CLOCK_AHEAD_MICROS_MAX:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT,
                f"first_attempt_time is {ahead / 1e6:.0f} s ahead of this server's clock; synchronise the clocks",
            )
        return identity

    def _known(self, identity: RequestIdentity) -> Round | Answer | None:
        in_flight = self._in_flight.get((identity.client_id, identity.sequence))
        if in_flight is not None:
            digest, pending = in_flight
            if digest != identity.digest:
                raise id_reused(identity)
            return pending
        return self._retained.lookup(identity, self._context.hybrid_clock.physical())

    def _check_size(self, size_bytes: int) -> None:
        limit = self._options.write_bytes_max
        if size_bytes > limit:
            raise KuduError(
                ErrorCode.INVALID_ROW_BLOCK,
                f"the write has {size_bytes} bytes; the limit is {limit}: send fewer rows at a time",
                details={"limit_bytes": str(limit)},
            )

    def _check_schema(self, request: tserver_pb2.WriteRequest) -> None:
        error = schema_mismatch(self._tablet.schema, request.schema_version)
        if error is not None:
            raise error

    def _propose(self, op: WriteOp) -> Round:
        payload = op.request.SerializeToString()
        pending = self._consensus.propose(EntryKind.WRITE, payload, op)
        size = len(payload)
        self._context.memory.change(size)
        key = None
        if op.identity is not None:
            key = (op.identity.client_id, op.identity.sequence)
            self._in_flight[key] = (op.identity.digest, pending)

        def settled(future: asyncio.Future[object]) -> None:
            self._context.memory.change(-size)
            if key is not None:
                del self._in_flight[key]
            if not future.cancelled():
                future.exception()  # if nobody waits any more, nobody needs to be warned

        pending.future.add_done_callback(settled)
        return pending


def schema_mismatch(schema: Schema, version: int) -> KuduError | None:
    """The refusal of rows that follow another schema than the tablet's, if they do."""
    if version == schema.version:
        return None
    details = {"schema_version": str(schema.version)}
    if version < schema.version:
        return KuduError(
            ErrorCode.TABLET_HAS_A_NEWER_SCHEMA,
            f"the rows follow schema version {version}, the tablet is at {schema.version}; open the table again",
            details=details,
        )
    return KuduError(
        ErrorCode.MISMATCHED_SCHEMA,
        f"the rows follow schema version {version}, the tablet is only at {schema.version}",
        verdict=Verdict.TRY_LATER,
        details=details,
    )
