"""`SimMeddler`: somebody who orders copies, elections and changes of members from tablet servers directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kudu_py.common.errors import KuduError
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call
from kudu_py.testing.sim_caller import SimCaller
from kudu_py.testing.sim_cluster import SimCluster

_STRANGER = "e" * 32
_TIMEOUT_S = 3.0


class SimMeddler(SimCaller):
    """Draws a call of ConsensusService to any server: most are nonsense, and none may cost anything that was
    acknowledged. Reasons of refusals stand behind the method.
    """

    def __init__(self, cluster: SimCluster, tablet_ids: Sequence[str]) -> None:
        super().__init__(cluster, tablet_ids, pause_s=0.3)

    async def call_once(self) -> None:
        method, address, request = self._draw()
        stub = ConsensusServiceStub(self._cluster.network.dialer("meddler:1").channel(address))
        try:
            await call(getattr(stub, method)(request, timeout=_TIMEOUT_S), address=address)
        except KuduError as error:
            self.refused[f"{method} {error.code.value}"] += 1
        else:
            self.done[method] += 1

    def _draw(self) -> tuple[str, str, Any]:
        rng, tablet_id = self._rng, self._rng.choice(self._tablet_ids)
        server, other = rng.sample(self._cluster.tservers, 2)
        leader, term = self._cluster.leader_of(tablet_id), 0
        if leader is not None:
            term = leader.process.manager.replica(tablet_id).consensus.term
        requests: list[tuple[str, Any]] = [
            (
                "StartTabletCopy",
                consensus_pb2.StartTabletCopyRequest(
                    caller_uuid=_STRANGER if leader is None or rng.random() < 0.5 else leader.uuid,
                    caller_term=rng.choice((term, term, term + 1000)),
                    source_uuid=other.uuid,
                    source_address=other.address,
                ),
            ),
            ("LeaderStepDown", consensus_pb2.LeaderStepDownRequest()),
            ("RunLeaderElection", consensus_pb2.RunLeaderElectionRequest()),
            ("AbortConfigChange", consensus_pb2.AbortConfigChangeRequest()),
            (
                "ChangeConfig",
                consensus_pb2.ChangeConfigRequest(
                    type=rng.choice((consensus_pb2.ADD_SERVER, consensus_pb2.REMOVE_SERVER)),
                    server=consensus_pb2.Member(
                        uuid=other.uuid, address=other.address, member_type=consensus_pb2.VOTER
                    ),
                ),
            ),
            (
                "RequestVote",
                consensus_pb2.RequestVoteRequest(
                    candidate_uuid=other.uuid, candidate_term=term + rng.randrange(3), ignore_live_leader=True
                ),
            ),
        ]
        method, request = rng.choices(requests, weights=(3, 1, 1, 1, 1, 1))[0]
        request.dest_uuid, request.tablet_id = server.uuid, tablet_id
        return method, server.address, request
