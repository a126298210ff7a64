"""`Outbox`: what the machine wants other replicas to be told, and who they are."""

from __future__ import annotations

from kudu_py.common.ids import ServerId
from kudu_py.consensus.applier import Applier
from kudu_py.consensus.copy_calls import CopyCalls
from kudu_py.consensus.core.model import Member
from kudu_py.consensus.core.output import Message, SendAppend, SendRunElection, SendVoteRequest
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.election_calls import ElectionCalls
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.consensus.peers import Peer, PeerContext
from kudu_py.consensus.time_manager import NO_TIME


class Outbox:
    """The way of one replica's messages to the others."""

    def __init__(
        self,
        *,
        raft: Raft,
        applier: Applier,
        context: PeerContext,
        calls: ElectionCalls,
        copies: CopyCalls,
        links: PeerLinks,
    ) -> None:
        self._raft, self._applier, self._context, self._calls, self._links = raft, applier, context, calls, links
        self._copies = copies
        self._peers: dict[ServerId, Peer] = {}

    def send(self, message: Message) -> None:
        """Sends a message; one to a server that is no member with an address is dropped."""
        match message:
            case SendAppend():
                self._send_append(message)
            case SendVoteRequest():
                if (voter := self._member(message.to)) is not None:
                    self._context.spawn(self._calls.request_vote(message, voter), f"request vote of {message.to}")
            case SendRunElection():
                if (successor := self._member(message.to)) is not None:
                    self._context.spawn(self._calls.request_election(message, successor), f"hand over to {message.to}")

    def ask_for_copy(self, follower: ServerId) -> None:
        """A follower cannot be served from the log."""
        member, peer = self._member(follower), self._peers.get(follower)
        if member is not None and peer is not None:
            self._copies.ask(
                member, term=self._raft.term, committed=self._raft.committed_op_id, state=peer.copy_target_state
            )

    def note_config(self) -> None:
        """Members left, or have moved to other addresses."""
        for uuid, peer in list(self._peers.items()):
            member = self._raft.member(uuid)
            if member is None or member.address != peer.address:
                del self._peers[uuid]
                self._copies.forget(uuid)

    def clear(self) -> None:
        """This replica leads no more."""
        self._peers.clear()
        self._copies.clear()

    def _send_append(self, message: SendAppend) -> None:
        peer = self._peers.get(message.to) or self._peer(message.to)
        if peer is None:
            return
        time, raft = self._context.time, self._raft
        first = self._applier.kept(message.commit_index + 1)
        if first is None and message.commit_index < raft.last_op_id.index:
            safe = NO_TIME  # found in the log at the start, and not read yet
        else:
            next_timestamp = first.timestamp if first is not None else None
            safe = time.announce(self._context.uuid, raft.active_config.voters, next_timestamp)
            time.note_announced(safe, message.commit_index, self._applier.applied_index)
        peer.send(message, safe_timestamp=safe, timestamp=time.now())

    def _peer(self, uuid: ServerId) -> Peer | None:
        member = self._member(uuid)
        if member is None:
            return None
        peer = self._peers[uuid] = Peer(self._context, uuid, member.address, self._links.link(member.address))
        return peer

    def _member(self, uuid: ServerId) -> Member | None:
        member = self._raft.member(uuid)
        return member if member is not None and member.address else None
