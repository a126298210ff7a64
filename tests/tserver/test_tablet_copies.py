"""What whole tablet servers say of copies under way, in lists, reports, pages and metrics; and how one is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from prometheus_client.exposition import generate_latest

from kudu_py.common.errors import ErrorCode
from kudu_py.consensus.codec import config_to_pb
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.pb import consensus_pb2, tablet_copy_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.pb.tablet_copy_pb2_grpc import TabletCopyServiceStub
from kudu_py.rpc.status import from_rpc_error
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.testing.replica_group import TESTING_OPTIONS, batch_of, request_of
from kudu_py.testing.sim_tserver import TESTING_SETTINGS
from kudu_py.testing.waiting import wait_until
from kudu_py.tserver.pages import TabletServerPages
from kudu_py.tserver.tablet_reports import TabletReports

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]
SLOW = TabletCopyOptions(
    chunk_bytes=1 << 10, piece_bytes=1 << 10, sync_bytes=4 << 10, bytes_per_s=10_000, burst_bytes=1000, copies_max=1
)
SETTINGS = replace(TESTING_SETTINGS, replica=replace(TESTING_OPTIONS, copy=SLOW))


class Copying:
    """A tablet on the first server; the second one is to copy it."""

    def __init__(self, servers: Any) -> None:
        self.servers = servers
        self.source, self.target = servers.servers
        self.tablet_ids: list[str] = []

    async def create(self) -> str:
        request = self.servers.create_request()
        (member,) = [m for m in request.config.members if m.uuid == self.source.uuid]
        request.config.CopyFrom(consensus_pb2.RaftConfig(members=[member]))
        request.dest_uuid = self.source.uuid
        await self.servers.admin(0).CreateTablet(request)
        replica = self.source.tablet_server.manager.replica(request.tablet_id)
        await wait_until(lambda: replica.is_leader and replica.consensus.is_leader_ready())
        rows = [(key, key, "x" * 500) for key in range(100)]
        await self.servers.stub(0).Write(request_of(request.tablet_id, batch_of(rows)))
        self.tablet_ids.append(request.tablet_id)
        return request.tablet_id

    async def start(self, tablet_id: str) -> None:
        replica = self.source.tablet_server.manager.replica(tablet_id)
        stub: Any = ConsensusServiceStub(self.channel(self.target))
        await stub.StartTabletCopy(
            consensus_pb2.StartTabletCopyRequest(
                dest_uuid=self.target.uuid,
                tablet_id=tablet_id,
                caller_uuid=self.source.uuid,
                caller_term=replica.consensus.term,
                source_uuid=self.source.uuid,
                source_address=self.source.address,
            )
        )

    def channel(self, server: Any) -> Any:
        return self.servers.network.dialer("client:1").channel(server.address)

    async def listed(self, server: Any) -> list[tablet_copy_pb2.CopySession]:
        stub: Any = TabletCopyServiceStub(self.channel(server))
        answer = await stub.ListCopySessions(tablet_copy_pb2.ListCopySessionsRequest(dest_uuid=server.uuid))
        return list(answer.sessions)

    async def cancel(self, tablet_id: str) -> None:
        stub: Any = TabletCopyServiceStub(self.channel(self.target))
        await stub.CancelCopy(tablet_copy_pb2.CancelCopyRequest(dest_uuid=self.target.uuid, tablet_id=tablet_id))

    def metrics(self, server: Any) -> str:
        return generate_latest(server.tablet_server._surroundings.registry).decode()


@pytest.fixture
def copying(serving: Any) -> Any:
    @asynccontextmanager
    async def make() -> AsyncIterator[Copying]:
        async with serving(size=2, settings=SETTINGS) as servers:
            yield Copying(servers)

    return make


def test_both_servers_list_a_copy_and_how_far_it_is(simulate: Simulate, copying: Any):
    async def main() -> None:
        async with copying() as rig:
            tablet_id = await rig.create()
            await rig.start(tablet_id)
            await asyncio.sleep(3)
            (at_target,), (at_source,) = await rig.listed(rig.target), await rig.listed(rig.source)
            for session in (at_target, at_source):
                assert session.tablet_id == tablet_id
                assert session.table_name == "table"
                assert (session.source_uuid, session.target_uuid) == (rig.source.uuid, rig.target.uuid)
                assert session.state == tablet_copy_pb2.FETCHING
                assert session.ended_micros == 0
            assert 0 < at_target.bytes_done < at_target.bytes_total == at_source.bytes_total
            assert at_target.session_id == at_source.session_id != ""
            assert (at_target.is_source, at_source.is_source) == (False, True)
            assert at_target.bytes_per_s == pytest.approx(10_000, rel=0.2)
            await wait_until(lambda: not rig.target.tablet_server.manager.context.copies.copies_to_here())
            (at_target,), (at_source,) = await rig.listed(rig.target), await rig.listed(rig.source)
            for session in (at_target, at_source):
                assert session.state == tablet_copy_pb2.SUCCEEDED
                assert session.bytes_done == session.bytes_total
                assert session.ended_micros > session.started_micros
                assert session.error == ""

    simulate(main())


def test_reports_pages_and_metrics_tell_of_a_copy(simulate: Simulate, copying: Any):
    async def main() -> None:
        async with copying() as rig:
            first, second = await rig.create(), await rig.create()
            await rig.start(first)
            await asyncio.sleep(0.1)
            await rig.start(second)
            await asyncio.sleep(2)
            reports = TabletReports(rig.target.tablet_server.manager)
            assert reports.copying() == [first], "the one that waits has no replica yet"
            for report in (reports.full(1), reports.incremental(2, reports.copying())):
                (reported,) = [tablet for tablet in report.updated_tablets if tablet.tablet_id == first]
                assert reported.copy_progress.source_uuid == rig.source.uuid
                assert 0 < reported.copy_progress.bytes_done < reported.copy_progress.bytes_total
            pages = TabletServerPages(rig.target.tablet_server, rig.target.clock).pages()
            (page,) = [page for page in pages if page.path == "/tablet-copies"]
            rows = [dict(zip(page.columns, row, strict=True)) for row in page.rows()]
            assert {(row["tablet_id"], row["state"]) for row in rows} == {(first, "FETCHING"), (second, "QUEUED")}
            text = rig.metrics(rig.target)
            assert 'kudu_tablet_copy_target_sessions{state="QUEUED"} 1.0' in text
            assert 'kudu_tablet_copy_target_sessions{state="FETCHING"} 1.0' in text
            assert "kudu_tablet_copy_source_sessions 1.0" in rig.metrics(rig.source)
            copies = rig.target.tablet_server.manager.context.copies
            await wait_until(lambda: not copies.copies_to_here(), timeout_s=120)
            assert 'kudu_tablet_copy_ended_total{outcome="SUCCEEDED"} 2.0' in rig.metrics(rig.target)
            assert f"kudu_tablet_copy_fetched_bytes_total {float(copies.bytes_fetched)}" in rig.metrics(rig.target)
            assert copies.bytes_fetched == rig.source.tablet_server.manager.context.copies.bytes_sent
            (done, _) = reports.full(3).updated_tablets
            assert not done.HasField("copy_progress")

    simulate(main())


def test_a_copy_is_cancelled_by_a_call_whether_it_runs_or_waits(simulate: Simulate, copying: Any):
    async def main() -> None:
        async with copying() as rig:
            running, waiting = await rig.create(), await rig.create()
            await rig.start(running)
            await asyncio.sleep(0.1)
            await rig.start(waiting)
            await asyncio.sleep(2)
            for tablet_id in (waiting, running):
                await rig.cancel(tablet_id)
            sessions = {session.tablet_id: session for session in await rig.listed(rig.target)}
            assert {session.state for session in sessions.values()} == {tablet_copy_pb2.CANCELLED}
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rig.cancel(running)
            assert from_rpc_error(refused.value).code is ErrorCode.NOT_FOUND
            await rig.start(running)
            await wait_until(lambda: not rig.target.tablet_server.manager.context.copies.copies_to_here())
            again = (await rig.listed(rig.target))[0]
            assert again.state == tablet_copy_pb2.SUCCEEDED
            assert again.bytes_resumed > 0

    simulate(main())


def test_a_page_tells_why_the_last_copy_failed_and_where_the_files_of_a_deleted_replica_went(
    simulate: Simulate, copying: Any
):
    async def main() -> None:
        async with copying() as rig:
            tablet_id, manager = await rig.create(), rig.target.tablet_server.manager

            def shown() -> dict[str, Any]:
                pages = TabletServerPages(rig.target.tablet_server, rig.target.clock).pages()
                (page,) = [page for page in pages if page.path == "/tombstones"]
                (row,) = page.rows()
                return dict(zip(page.columns, row, strict=True))

            await rig.start(tablet_id)
            await asyncio.sleep(2)
            await rig.cancel(tablet_id)
            assert "CANCELLED" in shown()["copy_error"]
            await rig.start(tablet_id)
            await wait_until(lambda: not manager._copies._targets)
            await manager.delete_tablet(tablet_id)
            assert shown()["copy_error"] is None
            assert rig.target.disk.exists(f"/data/quarantine/{shown()['quarantine']}")

    simulate(main())


@pytest.mark.parametrize(
    "method", ["BeginCopySession", "FetchData", "EndCopySession", "ListCopySessions", "CancelCopy"]
)
def test_a_call_that_is_meant_for_another_server_is_refused(simulate: Simulate, copying: Any, method: str):
    async def main() -> None:
        async with copying() as rig:
            stub: Any = TabletCopyServiceStub(rig.channel(rig.target))
            request = getattr(tablet_copy_pb2, f"{method}Request")(dest_uuid=rig.source.uuid)
            call = getattr(stub, method)(request)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (call.read() if method == "FetchData" else call)
            assert from_rpc_error(refused.value).code is ErrorCode.WRONG_SERVER_UUID

    simulate(main())


def test_what_a_session_offers_is_what_the_source_has_committed(simulate: Simulate, copying: Any):
    async def main() -> None:
        async with copying() as rig:
            tablet_id = await rig.create()
            stub: Any = TabletCopyServiceStub(rig.channel(rig.source))
            begun = await stub.BeginCopySession(
                tablet_copy_pb2.BeginCopySessionRequest(
                    dest_uuid=rig.source.uuid, tablet_id=tablet_id, requestor_uuid=rig.target.uuid
                )
            )
            consensus = rig.source.tablet_server.manager.replica(tablet_id).consensus
            committed: RaftConfig = consensus.committed_config
            assert begun.consensus_metadata.committed_config == config_to_pb(committed)
            assert begun.consensus_metadata.current_term == consensus.term
            assert begun.consensus_metadata.voted_for == ""

    simulate(main())
