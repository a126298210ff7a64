"""`PeerRequests`: what other replicas ask of this one, to take entries and to vote; from the wire and back to it.

The other end of `peers.py` and `election_calls.py`. A request is checked and translated here, and becomes a fact for
the machine; when its answer may leave is decided by the machine and by `Promises`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.futures import settle
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.appender import Appender
from kudu_py.consensus.codec import core_entry, entries_from_request, op_id_from_pb
from kudu_py.consensus.core.events import AppendReceived, Event, Token, VoteRequested
from kudu_py.consensus.core.model import Role
from kudu_py.consensus.core.output import AppendReply, Reply, VoteReply
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.peer_links import Answer
from kudu_py.consensus.reads import Reads
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.pb import consensus_pb2

Waiter = Callable[[Reply | KuduError], None]
"""Told, once, what the machine answers to a fact, or why it will not."""


class PeerRequests:
    """The requests of other replicas to one replica.

    Attributes:
        why_closed: why nothing is taken; None while the replica runs.
        heard_leader: the leader that was heard last, and where it says that its services are.
    """

    def __init__(
        self,
        *,
        uuid: ServerId,
        tablet_id: TabletId,
        raft: Raft,
        time: TimeManager,
        appender: Appender,
        reads: Reads,
        tokens: Iterator[Token],
        waiters: dict[Token, Waiter],
        post: Callable[[Event], None],
        ask: Callable[[Callable[[Token], Event]], Awaitable[Reply]],
        has_room: Callable[[int], bool],
        why_closed: KuduError,
    ) -> None:
        """
        Args:
            waiters: of the replica; who is among them is told its answer when it may be given.
            post: takes a fact, and returns when what follows from it has begun.
            ask: takes a fact, and returns its answer.
            has_room: whether entries of so many bytes may be taken.
        """
        self._uuid, self._tablet_id = uuid, tablet_id
        self._raft, self._time, self._appender, self._reads = raft, time, appender, reads
        self._tokens, self._waiters, self._post, self._ask = tokens, waiters, post, ask
        self._has_room = has_room
        self.why_closed: KuduError | None = why_closed
        self.heard_leader: tuple[ServerId, str] | None = None

    def receive_update(self, request: consensus_pb2.UpdateConsensusRequest, respond: Callable[[Answer], None]) -> None:
        """Takes UpdateConsensus; `respond` is called once, when the answer may be given, maybe at once."""
        if self.why_closed is not None:
            respond(self.why_closed)
            return
        try:
            entries = entries_from_request(request)
            self._check_leader(request)
            self._time.observe(HybridTime(request.caller_timestamp), f"leader {request.caller_uuid}")
            if entries:
                self._time.observe(entries[-1].timestamp, f"leader {request.caller_uuid}")
            # May find a malformed config, so before anything has changed.
            core_entries = tuple([core_entry(entry) for entry in entries])
            if entries and not self._has_room(sum([len(entry.record) for entry in entries])):
                # Taken as a heartbeat. A refusal would teach the leader nothing, not even that this replica lives: with
                # a majority short of room it would step down, and those that refuse would campaign for nothing.
                entries = core_entries = ()
        except KuduError as error:
            respond(error)
            return
        leader = ServerId(request.caller_uuid)
        token = next(self._tokens)
        safe, commit_index = HybridTime(request.safe_timestamp), request.committed_index

        def replied(reply: Reply | KuduError) -> None:
            if isinstance(reply, KuduError):
                respond(reply)
                return
            assert isinstance(reply, AppendReply), reply
            if reply.accepted and safe and reply.term == request.caller_term:
                self._reads.note_announced(safe, commit_index)
            response = consensus_pb2.UpdateConsensusResponse(
                responder_uuid=self._uuid,
                responder_term=reply.term,
                accepted=reply.accepted,
                last_committed_index=reply.last_committed_index,
            )
            response.last_received.term, response.last_received.index = reply.last_received
            respond(response)

        self._waiters[token] = replied
        self._appender.expect_received(entries)
        self._post(
            AppendReceived(
                token,
                leader,
                request.caller_term,
                op_id_from_pb(request.preceding_op_id),
                core_entries,
                commit_index,
            )
        )
        self._appender.forget_received()
        if self._raft.leader == leader:
            self.heard_leader = (leader, request.caller_address)

    async def handle_update(
        self, request: consensus_pb2.UpdateConsensusRequest
    ) -> consensus_pb2.UpdateConsensusResponse:
        """UpdateConsensus as a unary call.

        Raises:
            KuduError: INVALID_ARGUMENT, ILLEGAL_STATE (clocks apart, or a second leader of the term), the replica
                stopped.
        """
        answered: asyncio.Future[consensus_pb2.UpdateConsensusResponse] = asyncio.get_running_loop().create_future()
        self.receive_update(request, lambda answer: settle(answered, answer))
        return await answered

    async def handle_vote(self, request: consensus_pb2.RequestVoteRequest) -> consensus_pb2.RequestVoteResponse:
        """RequestVote. A vote that is given is durable on return."""
        reply = await self._ask(
            lambda token: VoteRequested(
                token,
                ServerId(request.candidate_uuid),
                request.candidate_term,
                op_id_from_pb(request.last_op_id),
                request.is_pre_vote,
                request.ignore_live_leader,
            )
        )
        assert isinstance(reply, VoteReply), reply
        return consensus_pb2.RequestVoteResponse(
            responder_uuid=self._uuid,
            responder_term=reply.term,
            vote_granted=reply.granted,
            reason=reply.reason,
            timestamp=self._time.now(),
        )

    def _check_leader(self, request: consensus_pb2.UpdateConsensusRequest) -> None:
        """Two leaders of one term cannot be: whoever claims it is not a replica of this group."""
        raft = self._raft
        if request.caller_term == raft.term and (
            raft.role is Role.LEADER or raft.leader not in (None, request.caller_uuid)
        ):
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"{request.caller_uuid} claims to lead term {raft.term} of tablet {self._tablet_id}, "
                f"which is led by {raft.leader}",
            )
