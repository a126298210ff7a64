"""Write and Scan, from a client's stub to the rows and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.wire import predicate_to_pb
from kudu_py.pb import common_pb2, tserver_pb2
from kudu_py.rpc.status import from_error_detail, from_rpc_error
from kudu_py.testing.refusals import refusal
from kudu_py.testing.replica_group import SCHEMA, Row, batch_of, request_of
from kudu_py.testing.waiting import wait_until

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
ROWS: list[Row] = [(key, key * 10 if key % 3 else None, f"row {key}") for key in range(100)]


async def scan(stub: Any, request: tserver_pb2.ScanRequest) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Rows and answers of a scan."""
    responses = [response async for response in stub.Scan(request)]
    schema = pa.ipc.read_schema(pa.py_buffer(responses[0].arrow_schema))
    rows: list[tuple[Any, ...]] = []
    for response in responses:
        assert response.snapshot_timestamp == responses[0].snapshot_timestamp
        if response.rows:
            batch = pa.ipc.read_record_batch(pa.py_buffer(response.rows), schema)
            assert batch.num_rows == response.row_count
            rows.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    assert not any(response.arrow_schema for response in responses[1:])
    return rows, responses


async def scan_refusal(stub: Any, request: tserver_pb2.ScanRequest) -> KuduError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stub.Scan(request):
            pass
    return from_rpc_error(raised.value)


def predicate(column: str, op: PredicateOp, *values: object) -> common_pb2.ColumnPredicate:
    return predicate_to_pb(SCHEMA, Predicate(column, op, values))


def test_what_is_written_is_scanned(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            await stub.Write(request_of(tablet_id, batch_of(ROWS)))
            rows, responses = await scan(stub, tserver_pb2.ScanRequest(tablet_id=tablet_id))
            assert rows == ROWS
            assert sum(response.row_count for response in responses) == 100

    simulate(main())


def test_a_scan_without_rows_still_tells_its_schema_and_snapshot(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id = await servers.create()
            rows, (only,) = await scan(servers.stub(), tserver_pb2.ScanRequest(tablet_id=tablet_id, columns=["text"]))
            assert rows == []
            assert pa.ipc.read_schema(pa.py_buffer(only.arrow_schema)).names == ["text"]
            assert only.snapshot_timestamp > 0

    simulate(main())


def test_projection_predicates_and_limit(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            await stub.Write(request_of(tablet_id, batch_of(ROWS)))
            request = tserver_pb2.ScanRequest(
                tablet_id=tablet_id,
                columns=["text", "key"],
                predicates=[predicate("key", PredicateOp.GE, 90), predicate("value", PredicateOp.IS_NOT_NULL)],
            )
            wanted = [(row[2], row[0]) for row in ROWS if row[0] >= 90 and row[1] is not None]
            assert (await scan(stub, request))[0] == wanted
            request.limit = 2
            assert (await scan(stub, request))[0] == wanted[:2]

    simulate(main())


def test_rows_can_be_counted_without_being_sent(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            await stub.Write(request_of(tablet_id, batch_of(ROWS)))
            request = tserver_pb2.ScanRequest(
                tablet_id=tablet_id, count_only=True, predicates=[predicate("key", PredicateOp.LT, 42)]
            )
            responses = [response async for response in stub.Scan(request)]
            assert sum(response.row_count for response in responses) == 42
            assert not any(response.rows for response in responses)

    simulate(main())


def test_large_results_come_in_many_answers(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            rows = [(key, key, "x" * 200) for key in range(2000)]
            await stub.Write(request_of(tablet_id, batch_of(rows)))
            found, responses = await scan(stub, tserver_pb2.ScanRequest(tablet_id=tablet_id, batch_size_bytes=32 << 10))
            assert found == rows
            assert len(responses) > 10
            assert all(len(response.rows) < 64 << 10 for response in responses)

    simulate(main())


def test_an_ordered_scan_goes_on_after_its_last_key_wherever_it_broke(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            for start in (50, 0):
                await stub.Write(request_of(tablet_id, batch_of(ROWS[start : start + 50])))
            request = tserver_pb2.ScanRequest(tablet_id=tablet_id, columns=["text"], ordered=True, limit=30)
            first, responses = await scan(stub, request)
            request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
            request.snapshot_timestamp = responses[0].snapshot_timestamp
            request.start_after_key = [r.last_key for r in responses if r.last_key][-1]
            request.limit = 0
            await stub.Write(request_of(tablet_id, batch_of([(1000, 0, "later")])))
            rest, _ = await scan(stub, request)
            assert first + rest == [(row[2],) for row in ROWS]

    simulate(main())


def condition(column: str, operator: str) -> common_pb2.ColumnPredicate:
    """As it comes from elsewhere: without values."""
    return common_pb2.ColumnPredicate(column=column, operator=common_pb2.PredicateOperator.Value(operator))


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"columns": ["nosuch"]}, ErrorCode.COLUMN_NOT_FOUND, "nosuch"),
        ({"columns": ["key", "key"]}, ErrorCode.INVALID_SCAN_SPEC, "twice"),
        ({"predicates": [condition("nosuch", "IS_NULL")]}, ErrorCode.COLUMN_NOT_FOUND, "nosuch"),
        ({"predicates": [condition("key", "LESS")]}, ErrorCode.INVALID_SCAN_SPEC, "key"),
        ({"batch_size_bytes": 9 << 20}, ErrorCode.INVALID_SCAN_SPEC, "batch_size_bytes"),
        ({"allow_followers": True}, ErrorCode.INVALID_SCAN_SPEC, "followers"),
        ({"start_after_key": b"k"}, ErrorCode.INVALID_SCAN_SPEC, "ordered"),
        ({"count_only": True, "columns": ["key"]}, ErrorCode.INVALID_SCAN_SPEC, "count_only"),
        ({"schema_version": 9}, ErrorCode.MISMATCHED_SCHEMA, "9"),
        ({"read_mode": "READ_AT_SNAPSHOT"}, ErrorCode.INVALID_SNAPSHOT, "snapshot_timestamp"),
        ({"read_mode": "READ_AT_SNAPSHOT", "snapshot_timestamp": 1}, ErrorCode.INVALID_SNAPSHOT, "history"),
        ({"read_mode": "READ_AT_SNAPSHOT", "snapshot_timestamp": 1 << 63}, ErrorCode.INVALID_SNAPSHOT, "future"),
        ({"tablet_id": "../x"}, ErrorCode.INVALID_ARGUMENT, "tablet_id"),
        ({"tablet_id": "0" * 32}, ErrorCode.TABLET_NOT_FOUND, "0" * 32),
    ],
)  # fmt: skip
def test_a_scan_that_cannot_be_is_refused_by_name(
    simulate: Simulate, serving: Any, changes: dict[str, Any], code: ErrorCode, named: str
):
    async def main() -> None:
        async with serving() as servers:
            tablet_id = await servers.create()
            request = tserver_pb2.ScanRequest(**{"tablet_id": tablet_id, **changes})
            error = await scan_refusal(servers.stub(), request)
            assert error.code is code, error
            assert named in error.message

    simulate(main())


def test_a_write_to_another_server_than_the_leaders_names_it(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(size=3) as servers:
            tablet_id = await servers.create()
            leader = (await servers.leader(tablet_id)).consensus
            other = (servers.number_of(leader.uuid) + 1) % 3
            await asyncio.sleep(1.0)
            for call in (
                refusal(servers.stub(other).Write(request_of(tablet_id, batch_of(ROWS)))),
                scan_refusal(servers.stub(other), tserver_pb2.ScanRequest(tablet_id=tablet_id)),
            ):
                error = await call
                assert (error.code, error.verdict) == (ErrorCode.NOT_THE_LEADER, Verdict.TRY_LATER)
                assert error.details["leader_uuid"] == leader.uuid
                assert error.details["leader_address"] == leader.address

    simulate(main())


def test_on_a_stream_an_error_is_the_answer_to_its_item(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id = await servers.create()
            call = servers.stub().WriteStream()
            bad = request_of(tablet_id, batch_of(ROWS[:1]))
            bad.rows = b"bad"
            requests = [request_of(tablet_id, batch_of(ROWS)), bad, request_of("f" * 32, batch_of(ROWS[:1]))]
            message = tserver_pb2.WriteStreamRequest()
            for number, request in enumerate(requests):
                message.items.add(id=number, request=request)
            await call.write(message)
            await call.done_writing()
            answers = {item.id: item async for answer in call for item in answer.items}
            assert answers[0].response.timestamp
            assert from_error_detail(answers[1].error).code is ErrorCode.INVALID_ROW_BLOCK
            assert from_error_detail(answers[2].error).code is ErrorCode.TABLET_NOT_FOUND

    simulate(main())


def test_followers_answer_snapshots_like_the_leader(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(size=3) as servers:
            tablet_id = await servers.create()
            leader = servers.number_of((await servers.leader(tablet_id)).consensus.uuid)
            await servers.stub(leader).Write(request_of(tablet_id, batch_of(ROWS)))
            clock = await servers.stub(leader).GetServerClock(tserver_pb2.GetServerClockRequest())
            update = batch_of([(5, 555, None)], RowOperation.UPDATE)
            await servers.stub(leader).Write(request_of(tablet_id, update))
            request = tserver_pb2.ScanRequest(
                tablet_id=tablet_id,
                read_mode=tserver_pb2.READ_AT_SNAPSHOT,
                snapshot_timestamp=clock.timestamp,
                allow_followers=True,
            )
            for number in range(3):
                rows, _ = await scan(servers.stub(number), request)
                assert sorted(rows) == ROWS

    simulate(main())


def test_replicas_have_the_same_checksum_at_a_snapshot(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(size=3) as servers:
            tablet_id = await servers.create()
            leader = servers.number_of((await servers.leader(tablet_id)).consensus.uuid)
            stub = servers.stub(leader)
            await stub.Write(request_of(tablet_id, batch_of(ROWS)))
            clock = await stub.GetServerClock(tserver_pb2.GetServerClockRequest())
            request = tserver_pb2.ChecksumRequest(tablet_id=tablet_id, snapshot_timestamp=clock.timestamp)
            await servers.servers[0].tablet_server.manager.replica(tablet_id).checkpointer.flush()
            answers = [await servers.stub(number).Checksum(request) for number in range(3)]
            assert {(answer.checksum, answer.row_count) for answer in answers} == {(answers[0].checksum, 100)}
            update = batch_of([(5, 555, None)], RowOperation.UPDATE)
            await stub.Write(request_of(tablet_id, update))
            assert await stub.Checksum(request) == answers[leader]
            latest = await stub.Checksum(tserver_pb2.ChecksumRequest(tablet_id=tablet_id))
            assert latest.checksum != answers[0].checksum
            assert latest.row_count == 100
            keys = await stub.Checksum(tserver_pb2.ChecksumRequest(tablet_id=tablet_id, columns=["key"]))
            assert keys.checksum not in (latest.checksum, answers[0].checksum)

    simulate(main())


def test_the_replicas_of_a_server_are_listed(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            kept, deleted = await servers.create(), await servers.create()
            await servers.stub().Write(request_of(kept, batch_of(ROWS)))
            await servers.servers[0].tablet_server.manager.delete_tablet(deleted)
            answer = await servers.stub().ListTablets(tserver_pb2.ListTabletsRequest())
            tablets = {tablet.tablet_id: tablet for tablet in answer.tablets}
            assert tablets[kept].state == tserver_pb2.RUNNING
            assert tablets[kept].row_count == 100
            assert tablets[kept].consensus_state.leader_uuid == servers.servers[0].uuid
            assert tablets[kept].safe_timestamp > 0
            assert tablets[deleted].data_state == tserver_pb2.DELETED
            assert tablets[deleted].tombstone_last_op_id.index >= 1

    simulate(main())


def test_a_scan_that_is_left_lets_go_of_its_snapshot(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id, stub = await servers.create(), servers.stub()
            await stub.Write(request_of(tablet_id, batch_of(ROWS)))
            call = stub.Scan(tserver_pb2.ScanRequest(tablet_id=tablet_id, batch_size_bytes=100))
            await call.read()
            call.cancel()
            scanners = servers.servers[0].tablet_server.scanners
            await wait_until(lambda: len(scanners) == 0)
            assert scanners.finished()[0].outcome in ("cancelled", "finished")

    simulate(main())
