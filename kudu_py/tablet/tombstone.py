"""`Tombstone`: what stays of a deleted replica, and how it votes (seed 002, "Note on deleted tablets").

It knows term and vote from the consensus metadata and the end of its log from the superblock. That is all that the
rules for giving a vote ask for, so the machine itself applies them: a replica with an empty log that begins where the
deleted one ended. It never campaigns, because nobody tells it that time passes.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kudu_py.common.errors import KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.codec import op_id_from_pb
from kudu_py.consensus.core.events import HardStateDurable, VoteRequested
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import HardState
from kudu_py.consensus.core.output import VoteReply
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.pb import consensus_pb2
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.metadata import Superblock

_log = structlog.get_logger(__name__)


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


class TombstoneVoters:
    """The tombstones of a server that have been asked for a vote; each is the only writer of its metadata."""

    def __init__(self, context: ServerContext, remembered: Callable[[TabletId], Superblock | None]) -> None:
        """Args: remembered: the tombstone that may vote now, if any; always the same object until it may not."""
        self._context = context
        self._remembered = remembered
        self._voters: dict[TabletId, Tombstone] = {}

    async def vote(
        self, tablet_id: TabletId, request: consensus_pb2.RequestVoteRequest
    ) -> consensus_pb2.RequestVoteResponse | None:
        """Answers a candidate; None if there is no tombstone or the end of its log is not known."""
        superblock = self._remembered(tablet_id)
        if superblock is None or superblock.tombstone_last_op_id is None:
            return None
        voter = self._voters.get(tablet_id)
        if voter is None:
            try:
                record = await self.load(tablet_id)
            except (KuduError, OSError) as error:
                _log.error("tombstone_unreadable", tablet=tablet_id, error=str(error))
                return None
            # Another request may have loaded it meanwhile, or the tombstone be gone; there must be one writer of the
            # file.
            if self._remembered(tablet_id) is not superblock:
                return None
            voter = self._voters.setdefault(
                tablet_id, Tombstone(self._context, tablet_id, record, superblock.tombstone_last_op_id)
            )
        return await voter.vote(request)

    async def load(self, tablet_id: TabletId) -> ConsensusMetadata:
        """What a replica that does not run has promised, as the file says.

        Raises:
            KuduError: CORRUPTION. OSError: it is missing or cannot be read.
        """
        path, disk = self._context.directories.consensus_metadata_path(tablet_id), self._context.threads.disk
        return await self._context.threads.run(lambda: ConsensusMetadata.load(disk, path, tablet_id))

    async def promised(self, tablet_id: TabletId) -> HardState:
        """Term and vote, those on their way to the disk included; raises as `load`."""
        voter = self._voters.get(tablet_id)
        return voter.metadata.hard_state if voter is not None else (await self.load(tablet_id)).hard_state

    async def dismiss(self, tablet_id: TabletId) -> None:
        """Ends the voting of a tombstone that may not vote any more: its votes are durable, its file is free."""
        voter = self._voters.pop(tablet_id, None)
        if voter is not None:
            await metadata_durable(voter.metadata)
