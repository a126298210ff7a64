"""A server with one service of each shape of call, and a channel to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from kudu_py.common.ids import ServerId
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc, tserver_pb2, tserver_pb2_grpc
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.rpc.dialer import GrpcDialer
from kudu_py.rpc.server import RpcServer, RpcServerOptions, call_remaining_s, serve_stream

SERVER_UUID = ServerId("a" * 32)


@dataclass
class ConsensusServicer(consensus_pb2_grpc.ConsensusServiceServicer):
    """Answers as the test says; counts what arrives."""

    on_last_op_id: Callable[[], None] = lambda: None
    held: asyncio.Event = field(default_factory=asyncio.Event)
    updates: list[int] = field(default_factory=list)
    waiting: list[Callable[[object], None]] = field(default_factory=list)
    remaining_s: list[float | None] = field(default_factory=list)

    async def GetLastOpId(self, request, context):
        self.remaining_s.append(call_remaining_s())
        self.on_last_op_id()
        return consensus_pb2.GetLastOpIdResponse()

    async def RequestVote(self, request, context):
        await self.held.wait()
        return consensus_pb2.RequestVoteResponse()

    def UpdateConsensusStream(self, request_iterator, context):
        def take(item, respond):
            self.updates.append(item.sequence)
            if item.request.tablet_id == "held":
                self.waiting.append(respond)
            else:
                respond(consensus_pb2.UpdateConsensusResponse())

        def add(message, sequence, answer):
            is_error = isinstance(answer, ErrorDetail)
            message.items.add(sequence=sequence, **{"error" if is_error else "response": answer})

        return serve_stream(
            request_iterator,
            context,
            take=take,
            tag_of=lambda item: item.sequence,
            message_type=consensus_pb2.UpdateConsensusStreamResponse,
            add=add,
            in_flight_max=4,
        )

    def answer_waiting(self):
        """Answers what is held."""
        waiting, self.waiting = self.waiting, []
        for respond in waiting:
            respond(consensus_pb2.UpdateConsensusResponse())


@dataclass
class TabletServicer(tserver_pb2_grpc.TabletServerServiceServicer):
    """A scan that can be seen to end, and a stream of writes."""

    on_write: Callable[[tserver_pb2.WriteRequest], None] = lambda request: None
    scan_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def Scan(self, request, context):
        try:
            while True:
                yield tserver_pb2.ScanResponse(row_count=1, rows=b"x" * 100_000)
        finally:
            self.scan_closed.set()

    def WriteStream(self, request_iterator, context):
        def take(item, respond):
            self.on_write(item.request)
            respond(tserver_pb2.WriteResponse())

        def add(message, number, answer):
            message.items.add(id=number, **{"error" if isinstance(answer, ErrorDetail) else "response": answer})

        return serve_stream(
            request_iterator,
            context,
            take=take,
            tag_of=lambda item: item.id,
            message_type=tserver_pb2.WriteStreamResponse,
            add=add,
            in_flight_max=8,
        )


@dataclass
class Served:
    """A running server and the way to it."""

    consensus: ConsensusServicer
    tablets: TabletServicer
    server: RpcServer
    registry: CollectorRegistry
    address: str
    dialer: GrpcDialer

    @property
    def consensus_stub(self) -> consensus_pb2_grpc.ConsensusServiceAsyncStub:
        return consensus_pb2_grpc.ConsensusServiceStub(self.dialer.channel(self.address))

    @property
    def tablet_stub(self) -> tserver_pb2_grpc.TabletServerServiceAsyncStub:
        return tserver_pb2_grpc.TabletServerServiceStub(self.dialer.channel(self.address))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    registry = CollectorRegistry()
    server = RpcServer(uuid=SERVER_UUID, registry=registry, options=RpcServerOptions(message_bytes_max=1 << 20))
    consensus, tablets = ConsensusServicer(), TabletServicer()
    server.add(
        consensus_pb2_grpc.add_ConsensusServiceServicer_to_server, consensus, checks_dest_uuid=True, in_flight_max=2
    )
    server.add(tserver_pb2_grpc.add_TabletServerServiceServicer_to_server, tablets, checks_dest_uuid=False)
    address = await server.start("127.0.0.1:0")
    dialer = GrpcDialer()
    try:
        yield Served(consensus, tablets, server, registry, address, dialer)
    finally:
        await dialer.close()
        await server.stop(0)
