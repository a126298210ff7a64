"""`TsAdminClient`: what a master asks of tablet servers; a call that finds its work done already has succeeded."""

from __future__ import annotations

from typing import Protocol

from kudu_py.common import wire
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.consensus.codec import config_to_pb
from kudu_py.master.catalog.entries import TableEntry, TabletEntry
from kudu_py.master.catalog.nudge_ops import DeleteReplica
from kudu_py.pb import tserver_admin_pb2, tserver_admin_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer


class TsAdmin(Protocol):
    """The calls, each with a deadline of its own. Raise KuduError; safe to repeat."""

    async def create_replica(self, server: ServerId, address: str, table: TableEntry, tablet: TabletEntry) -> None:
        """An empty replica, with the tablet's config, is durable on `server` on return, or was there before."""

    async def delete_replica(self, address: str, nudge: DeleteReplica) -> None:
        """No replica that `nudge` is about is left on its server on return."""


class TsAdminClient:
    """The real one, over gRPC."""

    def __init__(self, dialer: Dialer, *, timeout_s: float) -> None:
        self._dialer = dialer
        self._timeout_s = timeout_s

    async def create_replica(self, server: ServerId, address: str, table: TableEntry, tablet: TabletEntry) -> None:
        request = tserver_admin_pb2.CreateTabletRequest(
            dest_uuid=server,
            table_id=table.table_id,
            table_name=table.name,
            tablet_id=tablet.tablet_id,
            schema=wire.schema_to_pb(table.schema),
            partition_schema=wire.partition_schema_to_pb(table.partition_schema),
            partition=wire.partition_to_pb(tablet.partition, table.schema, table.partition_schema),
            config=config_to_pb(tablet.config),
        )
        try:
            async with self._dialer.permit(address):
                await call(
                    self._stub(address).CreateTablet(request, timeout=self._timeout_s), address=address, wrote=True
                )
        except KuduError as error:
            if error.code is not ErrorCode.TABLET_ALREADY_EXISTS:
                raise

    async def delete_replica(self, address: str, nudge: DeleteReplica) -> None:
        request = tserver_admin_pb2.DeleteTabletRequest(
            dest_uuid=nudge.server,
            tablet_id=nudge.tablet_id,
            reason=nudge.reason,
            expected_config_index_max=nudge.expected_config_index_max,
            delete_type=tserver_admin_pb2.TOMBSTONED,
        )
        try:
            async with self._dialer.permit(address):
                await call(
                    self._stub(address).DeleteTablet(request, timeout=self._timeout_s), address=address, wrote=True
                )
        except KuduError as error:
            if error.code is not ErrorCode.TABLET_NOT_FOUND:
                raise

    def _stub(self, address: str) -> tserver_admin_pb2_grpc.TabletServerAdminServiceAsyncStub:
        return tserver_admin_pb2_grpc.TabletServerAdminServiceStub(self._dialer.channel(address))
