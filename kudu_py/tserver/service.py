"""`TabletServerServicer`: Write and Scan, over a `TabletManager`; decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.key_encoding import encode_keys
from kudu_py.common.predicate import Predicate
from kudu_py.common.schema import Schema
from kudu_py.common.wire import partition_to_pb, predicates_from_pb
from kudu_py.consensus.codec import op_id_to_pb
from kudu_py.env.clock import HybridClock
from kudu_py.env.workers import Workers
from kudu_py.pb import tserver_pb2
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceServicer
from kudu_py.rpc.server import serve_stream
from kudu_py.tablet.digest import digest_of
from kudu_py.tablet.manager import TabletManager
from kudu_py.tablet.metadata import DataState
from kudu_py.tablet.scan_spec import DEFAULT_BATCH_BYTES, ScanSpec
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tablet.write_intake import schema_mismatch
from kudu_py.tserver.scanners import Scanner, Scanners

BATCH_BYTES_MAX = 8 << 20
WRITES_PER_STREAM_MAX = 1024
"""Unanswered writes of one stream; more are not read from it."""

CHECKSUMS_MAX = 2
"""Checksums read everything; more wait for their turn."""

_STATE_TO_PB = {
    state: tserver_pb2.TabletState.Value(state.value) for state in ReplicaState if state is not ReplicaState.COPYING
} | {ReplicaState.COPYING: tserver_pb2.NOT_STARTED}  # that it is COPYING is what its data state says
_DATA_STATE_TO_PB = {state: tserver_pb2.TabletDataState.Value(state.value) for state in DataState}
_FINGERPRINT_MASK = (1 << 64) - 1


def state_to_pb(state: ReplicaState) -> tserver_pb2.TabletState.ValueType:
    """A replica's state for the wire."""
    return _STATE_TO_PB[state]


def data_state_to_pb(state: DataState) -> tserver_pb2.TabletDataState.ValueType:
    """What a replica's files amount to, for the wire."""
    return _DATA_STATE_TO_PB[state]


def _add_write_answer(
    message: tserver_pb2.WriteStreamResponse, number: int, answer: tserver_pb2.WriteResponse | ErrorDetail
) -> None:
    if isinstance(answer, ErrorDetail):
        message.items.add(id=number, error=answer)
    else:
        message.items.add(id=number, response=answer)


class TabletServerServicer(TabletServerServiceServicer):
    """What clients ask of a tablet server."""

    def __init__(
        self, *, manager: TabletManager, scanners: Scanners, workers: Workers, hybrid_clock: HybridClock
    ) -> None:
        self._manager = manager
        self._scanners = scanners
        self._workers = workers
        self._hybrid_clock = hybrid_clock
        self._checksums = asyncio.Semaphore(CHECKSUMS_MAX)

    async def Write(self, request: tserver_pb2.WriteRequest, context: Any) -> tserver_pb2.WriteResponse:
        return await self._manager.replica(request.tablet_id).write(request)

    def WriteStream(
        self, request_iterator: AsyncIterator[tserver_pb2.WriteStreamRequest], context: Any
    ) -> Any:  # a coroutine that writes the answers itself, which the generated type does not know
        return serve_stream(
            request_iterator,
            context,
            take=self._take_write,
            tag_of=lambda item: item.id,
            message_type=tserver_pb2.WriteStreamResponse,
            add=_add_write_answer,
            in_flight_max=WRITES_PER_STREAM_MAX,
        )

    def _take_write(
        self,
        item: tserver_pb2.WriteStreamRequest.Item,
        respond: Callable[[tserver_pb2.WriteResponse | KuduError], None],
    ) -> None:
        self._manager.replica(item.request.tablet_id).begin_write(item.request, respond)

    async def Scan(self, request: tserver_pb2.ScanRequest, context: Any) -> AsyncIterator[tserver_pb2.ScanResponse]:
        replica = self._manager.replica(request.tablet_id)
        replica.running()
        with self._scanners.admit(request.tablet_id, request.query_id) as scanner:
            plan = ScanPlan(replica.schema, request)  # before anything is waited for: a wrong request fails at once
            timestamp = await _snapshot(replica, request)
            scanner.begin(timestamp, replica.scan(plan.spec(timestamp)))
            is_first = True
            while True:
                with self._scanners.advancing(scanner):
                    response = await self._workers.run(_next_response, scanner, plan, is_first)
                if response is None:
                    return
                is_first = False
                scanner.rows += response.row_count
                scanner.bytes += len(response.rows)
                yield response
                scanner.require_alive()

    async def Checksum(self, request: tserver_pb2.ChecksumRequest, context: Any) -> tserver_pb2.ChecksumResponse:
        replica = self._manager.replica(request.tablet_id)
        names = tuple(request.columns) or replica.schema.names
        columns = tuple(replica.schema.column(name) for name in names)
        async with self._checksums:
            timestamp = HybridTime(request.snapshot_timestamp)
            if timestamp:
                await replica.snapshot_at(timestamp, allow_follower=True)
            else:
                timestamp = replica.consensus.safe_time
            batches = replica.scan(ScanSpec(columns=names, timestamp=timestamp))
            schema = Schema(columns, key_count=1)
            checksum = row_count = 0

            def advance() -> tuple[int, int] | None:
                batch = next(batches, None)
                return None if batch is None else (digest_of(schema, (batch,)), batch.num_rows)

            while (part := await self._workers.run(advance)) is not None:
                checksum = (checksum + part[0]) & _FINGERPRINT_MASK
                row_count += part[1]
        return tserver_pb2.ChecksumResponse(checksum=checksum, row_count=row_count, snapshot_timestamp=timestamp)

    async def ListTablets(
        self, request: tserver_pb2.ListTabletsRequest, context: Any
    ) -> tserver_pb2.ListTabletsResponse:
        response = tserver_pb2.ListTabletsResponse()
        for replica in self._manager.replicas():
            status = replica.status()
            superblock = status.superblock
            message = response.tablets.add(
                tablet_id=status.tablet_id,
                table_id=status.table_id,
                table_name=status.table_name,
                data_state=data_state_to_pb(status.data_state),
                state=state_to_pb(status.state),
                error=status.error,
                schema_version=status.schema_version,
                row_count=status.row_count,
                on_disk_bytes=status.on_disk_bytes,
                memory_bytes=status.memory_bytes,
            )
            if superblock.schema.columns:
                message.partition.CopyFrom(
                    partition_to_pb(superblock.partition, superblock.schema, superblock.partition_schema)
                )
            if status.state is ReplicaState.RUNNING:
                message.consensus_state.CopyFrom(replica.consensus.consensus_state())
                message.safe_timestamp = replica.consensus.safe_time
        for tombstone in self._manager.tombstones():
            message = response.tablets.add(
                tablet_id=tombstone.tablet_id,
                table_id=tombstone.table_id,
                table_name=tombstone.table_name,
                data_state=tserver_pb2.DELETED,
                state=tserver_pb2.STOPPED,
                schema_version=tombstone.schema.version,
            )
            if tombstone.tombstone_last_op_id is not None:
                message.tombstone_last_op_id.CopyFrom(op_id_to_pb(tombstone.tombstone_last_op_id))
        return response

    async def GetServerClock(
        self, request: tserver_pb2.GetServerClockRequest, context: Any
    ) -> tserver_pb2.GetServerClockResponse:
        return tserver_pb2.GetServerClockResponse(timestamp=self._hybrid_clock.now())


class ScanPlan:
    """A ScanRequest, checked against the tablet's schema.

    Attributes:
        names: of the columns to answer.
        arrow_schema: of the answers.
    """

    def __init__(self, schema: Schema, request: tserver_pb2.ScanRequest) -> None:
        """Raises KuduError: COLUMN_NOT_FOUND or INVALID_SCAN_SPEC, naming what is wrong; the schema's version is
        another.
        """
        if request.schema_version:
            mismatch = schema_mismatch(schema, request.schema_version)
            if mismatch is not None:
                raise mismatch
        self._schema = schema
        self._request = request
        self.names = _projection(schema, request)
        self.arrow_schema = pa.schema([schema.column(name).arrow_field for name in self.names])
        self._predicates = _predicates(schema, request)
        if request.batch_size_bytes > BATCH_BYTES_MAX:
            raise _invalid(f"batch_size_bytes is at most {BATCH_BYTES_MAX}, not {request.batch_size_bytes}")
        if request.start_after_key and not request.ordered:
            raise _invalid("start_after_key resumes an ordered scan; set `ordered`")
        is_snapshot = request.read_mode == tserver_pb2.READ_AT_SNAPSHOT
        if not is_snapshot and request.snapshot_timestamp:
            raise _invalid("snapshot_timestamp is for READ_AT_SNAPSHOT")
        if not is_snapshot and request.allow_followers:
            raise _invalid("only READ_AT_SNAPSHOT may be answered by followers")

    def spec(self, timestamp: HybridTime) -> ScanSpec:
        """For the row engine. Of an ordered scan with the whole key, from which the place to resume is told."""
        request = self._request
        names = self.names
        if request.ordered:
            names += tuple(column.name for column in self._schema.key_columns if column.name not in names)
        return ScanSpec(
            columns=names,
            timestamp=timestamp,
            predicates=self._predicates,
            limit=request.limit or None,
            batch_bytes=request.batch_size_bytes or DEFAULT_BATCH_BYTES,
            ordered=request.ordered,
            start_after_key=request.start_after_key or None,
        )

    def response(self, batch: pa.RecordBatch, timestamp: HybridTime) -> tserver_pb2.ScanResponse:
        """One answer. May be called by any thread."""
        response = tserver_pb2.ScanResponse(row_count=batch.num_rows, snapshot_timestamp=timestamp)
        if self._request.ordered:
            if batch.num_rows:
                last = batch.slice(batch.num_rows - 1)
                keys = [last.column(column.name) for column in self._schema.key_columns]
                response.last_key = encode_keys(self._schema, keys).bytes_at(0)
            batch = batch.select(list(self.names))
        if self.names and batch.num_rows:
            response.rows = batch.serialize().to_pybytes()
        return response

    def empty(self, timestamp: HybridTime) -> tserver_pb2.ScanResponse:
        """The answer of a scan without rows."""
        return tserver_pb2.ScanResponse(snapshot_timestamp=timestamp)


def _next_response(scanner: Scanner, plan: ScanPlan, is_first: bool) -> tserver_pb2.ScanResponse | None:
    """Makes the next answer; in a worker, since it reads files, copies a megabyte and looks at many rows for it."""
    batch = scanner.next_batch()
    if batch is None and not is_first:
        return None
    response = plan.empty(scanner.timestamp) if batch is None else plan.response(batch, scanner.timestamp)
    if is_first:
        response.arrow_schema = plan.arrow_schema.serialize().to_pybytes()
    return response


async def _snapshot(replica: TabletReplica, request: tserver_pb2.ScanRequest) -> HybridTime:
    if request.read_mode != tserver_pb2.READ_AT_SNAPSHOT:
        return await replica.latest_snapshot()
    if not request.snapshot_timestamp:
        raise KuduError(ErrorCode.INVALID_SNAPSHOT, "READ_AT_SNAPSHOT needs a snapshot_timestamp")
    return await replica.snapshot_at(HybridTime(request.snapshot_timestamp), allow_follower=request.allow_followers)


def _projection(schema: Schema, request: tserver_pb2.ScanRequest) -> tuple[str, ...]:
    if request.count_only:
        if request.columns:
            raise _invalid("count_only answers no columns; leave `columns` empty")
        return ()
    for name in request.columns:
        schema.position(name)
    if len(set(request.columns)) != len(request.columns):
        raise _invalid("a column is projected twice")
    return tuple(request.columns) or schema.names


def _predicates(schema: Schema, request: tserver_pb2.ScanRequest) -> tuple[Predicate, ...]:
    try:
        predicates = predicates_from_pb(schema, request.predicates)
        for predicate in predicates:
            predicate.bind(schema)
    except KuduError as error:
        if error.code is ErrorCode.INVALID_ARGUMENT:
            raise _invalid(error.message) from error
        raise
    return predicates


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_SCAN_SPEC, message)
