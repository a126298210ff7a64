"""`ReplicaLookup`: the narrow view of hosted replicas that services need; both daemons provide it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.pb import consensus_pb2


class ReplicaLookup(Protocol):
    """What a server hosts."""

    @property
    def uuid(self) -> ServerId:
        """The server's own."""

    def consensus(self, tablet_id: TabletId) -> RaftConsensus:
        """The replica's consensus.

        Raises:
            KuduError: TABLET_NOT_FOUND if there is no replica or only a tombstone, TABLET_NOT_RUNNING while it starts,
                copies or stops, TABLET_FAILED.
        """

    async def start_tablet_copy(self, request: consensus_pb2.StartTabletCopyRequest) -> None:
        """Makes this server fetch its replica of a tablet from another; begun, not done, on return (seed 002).

        Raises:
            KuduError: ALREADY_IN_PROGRESS, ILLEGAL_STATE, INVALID_TERM, INVALID_ARGUMENT; nothing has changed then.
        """

    def consensus_all(self) -> Iterable[tuple[TabletId, RaftConsensus]]:
        """All replicas that run, by tablet id."""

    async def tombstone_vote(
        self, tablet_id: TabletId, request: consensus_pb2.RequestVoteRequest
    ) -> consensus_pb2.RequestVoteResponse | None:
        """The vote of a replica that was deleted but remembers term, vote and last OpId (seed 002); None if there is
        none.

        The vote is durable on return.
        """
