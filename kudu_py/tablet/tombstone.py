"""`Tombstone`: what stays of a deleted replica, and how it votes (seed 002, "Note on deleted tablets").

It knows term and vote from the consensus metadata and the end of its log from the superblock. That is all that the
rules for giving a vote ask for, so the machine itself applies them: a replica with an empty log that begins where the
deleted one ended. It never campaigns, because nobody tells it that time passes.
"""

from __future__ import annotations

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.codec import op_id_from_pb
from kudu_py.consensus.core.events import HardStateDurable, VoteRequested
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.output import VoteReply
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.durable_metadata import metadata_durable


class Tombstone:
    """The vote memory of one deleted replica."""

    def __init__(
        self, context: ServerContext, tablet_id: TabletId, metadata: ConsensusMetadata, last_op_id: OpId
    ) -> None:
        """A tombstone whose log ended at `last_op_id`, and whose `metadata` nobody else writes."""
        self._context = context
        self._metadata = metadata
        metadata.attach(context.threads, on_durable=lambda _: None, on_failure=context.on_fatal)
        self._raft = Raft(
            uuid=context.uuid,
            config=metadata.committed_config,
            hard_state=metadata.hard_state,
            log=LogView(preceding=last_op_id, last_index=last_op_id.index),
            options=context.options.consensus.raft,
            rng=context.rng,
            group=f"tablet {tablet_id}",
        )

    @property
    def metadata(self) -> ConsensusMetadata:
        """Its term and vote, which only it writes."""
        return self._metadata

    async def vote(self, request: consensus_pb2.RequestVoteRequest) -> consensus_pb2.RequestVoteResponse:
        """Answers a candidate; a vote that is given is durable on return."""
        out = self._raft.step(
            self._context.clock.monotonic(),
            VoteRequested(
                token=0,
                candidate=ServerId(request.candidate_uuid),
                term=request.candidate_term,
                last_op_id=op_id_from_pb(request.last_op_id),
                is_pre_vote=request.is_pre_vote,
                ignore_live_leader=request.ignore_live_leader,
            ),
        )
        if out.hard_state is not None:
            self._metadata.set_hard_state(out.hard_state)
        await metadata_durable(self._metadata)
        self._raft.step(self._context.clock.monotonic(), HardStateDurable(self._metadata.durable.hard_state))
        (reply,) = (*out.replies, *out.replies_after_durable)
        assert isinstance(reply, VoteReply), reply
        return consensus_pb2.RequestVoteResponse(
            responder_uuid=self._context.uuid,
            responder_term=reply.term,
            vote_granted=reply.granted,
            reason=reply.reason,
            timestamp=self._context.hybrid_clock.now(),
        )
