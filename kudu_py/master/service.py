"""`MasterServicer`: DDL, locations and heartbeats: decode, ask whether this master reigns, plan or read, encode.

Every answer that rests on the catalog is linearizable: a change is replicated before it is answered, and before a read
is answered a majority has confirmed, after the call came, that this master leads. A master that was stopped for a while
and has been replaced answers NOT_THE_LEADER, never an old list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from kudu_py.common import wire
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, TabletId, require_id
from kudu_py.consensus.codec import role_to_pb
from kudu_py.consensus.core.model import Role
from kudu_py.env.clock import Clock
from kudu_py.master import codec
from kudu_py.master.admin_service import AdminServicer
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind, Reign
from kudu_py.master.catalog.entries import TableEntry, TabletEntry, TabletState
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.report_ops import ReplicaState, changed_by_report, plan_report, unknown_tablets
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import plan_create_table, plan_delete_table
from kudu_py.master.operations import Operations
from kudu_py.master.reconciler import Reconciler, servers_of
from kudu_py.master.replica_changes import ReplicaChanges
from kudu_py.master.sys_catalog import SysCatalog
from kudu_py.master.ts_registry import Report, TabletServer, TsRegistry
from kudu_py.pb import common_pb2, master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

_log = structlog.get_logger(__name__)

_PEER_MASTER_TIMEOUT_S = 1.0
_REIGN_PATIENCE_S = 1.0
_UNKNOWN_TABLETS_LOGGED_MAX = 10


class MasterServicer(AdminServicer):
    """The catalog's door.

    Args:
        changes, operations, balance: what administrators' calls are handed to.
        registration: what this master says of itself.
        master_addresses: of all masters, as configured.
    """

    def __init__(
        self,
        *,
        sys_catalog: SysCatalog,
        committer: Committer,
        registry: TsRegistry,
        reconciler: Reconciler,
        changes: ReplicaChanges,
        operations: Operations,
        balance: Callable[[], Awaitable[master_pb2.GetBalanceResponse]],
        blocked: Callable[[TabletId], str],
        dialer: Dialer,
        clock: Clock,
        rng: RandomBits,
        options: CatalogOptions,
        registration: Callable[[], common_pb2.ServerRegistration],
        master_addresses: Callable[[], tuple[str, ...]],
    ) -> None:
        super().__init__(
            confirmed_reign=self._confirmed_reign,
            changes=changes,
            operations=operations,
            balance=balance,
            options=options,
        )
        self._sys_catalog = sys_catalog
        self._committer = committer
        self._registry = registry
        self._reconciler = reconciler
        self._blocked = blocked
        self._dialer = dialer
        self._clock = clock
        self._rng = rng
        self._registration = registration
        self._master_addresses = master_addresses

    # Changes.

    async def CreateTable(
        self, request: master_pb2.CreateTableRequest, context: object
    ) -> master_pb2.CreateTableResponse:
        await self._confirmed_reign()
        wanted = codec.new_table_from_pb(request)
        change = await self._committer.commit(
            [LockKey(LockKind.NAME, wanted.name)],
            lambda state: plan_create_table(
                state,
                wanted,
                servers=servers_of(state, self._registry, self._clock.monotonic()),
                options=self._options,
                rng=self._rng,
                now_micros=self._clock.wall_micros(),
            ),
        )
        (table,) = change.tables
        _log.info(
            "table_created",
            table=table.table_id,
            name=table.name,
            tablets=len(change.tablets),
            num_replicas=table.num_replicas,
        )
        return master_pb2.CreateTableResponse(table_id=table.table_id)

    async def DeleteTable(
        self, request: master_pb2.DeleteTableRequest, context: object
    ) -> master_pb2.DeleteTableResponse:
        table = _named((await self._confirmed_reign()).state, request.table_name, request.table_id)
        await self._committer.commit(
            [LockKey(LockKind.TABLE, table.table_id)],
            lambda state: plan_delete_table(state, table.table_id, note=f"table {table.name!r} was deleted"),
            tablet_locks=lambda state: [
                LockKey(LockKind.TABLET, tablet.tablet_id) for tablet in state.tablets_of(table.table_id)
            ],
        )
        _log.info("table_deleted", table=table.table_id, name=table.name)
        return master_pb2.DeleteTableResponse()

    # Heartbeats.

    async def TSHeartbeat(
        self, request: master_pb2.TSHeartbeatRequest, context: object
    ) -> master_pb2.TSHeartbeatResponse:
        heartbeat = codec.heartbeat_from_pb(request)
        was_known = self._registry.get(heartbeat.server) is not None
        server = self._registry.take_heartbeat(heartbeat, self._clock.monotonic())
        answer = master_pb2.TSHeartbeatResponse(master_uuid=self._registration().uuid, needs_reregister=server is None)
        if server is not None and not was_known:
            _log.info("tablet_server_registered", server=server.uuid, address=server.registration.rpc_address)
        if self._sys_catalog.leading_term is None:
            return answer
        # A new leader that still reads the catalog takes no reports, as little as a follower. It will in a moment, and
        # clients wait for what the report says.
        reign = await self._committer.wait_for_reign(_REIGN_PATIENCE_S)
        if reign is None:
            return answer
        answer.is_leader = True
        if server is None:
            answer.needs_full_tablet_report = True
            return answer
        if request.HasField("tablet_report"):
            report = codec.report_from_pb(request.tablet_report)
            if await self._take_report(reign, server, report):
                answer.tablet_report_sequence = report.sequence
        answer.needs_full_tablet_report = server.report_sequence is None
        return answer

    async def _take_report(self, reign: Reign, server: TabletServer, report: Report) -> bool:
        """Replicates what the report changes, then remembers the rest of it. False: it does not continue what is known.

        If replication fails, nothing is remembered, and the server reports the same again.
        """
        instance = server.instance_sequence
        if not self._registry.accepts(server, report):
            return False
        self._warn_of_unknown(reign.state, server, report)
        changed = frozenset(changed_by_report(reign.state, server.uuid, report.updated))
        if changed:
            news = [replica for replica in report.updated if replica.tablet_id in changed]
            await self._committer.commit(
                [LockKey(LockKind.TABLET, tablet_id) for tablet_id in changed],
                lambda state: plan_report(state, server.uuid, news),
            )
        # A new reign asks for everything anew, and a newer process or report of this server has made this one old.
        if (
            self._committer.reign is not reign
            or server.instance_sequence != instance
            or not self._registry.accepts(server, report)
        ):
            return False
        self._reconciler.look_at(self._registry.take_report(server, report))
        return True

    def _warn_of_unknown(self, state: CatalogState, server: TabletServer, report: Report) -> None:
        unknown = unknown_tablets(state, report.updated)
        if unknown:
            _log.warning(
                "unknown_tablets_reported",
                server=server.uuid,
                count=len(unknown),
                tablets=unknown[:_UNKNOWN_TABLETS_LOGGED_MAX],
                action="none: a replica without a record is never deleted; is the server of another cluster?",
            )

    # Reads.

    async def ListTables(self, request: master_pb2.ListTablesRequest, context: object) -> master_pb2.ListTablesResponse:
        state = await self._read()
        return master_pb2.ListTablesResponse(
            tables=[
                master_pb2.ListTablesResponse.TableInfo(
                    table_id=table.table_id,
                    name=name,
                    state=codec.table_state_to_pb(table.state),
                    tablet_count=len(state.tablets_by_table[table.table_id]),
                    num_replicas=table.num_replicas,
                    owner=table.owner,
                    comment=table.comment,
                )
                for name, table in sorted((name, state.tables[i]) for name, i in state.ids_by_name.items())
                if request.name_filter in name
            ]
        )

    async def GetTableSchema(
        self, request: master_pb2.GetTableSchemaRequest, context: object
    ) -> master_pb2.GetTableSchemaResponse:
        state = await self._read()
        table = _named(state, request.table_name, request.table_id)
        return master_pb2.GetTableSchemaResponse(
            table_id=table.table_id,
            table_name=table.name,
            schema=wire.schema_to_pb(table.schema),
            partition_schema=wire.partition_schema_to_pb(table.partition_schema),
            num_replicas=table.num_replicas,
            owner=table.owner,
            comment=table.comment,
            create_done=_running_count(state, table) == len(state.tablets_by_table[table.table_id]),
        )

    async def IsCreateTableDone(
        self, request: master_pb2.IsCreateTableDoneRequest, context: object
    ) -> master_pb2.IsCreateTableDoneResponse:
        state = await self._read()
        table = _named(state, request.table_name, request.table_id)
        count, running = len(state.tablets_by_table[table.table_id]), _running_count(state, table)
        return master_pb2.IsCreateTableDoneResponse(
            done=count == running, tablet_count=count, running_tablet_count=running
        )

    async def GetTableLocations(
        self, request: master_pb2.GetTableLocationsRequest, context: object
    ) -> master_pb2.GetTableLocationsResponse:
        state = await self._read()
        table = _named(state, request.table_name, request.table_id)
        return master_pb2.GetTableLocationsResponse(
            tablet_locations=[self._locations(table, tablet) for tablet in state.tablets_of(table.table_id)],
            ttl_ms=int(self._options.table_locations_ttl_s * 1000),
        )

    async def GetTabletLocations(
        self, request: master_pb2.GetTabletLocationsRequest, context: object
    ) -> master_pb2.GetTabletLocationsResponse:
        state = await self._read()
        found = []
        for tablet_id in request.tablet_ids:
            tablet = state.tablets.get(TabletId(require_id(tablet_id, "tablet_id")))
            if tablet is None:
                raise KuduError(ErrorCode.TABLET_NOT_FOUND, f"there is no tablet {tablet_id}")
            found.append(self._locations(state.tables[tablet.table_id], tablet))
        return master_pb2.GetTabletLocationsResponse(tablet_locations=found)

    async def GetTableStatistics(
        self, request: master_pb2.GetTableStatisticsRequest, context: object
    ) -> master_pb2.GetTableStatisticsResponse:
        state = await self._read()
        table = _named(state, request.table_name, request.table_id)
        rows = size_bytes = 0
        for tablet in state.tablets_of(table.table_id):
            hosts = self._registry.hosts(tablet.tablet_id)
            size_bytes += sum(replica.on_disk_bytes for replica in hosts.values())
            leader = self._registry.leader_of(tablet.tablet_id)
            if leader is not None and leader in hosts:
                rows += hosts[leader].row_count
        return master_pb2.GetTableStatisticsResponse(live_row_count=rows, on_disk_size_bytes=size_bytes)

    async def ListTabletServers(
        self, request: master_pb2.ListTabletServersRequest, context: object
    ) -> master_pb2.ListTabletServersResponse:
        state = await self._read()
        now_s = self._clock.monotonic()
        return master_pb2.ListTabletServersResponse(
            servers=[
                master_pb2.ListTabletServersResponse.Server(
                    uuid=server.uuid,
                    rpc_address=server.registration.rpc_address,
                    http_address=server.registration.http_address,
                    state=master_pb2.LIVE if self._registry.is_live(server.uuid, now_s) else master_pb2.DEAD,
                    millis_since_heartbeat=max(0, int((now_s - server.last_heartbeat_s) * 1000)),
                    fault_domain=server.registration.fault_domain,
                    software_version=server.registration.software_version,
                    live_tablet_count=server.live_tablet_count,
                    leader_count=server.leader_count,
                    mode=codec.mode_to_pb(state.mode_of(server.uuid)),
                )
                for server in self._registry.servers
            ]
        )

    # Masters.

    async def GetMasterRegistration(
        self, request: master_pb2.GetMasterRegistrationRequest, context: object
    ) -> master_pb2.GetMasterRegistrationResponse:
        answer = master_pb2.GetMasterRegistrationResponse(
            registration=self._registration(), master_addresses=self._master_addresses()
        )
        reign = self._committer.reign
        if reign is not None and reign.state.cluster is not None:
            answer.cluster_id = reign.state.cluster.cluster_id
        try:
            consensus = self._sys_catalog.consensus
        except KuduError:
            return answer  # It is starting or stopping; who it is can be told all the same.
        answer.role = role_to_pb(consensus.role)
        answer.leader_address = consensus.leader_address or ""
        return answer

    async def ListMasters(
        self, request: master_pb2.ListMastersRequest, context: object
    ) -> master_pb2.ListMastersResponse:
        members = self._sys_catalog.consensus.active_config.members
        return master_pb2.ListMastersResponse(
            masters=await asyncio.gather(*(self._master(member.uuid, member.address) for member in members))
        )

    async def _master(self, uuid: ServerId, address: str) -> master_pb2.ListMastersResponse.Master:
        """What a master says of itself; one that cannot be asked is listed with an unknown role."""
        if uuid == self._registration().uuid:
            said = await self.GetMasterRegistration(master_pb2.GetMasterRegistrationRequest(), None)
        else:
            try:
                stub = master_pb2_grpc.MasterServiceStub(self._dialer.channel(address))
                async with self._dialer.permit(address):
                    said = await call(
                        stub.GetMasterRegistration(
                            master_pb2.GetMasterRegistrationRequest(), timeout=_PEER_MASTER_TIMEOUT_S
                        ),
                        address=address,
                    )
            except KuduError:
                return master_pb2.ListMastersResponse.Master(uuid=uuid, rpc_address=address)
        return master_pb2.ListMastersResponse.Master(
            uuid=uuid,
            rpc_address=said.registration.rpc_address or address,
            http_address=said.registration.http_address,
            role=said.role,
        )

    # What they share.

    def _reigning(self) -> Reign:
        """The present reign; raises NOT_THE_LEADER with a hint, or CATALOG_MANAGER_NOT_INITIALIZED."""
        self._sys_catalog.require_leader()
        return self._committer.require_reign()

    async def _confirmed_reign(self) -> Reign:
        """The present reign of a master that still leads: its state holds whatever was acknowledged before the call.

        If another reign began meanwhile, it read the catalog after the call came, which is as good. Changes ask too: a
        refusal, such as TABLE_ALREADY_PRESENT, is an answer that must not be out of date either.
        """
        reign = self._reigning()
        await self._sys_catalog.confirm_leader()
        return reign if self._committer.reign is reign else self._reigning()

    async def _read(self) -> CatalogState:
        return (await self._confirmed_reign()).state

    def _locations(self, table: TableEntry, tablet: TabletEntry) -> master_pb2.TabletLocations:
        locations = master_pb2.TabletLocations(
            tablet_id=tablet.tablet_id,
            partition=wire.partition_to_pb(tablet.partition, table.schema, table.partition_schema),
            config_index=tablet.config.config_index,
            state=codec.tablet_state_to_pb(tablet.state),
            table_id=tablet.table_id,
            wanted_voters=tablet.wanted_voters or table.num_replicas,
            waits_for=self._blocked(tablet.tablet_id),
        )
        if tablet.state is not TabletState.RUNNING:
            return locations  # A tablet that may yet be replaced must not be written to.
        now_s = self._clock.monotonic()
        leader = self._registry.leader_of(tablet.tablet_id)
        for member in tablet.config.members:
            server = self._registry.get(member.uuid)
            locations.replicas.add(
                ts_uuid=member.uuid,
                rpc_address=member.address if server is None else server.registration.rpc_address,
                role=role_to_pb(self._role(tablet.tablet_id, member.uuid, leader)),
                member_type=codec.member_type_to_pb(member.member_type),
                is_alive=self._registry.is_live(member.uuid, now_s),
            )
        return locations

    def _role(self, tablet_id: TabletId, uuid: ServerId, leader: ServerId | None) -> Role:
        """As reported; but there is one leader at most, the one of the highest term."""
        if uuid == leader:
            return Role.LEADER
        replica = self._registry.hosts(tablet_id).get(uuid)
        if replica is None or replica.state is not ReplicaState.RUNNING:
            return Role.NON_PARTICIPANT
        return Role.FOLLOWER if replica.role is Role.LEADER else replica.role


def _named(state: CatalogState, name: str, table_id: str) -> TableEntry:
    """The table that a request names, by id if it gives one, else by name.

    Raises:
        KuduError: TABLE_NOT_FOUND; INVALID_ARGUMENT if it names none, or two different ones.
    """
    if not table_id and not name:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, "the request names no table: set table_name or table_id")
    if not table_id:
        return state.table_by_name(name)
    table = state.table_by_id(table_id)
    if name and name != table.name:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"table {table_id} is named {table.name!r}, not {name[:256]!r}; give one of them",
        )
    return table


def _running_count(state: CatalogState, table: TableEntry) -> int:
    return sum(tablet.state is TabletState.RUNNING for tablet in state.tablets_of(table.table_id))
