"""`SimMeddler`: somebody who orders copies, elections and changes of members from tablet servers directly."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kudu_py.common.errors import KuduError
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call
from kudu_py.testing.sim_cluster import SimCluster

_STRANGER = "e" * 32
_TIMEOUT_S = 3.0


class SimMeddler:
    """Draws a call of ConsensusService to any server, and again: most are nonsense, and none may cost anything that was
    acknowledged.

    Attributes:
        done: answered calls by method. refused: reasons of those that were not, behind the method.
    """

    def __init__(self, cluster: SimCluster, tablet_ids: Sequence[str], *, pause_s: float = 0.3) -> None:
        self._cluster, self._tablet_ids, self._pause_s = cluster, tablet_ids, pause_s
        self._rng = cluster.rng
        self._task: asyncio.Task[None] | None = None
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.create_task(self._run(), name="meddler")

    async def stop(self) -> None:
        """Ends; a bug comes out here."""
        assert self._task is not None
        self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * 2 * self._pause_s)
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
