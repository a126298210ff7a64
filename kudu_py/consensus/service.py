"""`ConsensusServicer` over a `ReplicaLookup`; no logic beyond decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.consensus.codec import config_change_from_pb, config_to_pb, op_id_to_pb
from kudu_py.consensus.lookup import ReplicaLookup
from kudu_py.consensus.peer_links import Answer
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.consensus.update_stream import serve_updates
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceServicer


class ConsensusServicer(ConsensusServiceServicer):
    """The replicas of this server, for those of others. `dest_uuid` is checked around it (`rpc/server.py`)."""

    def __init__(self, lookup: ReplicaLookup) -> None:
        self._lookup = lookup

    async def UpdateConsensus(
        self, request: consensus_pb2.UpdateConsensusRequest, context: Any
    ) -> consensus_pb2.UpdateConsensusResponse:
        self._require_caller(request.caller_uuid, "caller_uuid")
        return await self._replica(request.tablet_id).peer_requests.handle_update(request)

    def UpdateConsensusStream(
        self, request_iterator: AsyncIterator[consensus_pb2.UpdateConsensusStreamRequest], context: Any
    ) -> Any:  # a coroutine that writes the answers itself, which the generated type does not know
        return serve_updates(request_iterator, context, self._receive_update)

    async def RequestVote(
        self, request: consensus_pb2.RequestVoteRequest, context: Any
    ) -> consensus_pb2.RequestVoteResponse:
        tablet_id = TabletId(require_id(request.tablet_id, "tablet_id"))
        self._require_caller(request.candidate_uuid, "candidate_uuid")
        try:
            replica = self._lookup.consensus(tablet_id)
        except KuduError as error:
            is_copying = error.details.get("data_state") == "COPYING"
            if error.code is not ErrorCode.TABLET_NOT_FOUND and not is_copying:
                raise
            # A deleted replica remembers what it promised, and its vote may be the one that is missing (seed 002); so
            # does one that was deleted to be copied.
            vote = await self._lookup.tombstone_vote(tablet_id, request)
            if vote is None:
                raise
            return vote
        return await replica.peer_requests.handle_vote(request)

    async def RunLeaderElection(
        self, request: consensus_pb2.RunLeaderElectionRequest, context: Any
    ) -> consensus_pb2.RunLeaderElectionResponse:
        await self._replica(request.tablet_id).run_election(request.term or None)
        return consensus_pb2.RunLeaderElectionResponse()

    async def LeaderStepDown(
        self, request: consensus_pb2.LeaderStepDownRequest, context: Any
    ) -> consensus_pb2.LeaderStepDownResponse:
        successor = None
        if request.new_leader_uuid:
            successor = ServerId(require_id(request.new_leader_uuid, "new_leader_uuid"))
        await self._replica(request.tablet_id).leader_step_down(successor)
        return consensus_pb2.LeaderStepDownResponse()

    async def GetConsensusState(
        self, request: consensus_pb2.GetConsensusStateRequest, context: Any
    ) -> consensus_pb2.GetConsensusStateResponse:
        response = consensus_pb2.GetConsensusStateResponse(responder_uuid=self._lookup.uuid)
        replicas = (
            [(TabletId(tablet_id), self._replica(tablet_id)) for tablet_id in request.tablet_ids]
            if request.tablet_ids
            else sorted(self._lookup.consensus_all(), key=lambda pair: pair[0])
        )
        for tablet_id, replica in replicas:
            response.tablets.add(tablet_id=tablet_id, state=replica.consensus_state())
        return response

    async def GetLastOpId(
        self, request: consensus_pb2.GetLastOpIdRequest, context: Any
    ) -> consensus_pb2.GetLastOpIdResponse:
        replica = self._replica(request.tablet_id)
        return consensus_pb2.GetLastOpIdResponse(
            last_received=op_id_to_pb(replica.last_op_id), last_committed=op_id_to_pb(replica.last_committed_op_id)
        )

    async def ChangeConfig(
        self, request: consensus_pb2.ChangeConfigRequest, context: Any
    ) -> consensus_pb2.ChangeConfigResponse:
        replica = self._replica(request.tablet_id)
        change, member = config_change_from_pb(request)
        expected = request.expected_config_index if request.HasField("expected_config_index") else None
        config = await replica.change_config(change, member, expected)
        return consensus_pb2.ChangeConfigResponse(config=config_to_pb(config))

    async def AbortConfigChange(
        self, request: consensus_pb2.AbortConfigChangeRequest, context: Any
    ) -> consensus_pb2.AbortConfigChangeResponse:
        replica = self._replica(request.tablet_id)
        pending = request.pending_config_index if request.HasField("pending_config_index") else None
        config = await replica.abort_config_change(pending)
        return consensus_pb2.AbortConfigChangeResponse(config=config_to_pb(config))

    async def UnsafeChangeConfig(
        self, request: consensus_pb2.UnsafeChangeConfigRequest, context: Any
    ) -> consensus_pb2.UnsafeChangeConfigResponse:
        replica = self._replica(request.tablet_id)
        members = [ServerId(require_id(uuid, "member_uuids")) for uuid in request.member_uuids]
        config = await replica.unsafe_change_config(members, request.caller_id)
        return consensus_pb2.UnsafeChangeConfigResponse(config=config_to_pb(config))

    async def StartTabletCopy(
        self, request: consensus_pb2.StartTabletCopyRequest, context: Any
    ) -> consensus_pb2.StartTabletCopyResponse:
        require_id(request.tablet_id, "tablet_id")
        await self._lookup.start_tablet_copy(request)
        return consensus_pb2.StartTabletCopyResponse()

    def _receive_update(self, request: consensus_pb2.UpdateConsensusRequest, respond: Callable[[Answer], None]) -> None:
        self._require_caller(request.caller_uuid, "caller_uuid")
        self._replica(request.tablet_id).peer_requests.receive_update(request, respond)

    def _replica(self, tablet_id: str) -> RaftConsensus:
        return self._lookup.consensus(TabletId(require_id(tablet_id, "tablet_id")))

    def _require_caller(self, uuid: str, what: str) -> None:
        """Refuses who is none, or claims to be this server: the machine takes it for certain that it does not hear its
        own messages."""
        if require_id(uuid, what) == self._lookup.uuid:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"{what}: {uuid} is the server that is asked, not another one")
