"""`scan_tablet`: the rows of one tablet, from whichever replica can give them.

A scan that broke before anything was taken of it starts again elsewhere. Afterwards an ordered scan goes on behind the
last key, at the snapshot it began with; any other ends in an error, since another replica gives the rows in another
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio
import pyarrow as pa

from kudu_py.client.leader_probe import LeaderProbe
from kudu_py.client.location_cache import LocationCache
from kudu_py.client.locator import Locator, refresh_if_possible
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.clock import Clock
from kudu_py.pb import tserver_pb2
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceStub
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import Backoff, Deadline, RandomFraction
from kudu_py.rpc.status import from_rpc_error

if TYPE_CHECKING:
    Stream = grpc.aio.UnaryStreamCall[tserver_pb2.ScanRequest, tserver_pb2.ScanResponse]

_BACKOFF = Backoff(initial_s=0.03, max_s=0.12)
_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_THE_LEADER,
        ErrorCode.TABLET_NOT_FOUND,
        ErrorCode.TABLET_NOT_RUNNING,
        ErrorCode.TABLET_FAILED,
        ErrorCode.WRONG_SERVER_UUID,
        ErrorCode.STEPPING_DOWN,
        ErrorCode.SCANNER_EXPIRED,
    }
)


@dataclass(frozen=True, eq=False)
class ScanContext:
    """What the scans of one client share."""

    cache: LocationCache
    probe: LeaderProbe
    locator: Locator
    dialer: Dialer
    clock: Clock
    rng: RandomFraction
    silence_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ScannedBatch:
    """One answer of a scan.

    Attributes:
        rows: its rows; without columns if only a count was asked for.
        snapshot_timestamp: hybrid time that the rows are of.
    """

    rows: pa.RecordBatch
    snapshot_timestamp: int


class ScanBroken(KuduError):
    """A scan ended after some of its rows were given, and cannot go on elsewhere; a new one might succeed."""


def empty_rows(count: int) -> pa.RecordBatch:
    """So many rows of no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


async def scan_tablet(
    context: ScanContext, tablet_id: str, template: tserver_pb2.ScanRequest, *, timeout_s: float
) -> AsyncGenerator[ScannedBatch, None]:
    """The rows of a tablet, in batches as they come.

    Args:
        template: the request without the tablet's id.
        timeout_s: how long the scan may be without progress, retries included.

    Raises:
        KuduError: the server's refusal; TIMED_OUT or UNAVAILABLE without progress; `ScanBroken`.
    """
    request = tserver_pb2.ScanRequest()
    request.CopyFrom(template)
    request.tablet_id = tablet_id
    given = False
    turn = 0
    deadline = Deadline.after(context.clock, timeout_s)
    while True:
        address = await _locate(context, request, turn)
        error: KuduError
        if address is None:
            error = KuduError(
                ErrorCode.UNAVAILABLE, f"no replica of tablet {tablet_id} can be found", verdict=Verdict.TRY_LATER
            )
        else:
            try:
                async with aclosing(_attempt(context, address, request, deadline, timeout_s=timeout_s)) as answers:
                    async for answer in answers:
                        # An empty first answer tells the columns and the snapshot; it commits to nothing.
                        given |= answer.rows.num_rows > 0
                        deadline = Deadline.after(context.clock, timeout_s)
                        turn = 0
                        yield answer
                        if request.limit and answer.rows.num_rows >= request.limit:
                            return
                        _move_on(request, answer)
                        deadline = Deadline.after(context.clock, timeout_s)
                return
            except KuduError as raised:
                error = raised
                _note(context.cache, tablet_id, address, raised)
        if error.verdict is Verdict.FAILED and error.code not in _ELSEWHERE:
            raise error
        if given and not request.ordered:
            raise ScanBroken(
                error.code,
                f"the scan of tablet {tablet_id} broke after some of its rows were read ({error.message}); a "
                "fault-tolerant scan (set_fault_tolerant) would go on elsewhere",
                verdict=Verdict.TRY_LATER,
                details=error.details,
            )
        if error.code is ErrorCode.TABLET_NOT_FOUND or turn % 8 == 4:
            await refresh_if_possible(context.locator, tablet_id)
        delay_s = _BACKOFF.delay_s(turn, context.rng) if turn or address is None else 0.0
        turn += 1
        if delay_s >= deadline.remaining_s:
            raise KuduError(
                ErrorCode.TIMED_OUT,
                f"the scan of tablet {tablet_id} made no progress for {timeout_s:g} s; the last error was {error}",
                verdict=Verdict.TRY_LATER,
                details=error.details,
            )
        await asyncio.sleep(delay_s)


async def _attempt(
    context: ScanContext, address: str, request: tserver_pb2.ScanRequest, deadline: Deadline, *, timeout_s: float
) -> AsyncGenerator[ScannedBatch, None]:
    """One call to one server, until it ends or another replica turns out to lead.

    Args:
        deadline: for its first answer.
        timeout_s: for each answer behind the first, from when it was asked for.
    """
    stub = TabletServerServiceStub(context.dialer.channel(address))
    stream: Stream = stub.Scan(request)
    schema: pa.Schema | None = None
    needs_leader = not request.allow_followers
    try:
        while True:
            response = await _read(context, stream, address, request.tablet_id, deadline, needs_leader=needs_leader)
            if response is None:
                return
            if response.arrow_schema:
                schema = pa.ipc.read_schema(pa.py_buffer(response.arrow_schema))
            rows = _rows_of(response, schema, address)
            if request.ordered and response.last_key:
                request.start_after_key = response.last_key
            yield ScannedBatch(rows, response.snapshot_timestamp)
            deadline = Deadline.after(context.clock, timeout_s)
    finally:
        stream.cancel()


async def _read(
    context: ScanContext, stream: Stream, address: str, tablet_id: str, deadline: Deadline, *, needs_leader: bool
) -> tserver_pb2.ScanResponse | None:
    """The next answer, None at the end. While the server is silent, the other replicas are asked who leads: a server
    that was stopped does not answer, and does not know that it was replaced."""
    reading = asyncio.ensure_future(anext(aiter(stream), None))
    try:
        while True:
            await asyncio.wait([reading], timeout=min(context.silence_s, deadline.remaining_s))
            if reading.done():
                break
            if deadline.expired:
                raise KuduError(ErrorCode.TIMED_OUT, f"{address} did not answer in time", verdict=Verdict.TRY_LATER)
            leader = await context.probe.find(tablet_id, patience_s=0.25)
            if not reading.done() and leader is not None and leader != address and needs_leader:
                raise KuduError(
                    ErrorCode.NOT_THE_LEADER,
                    f"{address} did not answer, and the leader is now at {leader}",
                    verdict=Verdict.TRY_LATER,
                    details={"leader_address": leader},
                )
        return reading.result()
    except asyncio.CancelledError:
        if reading.done() and reading.cancelled() and not _is_cancelling():
            raise KuduError(
                ErrorCode.UNAVAILABLE, f"the call to {address} was cancelled", verdict=Verdict.TRY_LATER
            ) from None
        raise
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, address=address) from error
    finally:
        if not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _rows_of(response: tserver_pb2.ScanResponse, schema: pa.Schema | None, address: str) -> pa.RecordBatch:
    if schema is None or not len(schema):
        return empty_rows(response.row_count)
    if not response.rows:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    try:
        message = pa.ipc.read_message(pa.py_buffer(response.rows))
        return pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError) as error:
        raise KuduError(ErrorCode.CORRUPTION, f"{address} answered a scan with rows that cannot be read") from error


def _move_on(request: tserver_pb2.ScanRequest, answer: ScannedBatch) -> None:
    """Makes the request continue behind what was given, should it have to be sent again."""
    if request.limit:
        request.limit -= answer.rows.num_rows
    if request.ordered and request.read_mode != tserver_pb2.READ_AT_SNAPSHOT:
        request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
        request.snapshot_timestamp = answer.snapshot_timestamp


async def _locate(context: ScanContext, request: tserver_pb2.ScanRequest, turn: int) -> str | None:
    cache = context.cache
    replicas = [replica for replica in cache.replicas(request.tablet_id) if replica.votes]
    if request.allow_followers and replicas:
        # The leader first: it has the most. Then the others in turn.
        leader = cache.leader(request.tablet_id)
        ordered = sorted(replicas, key=lambda replica: replica.address != leader)
        return ordered[turn % len(ordered)].address
    known = cache.leader(request.tablet_id)
    if known is not None and turn == 0:
        return known
    found = await context.probe.find(request.tablet_id, patience_s=0.3)
    return found or known


def _note(cache: LocationCache, tablet_id: str, address: str, error: KuduError) -> None:
    if error.code in (ErrorCode.SERVER_TOO_BUSY, ErrorCode.THROTTLED):
        return
    if error.verdict is not Verdict.FAILED or error.code in _ELSEWHERE:
        cache.does_not_lead(tablet_id, address)
        hint = error.details.get("leader_address")
        if hint and hint != address:
            cache.leads(tablet_id, hint)
