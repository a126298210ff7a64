"""`AdminCalls`: what an administrator asks masters and tablet servers of a `ProcessCluster`, by gRPC, blocking."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import grpc

from kudu_py.pb import (
    consensus_pb2,
    consensus_pb2_grpc,
    master_pb2,
    master_pb2_grpc,
    tablet_copy_pb2,
    tablet_copy_pb2_grpc,
    tserver_admin_pb2_grpc,
)
from kudu_py.testing.process_cluster import ProcessCluster, wait_until

CALL_TIMEOUT_S = 30.0
ENDED = frozenset(
    {master_pb2.Operation.DONE, master_pb2.Operation.FAILED, master_pb2.Operation.CANCELLED}
)  # fmt: skip


class AdminCalls:
    """Calls to the daemons of a cluster; a context manager.

    Servers are named as `ProcessCluster.daemon` takes them: "tserver-1" or a uuid.
    """

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> AdminCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    def master(self) -> master_pb2_grpc.MasterServiceStub:
        """The master's door."""
        return master_pb2_grpc.MasterServiceStub(self._channel("master-1"))

    def consensus(self, server: str) -> consensus_pb2_grpc.ConsensusServiceStub:
        """Consensus at a server."""
        return consensus_pb2_grpc.ConsensusServiceStub(self._channel(server))

    def copies(self, server: str) -> tablet_copy_pb2_grpc.TabletCopyServiceStub:
        """Tablet copies at a server."""
        return tablet_copy_pb2_grpc.TabletCopyServiceStub(self._channel(server))

    def replicas(self, server: str) -> tserver_admin_pb2_grpc.TabletServerAdminServiceStub:
        """Creation and deletion of replicas at a server."""
        return tserver_admin_pb2_grpc.TabletServerAdminServiceStub(self._channel(server))

    def wait_for_master(self, live_servers: int) -> None:
        """Returns when the master serves its catalog, and has heard of so many tablet servers."""
        request = master_pb2.ListTabletServersRequest()

        def serves() -> bool:
            try:
                answer = self.master().ListTabletServers(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
            except grpc.RpcError:
                return False
            return sum(server.state == master_pb2.LIVE for server in answer.servers) >= live_servers

        wait_until(serves, f"the master to serve its catalog and to know {live_servers} tablet servers")

    # What is.

    def locations(self, table: str) -> Sequence[master_pb2.TabletLocations]:
        """Tablets of a table as the master has them."""
        request = master_pb2.GetTableLocationsRequest(table_name=table)
        return self.master().GetTableLocations(request, timeout=CALL_TIMEOUT_S).tablet_locations

    def tablet(self, tablet_id: str) -> master_pb2.TabletLocations:
        """One tablet as the master has it."""
        request = master_pb2.GetTabletLocationsRequest(tablet_ids=[tablet_id])
        return self.master().GetTabletLocations(request, timeout=CALL_TIMEOUT_S).tablet_locations[0]

    def voters(self, tablet_id: str) -> set[str]:
        """Uuids of the voters, by the master's word."""
        return {each.ts_uuid for each in self.tablet(tablet_id).replicas if each.member_type == consensus_pb2.VOTER}

    def members(self, tablet_id: str) -> set[str]:
        """Uuids of all members, by the master's word."""
        return {each.ts_uuid for each in self.tablet(tablet_id).replicas}

    def leader(self, tablet_id: str) -> str:
        """Uuid of the leader, by the master's word; empty if it knows none."""
        replicas = self.tablet(tablet_id).replicas
        return next((each.ts_uuid for each in replicas if each.role == consensus_pb2.LEADER and each.is_alive), "")

    def consensus_state(self, server: str, tablet_id: str) -> consensus_pb2.ConsensusState | None:
        """What a replica knows of its group; None if none runs there."""
        request = consensus_pb2.GetConsensusStateRequest(
            dest_uuid=self._cluster.daemon(server).uuid, tablet_ids=[tablet_id]
        )
        try:
            answer = self.consensus(server).GetConsensusState(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            return None
        return next((each.state for each in answer.tablets if each.tablet_id == tablet_id), None)

    def copy_sessions(self, server: str, tablet_id: str) -> list[tablet_copy_pb2.CopySession]:
        """Copies of a tablet in which a server takes or took part."""
        request = tablet_copy_pb2.ListCopySessionsRequest(dest_uuid=self._cluster.daemon(server).uuid)
        sessions = self.copies(server).ListCopySessions(request, timeout=CALL_TIMEOUT_S).sessions
        return [each for each in sessions if each.tablet_id == tablet_id]

    # What is done.

    def add_replica(self, tablet_id: str, server: str) -> consensus_pb2.RaftConfig:
        """AddReplica of a voter; the committed config with it as PRE_VOTER or already VOTER."""
        request = master_pb2.AddReplicaRequest(tablet_id=tablet_id, ts_uuid=self._cluster.daemon(server).uuid)
        return self.master().AddReplica(request, timeout=CALL_TIMEOUT_S).config

    def remove_replica(self, tablet_id: str, server: str) -> consensus_pb2.RaftConfig:
        """RemoveReplica; the committed config without it."""
        request = master_pb2.RemoveReplicaRequest(tablet_id=tablet_id, ts_uuid=self._cluster.daemon(server).uuid)
        return self.master().RemoveReplica(request, timeout=CALL_TIMEOUT_S).config

    def wait_for_voters(self, tablet_id: str, servers: set[str], timeout_s: float = 60.0) -> None:
        """Returns when these servers (uuids), and no others, are members, and all are voters."""
        wait_until(
            lambda: self.voters(tablet_id) == servers == self.members(tablet_id),
            f"the voters of {tablet_id} to be {sorted(servers)}",
            timeout_s,
        )

    def wait_for_operation(self, operation_id: str, timeout_s: float = 60.0) -> master_pb2.Operation:
        """The operation once it has ended."""
        request = master_pb2.GetOperationRequest(operation_id=operation_id)

        def ended() -> master_pb2.Operation | None:
            try:
                operation = self.master().GetOperation(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True).operation
            except grpc.RpcError:
                return None  # a master that has just started does not lead yet
            return operation if operation.state in ENDED else None

        return wait_until(ended, f"operation {operation_id} to end", timeout_s)

    def _channel(self, server: str) -> grpc.Channel:
        address = self._cluster.daemon(server).rpc_address
        if address not in self._channels:
            # A daemon that was killed is back within a second or two; the default waits up to two minutes.
            self._channels[address] = grpc.insecure_channel(address, [("grpc.max_reconnect_backoff_ms", 200)])
        return self._channels[address]
