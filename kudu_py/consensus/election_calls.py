"""`ElectionCalls`: asking other replicas for their votes, and one of them to campaign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from kudu_py.common.errors import KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.codec import op_id_to_pb
from kudu_py.consensus.core.events import Event, HandoverFailed, VoteAnswered
from kudu_py.consensus.core.model import Member
from kudu_py.consensus.core.output import SendRunElection, SendVoteRequest
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.call import call


@dataclass(frozen=True, slots=True)
class ElectionCalls:
    """The rare calls of one replica to others.

    Attributes:
        tablet_id, uuid: of the replica that asks.
        links: the ways to other servers.
        time: learns the voters' clocks.
        timeout_s: a call without an answer for this long is given up.
        post: takes facts.
        logger: bound to the replica.
        silent: voters that did not answer when last asked; said once, not with each of many tries while they start.
    """

    tablet_id: TabletId
    uuid: ServerId
    links: PeerLinks
    time: TimeManager
    timeout_s: float
    post: Callable[[Event], None]
    logger: structlog.stdlib.BoundLogger
    silent: set[ServerId] = field(default_factory=set)

    async def request_vote(self, message: SendVoteRequest, voter: Member) -> None:
        """Asks for a vote; an answer becomes a fact, and no answer is no news."""
        request = consensus_pb2.RequestVoteRequest(
            dest_uuid=voter.uuid,
            tablet_id=self.tablet_id,
            candidate_uuid=self.uuid,
            candidate_term=message.term,
            last_op_id=op_id_to_pb(message.last_op_id),
            is_pre_vote=message.is_pre_vote,
            ignore_live_leader=message.ignore_live_leader,
        )
        try:
            response = await call(
                self.links.stub(voter.address).RequestVote(request, timeout=self.timeout_s), address=voter.address
            )
            # Before the vote counts: it is the voter's clock that makes what it promised hold (`time_manager`).
            self.time.observe(HybridTime(response.timestamp), f"voter {voter.uuid}")
        except KuduError as error:
            if voter.uuid not in self.silent:
                self.silent.add(voter.uuid)
                self.logger.info("vote_not_answered", voter=voter.uuid, term=message.term, error=str(error))
            return
        self.silent.discard(voter.uuid)
        if response.responder_uuid == voter.uuid:
            self.post(
                VoteAnswered(
                    voter.uuid, response.responder_term, response.vote_granted, message.is_pre_vote, message.term
                )
            )

    async def request_election(self, message: SendRunElection, successor: Member) -> None:
        """Asks the successor to campaign."""
        request = consensus_pb2.RunLeaderElectionRequest(
            dest_uuid=successor.uuid, tablet_id=self.tablet_id, term=message.term
        )
        try:
            await call(
                self.links.stub(successor.address).RunLeaderElection(request, timeout=self.timeout_s),
                address=successor.address,
            )
        except KuduError as error:
            self.logger.info("handover_refused", successor=successor.uuid, term=message.term, error=str(error))
            self.post(HandoverFailed(successor.uuid, message.term))
