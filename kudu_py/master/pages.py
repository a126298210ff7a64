"""What a master shows over HTTP: masters, tablet servers, tables, and the tablets of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.common.partition import describe_partition, describe_partitioning
from kudu_py.consensus.core.model import Role
from kudu_py.daemon.copies_page import copies_page
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.operation_ops import state_of
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.master import Master
from kudu_py.webui.page import Cell, DetailPage, Health, Link, Row, Table, TablePage, serving_health


class MasterPages:
    """The pages of one master. What a follower does not know it leaves out, and says who leads."""

    def __init__(self, master: Master, clock: Clock) -> None:
        self._master = master
        self._clock = clock

    def pages(self) -> list[TablePage | DetailPage]:
        """All of them, in the order of the navigation."""
        return [
            TablePage("/masters", "Masters", ("uuid", "rpc_address", "role", "this_one"), self.masters),
            TablePage(
                "/tablet-servers",
                "Tablet servers",
                (
                    "uuid",
                    "rpc_address",
                    "pages",
                    "alive",
                    "mode",
                    "heartbeat_ago_s",
                    "replicas",
                    "leaders",
                    "domain",
                    "version",
                ),
                self.tablet_servers,
            ),
            TablePage(
                "/tables",
                "Tables",
                ("name", "id", "state", "tablets", "running", "replication", "rows", "owner"),
                self.tables,
            ),
            copies_page(self._master.manager.context.copies, self._clock),
            TablePage(
                "/operations",
                "Operations",
                ("id", "kind", "state", "about", "progress", "steps_done", "steps_total", "error"),
                self.operations,
            ),
            DetailPage("/table", "Table", self.table),
        ]

    def health(self) -> Health:
        """SERVING once the sys catalog's replica runs, whether it leads or not; DEGRADED as tablet servers are."""
        try:
            consensus = self._master.sys_catalog.consensus
        except KuduError as error:
            status = "FAILED" if error.code is ErrorCode.TABLET_FAILED else "STARTING"
            return Health(False, status, {"reason": error.message})
        return serving_health(
            self._master.disk_watch.problems(),
            {"role": consensus.role.value, "term": consensus.term, "leader_address": consensus.leader_address or ""},
        )

    def facts(self) -> Iterable[tuple[str, Cell]]:
        """For the home page."""
        registration = self._master.registration()
        yield "uuid", registration.uuid
        yield "rpc_address", registration.rpc_address
        yield "version", registration.software_version
        yield "disk_free_bytes", self._master.disk_watch.free_bytes
        reign = self._master.committer.reign
        if reign is not None:
            state = reign.state
            yield "cluster_id", "" if state.cluster is None else state.cluster.cluster_id
            yield "tables", len(state.ids_by_name)
            yield "tablets", sum(len(tablets) for tablets in state.tablets_by_table.values())
        now_s = self._clock.monotonic()
        registry = self._master.registry
        yield "live_tablet_servers", sum(registry.is_live(server.uuid, now_s) for server in registry.servers)

    def masters(self) -> Iterable[Row]:
        """Members of the sys catalog's config."""
        consensus = self._master.sys_catalog.consensus
        own = self._master.registration().uuid
        for member in consensus.active_config.members:
            if member.uuid == own:
                role = consensus.role.value
            else:
                role = Role.LEADER.value if member.uuid == consensus.leader else member.member_type.value
            yield member.uuid, member.address, role, member.uuid == own

    def tablet_servers(self) -> Iterable[Row]:
        """All that have registered since this master started."""
        now_s = self._clock.monotonic()
        registry = self._master.registry
        reign = self._master.committer.reign
        for server in registry.servers:
            said = server.registration
            yield (
                server.uuid,
                said.rpc_address,
                Link(said.http_address, f"http://{said.http_address}/") if said.http_address else None,
                registry.is_live(server.uuid, now_s),
                reign.state.mode_of(server.uuid).value if reign is not None else None,
                round(max(0.0, now_s - server.last_heartbeat_s), 1),
                server.live_tablet_count,
                server.leader_count,
                said.fault_domain,
                said.software_version,
            )

    def operations(self) -> Iterable[Row]:
        """Long operations, newest first, ended ones included."""
        self._state()
        for operation in self._master.operations.all(include_ended=True):
            progress = self._master.operations.progress(operation)
            about = (operation.tablet_id, operation.table_id, operation.server, operation.from_, operation.to)
            yield (
                operation.operation_id,
                operation.kind.value,
                state_of(operation, progress).value,
                " ".join(each for each in about if each is not None),
                progress.text,
                progress.steps_done,
                progress.steps_total,
                operation.error,
            )

    def tables(self) -> Iterable[Row]:
        """Tables that have not been deleted."""
        state = self._state()
        for name, table_id in sorted(state.ids_by_name.items()):
            table, tablets = state.tables[table_id], state.tablets_of(table_id)
            yield (
                Link(name, f"/table?id={table_id}"),
                table_id,
                table.state.value,
                len(tablets),
                sum(tablet.state.value == "RUNNING" for tablet in tablets),
                table.num_replicas,
                sum(self._rows_of(tablet.tablet_id) for tablet in tablets),
                table.owner,
            )

    def table(self, query: Mapping[str, str]) -> Sequence[Table]:
        """One table, by `?id=` or `?name=`: its name and partitioning, its columns and its tablets."""
        state = self._state()
        table = state.table_by_id(query["id"]) if query.get("id") else state.table_by_name(query.get("name", ""))
        columns = (
            (
                column.column_id,
                column.name,
                column.type.value,
                i < table.schema.key_count,
                column.nullable,
                None if column.default is None else str(column.default)[:200],
                column.comment,
            )
            for i, column in enumerate(table.schema.columns)
        )
        tablets = []
        for tablet in state.tablets_of(table.table_id):
            leader = self._master.registry.leader_of(tablet.tablet_id)
            members = ", ".join(m.uuid + (" (leader)" if m.uuid == leader else "") for m in tablet.config.members)
            tablets.append(
                (
                    tablet.tablet_id,
                    describe_partition(table.schema, table.partition_schema, tablet.partition),
                    tablet.state.value,
                    tablet.config.config_index,
                    members,
                    self._rows_of(tablet.tablet_id),
                    tablet.note,
                )
            )
        facts = (
            table.name,
            table.table_id,
            table.state.value,
            describe_partitioning(table.partition_schema),
            table.num_replicas,
            table.schema.version,
            table.owner,
        )
        return [
            Table(
                "Table",
                ("name", "id", "state", "partitioning", "replication", "schema_version", "owner"),
                [facts],
            ),
            Table("Columns", ("id", "name", "type", "in_primary_key", "nullable", "default_value", "comment"), columns),
            Table("Tablets", ("id", "partition", "state", "config_index", "replicas", "rows", "note"), tablets),
        ]

    def _state(self) -> CatalogState:
        try:
            self._master.sys_catalog.require_leader()
            return self._master.committer.require_reign().state
        except KuduError as error:
            if error.code is ErrorCode.NOT_THE_LEADER:
                message = f"tables are known to the leader only: {error.message}"
                raise KuduError(ErrorCode.INVALID_ARGUMENT, message) from error
            raise

    def _rows_of(self, tablet_id: TabletId) -> int:
        registry = self._master.registry
        leader = registry.leader_of(tablet_id)
        replica = registry.hosts(tablet_id).get(leader) if leader is not None else None
        return replica.row_count if replica is not None else 0
