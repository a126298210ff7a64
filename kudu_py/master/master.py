"""`Master`: the parts of a master, put together over given seams; composition only.

Order of start, and why:

1. Services are registered and the RPC server listens (its owner's business), so that other masters can ask who this is.
2. Replicas are opened: the sys catalog's, if there is one.
3. On a first start the sys catalog is created, with all masters as its members. Every master comes to the same config
by
   itself: it asks each address who answers there.
4. Background tasks: leadership, which begins a reign when this master is elected; the reconciler; the rebalancer;
upkeep of the sys catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import SYS_CATALOG_TABLET_ID, ServerId, TabletId, require_id
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.consensus.service import ConsensusServicer
from kudu_py.daemon.generic_service import GenericServicer
from kudu_py.daemon.supervisor import Supervisor
from kudu_py.daemon.surroundings import ServiceRegistry, Surroundings
from kudu_py.env.clock import HybridClock
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.table_ops import Servers
from kudu_py.master.consensus_client import ConsensusClient
from kudu_py.master.leadership import Leadership
from kudu_py.master.member_policy import MemberPolicy
from kudu_py.master.metrics import register_metrics
from kudu_py.master.operations import Operations
from kudu_py.master.rebalancer import Rebalancer, RebalancerOptions
from kudu_py.master.reconciler import Reconciler, servers_of
from kudu_py.master.replica_changes import ReplicaChanges
from kudu_py.master.service import MasterServicer
from kudu_py.master.sys_catalog import (
    SYS_CATALOG_PARTITION,
    SYS_CATALOG_PARTITION_SCHEMA,
    SYS_CATALOG_SCHEMA,
    SYS_CATALOG_TABLE_NAME,
    SysCatalog,
)
from kudu_py.master.tablet_leaders import TabletLeaders
from kudu_py.master.tablet_turns import TabletTurns
from kudu_py.master.ts_admin_client import TsAdminClient
from kudu_py.master.ts_registry import TsRegistry
from kudu_py.pb import (
    common_pb2,
    consensus_pb2_grpc,
    master_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tablet_copy_pb2_grpc,
)
from kudu_py.rpc.call import call
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.manager import NewTablet
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.tablet_copy.metrics import CopyCollector
from kudu_py.tablet.tablet_copy.service import TabletCopyServicer
from kudu_py.tablet.tablet_copy.source import CopySessions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica

_log = structlog.get_logger(__name__)

_ASK_PEER_TIMEOUT_S = 2.0
_ASK_PEER_AGAIN_S = 0.5
_QUARANTINE_INTERVAL_S = 30.0
_HANDOVER_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Bounds and times of a master, beside those of its parts.

    Attributes:
        master_addresses: of all masters, this one among them; empty if it is alone. Only a first start looks at them.
        replica: of the sys catalog.
        flush_age_s: of the sys catalog's unflushed entries, if they are many.
        calls_max: of MasterService under way at once; more are told to try later.
        memory_limit_bytes: of the whole process.
    """

    master_addresses: tuple[str, ...] = ()
    replica: ReplicaOptions = field(default_factory=ReplicaOptions)
    catalog: CatalogOptions = field(default_factory=CatalogOptions)
    rebalancer: RebalancerOptions = field(default_factory=RebalancerOptions)
    flush_age_s: float = 120.0
    calls_max: int = 512
    memory_limit_bytes: int = 2 << 30


class Master:
    """One master. `add_services`, then `start`, maybe `drain`, then `stop`; not started again.

    Attributes:
        http_address: of its pages; may be empty. Set before `start`.
        manager, registry, sys_catalog, committer, reconciler, leadership, servicer, disk_watch, clock: its parts, for
            pages and tests.
    """

    def __init__(self, surroundings: Surroundings, settings: MasterSettings) -> None:
        around = self._surroundings = surroundings
        self._settings = settings
        options = settings.catalog
        self._loop = asyncio.get_running_loop()
        self.clock = around.clock
        self.http_address = ""
        self._tasks = Supervisor(around.on_fatal)
        self._work = contextlib.AsyncExitStack()
        self._is_running = False
        self.manager = around.tablet_manager(
            settings.replica,
            hybrid_clock=HybridClock(around.clock),
            memory=MemoryBudget(settings.memory_limit_bytes),
            on_report=self._on_report,
        )
        self.copy_sessions = CopySessions(self.manager.context, self.manager)
        around.registry.register(CopyCollector(self.manager.context.copies, self.copy_sessions))
        self.disk_watch = around.disk_watch(self.manager, settings.replica)
        self.registry = TsRegistry(
            started_s=around.clock.monotonic(),
            unresponsive_timeout_s=options.tserver_unresponsive_timeout_s,
            settle_s=2 * options.heartbeat_interval_s,
        )
        self.sys_catalog = SysCatalog(
            self._sys_catalog_replica, change_bytes_max=options.change_bytes_max, flush_age_s=settings.flush_age_s
        )
        self.committer = Committer(self.sys_catalog, on_published=self._on_published, on_doubt=self._on_doubt)
        consensus = ConsensusClient(around.dialer)
        turns = TabletTurns()
        self.member_policy = MemberPolicy(
            committer=self.committer,
            registry=self.registry,
            admin=consensus,
            turns=turns,
            clock=around.clock,
            rng=around.rng,
            options=options,
            on_bug=around.on_fatal,
        )
        self.reconciler = Reconciler(
            committer=self.committer,
            registry=self.registry,
            admin=TsAdminClient(around.dialer, timeout_s=options.nudge_timeout_s),
            policy=self.member_policy,
            clock=around.clock,
            rng=around.rng,
            options=options,
        )
        self.replica_changes = ReplicaChanges(
            committer=self.committer,
            leaders=TabletLeaders(registry=self.registry, admin=consensus, clock=around.clock),
            admin=consensus,
            turns=turns,
            servers=self._servers,
            lost_voters=self.member_policy.lost_voters,
            clock=around.clock,
            rng=around.rng,
            on_bug=around.on_fatal,
        )
        self.operations = Operations(
            committer=self.committer,
            registry=self.registry,
            servers=self._servers,
            blocked=self.member_policy.blocked_reason,
            clock=around.clock,
            rng=around.rng,
            options=options,
        )
        self.rebalancer = Rebalancer(
            committer=self.committer,
            registry=self.registry,
            mover=self.operations,
            consensus=consensus,
            refusing_copies=self.member_policy.refusing_copies,
            workers=around.workers,
            clock=around.clock,
            options=settings.rebalancer,
        )
        self.leadership = Leadership(
            sys_catalog=self.sys_catalog,
            committer=self.committer,
            registry=self.registry,
            reconciler=self.reconciler,
            clock=around.clock,
            rng=around.rng,
        )
        self.servicer = MasterServicer(
            sys_catalog=self.sys_catalog,
            committer=self.committer,
            registry=self.registry,
            reconciler=self.reconciler,
            changes=self.replica_changes,
            operations=self.operations,
            balance=self.rebalancer.balance,
            blocked=self.member_policy.blocked_reason,
            dialer=around.dialer,
            clock=around.clock,
            rng=around.rng,
            options=options,
            registration=self.registration,
            master_addresses=self.master_addresses,
        )
        register_metrics(
            around.registry,
            manager=self.manager,
            committer=self.committer,
            reconciler=self.reconciler,
            policy=self.member_policy,
            rebalancer=self.rebalancer,
            servers=self.registry,
            clock=around.clock,
        )

    def add_services(self, server: ServiceRegistry) -> None:
        """Registers its services, before the server starts."""
        # Without a bound: refusing a leader's heartbeat would only make more work.
        server.add(
            consensus_pb2_grpc.add_ConsensusServiceServicer_to_server,
            ConsensusServicer(self.manager),
            checks_dest_uuid=True,
        )
        server.add(
            tablet_copy_pb2_grpc.add_TabletCopyServiceServicer_to_server,
            TabletCopyServicer(self.copy_sessions, self.manager.context.copies, self.manager),
            checks_dest_uuid=True,
            in_flight_max=self._settings.calls_max,
        )
        server.add(
            server_pb2_grpc.add_GenericServiceServicer_to_server,
            GenericServicer(self.registration, self.disk_watch.problems),
            checks_dest_uuid=False,
        )
        server.add(
            master_pb2_grpc.add_MasterServiceServicer_to_server,
            self.servicer,
            checks_dest_uuid=False,
            in_flight_max=self._settings.calls_max,
        )

    @property
    def address(self) -> str:
        """host:port under which others reach its services."""
        return self._surroundings.address

    def master_addresses(self) -> tuple[str, ...]:
        """Of all masters, as configured."""
        return self._settings.master_addresses or (self._surroundings.address,)

    def registration(self) -> common_pb2.ServerRegistration:
        """What this master says of itself."""
        return self._surroundings.registration(http_address=self.http_address)

    async def start(self) -> None:
        """Opens or creates the sys catalog and begins to take part. Its services must be reachable already.

        Waits for the other masters on a first start; otherwise for none.

        Raises:
            KuduError: the sys catalog cannot be opened, or the masters' addresses make no group.
        """
        await self.manager.start()
        try:
            replica = self._sys_catalog_replica()
        except KuduError as error:
            if error.code is not ErrorCode.TABLET_NOT_FOUND:
                raise
            replica = await self._create_sys_catalog()
        replica.running()
        self._is_running = True
        self._work.push_async_callback(self.committer.close)
        self._work.push_async_callback(self.replica_changes.close)
        self._work.push_async_callback(self.member_policy.close)
        await self._work.enter_async_context(self._tasks)
        self._tasks.run_forever(self.disk_watch.run(), name="disk watch")
        self._tasks.run_forever(self.leadership.run(), name="leadership")
        self._tasks.run_forever(self.reconciler.run(), name="reconciler")
        self._tasks.run_forever(self.rebalancer.run(), name="rebalancer")
        self._tasks.run_forever(self.sys_catalog.keep_up(), name="sys catalog upkeep")
        self._tasks.run_forever(self._purge_quarantine(), name="quarantine upkeep")

    async def drain(self) -> None:
        """Hands the leadership over, for a process on its way out; bounded in time."""
        await self.copy_sessions.close()
        await self.manager.step_down_all(_HANDOVER_TIMEOUT_S)

    async def stop(self) -> None:
        """Ends the reign, if there is one, and closes the sys catalog. Its server takes no more calls already."""
        await self.fall_silent()
        await self.copy_sessions.close()
        await self.manager.stop()

    async def abandon(self) -> None:
        """Falls silent without another word to disk or network, as a process that was killed; for the simulator."""
        await self.fall_silent()
        for _, consensus in self.manager.consensus_all():
            await consensus.stop()

    async def fall_silent(self) -> None:
        """Ends the reign and all background work, and touches no file: the half of `stop` that a power cut leaves."""
        self._is_running = False
        await self._work.aclose()

    async def _purge_quarantine(self) -> None:
        """Until cancelled: removes what a replica of the sys catalog that was copied anew has left, once it is old."""
        while True:
            await asyncio.sleep(_QUARANTINE_INTERVAL_S)
            await self.manager.purge_quarantine()

    def _servers(self) -> Servers:
        return servers_of(self.committer.require_reign().state, self.registry, self.clock.monotonic())

    def _sys_catalog_replica(self) -> TabletReplica:
        return self.manager.replica(SYS_CATALOG_TABLET_ID)

    async def _create_sys_catalog(self) -> TabletReplica:
        config = await self._first_config()
        _log.info("sys_catalog_created", masters=[f"{m.uuid} at {m.address}" for m in config.members])
        return await self.manager.create_tablet(
            NewTablet(
                tablet_id=SYS_CATALOG_TABLET_ID,
                table_id=SYS_CATALOG_TABLET_ID,
                table_name=SYS_CATALOG_TABLE_NAME,
                schema=SYS_CATALOG_SCHEMA,
                partition_schema=SYS_CATALOG_PARTITION_SCHEMA,
                partition=SYS_CATALOG_PARTITION,
                config=config,
            )
        )

    async def _first_config(self) -> RaftConfig:
        around, addresses = self._surroundings, self._settings.master_addresses
        if not addresses:
            return RaftConfig(0, (Member(around.uuid, MemberType.VOTER, around.address),))
        uuids = await asyncio.gather(*(self._uuid_at(address) for address in addresses))
        if len(set(uuids)) != len(uuids) or around.uuid not in uuids:
            found = ", ".join(f"{u} at {a}" for u, a in zip(uuids, addresses, strict=True))
            raise KuduError(
                ErrorCode.CONFIGURATION_ERROR,
                f"--master_addresses must name each master once, this one ({around.uuid} at {around.address}) among"
                f" them; those that answered are {found}",
            )
        members = (Member(uuid, MemberType.VOTER, address) for uuid, address in zip(uuids, addresses, strict=True))
        return RaftConfig(0, tuple(sorted(members, key=lambda member: member.uuid)))

    async def _uuid_at(self, address: str) -> ServerId:
        """Who answers at an address; asks until somebody does."""
        dialer = self._surroundings.dialer
        stub = server_pb2_grpc.GenericServiceStub(dialer.channel(address))
        is_first = True
        while True:
            try:
                async with dialer.permit(address):
                    answer = await call(
                        stub.GetStatus(server_pb2.GetStatusRequest(), timeout=_ASK_PEER_TIMEOUT_S), address=address
                    )
                return ServerId(require_id(answer.registration.uuid, f"the uuid of the master at {address}"))
            except KuduError as error:
                if is_first:
                    _log.info("master_awaited", address=address, error=str(error))
                is_first = False
            await asyncio.sleep(_ASK_PEER_AGAIN_S)

    def _on_report(self, tablet_id: TabletId) -> None:
        # Told from within changes of the replica: look at it once they are done.
        self._loop.call_soon(self._look_at_sys_catalog)

    def _look_at_sys_catalog(self) -> None:
        """Ends the process if the sys catalog's replica has failed while it ran.

        A tablet server lives on without a replica, for the sake of its others. This one was all that a master has: it
        would look alive, and never lead again. A start finds the same damage, and is refused by name.
        """
        replica = self._sys_catalog_replica() if self._is_running else None
        if replica is not None and replica.state is ReplicaState.FAILED:
            reason = f"the sys catalog of this master has failed: {replica.error}"
            _log.critical("sys_catalog_failed", error=str(replica.error))
            self._surroundings.on_fatal(KuduError(ErrorCode.TABLET_FAILED, reason))
        self.leadership.role_changed()

    def _on_published(self, change: CatalogChange) -> None:
        self.reconciler.look_at(tablet.tablet_id for tablet in change.tablets)
        reign = self.committer.reign
        if reign is not None and (change.operations or change.servers):
            # What an operation or a mode asks for is found by looking at all: both are rare.
            self.reconciler.look_at(reign.state.tablets)

    def _on_doubt(self, term: int) -> None:
        self.leadership.in_doubt(term)
