"""`CatalogState`: all records in memory, as an immutable snapshot.

A new leader master builds it from the sys catalog; the committer replaces it with `applying(change)` after the change
is replicated. Readers hold a snapshot and take no lock. Applying copies the maps' spines, not the records: some 10 ns a
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import (
    ClusterEntry,
    OperationEntry,
    OperationId,
    OperationKind,
    TableEntry,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
)


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Everything the catalog holds.

    Attributes:
        cluster: None only before the first leader has minted it.
        tables: by id, removed ones included.
        tablets: by id, replaced and deleted ones included.
        ids_by_name: of live tables only, so that the name of a removed table can be used again.
        tablets_by_table: live tablets of each live table, in partition order.
        replica_counts: live tablets by member of their config; servers with none are absent. The load that placement
            looks at.
        servers: what operators decided about tablet servers; those never decided about are absent.
        operations: long ones, ended ones included until they are forgotten.
        open_operations: those that have not ended, in the order in which they began.
    """

    cluster: ClusterEntry | None = None
    tables: Mapping[TableId, TableEntry] = field(default_factory=dict)
    tablets: Mapping[TabletId, TabletEntry] = field(default_factory=dict)
    ids_by_name: Mapping[str, TableId] = field(default_factory=dict)
    tablets_by_table: Mapping[TableId, tuple[TabletId, ...]] = field(default_factory=dict)
    replica_counts: Mapping[ServerId, int] = field(default_factory=dict)
    servers: Mapping[ServerId, TabletServerEntry] = field(default_factory=dict)
    operations: Mapping[OperationId, OperationEntry] = field(default_factory=dict)
    open_operations: tuple[OperationEntry, ...] = ()

    @classmethod
    def build(
        cls,
        cluster: ClusterEntry | None,
        tables: Iterable[TableEntry],
        tablets: Iterable[TabletEntry],
        servers: Iterable[TabletServerEntry] = (),
        operations: Iterable[OperationEntry] = (),
    ) -> CatalogState:
        """The state that holds these records."""
        return cls().applying(CatalogChange(tuple(tablets), tuple(tables), cluster, tuple(servers), tuple(operations)))

    def applying(self, change: CatalogChange) -> CatalogState:
        """The state after `change`; this one stays as it is.

        One swap publishes all of it, so that the seed's order (tablets before tables) holds for any reader.
        """
        tablets = dict(self.tablets)
        counts = dict(self.replica_counts)
        reordered: set[TableId] = set()
        members: dict[TableId, set[TabletId]] = {}
        for tablet in change.tablets:
            before = tablets.get(tablet.tablet_id)
            tablets[tablet.tablet_id] = tablet
            was_live = before is not None and before.is_live
            if before is not None and was_live:
                _count(counts, before, -1)
            if tablet.is_live:
                _count(counts, tablet, 1)
            if was_live != tablet.is_live:
                reordered.add(tablet.table_id)
                of_table = members.setdefault(tablet.table_id, set(self.tablets_by_table.get(tablet.table_id, ())))
                (of_table.add if tablet.is_live else of_table.discard)(tablet.tablet_id)

        tables, by_name = self.tables, self.ids_by_name
        by_table = dict(self.tablets_by_table)
        if change.tables:
            tables, by_name = dict(tables), dict(by_name)
            for table in change.tables:
                old = tables.get(table.table_id)
                if old is not None and old.is_live:
                    del by_name[old.name]
                tables[table.table_id] = table
            for table in change.tables:
                if table.is_live:
                    assert table.name not in by_name, f"two live tables are named {table.name!r}"
                    by_name[table.name] = table.table_id
                    by_table.setdefault(table.table_id, ())
                else:
                    by_table.pop(table.table_id, None)
        for table_id in reordered:
            ids = sorted(members[table_id], key=lambda tablet_id: tablets[tablet_id].partition)
            entry = tables.get(table_id)
            assert entry is not None, f"a tablet names table {table_id}, which does not exist"
            if entry.is_live:
                by_table[table_id] = tuple(ids)
            else:
                assert not ids, f"table {table_id} is removed but tablet {ids[0]} lives"
        servers = self.servers
        if change.servers:
            servers = {**servers, **{server.uuid: server for server in change.servers}}
        operations, still_open = self.operations, self.open_operations
        if change.operations or change.forgotten:
            operations = {**operations, **{operation.operation_id: operation for operation in change.operations}}
            for operation_id in change.forgotten:
                operations.pop(operation_id, None)  # Of two that begin at once, both may find it to be the oldest.
            still_open = tuple(
                sorted(
                    (operation for operation in operations.values() if operation.is_open),
                    key=lambda operation: (operation.created_micros, operation.operation_id),
                )
            )
        return CatalogState(
            change.cluster or self.cluster,
            tables,
            tablets,
            by_name,
            by_table,
            counts,
            servers,
            operations,
            still_open,
        )

    def mode_of(self, server: ServerId) -> TabletServerMode:
        """What an operator decided about a tablet server."""
        entry = self.servers.get(server)
        return TabletServerMode.NORMAL if entry is None else entry.mode

    def wanted_voters(self, tablet: TabletEntry) -> int:
        """How many voters a tablet is meant to have."""
        return tablet.wanted_voters or self.tables[tablet.table_id].num_replicas

    def move_of(self, tablet_id: TabletId) -> OperationEntry | None:
        """The open MOVE_REPLICA of a tablet; there is one at most."""
        return next(
            (
                operation
                for operation in self.open_operations
                if operation.tablet_id == tablet_id and operation.kind is OperationKind.MOVE_REPLICA
            ),
            None,
        )

    def tablet(self, tablet_id: str) -> TabletEntry:
        """The live tablet of this id.

        Raises:
            KuduError: TABLET_NOT_FOUND that names it, saying what became of it.
        """
        entry = self.tablets.get(TabletId(tablet_id))
        if entry is None or not entry.is_live:
            was = "" if entry is None else f" (it is {entry.state.value}: {entry.note})"
            raise KuduError(
                ErrorCode.TABLET_NOT_FOUND,
                f"there is no tablet {tablet_id[:64]!r}{was}",
                details={"tablet_id": tablet_id[:64]},
            )
        return entry

    def table_by_name(self, name: str) -> TableEntry:
        """The live table of this name.

        Raises:
            KuduError: TABLE_NOT_FOUND that names it.
        """
        table_id = self.ids_by_name.get(name)
        if table_id is None:
            raise KuduError(
                ErrorCode.TABLE_NOT_FOUND,
                f"there is no table {name[:256]!r}; `kudu-py table list` shows those there are",
                details={"table_name": name[:256]},
            )
        return self.tables[table_id]

    def table_by_id(self, table_id: str) -> TableEntry:
        """The live table of this id.

        Raises:
            KuduError: TABLE_NOT_FOUND that names it, saying whether it was deleted.
        """
        entry = self.tables.get(TableId(table_id))
        if entry is None or not entry.is_live:
            was = "" if entry is None else f" (it was {entry.name!r} and has been deleted)"
            raise KuduError(
                ErrorCode.TABLE_NOT_FOUND,
                f"there is no table with id {table_id[:64]!r}{was}",
                details={"table_id": table_id[:64]},
            )
        return entry

    def tablets_of(self, table_id: TableId) -> list[TabletEntry]:
        """The live tablets of a live table, in partition order."""
        return [self.tablets[tablet_id] for tablet_id in self.tablets_by_table.get(table_id, ())]


def _count(counts: dict[ServerId, int], tablet: TabletEntry, by: int) -> None:
    for member in tablet.config.members:
        counts[member.uuid] = counts.get(member.uuid, 0) + by
        if not counts[member.uuid]:
            del counts[member.uuid]
