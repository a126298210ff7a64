"""`CopyCalls`: a leader's requests to members that cannot be served from its log to fetch a whole replica.

The machine names such a member again with each heartbeat. One request at a time goes to each, and after a refusal none
for a while. That a copy has begun shows by the member's answers: while it fetches, it says that it is not running.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.codec import op_id_to_pb
from kudu_py.consensus.core.model import Member
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.peer_links import PeerLinks
from kudu_py.env.clock import Clock
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.call import call
from kudu_py.rpc.retry import Backoff


@dataclass(slots=True)
class _Target:
    """One member that needs a copy.

    Attributes:
        is_being_asked: a request is on its way.
        not_before: when it may be asked again.
        refusals: in a row.
        last_refusal: what was logged last.
    """

    is_being_asked: bool = False
    not_before: float = 0.0
    refusals: int = 0
    last_refusal: str = ""


@dataclass(slots=True)
class CopyCalls:
    """The StartTabletCopy calls of one replica.

    Attributes:
        tablet_id, uuid, address: of the leader's replica, which is also what is to be copied.
        links: the ways to other servers.
        clock, rng: for the pauses.
        timeout_s: a call without an answer for this long is given up.
        backoff: the pause after a refusal.
        spawn: owns the calls.
        logger: bound to the replica.
    """

    tablet_id: TabletId
    uuid: ServerId
    address: str
    links: PeerLinks
    clock: Clock
    rng: Chance
    timeout_s: float
    backoff: Backoff
    spawn: Callable[[Coroutine[object, object, None], str], None]
    logger: structlog.stdlib.BoundLogger
    _targets: dict[ServerId, _Target] = field(default_factory=dict)

    def ask(
        self, member: Member, *, term: int, committed: OpId, state: consensus_pb2.CopyTargetState.ValueType
    ) -> None:
        """Asks a member to fetch its replica from here, unless it was asked a moment ago. Does not wait.

        Args:
            term: that this replica leads.
            committed: the last entry known to be committed, which the source must have applied.
            state: what the member's files amount to, by its own last answer; UNKNOWN if it did not say.
        """
        target = self._targets.setdefault(member.uuid, _Target())
        if target.is_being_asked or self.clock.monotonic() < target.not_before:
            return
        target.is_being_asked = True
        request = consensus_pb2.StartTabletCopyRequest(
            dest_uuid=member.uuid,
            tablet_id=self.tablet_id,
            caller_uuid=self.uuid,
            caller_term=term,
            expected_state=state,
            committed_op_id=op_id_to_pb(committed),
            source_uuid=self.uuid,
            source_address=self.address,
        )
        self.spawn(self._call(member, target, request), f"have {member.uuid} copied")

    def forget(self, uuid: ServerId) -> None:
        """The member is served from the log again, or is none any more."""
        self._targets.pop(uuid, None)

    def clear(self) -> None:
        """This replica leads no more."""
        self._targets.clear()

    async def _call(self, member: Member, target: _Target, request: consensus_pb2.StartTabletCopyRequest) -> None:
        try:
            await call(
                self.links.stub(member.address).StartTabletCopy(request, timeout=self.timeout_s), address=member.address
            )
        except KuduError as error:
            if error.code is not ErrorCode.ALREADY_IN_PROGRESS:
                self._note_refusal(member, target, error)
                return
        else:
            self.logger.info("copy_requested", follower=member.uuid, address=member.address, term=request.caller_term)
        finally:
            target.is_being_asked = False
        target.refusals, target.last_refusal = 0, ""
        target.not_before = self.clock.monotonic() + self.backoff.initial_s

    def _note_refusal(self, member: Member, target: _Target, error: KuduError) -> None:
        """The same refusal many times in a row is said once."""
        target.not_before = self.clock.monotonic() + self.backoff.delay_s(target.refusals, self.rng)
        target.refusals += 1
        if target.last_refusal != error.code.value:
            target.last_refusal = error.code.value
            self.logger.warning("copy_refused", follower=member.uuid, address=member.address, error=str(error))
