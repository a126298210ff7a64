"""`SimAdmin`: an administrator of a simulated cluster who changes members all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.testing.sim_caller import SimCaller
from kudu_py.testing.sim_cluster import SimCluster

_TIMEOUT_S = 10.0
_NO_LEADER = frozenset({ErrorCode.NOT_THE_LEADER, ErrorCode.UNAVAILABLE, ErrorCode.TIMED_OUT})


class SimAdmin(SimCaller):
    """Draws a change and asks a master for it."""

    def __init__(self, cluster: SimCluster, tablet_ids: Sequence[str]) -> None:
        super().__init__(cluster, tablet_ids, pause_s=0.5)
        self._leader = ""

    async def ask(self, method: str, request: Any, *, timeout_s: float = _TIMEOUT_S) -> Any:
        """A call of MasterService at the leader master, as far as it is known; raises KuduError."""
        address = self._leader or self._rng.choice(self._cluster.master_addresses)
        stub = master_pb2_grpc.MasterServiceStub(self._cluster.network.dialer("admin:1").channel(address))
        return await call(getattr(stub, method)(request, timeout=timeout_s), address=address, wrote=True)

    async def call_once(self) -> None:
        method, request = self._draw()
        try:
            await self.ask(method, request)
        except KuduError as error:
            self.refused[error.code.value] += 1
            if error.code in _NO_LEADER:
                self._leader = error.details.get("leader_address", "")
        else:
            self.done[method] += 1

    def _draw(self) -> tuple[str, Any]:
        """Any change of any tablet, to and from any server: many are nonsense, and are to be refused as such."""
        tablet_id = self._rng.choice(self._tablet_ids)
        one, other = (server.uuid for server in self._rng.sample(self._cluster.tservers, 2))
        match self._rng.randrange(6):
            case 0 | 1:
                return "AddReplica", master_pb2.AddReplicaRequest(tablet_id=tablet_id, ts_uuid=one)
            case 2 | 3:
                return "RemoveReplica", master_pb2.RemoveReplicaRequest(tablet_id=tablet_id, ts_uuid=one)
            case 4:
                return "MoveReplica", master_pb2.MoveReplicaRequest(
                    tablet_id=tablet_id, from_ts_uuid=one, to_ts_uuid=other
                )
            case _:
                return "LeaderStepDown", master_pb2.LeaderStepDownRequest(tablet_id=tablet_id)
