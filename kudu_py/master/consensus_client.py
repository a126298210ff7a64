"""`ConsensusClient`: what a master asks of the leaders of tablets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kudu_py.common.ids import ServerId, TabletId, is_id
from kudu_py.consensus import codec as consensus_codec
from kudu_py.consensus.core.model import RaftConfig, Role
from kudu_py.master import codec
from kudu_py.master.catalog.replica_ops import ChangeKind, ConfigChange
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

_KIND_TO_PB = {
    ChangeKind.ADD: consensus_pb2.ADD_SERVER,
    ChangeKind.REMOVE: consensus_pb2.REMOVE_SERVER,
    ChangeKind.CHANGE: consensus_pb2.CHANGE_ROLE,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A tablet server and where it is called."""

    uuid: ServerId
    address: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """What one replica answered about its group.

    Attributes:
        at: the server that answered.
        leader: None if it knows none.
    """

    at: Endpoint
    role: Role
    term: int
    leader: ServerId | None
    committed: RaftConfig
    pending: RaftConfig | None


class ConsensusAdmin(Protocol):
    """The calls. Raise KuduError; safe to repeat."""

    async def view(self, at: Endpoint, tablet_id: TabletId, *, timeout_s: float) -> GroupView:
        """What a server's replica knows of its group at this moment."""

    async def change_config(self, at: Endpoint, change: ConfigChange, *, timeout_s: float) -> RaftConfig:
        """Asks a leader for one change; answers the committed config with it."""

    async def step_down(
        self, at: Endpoint, tablet_id: TabletId, successor: ServerId | None, *, timeout_s: float
    ) -> None:
        """Asks a leader to hand over; begun on return."""


class ConsensusClient:
    """The real one, over gRPC."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def view(self, at: Endpoint, tablet_id: TabletId, *, timeout_s: float) -> GroupView:
        request = consensus_pb2.GetConsensusStateRequest(dest_uuid=at.uuid, tablet_ids=[tablet_id])
        async with self._dialer.permit(at.address):
            answer = await call(self._stub(at).GetConsensusState(request, timeout=timeout_s), address=at.address)
        (tablet,) = answer.tablets
        state = tablet.state
        return GroupView(
            at=at,
            role=codec.role_from_pb(state.role),
            term=state.term,
            leader=ServerId(state.leader_uuid) if is_id(state.leader_uuid) else None,
            committed=consensus_codec.config_from_pb(state.committed_config),
            pending=consensus_codec.config_from_pb(state.pending_config) if state.pending_config.members else None,
        )

    async def change_config(self, at: Endpoint, change: ConfigChange, *, timeout_s: float) -> RaftConfig:
        member = consensus_pb2.Member(
            uuid=change.server, address=change.address, promote=change.promote, replace=change.replace
        )
        if change.member_type is not None:
            member.member_type = codec.member_type_to_pb(change.member_type)
        request = consensus_pb2.ChangeConfigRequest(
            dest_uuid=at.uuid,
            tablet_id=change.tablet_id,
            type=_KIND_TO_PB[change.kind],
            server=member,
            expected_config_index=change.expected_config_index,
        )
        async with self._dialer.permit(at.address):
            answer = await call(self._stub(at).ChangeConfig(request, timeout=timeout_s), address=at.address, wrote=True)
        return consensus_codec.config_from_pb(answer.config)

    async def step_down(
        self, at: Endpoint, tablet_id: TabletId, successor: ServerId | None, *, timeout_s: float
    ) -> None:
        request = consensus_pb2.LeaderStepDownRequest(
            dest_uuid=at.uuid, tablet_id=tablet_id, new_leader_uuid=successor or ""
        )
        async with self._dialer.permit(at.address):
            await call(self._stub(at).LeaderStepDown(request, timeout=timeout_s), address=at.address, wrote=True)

    def _stub(self, at: Endpoint) -> consensus_pb2_grpc.ConsensusServiceAsyncStub:
        return consensus_pb2_grpc.ConsensusServiceStub(self._dialer.channel(at.address))
