"""`TabletServer`: the parts of a tablet server, put together over given seams; composition only.

Order of start, and why:
1. Services are registered and the RPC server listens (its owner's business): a taken port ends the start before
   anything else is touched. Until the replicas are listed, calls are
   told that the server starts; "no such tablet" would make leaders copy tablets here.
2. Replicas are opened, several at a time. One that cannot be opened is FAILED, the others run.
3. Heartbeats begin: the first brings a full report, of replicas as they are.
4. Upkeep begins.
Stopping goes the other way round; before it, `drain` hands leaderships over, so that clients need not wait for
elections.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import structlog

from kudu_py.common.ids import TabletId
from kudu_py.consensus.service import ConsensusServicer
from kudu_py.daemon.generic_service import GenericServicer
from kudu_py.daemon.supervisor import Supervisor
from kudu_py.daemon.surroundings import ServiceRegistry, Surroundings
from kudu_py.env.clock import HybridClock
from kudu_py.pb import (
    common_pb2,
    consensus_pb2_grpc,
    server_pb2_grpc,
    tablet_copy_pb2_grpc,
    tserver_admin_pb2_grpc,
    tserver_pb2_grpc,
)
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.tablet_copy.metrics import CopyCollector
from kudu_py.tablet.tablet_copy.service import TabletCopyServicer
from kudu_py.tablet.tablet_copy.source import CopySessions
from kudu_py.tserver.admin_service import TabletServerAdminServicer
from kudu_py.tserver.heartbeater import Heartbeater, HeartbeatOptions
from kudu_py.tserver.maintenance import Maintenance, MaintenanceOptions
from kudu_py.tserver.metrics import register_metrics
from kudu_py.tserver.scanners import Scanners
from kudu_py.tserver.service import TabletServerServicer
from kudu_py.tserver.tablet_reports import TabletReports

_log = structlog.get_logger(__name__)

EXPIRE_EVERY_S = 1.0
"""How often idle scans are looked for."""


@dataclass(frozen=True, slots=True)
class TabletServerSettings:
    """Bounds and times of a tablet server, beside those of its parts.

    Attributes:
        master_addresses: of all masters.
        fault_domain: what it says of itself to them.
        calls_max: of clients and of masters under way at once, each; more are told to try later.
        scans_max: running at once.
        scanner_ttl_s: a scan whose client takes nothing for so long is closed.
        handover_timeout_s: a process on its way out waits so long for others to take over its leaderships.
        memory_limit_bytes: of the whole process.
    """

    master_addresses: tuple[str, ...] = ()
    fault_domain: str = ""
    replica: ReplicaOptions = field(default_factory=ReplicaOptions)
    heartbeat: HeartbeatOptions = field(default_factory=HeartbeatOptions)
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    calls_max: int = 512
    scans_max: int = 256
    scanner_ttl_s: float = 60.0
    handover_timeout_s: float = 3.0
    memory_limit_bytes: int = 2 << 30


class TabletServer:
    """One tablet server. `add_services`, then `start`, maybe `drain`, then `stop`; not started again.

    Attributes:
        manager, copy_sessions, scanners, heartbeater, maintenance, memory, disk_watch: its parts, for pages and tests.
        http_address: of its pages; may be empty. Set before `start`.
        is_serving: whether its replicas are opened.
    """

    def __init__(self, surroundings: Surroundings, settings: TabletServerSettings) -> None:
        around = self._surroundings = surroundings
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.http_address = ""
        self.is_serving = False
        self.hybrid_clock = HybridClock(around.clock)
        self.memory = MemoryBudget(settings.memory_limit_bytes)
        self.manager = around.tablet_manager(
            settings.replica,
            hybrid_clock=self.hybrid_clock,
            memory=self.memory,
            on_report=self._on_report,
        )
        self.copy_sessions = CopySessions(self.manager.context, self.manager)
        self.disk_watch = around.disk_watch(self.manager, settings.replica)
        self.scanners = Scanners(clock=around.clock, ttl_s=settings.scanner_ttl_s, running_max=settings.scans_max)
        self.heartbeater = Heartbeater(
            uuid=around.uuid,
            instance_sequence=around.start_number,
            master_addresses=settings.master_addresses,
            reports=TabletReports(self.manager),
            registration=self.registration,
            dialer=around.dialer,
            clock=around.clock,
            rng=around.rng,
            options=settings.heartbeat,
        )
        self.maintenance = Maintenance(
            manager=self.manager, memory=self.memory, clock=around.clock, options=settings.maintenance
        )
        around.registry.register(CopyCollector(self.manager.context.copies, self.copy_sessions))
        self._tasks = Supervisor(around.on_fatal)
        self._parts = contextlib.AsyncExitStack()
        register_metrics(
            around.registry,
            manager=self.manager,
            memory=self.memory,
            scanners=self.scanners,
            maintenance=self.maintenance,
        )

    @property
    def address(self) -> str:
        """host:port of its services."""
        return self._surroundings.address

    def add_services(self, server: ServiceRegistry) -> None:
        """Registers its services, before the server starts."""
        server.add(
            tserver_pb2_grpc.add_TabletServerServiceServicer_to_server,
            TabletServerServicer(
                manager=self.manager,
                scanners=self.scanners,
                workers=self._surroundings.workers,
                hybrid_clock=self.hybrid_clock,
            ),
            checks_dest_uuid=False,
            in_flight_max=self._settings.calls_max,
        )
        server.add(
            tserver_admin_pb2_grpc.add_TabletServerAdminServiceServicer_to_server,
            TabletServerAdminServicer(self.manager),
            checks_dest_uuid=True,
            in_flight_max=self._settings.calls_max,
        )
        server.add(
            server_pb2_grpc.add_GenericServiceServicer_to_server,
            GenericServicer(self.registration, self.disk_watch.problems),
            checks_dest_uuid=False,
        )
        server.add(
            tablet_copy_pb2_grpc.add_TabletCopyServiceServicer_to_server,
            TabletCopyServicer(self.copy_sessions, self.manager.context.copies, self.manager),
            checks_dest_uuid=True,
            in_flight_max=self._settings.calls_max,
        )
        # Without a bound: a heartbeat that is refused costs an election.
        server.add(
            consensus_pb2_grpc.add_ConsensusServiceServicer_to_server,
            ConsensusServicer(self.manager),
            checks_dest_uuid=True,
        )

    def registration(self) -> common_pb2.ServerRegistration:
        """What this server says of itself."""
        return self._surroundings.registration(http_address=self.http_address, fault_domain=self._settings.fault_domain)

    async def start(self) -> None:
        """Opens the replicas and begins to work. Its services must be reachable already.

        Raises:
            OSError: the data directory cannot be read.
        """
        self._parts.push_async_callback(self.manager.stop)
        self._parts.push_async_callback(self.copy_sessions.close)
        await self.manager.start()
        await self._parts.enter_async_context(self._tasks)
        for master in self.heartbeater.masters:
            self._tasks.run_forever(master.run(), name=f"heartbeat {master.address}")
        self._tasks.run_forever(self.disk_watch.run(), name="disk watch")
        self._tasks.run_forever(self.maintenance.run(), name="maintenance")
        self._tasks.run_forever(self._expire_scans(), name="scan-expiry")
        self.is_serving = True

    async def drain(self) -> None:
        """Hands leaderships over, for a process on its way out; bounded in time."""
        self.is_serving = False
        await self.copy_sessions.close()  # else whoever copies from here would hold the stop up
        left = await self.manager.step_down_all(self._settings.handover_timeout_s)
        _log.info("leaderships_handed_over", left=left)

    async def stop(self) -> None:
        """Stops all parts. Its server takes no more calls already."""
        self.is_serving = False
        await self._parts.aclose()

    async def abandon(self) -> None:
        """Falls silent without another word to disk or network, as a process that was killed; for the simulator."""
        self.is_serving = False
        await self._tasks.__aexit__(None, None, None)
        for _, consensus in self.manager.consensus_all():
            await consensus.stop()

    async def _expire_scans(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            expired = self.scanners.expire()
            if expired:
                _log.info("scans_expired", scans=expired)

    def _on_report(self, tablet_id: TabletId) -> None:
        self.heartbeater.note_changed(tablet_id)
