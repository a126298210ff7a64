"""Tablet servers on virtual time, with a client's stubs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kudu_py.common.ids import ServerId, TabletId, mint_id
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.wire import partition_schema_to_pb, partition_to_pb, schema_to_pb
from kudu_py.consensus.codec import config_to_pb
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.pb import tserver_admin_pb2
from kudu_py.pb.tserver_admin_pb2_grpc import TabletServerAdminServiceStub
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceStub
from kudu_py.tablet.tablet_replica import TabletReplica
from kudu_py.testing.replica_group import SCHEMA
from kudu_py.testing.sim_network import SimNetwork
from kudu_py.testing.sim_tserver import TESTING_SETTINGS, SimTabletServer
from kudu_py.tserver.tablet_server import TabletServerSettings


@dataclass(eq=False)
class Servers:
    """Some tablet servers without masters, and what a client needs."""

    network: SimNetwork
    servers: list[SimTabletServer]

    def stub(self, number: int = 0) -> Any:
        """Of the client."""
        return TabletServerServiceStub(self.network.dialer("client:1").channel(self.servers[number].address))

    def admin(self, number: int = 0) -> Any:
        """Of a master."""
        return TabletServerAdminServiceStub(self.network.dialer("master:1").channel(self.servers[number].address))

    def create_request(self, tablet_id: str | None = None, **changes: Any) -> tserver_admin_pb2.CreateTabletRequest:
        """For a tablet with a replica on each server."""
        members = [Member(server.uuid, MemberType.VOTER, server.address) for server in self.servers]
        config = RaftConfig(0, tuple(sorted(members, key=lambda member: member.uuid)))
        return tserver_admin_pb2.CreateTabletRequest(
            **{
                "table_id": "e" * 32,
                "table_name": "table",
                "tablet_id": tablet_id or mint_id(self.network.rng),
                "schema": schema_to_pb(SCHEMA),
                "partition_schema": partition_schema_to_pb(PartitionSchema()),
                "partition": partition_to_pb(Partition()),
                "config": config_to_pb(config),
                **changes,
            }
        )

    async def create(self) -> TabletId:
        """A tablet with a replica on each server, and a leader."""
        request = self.create_request()
        for number, server in enumerate(self.servers):
            request.dest_uuid = server.uuid
            await self.admin(number).CreateTablet(request)
        await self.leader(TabletId(request.tablet_id))
        return TabletId(request.tablet_id)

    async def leader(self, tablet_id: TabletId) -> TabletReplica:
        """Waits for a leader that takes writes."""
        import asyncio

        while True:
            for server in self.servers:
                if server.running is not None:
                    replica = server.running.manager.replica(tablet_id)
                    if replica.is_leader and replica.consensus.is_leader_ready():
                        return replica
            await asyncio.sleep(0.001)

    def number_of(self, uuid: ServerId) -> int:
        """Which server this is."""
        return next(number for number, server in enumerate(self.servers) if server.uuid == uuid)


@pytest.fixture
def serving() -> Any:
    """`async with serving(size=3) as servers`: started tablet servers."""

    @asynccontextmanager
    async def make(
        size: int = 1, settings: TabletServerSettings = TESTING_SETTINGS, masters: tuple[str, ...] = ()
    ) -> AsyncIterator[Servers]:
        network = SimNetwork(random.Random(1))
        servers = [
            SimTabletServer.make(network, f"tserver-{number}:7050", settings=settings, master_addresses=masters)
            for number in range(size)
        ]
        for server in servers:
            await server.start()
        yield Servers(network, servers)
        for server in servers:
            if server.running is not None:
                await server.stop()
            assert server.fatal == []

    return make
