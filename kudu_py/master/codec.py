"""Catalog values to protobuf and back: the sys catalog's entries, and what heartbeats carry."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kudu_py.common import wire
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TableId, TabletId, is_id, require_id
from kudu_py.consensus import codec as consensus_codec
from kudu_py.consensus.core.model import MemberType, RaftConfig, Role
from kudu_py.master.catalog.entries import (
    ClusterEntry,
    OperationEntry,
    OperationId,
    OperationKind,
    OperationState,
    TableEntry,
    TableState,
    TabletEntry,
    TabletServerEntry,
    TabletServerMode,
    TabletState,
)
from kudu_py.master.catalog.report_ops import CopyProgress, PeerHealth, PeerStatus, ReplicaState, ReportedReplica
from kudu_py.master.catalog.table_ops import NewTable
from kudu_py.master.ts_registry import Heartbeat, Registration, Report
from kudu_py.pb import catalog_pb2, common_pb2, consensus_pb2, master_pb2, tserver_pb2

_TABLE_STATE_TO_PB = {
    TableState.RUNNING: master_pb2.TABLE_RUNNING,
    TableState.ALTERING: master_pb2.TABLE_ALTERING,
    TableState.REMOVED: master_pb2.TABLE_REMOVED,
}
_TABLE_STATE_FROM_PB = {number: state for state, number in _TABLE_STATE_TO_PB.items()}
_TABLET_STATE_TO_PB = {
    TabletState.CREATING: master_pb2.CREATING,
    TabletState.RUNNING: master_pb2.RUNNING,
    TabletState.REPLACED: master_pb2.REPLACED,
    TabletState.DELETED: master_pb2.DELETED,
}
_TABLET_STATE_FROM_PB = {number: state for state, number in _TABLET_STATE_TO_PB.items()}
_MODE_TO_PB = {
    TabletServerMode.NORMAL: master_pb2.NORMAL,
    TabletServerMode.MAINTENANCE: master_pb2.MAINTENANCE,
    TabletServerMode.RETIRING: master_pb2.RETIRING,
    TabletServerMode.RETIRED: master_pb2.RETIRED,
}
_MODE_FROM_PB = {number: mode for mode, number in _MODE_TO_PB.items()}
_OPERATION_KIND_TO_PB = {
    OperationKind.MOVE_REPLICA: master_pb2.MOVE_REPLICA,
    OperationKind.CHANGE_VOTING_REPLICA_COUNT: master_pb2.CHANGE_VOTING_REPLICA_COUNT,
    OperationKind.RETIRE_TABLET_SERVER: master_pb2.RETIRE_TABLET_SERVER,
}
_OPERATION_KIND_FROM_PB = {number: kind for kind, number in _OPERATION_KIND_TO_PB.items()}
_OPERATION_STATE_TO_PB = {
    OperationState.PENDING: master_pb2.Operation.PENDING,
    OperationState.RUNNING: master_pb2.Operation.RUNNING,
    OperationState.DONE: master_pb2.Operation.DONE,
    OperationState.FAILED: master_pb2.Operation.FAILED,
    OperationState.CANCELLED: master_pb2.Operation.CANCELLED,
}
_OPERATION_STATE_FROM_PB = {number: state for state, number in _OPERATION_STATE_TO_PB.items()}
_ROLE_FROM_PB = {consensus_codec.role_to_pb(role): role for role in Role}
_MEMBER_TYPE_TO_PB = {MemberType.VOTER: consensus_pb2.VOTER, MemberType.PRE_VOTER: consensus_pb2.PRE_VOTER}
_PEER_HEALTH_FROM_PB = {
    consensus_pb2.HEALTHY: PeerHealth.HEALTHY,
    consensus_pb2.UNREACHABLE: PeerHealth.UNREACHABLE,
    consensus_pb2.NEEDS_COPY: PeerHealth.NEEDS_COPY,
}
_REPLICA_STATE_FROM_PB = {
    tserver_pb2.NOT_STARTED: ReplicaState.STARTING,
    tserver_pb2.BOOTSTRAPPING: ReplicaState.STARTING,
    tserver_pb2.RUNNING: ReplicaState.RUNNING,
    tserver_pb2.FAILED: ReplicaState.FAILED,
    tserver_pb2.STOPPING: ReplicaState.STOPPED,
    tserver_pb2.STOPPED: ReplicaState.STOPPED,
}


def table_state_to_pb(state: TableState) -> master_pb2.TableState.ValueType:
    """A table's state for the wire."""
    return _TABLE_STATE_TO_PB[state]


def tablet_state_to_pb(state: TabletState) -> master_pb2.CatalogTabletState.ValueType:
    """A tablet's state for the wire."""
    return _TABLET_STATE_TO_PB[state]


def role_from_pb(number: int) -> Role:
    """A role from the wire; one that is not known takes no part."""
    return _ROLE_FROM_PB.get(number, Role.NON_PARTICIPANT)  # type: ignore[call-overload, no-any-return]


def member_type_to_pb(member_type: MemberType) -> consensus_pb2.MemberType.ValueType:
    """A member type for the wire."""
    return _MEMBER_TYPE_TO_PB[member_type]


def mode_to_pb(mode: TabletServerMode) -> master_pb2.TabletServerMode.ValueType:
    """A tablet server's mode for the wire."""
    return _MODE_TO_PB[mode]


def mode_from_pb(number: int) -> TabletServerMode | None:
    """A tablet server's mode from the wire; None: not one that is known."""
    return _MODE_FROM_PB.get(number)  # type: ignore[call-overload, no-any-return]


def operation_kind_to_pb(kind: OperationKind) -> master_pb2.OperationKind.ValueType:
    """What a long operation does, for the wire."""
    return _OPERATION_KIND_TO_PB[kind]


def operation_state_to_pb(state: OperationState) -> master_pb2.Operation.State.ValueType:
    """How far a long operation is, for the wire."""
    return _OPERATION_STATE_TO_PB[state]


def member_type_from_pb(number: int) -> MemberType | None:
    """A member type from the wire; None: not one that is known."""
    return next((kind for kind, known in _MEMBER_TYPE_TO_PB.items() if known == number), None)


def encode_table(entry: TableEntry) -> bytes:
    """A table for the sys catalog."""
    return catalog_pb2.SysTableEntry(
        name=entry.name,
        state=_TABLE_STATE_TO_PB[entry.state],
        schema=wire.schema_to_pb(entry.schema),
        partition_schema=wire.partition_schema_to_pb(entry.partition_schema),
        num_replicas=entry.num_replicas,
        next_column_id=entry.next_column_id,
        owner=entry.owner,
        comment=entry.comment,
        created_micros=entry.created_micros,
        note=entry.note,
    ).SerializeToString()


def decode_table(table_id: str, encoded: bytes) -> TableEntry:
    """A table from the sys catalog.

    Raises:
        KuduError: CORRUPTION that names it.
    """
    message = catalog_pb2.SysTableEntry()
    with _naming(f"table {table_id}"):
        message.ParseFromString(encoded)
        return TableEntry(
            table_id=TableId(require_id(table_id, "table id")),
            name=message.name,
            state=_TABLE_STATE_FROM_PB[message.state],
            schema=wire.schema_from_pb(message.schema),
            partition_schema=wire.partition_schema_from_pb(message.partition_schema),
            num_replicas=message.num_replicas,
            next_column_id=message.next_column_id,
            owner=message.owner,
            comment=message.comment,
            created_micros=message.created_micros,
            note=message.note,
        )


def encode_tablet(entry: TabletEntry) -> bytes:
    """A tablet for the sys catalog."""
    return catalog_pb2.SysTabletEntry(
        table_id=entry.table_id,
        partition=wire.partition_to_pb(entry.partition),
        state=_TABLET_STATE_TO_PB[entry.state],
        config=consensus_codec.config_to_pb(entry.config),
        seen=entry.seen,
        note=entry.note,
        wanted_voters=entry.wanted_voters,
        changed_by_admin_micros=entry.changed_by_admin_micros,
    ).SerializeToString()


def decode_tablet(tablet_id: str, encoded: bytes) -> TabletEntry:
    """A tablet from the sys catalog.

    Raises:
        KuduError: CORRUPTION that names it.
    """
    message = catalog_pb2.SysTabletEntry()
    with _naming(f"tablet {tablet_id}"):
        message.ParseFromString(encoded)
        return TabletEntry(
            tablet_id=TabletId(require_id(tablet_id, "tablet id")),
            table_id=TableId(message.table_id),
            partition=wire.partition_from_pb(message.partition),
            state=_TABLET_STATE_FROM_PB[message.state],
            config=consensus_codec.config_from_pb(message.config),
            seen=tuple(ServerId(uuid) for uuid in message.seen),
            note=message.note,
            wanted_voters=message.wanted_voters,
            changed_by_admin_micros=message.changed_by_admin_micros,
        )


def encode_cluster(entry: ClusterEntry) -> bytes:
    """The cluster for the sys catalog."""
    return catalog_pb2.SysClusterEntry(
        cluster_id=entry.cluster_id, created_micros=entry.created_micros
    ).SerializeToString()


def decode_cluster(encoded: bytes) -> ClusterEntry:
    """The cluster from the sys catalog; raises as the others."""
    message = catalog_pb2.SysClusterEntry()
    with _naming("cluster"):
        message.ParseFromString(encoded)
        return ClusterEntry(message.cluster_id, message.created_micros)


def encode_server(entry: TabletServerEntry) -> bytes:
    """What was decided about a tablet server, for the sys catalog."""
    return catalog_pb2.SysTabletServerEntry(
        mode=_MODE_TO_PB[entry.mode], since_micros=entry.since_micros
    ).SerializeToString()


def decode_server(uuid: str, encoded: bytes) -> TabletServerEntry:
    """What was decided about a tablet server, from the sys catalog; raises as the others."""
    message = catalog_pb2.SysTabletServerEntry()
    with _naming(f"tablet server {uuid}"):
        message.ParseFromString(encoded)
        return TabletServerEntry(
            ServerId(require_id(uuid, "server uuid")), _MODE_FROM_PB[message.mode], message.since_micros
        )


def encode_operation(entry: OperationEntry) -> bytes:
    """A long operation for the sys catalog."""
    return catalog_pb2.SysOperationEntry(
        kind=_OPERATION_KIND_TO_PB[entry.kind],
        state=_OPERATION_STATE_TO_PB[entry.state],
        tablet_id=entry.tablet_id or "",
        table_id=entry.table_id or "",
        from_ts_uuid=entry.from_ or "",
        to_ts_uuid=entry.to or "",
        ts_uuid=entry.server or "",
        count=entry.count,
        created_micros=entry.created_micros,
        ended_micros=entry.ended_micros,
        error=entry.error,
        by_admin=entry.by_admin,
        previous_wanted_voters={str(tablet_id): count for tablet_id, count in entry.previous_wanted_voters.items()},
        previous_num_replicas=entry.previous_num_replicas,
        previous_mode=_MODE_TO_PB[entry.previous_mode],
    ).SerializeToString(deterministic=True)


def decode_operation(operation_id: str, encoded: bytes) -> OperationEntry:
    """A long operation from the sys catalog; raises as the others."""
    message = catalog_pb2.SysOperationEntry()
    with _naming(f"operation {operation_id}"):
        message.ParseFromString(encoded)
        return OperationEntry(
            operation_id=OperationId(require_id(operation_id, "operation id")),
            kind=_OPERATION_KIND_FROM_PB[message.kind],
            state=_OPERATION_STATE_FROM_PB[message.state],
            tablet_id=TabletId(message.tablet_id) if message.tablet_id else None,
            table_id=TableId(message.table_id) if message.table_id else None,
            from_=ServerId(message.from_ts_uuid) if message.from_ts_uuid else None,
            to=ServerId(message.to_ts_uuid) if message.to_ts_uuid else None,
            server=ServerId(message.ts_uuid) if message.ts_uuid else None,
            count=message.count,
            by_admin=message.by_admin,
            created_micros=message.created_micros,
            ended_micros=message.ended_micros,
            error=message.error,
            previous_wanted_voters={TabletId(i): count for i, count in message.previous_wanted_voters.items()},
            previous_num_replicas=message.previous_num_replicas,
            previous_mode=_MODE_FROM_PB.get(message.previous_mode, TabletServerMode.NORMAL),
        )


class _naming:
    """Turns whatever goes wrong while an entry is read into CORRUPTION that names the entry."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DecodeError | KeyError | KuduError):
            raise KuduError(
                ErrorCode.CORRUPTION, f"the sys catalog's entry of {self._what} cannot be read: {error}"
            ) from error


def new_table_from_pb(request: master_pb2.CreateTableRequest) -> NewTable:
    """What a caller of CreateTable asks for; raises as `wire` does for malformed parts."""
    schema = wire.schema_from_pb(request.schema)
    partition_schema = wire.partition_schema_from_pb(request.partition_schema)
    return NewTable(
        name=request.name,
        schema=schema,
        partition_schema=partition_schema,
        ranges=tuple(wire.range_partition_from_pb(schema, partition_schema, r) for r in request.range_partitions),
        num_replicas=request.num_replicas,
        owner=request.owner,
        comment=request.comment,
    )


def heartbeat_from_pb(request: master_pb2.TSHeartbeatRequest) -> Heartbeat:
    """The part of a heartbeat that every master takes in.

    Raises:
        KuduError: INVALID_ARGUMENT if the uuid is malformed or a registration lacks the address.
    """
    registration = None
    if request.HasField("registration"):
        registration = _registration_from_pb(request.registration)
    return Heartbeat(
        ServerId(require_id(request.ts_uuid, "ts_uuid")),
        request.instance_sequence,
        registration,
        request.live_tablet_count,
        request.leader_count,
    )


def _registration_from_pb(message: common_pb2.ServerRegistration) -> Registration:
    host, _, port = message.rpc_address.rpartition(":")
    if not host or not port.isdigit():
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"a registration needs an rpc_address of the form host:port, not {message.rpc_address[:256]!r}",
        )
    return Registration(
        message.rpc_address,
        message.http_address,
        message.software_version,
        message.fault_domain,
        message.start_time_micros,
    )


def report_from_pb(message: master_pb2.TabletReport) -> Report:
    """The part of a heartbeat that the leader takes in.

    Raises:
        KuduError: INVALID_ARGUMENT or INVALID_CONFIG for malformed ids and configs.
    """
    return Report(
        message.is_incremental,
        message.sequence,
        tuple(_replica_from_pb(replica) for replica in message.updated_tablets),
        tuple(TabletId(require_id(tablet_id, "tablet_id")) for tablet_id in message.removed_tablet_ids),
    )


def _replica_from_pb(message: master_pb2.ReportedTablet) -> ReportedReplica:
    consensus = message.consensus_state
    return ReportedReplica(
        tablet_id=TabletId(require_id(message.tablet_id, "tablet_id")),
        state=_replica_state(message),
        role=_ROLE_FROM_PB.get(consensus.role, Role.NON_PARTICIPANT),
        term=consensus.term,
        leader=ServerId(consensus.leader_uuid) if is_id(consensus.leader_uuid) else None,
        committed_config=_config(consensus, "committed_config"),
        pending_config=_config(consensus, "pending_config"),
        last_op_id=wire.op_id_from_pb(consensus.last_op_id),
        schema_version=message.schema_version,
        error=message.error[:1024],
        row_count=message.row_count,
        on_disk_bytes=message.on_disk_bytes,
        peers=tuple(
            PeerStatus(
                ServerId(peer.uuid),
                _PEER_HEALTH_FROM_PB.get(peer.health, PeerHealth.UNKNOWN),
                peer.match_index,
            )
            for peer in consensus.peers
            if is_id(peer.uuid)
        ),
        copy=_copy_progress(message),
    )


def _copy_progress(message: master_pb2.ReportedTablet) -> CopyProgress | None:
    if not message.HasField("copy_progress"):
        return None
    said = message.copy_progress
    return CopyProgress(ServerId(said.source_uuid), said.bytes_total, said.bytes_done, said.bytes_per_s)


def _replica_state(message: master_pb2.ReportedTablet) -> ReplicaState:
    if message.data_state in (tserver_pb2.DELETED, tserver_pb2.DOES_NOT_EXIST):
        return ReplicaState.TOMBSTONE
    if message.data_state == tserver_pb2.COPYING:
        return ReplicaState.COPYING
    return _REPLICA_STATE_FROM_PB.get(message.state, ReplicaState.STARTING)


def _config(message: consensus_pb2.ConsensusState, field: str) -> RaftConfig | None:
    config: consensus_pb2.RaftConfig = getattr(message, field)
    return consensus_codec.config_from_pb(config) if config.members else None
