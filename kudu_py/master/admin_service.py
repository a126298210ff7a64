"""`AdminServicer`: the part of MasterService that changes where replicas are: decode, check, hand over, encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.consensus.codec import config_to_pb
from kudu_py.consensus.core.model import MemberType
from kudu_py.master import codec
from kudu_py.master.catalog.committer import Reign
from kudu_py.master.catalog.entries import OperationEntry, OperationId
from kudu_py.master.catalog.operation_ops import state_of
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.operations import Operations, require_count_target
from kudu_py.master.replica_changes import ReplicaChanges
from kudu_py.pb import consensus_pb2, master_pb2, master_pb2_grpc
from kudu_py.rpc.calls import call_remaining_s

_ANSWER_MARGIN = 0.9
"""This share of a caller's time is used, so that what is answered at the end of it still arrives."""


class AdminServicer(master_pb2_grpc.MasterServiceServicer):
    """Administrators' calls about replicas, servers and operations.

    Args:
        confirmed_reign: the present reign of a master that still leads, or raises.
        balance: how replicas are spread, and what would be done about it.
    """

    def __init__(
        self,
        *,
        confirmed_reign: Callable[[], Awaitable[Reign]],
        changes: ReplicaChanges,
        operations: Operations,
        balance: Callable[[], Awaitable[master_pb2.GetBalanceResponse]],
        options: CatalogOptions,
    ) -> None:
        self._confirm = confirmed_reign
        self._changes = changes
        self._operations = operations
        self._balance = balance
        self._options = options

    # One replica; answered when it is done.

    async def AddReplica(self, request: master_pb2.AddReplicaRequest, context: object) -> master_pb2.AddReplicaResponse:
        tablet_id, server = _tablet(request.tablet_id), _server(request.ts_uuid)
        member_type = _member_type(request.member_type, default=MemberType.VOTER)
        await self._confirm()
        config = await self._changes.add(
            tablet_id,
            server,
            member_type,
            expected_config_index=_expected(request),
            timeout_s=self._timeout_s(),
        )
        return master_pb2.AddReplicaResponse(config=config_to_pb(config))

    async def RemoveReplica(
        self, request: master_pb2.RemoveReplicaRequest, context: object
    ) -> master_pb2.RemoveReplicaResponse:
        tablet_id, server = _tablet(request.tablet_id), _server(request.ts_uuid)
        await self._confirm()
        config = await self._changes.remove(
            tablet_id, server, expected_config_index=_expected(request), timeout_s=self._timeout_s()
        )
        return master_pb2.RemoveReplicaResponse(config=config_to_pb(config))

    async def ChangeReplicaType(
        self, request: master_pb2.ChangeReplicaTypeRequest, context: object
    ) -> master_pb2.ChangeReplicaTypeResponse:
        tablet_id, server = _tablet(request.tablet_id), _server(request.ts_uuid)
        member_type = _member_type(request.member_type, default=None)
        await self._confirm()
        config = await self._changes.change_type(
            tablet_id,
            server,
            member_type,
            expected_config_index=_expected(request),
            timeout_s=self._timeout_s(),
        )
        return master_pb2.ChangeReplicaTypeResponse(config=config_to_pb(config))

    async def LeaderStepDown(
        self, request: master_pb2.LeaderStepDownRequest, context: object
    ) -> master_pb2.LeaderStepDownResponse:
        tablet_id = _tablet(request.tablet_id)
        successor = _server(request.new_leader_uuid, "new_leader_uuid") if request.new_leader_uuid else None
        await self._confirm()
        leader, term = await self._changes.step_down(tablet_id, successor, timeout_s=self._timeout_s())
        return master_pb2.LeaderStepDownResponse(leader_uuid=leader, term=term)

    # Long operations; answered when they are durable.

    async def MoveReplica(
        self, request: master_pb2.MoveReplicaRequest, context: object
    ) -> master_pb2.MoveReplicaResponse:
        tablet_id = _tablet(request.tablet_id)
        from_, to = _server(request.from_ts_uuid, "from_ts_uuid"), _server(request.to_ts_uuid, "to_ts_uuid")
        await self._confirm()
        operation_id = await self._operations.move_replica(tablet_id, from_, to, by_admin=True)
        return master_pb2.MoveReplicaResponse(operation_id=operation_id)

    async def ChangeVotingReplicaCount(
        self, request: master_pb2.ChangeVotingReplicaCountRequest, context: object
    ) -> master_pb2.ChangeVotingReplicaCountResponse:
        require_count_target(request.tablet_id, request.table_name)
        if request.tablet_id:
            tablet_id = _tablet(request.tablet_id)
            await self._confirm()
            operation_id = await self._operations.change_voting_replica_count(request.count, tablet_id=tablet_id)
        else:
            table = (await self._confirm()).state.table_by_name(request.table_name)
            operation_id = await self._operations.change_voting_replica_count(request.count, table_id=table.table_id)
        return master_pb2.ChangeVotingReplicaCountResponse(operation_id=operation_id)

    async def RetireTabletServer(
        self, request: master_pb2.RetireTabletServerRequest, context: object
    ) -> master_pb2.RetireTabletServerResponse:
        server = _server(request.ts_uuid)
        await self._confirm()
        operation_id = await self._operations.retire_tablet_server(server)
        return master_pb2.RetireTabletServerResponse(operation_id=operation_id)

    async def ChangeTabletServerMode(
        self, request: master_pb2.ChangeTabletServerModeRequest, context: object
    ) -> master_pb2.ChangeTabletServerModeResponse:
        server = _server(request.ts_uuid)
        mode = codec.mode_from_pb(request.mode)
        if mode is None:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, "the request names no mode: set it to NORMAL or MAINTENANCE")
        await self._confirm()
        await self._operations.change_mode(server, mode)
        return master_pb2.ChangeTabletServerModeResponse()

    async def ListOperations(
        self, request: master_pb2.ListOperationsRequest, context: object
    ) -> master_pb2.ListOperationsResponse:
        state = (await self._confirm()).state
        found = self._operations.all(include_ended=request.include_ended)
        return master_pb2.ListOperationsResponse(operations=[self._operation(state, each) for each in found])

    async def GetOperation(
        self, request: master_pb2.GetOperationRequest, context: object
    ) -> master_pb2.GetOperationResponse:
        operation_id = require_id(request.operation_id, "operation_id")
        state = (await self._confirm()).state
        return master_pb2.GetOperationResponse(operation=self._operation(state, self._operations.get(operation_id)))

    async def CancelOperation(
        self, request: master_pb2.CancelOperationRequest, context: object
    ) -> master_pb2.CancelOperationResponse:
        operation_id = OperationId(require_id(request.operation_id, "operation_id"))
        state = (await self._confirm()).state
        cancelled = await self._operations.cancel(operation_id)
        return master_pb2.CancelOperationResponse(operation=self._operation(state, cancelled))

    async def GetBalance(self, request: master_pb2.GetBalanceRequest, context: object) -> master_pb2.GetBalanceResponse:
        await self._confirm()
        return await self._balance()

    def _timeout_s(self) -> float:
        remaining_s = call_remaining_s()
        return self._options.replica_change_timeout_s if remaining_s is None else remaining_s * _ANSWER_MARGIN

    def _operation(self, state: CatalogState, operation: OperationEntry) -> master_pb2.Operation:
        progress = self._operations.progress(operation)
        return master_pb2.Operation(
            operation_id=operation.operation_id,
            kind=codec.operation_kind_to_pb(operation.kind),
            state=codec.operation_state_to_pb(state_of(operation, progress)),
            tablet_id=operation.tablet_id or "",
            table_name=_table_name(state, operation),
            from_ts_uuid=operation.from_ or "",
            to_ts_uuid=operation.to or "",
            ts_uuid=operation.server or "",
            count=operation.count,
            created_micros=operation.created_micros,
            ended_micros=operation.ended_micros,
            error=operation.error,
            progress=progress.text,
            steps_total=progress.steps_total,
            steps_done=progress.steps_done,
            bytes_total=progress.bytes_total,
            bytes_done=progress.bytes_done,
            bytes_per_s=progress.bytes_per_s,
            log_lag_entries=progress.log_lag_entries,
        )


def _table_name(state: CatalogState, operation: OperationEntry) -> str:
    table_id = operation.table_id
    if table_id is None and operation.tablet_id is not None:
        table_id = state.tablets[operation.tablet_id].table_id
    return "" if table_id is None else state.tables[table_id].name


def _tablet(tablet_id: str) -> TabletId:
    return TabletId(require_id(tablet_id, "tablet_id"))


def _server(uuid: str, what: str = "ts_uuid") -> ServerId:
    return ServerId(require_id(uuid, what))


def _member_type(number: int, *, default: MemberType | None) -> MemberType:
    member_type = codec.member_type_from_pb(number)
    if member_type is None and number == consensus_pb2.UNKNOWN_MEMBER_TYPE:
        member_type = default
    if member_type is None:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, "member_type must be VOTER or PRE_VOTER")
    return member_type


def _expected(
    request: master_pb2.AddReplicaRequest | master_pb2.RemoveReplicaRequest | master_pb2.ChangeReplicaTypeRequest,
) -> int | None:
    return request.expected_config_index if request.HasField("expected_config_index") else None
