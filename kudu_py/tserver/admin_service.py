"""`TabletServerAdminServicer`: creation and deletion of replicas, as the masters ask for them."""

from __future__ import annotations

from typing import Any

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId, require_id
from kudu_py.common.wire import partition_from_pb, partition_schema_from_pb, schema_from_pb
from kudu_py.consensus.codec import config_from_pb
from kudu_py.pb import tserver_admin_pb2
from kudu_py.pb.tserver_admin_pb2_grpc import TabletServerAdminServiceServicer
from kudu_py.tablet.manager import DeleteType, NewTablet, TabletManager

_DELETE_TYPE_FROM_PB = {
    tserver_admin_pb2.UNKNOWN_TABLET_DELETE_TYPE: DeleteType.TOMBSTONED,
    tserver_admin_pb2.TOMBSTONED: DeleteType.TOMBSTONED,
    tserver_admin_pb2.DELETED_COMPLETELY: DeleteType.DELETED_COMPLETELY,
}


class TabletServerAdminServicer(TabletServerAdminServiceServicer):
    """What masters ask of a tablet server. `dest_uuid` is checked around it (`rpc/server.py`)."""

    def __init__(self, manager: TabletManager) -> None:
        self._manager = manager

    async def CreateTablet(
        self, request: tserver_admin_pb2.CreateTabletRequest, context: Any
    ) -> tserver_admin_pb2.CreateTabletResponse:
        replica = await self._manager.create_tablet(
            NewTablet(
                tablet_id=TabletId(require_id(request.tablet_id, "tablet_id")),
                table_id=require_id(request.table_id, "table_id"),
                table_name=request.table_name,
                schema=schema_from_pb(request.schema),
                partition_schema=partition_schema_from_pb(request.partition_schema),
                partition=partition_from_pb(request.partition),
                config=config_from_pb(request.config),
            )
        )
        replica.running()  # created, but if it cannot run the master had better know at once
        return tserver_admin_pb2.CreateTabletResponse()

    async def DeleteTablet(
        self, request: tserver_admin_pb2.DeleteTabletRequest, context: Any
    ) -> tserver_admin_pb2.DeleteTabletResponse:
        delete_type = _DELETE_TYPE_FROM_PB.get(request.delete_type)
        if delete_type is None:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"delete_type {request.delete_type} is not known")
        expected = request.expected_config_index_max if request.HasField("expected_config_index_max") else None
        await self._manager.delete_tablet(
            request.tablet_id,
            reason=request.reason[:1024],
            expected_config_index_max=expected,
            delete_type=delete_type,
        )
        return tserver_admin_pb2.DeleteTabletResponse()
