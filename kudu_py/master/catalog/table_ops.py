"""Planners for creating and deleting tables and for replacing tablets: state and request to a change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import RandomBits, ServerId, TableId, TabletId, mint_id
from kudu_py.common.partition import Partition, PartitionSchema, RangePartition, create_partitions
from kudu_py.common.schema import MAX_COMMENT_BYTES, MAX_IDENTIFIER_BYTES, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import TableEntry, TableState, TabletEntry, TabletState
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.placement import Candidate, Placer
from kudu_py.master.catalog.state import CatalogState


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a caller of CreateTable asks for.

    Attributes:
        schema: without column ids; the planner assigns them.
        ranges: the range partitions; none means one unbounded range.
        num_replicas: 0: the default.
    """

    name: str
    schema: Schema
    partition_schema: PartitionSchema
    ranges: Sequence[RangePartition] = ()
    num_replicas: int = 0
    owner: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Servers:
    """The tablet servers as the planner may see them.

    Attributes:
        live: those heard of lately.
        known: all that have registered with this master since it started, alive or not.
        settling: this master has not been up for long enough to have heard of every server that lives (KUDU-1358).
    """

    live: tuple[Candidate, ...]
    known: frozenset[ServerId]
    settling: bool = False


def plan_create_table(
    state: CatalogState,
    request: NewTable,
    *,
    servers: Servers,
    options: CatalogOptions,
    rng: RandomBits,
    now_micros: int,
) -> CatalogChange:
    """A table and all its tablets as one change; the table's entry is `change.tables[0]`.

    A call is told from its retry by the table's name alone, as upstream: the second finds TABLE_ALREADY_PRESENT.

    Raises:
        KuduError: INVALID_ARGUMENT, INVALID_SCHEMA, TABLE_ALREADY_PRESENT, EVEN_REPLICATION_FACTOR,
            ILLEGAL_REPLICATION_FACTOR, REPLICATION_FACTOR_TOO_HIGH, TOO_MANY_TABLETS; UNAVAILABLE (try later) if
            servers are missing that may yet register.
    """
    _validate_names(request)
    request.schema.validate()
    request.partition_schema.validate(request.schema)
    present = state.ids_by_name.get(request.name)
    if present is not None:
        raise KuduError(
            ErrorCode.TABLE_ALREADY_PRESENT,
            f"table {request.name!r} exists already (its id is {present}); choose another name, or delete it first",
            details={"table_id": present, "table_name": request.name},
        )
    num_replicas = _replication_factor(state, request, servers, options)
    _require_servers(state, num_replicas, servers)

    # Before the partitions are made: two hash levels can ask for billions.
    _require_room(request, num_replicas, servers, options)

    columns = tuple(replace(column, column_id=i) for i, column in enumerate(request.schema.columns))
    schema = Schema(columns, request.schema.key_count, version=0)
    partitions = create_partitions(schema, request.partition_schema, request.ranges)

    table = TableEntry(
        table_id=TableId(mint_id(rng)),
        name=request.name,
        state=TableState.RUNNING,
        schema=schema,
        partition_schema=request.partition_schema,
        num_replicas=num_replicas,
        next_column_id=len(columns),
        owner=request.owner,
        comment=request.comment,
        created_micros=now_micros,
    )
    placer = Placer.over(state, servers.live, rng=rng)
    tablets = []
    for partition in partitions:
        config = _place(placer, table.table_id, num_replicas)
        tablets.append(_new_tablet(table.table_id, partition, config, rng))
    return CatalogChange(tuple(tablets), (table,))


def plan_delete_table(state: CatalogState, table_id: TableId, *, note: str) -> CatalogChange:
    """The table REMOVED and all its tablets DELETED, as one change. Their replicas go afterwards, when nudged.

    Raises:
        KuduError: TABLE_NOT_FOUND.
    """
    table = state.table_by_id(table_id)
    tablets = tuple(tablet.moved_to(TabletState.DELETED, note) for tablet in state.tablets_of(table_id))
    return CatalogChange(tablets, (table.moved_to(TableState.REMOVED, note),))


def plan_replace_tablets(
    state: CatalogState,
    tablet_ids: Sequence[TabletId],
    *,
    servers: Servers,
    rng: RandomBits,
    note: str,
) -> CatalogChange:
    """New tablets, on servers chosen anew, in the place of those that never ran. Others are passed over.

    Nothing is lost by it: clients are not told where a CREATING tablet is.

    Raises:
        KuduError: REPLICATION_FACTOR_TOO_HIGH.
    """
    tables = {state.tablets[tablet_id].table_id for tablet_id in tablet_ids}
    placer = Placer.over(state, servers.live, rng=rng, tables=sorted(tables))
    changed: list[TabletEntry] = []
    for tablet_id in tablet_ids:
        old = state.tablets[tablet_id]
        if old.state is TabletState.CREATING:
            config = _place(placer, old.table_id, state.tables[old.table_id].num_replicas)
            new = _new_tablet(old.table_id, old.partition, config, rng)
            changed += [old.moved_to(TabletState.REPLACED, f"{note}; replaced by {new.tablet_id}"), new]
    return CatalogChange(tuple(changed))


def _validate_names(request: NewTable) -> None:
    size = len(request.name.encode())
    if not 1 <= size <= MAX_IDENTIFIER_BYTES or "\0" in request.name:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"a table name has 1 to {MAX_IDENTIFIER_BYTES} bytes and no NUL, not {size}: {request.name[:64]!r}",
        )
    if len(request.comment.encode()) > MAX_COMMENT_BYTES:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"table {request.name!r}: the comment is longer than {MAX_COMMENT_BYTES} bytes"
        )
    if len(request.owner.encode()) > MAX_IDENTIFIER_BYTES:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"table {request.name!r}: the owner is longer than {MAX_IDENTIFIER_BYTES} bytes"
        )


def _replication_factor(state: CatalogState, request: NewTable, servers: Servers, options: CatalogOptions) -> int:
    if request.num_replicas == 0:
        # A server that is down, or that this master has not heard of since it started, still counts: a table must not
        # get one replica because the cluster is having a bad minute.
        known = servers.known | state.replica_counts.keys()
        if len(known) >= options.default_num_replicas or servers.settling:
            return options.default_num_replicas
        return 1
    if request.num_replicas % 2 == 0:
        raise KuduError(
            ErrorCode.EVEN_REPLICATION_FACTOR,
            f"table {request.name!r}: the replication factor must be odd, not {request.num_replicas};"
            " an even one needs one more server and survives no more failures",
        )
    if not 1 <= request.num_replicas <= options.max_num_replicas:
        raise KuduError(
            ErrorCode.ILLEGAL_REPLICATION_FACTOR,
            f"table {request.name!r}: the replication factor is 1 to {options.max_num_replicas},"
            f" not {request.num_replicas}",
        )
    return request.num_replicas


def _require_servers(state: CatalogState, num_replicas: int, servers: Servers) -> None:
    live = len(servers.live)
    if servers.settling and (live < num_replicas or not state.replica_counts.keys() <= servers.known):
        raise KuduError(
            ErrorCode.UNAVAILABLE,
            f"this master has just started and has heard of {counted(live, 'tablet server')} so far;"
            " ask again in a moment",
            verdict=Verdict.TRY_LATER,
        )
    if live < num_replicas:
        names = ", ".join(f"{c.uuid} at {c.address}" for c in servers.live) or "none"
        raise KuduError(
            ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
            f"a replication factor of {num_replicas} needs {num_replicas} live tablet servers, and {live}"
            f" {'is' if live == 1 else 'are'} live: {names}; start more or ask for fewer replicas",
            details={"num_replicas": str(num_replicas), "live_tablet_servers": str(live)},
        )


def _require_room(request: NewTable, num_replicas: int, servers: Servers, options: CatalogOptions) -> None:
    tablets = math.prod(level.bucket_count for level in request.partition_schema.hash_levels) * max(
        1, len(request.ranges)
    )
    replicas = tablets * num_replicas
    bound = options.max_create_tablets_per_ts * len(servers.live)
    if bound and replicas > bound:
        raise KuduError(
            ErrorCode.TOO_MANY_TABLETS,
            f"table {request.name!r} would bring {counted(replicas, 'replica')} at once, and at most {bound} may come:"
            f" {options.max_create_tablets_per_ts} for each of {counted(len(servers.live), 'live tablet server')}"
            " (max_create_tablets_per_ts);"
            " use fewer partitions or replicas, or add range partitions later",
        )


def _place(placer: Placer, table_id: TableId, num_replicas: int) -> RaftConfig:
    chosen = placer.choose(num_replicas, table_id=table_id)
    members = sorted((Member(c.uuid, MemberType.VOTER, c.address) for c in chosen), key=lambda m: m.uuid)
    return RaftConfig(0, tuple(members))


def _new_tablet(table_id: TableId, partition: Partition, config: RaftConfig, rng: RandomBits) -> TabletEntry:
    return TabletEntry(TabletId(mint_id(rng)), table_id, partition, TabletState.CREATING, config)
