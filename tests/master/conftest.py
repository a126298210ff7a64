"""Masters on virtual time: real ones, over simulated disks, network and clocks, and tablet servers that do as told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, mint_id
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import (
    common_pb2,
    consensus_pb2,
    master_pb2,
    master_pb2_grpc,
    tserver_admin_pb2,
    tserver_admin_pb2_grpc,
    tserver_pb2,
)
from kudu_py.rpc.call import call
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_master import TESTING_SETTINGS, SimMaster
from kudu_py.testing.sim_network import SimNetwork
from kudu_py.testing.waiting import wait_until


@dataclass(eq=False)
class ScriptedServer(tserver_admin_pb2_grpc.TabletServerAdminServiceServicer):
    """A tablet server as the master sees it: takes CreateTablet and DeleteTablet, and reports what it is told to.

    Attributes:
        replicas: what it has, by tablet.
        refusals: errors for the next calls, in order; None lets one pass.
        calls: the requests it got.
    """

    world: World
    uuid: ServerId
    address: str
    replicas: dict[str, master_pb2.ReportedTablet] = field(default_factory=dict)
    refusals: list[KuduError | None] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    instance: int = 1
    sequence: int = 0
    registers: bool = True

    async def CreateTablet(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        self._refuse()
        if request.tablet_id in self.replicas:
            raise KuduError(ErrorCode.TABLET_ALREADY_EXISTS, request.tablet_id)
        self.replicas[request.tablet_id] = self.report_of(request.tablet_id, request.config)
        return tserver_admin_pb2.CreateTabletResponse()

    async def DeleteTablet(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        self._refuse()
        replica = self.replicas.get(request.tablet_id)
        if replica is None:
            raise KuduError(ErrorCode.TABLET_NOT_FOUND, request.tablet_id)
        found = replica.consensus_state.committed_config.config_index
        if request.HasField("expected_config_index_max") and found > request.expected_config_index_max:
            raise KuduError(ErrorCode.CAS_FAILED, request.tablet_id)
        replica.data_state = tserver_pb2.DELETED
        return tserver_admin_pb2.DeleteTabletResponse()

    def report_of(self, tablet_id: str, config: consensus_pb2.RaftConfig) -> master_pb2.ReportedTablet:
        """A running replica whose leader is the first member."""
        leader = config.members[0].uuid
        return master_pb2.ReportedTablet(
            tablet_id=tablet_id,
            state=tserver_pb2.RUNNING,
            data_state=tserver_pb2.READY,
            consensus_state=consensus_pb2.ConsensusState(
                term=1,
                leader_uuid=leader,
                committed_config=config,
                role=consensus_pb2.LEADER if leader == self.uuid else consensus_pb2.FOLLOWER,
            ),
            row_count=10,
            on_disk_bytes=100,
        )

    def _refuse(self) -> None:
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal

    async def heartbeat(self, master: SimMaster, *, full: bool = True) -> master_pb2.TSHeartbeatResponse:
        """With a report of all that it has."""
        self.sequence += 1
        request = master_pb2.TSHeartbeatRequest(
            ts_uuid=self.uuid,
            instance_sequence=self.instance,
            tablet_report=master_pb2.TabletReport(
                is_incremental=not full, sequence=self.sequence, updated_tablets=self.replicas.values()
            ),
            live_tablet_count=len(self.replicas),
        )
        if self.registers:
            request.registration.CopyFrom(common_pb2.ServerRegistration(uuid=self.uuid, rpc_address=self.address))
        return await self.world.call(master, "TSHeartbeat", request)


class World:
    """Some masters and tablet servers on one network."""

    def __init__(self, seed: int = 1, *, masters: int = 1, options: CatalogOptions | None = None) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(self.rng)
        addresses = tuple(f"master-{n}:7051" for n in range(masters))
        self.options = options or CatalogOptions()
        self.masters: list[SimMaster] = []
        for address in addresses:
            self.add_master(address, addresses if masters > 1 else ())
        self.servers: list[ScriptedServer] = []
        self._beating: asyncio.Task[None] | None = None

    def add_master(self, address: str, addresses: tuple[str, ...]) -> SimMaster:
        """One that does not run yet."""
        settings = replace(TESTING_SETTINGS, catalog=self.options)
        node = SimMaster.make(self.network, address, master_addresses=addresses, settings=settings)
        self.masters.append(node)
        return node

    @property
    def master(self) -> SimMaster:
        """The only one."""
        (master,) = self.masters
        return master

    async def start(self, *, servers: int = 3, beats: bool = True) -> None:
        """Starts all masters at once, waits for a reign, adds tablet servers that heartbeat twice a second."""
        await asyncio.gather(*(master.start() for master in self.masters))
        await self.reigning()
        for n in range(servers):
            await self.add_server(n)
        if beats:
            self._beating = asyncio.create_task(self._beat())
            await self.wait_until(
                lambda: all(len(m.process.registry.servers) == servers for m in self.masters if m.running)
            )

    async def add_server(self, n: int) -> ScriptedServer:
        scripted = ScriptedServer(self, ServerId(mint_id(self.rng)), f"tserver-{n}:7050")
        endpoint = self.network.server(scripted.address, scripted.uuid)
        endpoint.add(
            tserver_admin_pb2_grpc.add_TabletServerAdminServiceServicer_to_server, scripted, checks_dest_uuid=True
        )
        await endpoint.start()
        self.servers.append(scripted)
        return scripted

    async def _beat(self) -> None:
        while True:
            for server in self.servers:
                for master in self.masters:
                    if master.running is not None:
                        with contextlib.suppress(KuduError):
                            await server.heartbeat(master)
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        for master in self.masters:
            if master.running is not None:
                await master.stop()
            assert master.fatal == []

    async def call(self, master: SimMaster, method: str, request: Any, *, timeout_s: float = 20.0) -> Any:
        """A call of MasterService, from outside."""
        stub = master_pb2_grpc.MasterServiceStub(self.network.dialer("client:1").channel(master.address))
        return await call(getattr(stub, method)(request, timeout=timeout_s), address=master.address, wrote=True)

    async def create(self, name: str, *, buckets: int = 2, num_replicas: int = 3, **fields: Any) -> str:
        """Creates a table through whoever reigns."""
        return (
            await self.call(await self.reigning(), "CreateTable", create_request(name, buckets, num_replicas, **fields))
        ).table_id

    async def reigning(self) -> SimMaster:
        """Waits for a master that leads and has its catalog ready."""
        await self.wait_until(lambda: any(m.running is not None and m.process.committer.reign for m in self.masters))
        return max(
            (m for m in self.masters if m.running is not None and m.process.committer.reign),
            key=lambda m: m.process.committer.require_reign().term,
        )

    async def wait_until(self, holds: Callable[[], Any], timeout_s: float = 120.0) -> None:
        """Waits, in steps of virtual time, until something holds."""
        await wait_until(holds, timeout_s=timeout_s, state=lambda: f"fatal: {[m.fatal for m in self.masters]}")


def create_request(name: str, buckets: int, num_replicas: int, **fields: Any) -> master_pb2.CreateTableRequest:
    """CreateTable of a table with `key INT64, value STRING nullable`."""
    return master_pb2.CreateTableRequest(
        **{
            "name": name,
            "schema": common_pb2.Schema(
                columns=[
                    common_pb2.ColumnSchema(name="key", type=common_pb2.INT64),
                    common_pb2.ColumnSchema(name="value", type=common_pb2.STRING, nullable=True),
                ],
                key_count=1,
            ),
            "partition_schema": common_pb2.PartitionSchema(
                hash_levels=[common_pb2.PartitionSchema.HashLevel(columns=["key"], bucket_count=buckets)]
                if buckets
                else []
            ),
            "num_replicas": num_replicas,
            **fields,
        }
    )


@pytest.fixture
def simulate() -> Callable[..., None]:
    """Runs a story on a world, from its start to its orderly end, on virtual time."""

    def run(story: Callable[[World], Coroutine[Any, Any, None]], *, servers: int = 3, beats: bool = True, **given: Any):
        async def main() -> None:
            world = World(**given)
            await world.start(servers=servers, beats=beats)
            await story(world)
            await world.stop()

        sim_loop.run(main(), seed=given.get("seed", 1))

    return run
