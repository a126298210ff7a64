"""`Appender`: makes entries of what the machine appends, and hands them to log and applier in one breath.

The machine knows an entry by OpId and kind alone. What it carries waits here meanwhile: the payload of a proposal, by
the token of the fact that told of it; an entry that a leader sent, by its index.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kudu_py.common.errors import KuduError
from kudu_py.common.opid import OpId
from kudu_py.consensus.applier import Applier
from kudu_py.consensus.codec import config_to_pb, encode_record
from kudu_py.consensus.core.events import Token
from kudu_py.consensus.core.model import EntryKind, LogEntry
from kudu_py.consensus.core.output import Accepted
from kudu_py.consensus.entry import Entry
from kudu_py.consensus.rounds import Round, Rounds
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.wal.format import Record
from kudu_py.wal.log import Log


@dataclass(slots=True)
class Proposal:
    """What a proposal needs to become an entry and a round.

    Attributes:
        payload: the serialised operation.
        prepared: for the state machine, see `Entry.prepared`.
        accepted: the round that it became. refused: why it did not.
    """

    payload: bytes
    prepared: object
    accepted: Round | None = None
    refused: KuduError | None = None


class Appender:
    """The way of entries into the log of one replica.

    Attributes:
        appends: how many times entries were handed to the log.
        own_no_op: the first entry of the term that this replica leads, if it leads.
    """

    def __init__(self, *, log: Log, applier: Applier, rounds: Rounds, time: TimeManager) -> None:
        self._log, self._applier, self._rounds, self._time = log, applier, rounds, time
        self._loop = asyncio.get_running_loop()
        self._proposals: dict[Token, Proposal] = {}
        self._received: dict[int, Entry] = {}
        self._ends: deque[OpId] = deque()
        self.appends = 0
        self.own_no_op: OpId | None = None

    def expect_proposal(self, token: Token, proposal: Proposal) -> None:
        """The machine is about to be told of a proposal."""
        self._proposals[token] = proposal

    def refuse_proposal(self, token: Token, error: KuduError) -> bool:
        """The machine does not take it; False if there is no such proposal."""
        proposal = self._proposals.get(token)
        if proposal is None:
            return False
        proposal.refused = error
        return True

    def forget_proposal(self, token: Token) -> None:
        """It has become a round by now, or never will."""
        self._proposals.pop(token, None)

    def expect_received(self, entries: Sequence[Entry]) -> None:
        """The machine is about to be told of a leader's entries."""
        for entry in entries:
            self._received[entry.op_id.index] = entry

    def forget_received(self) -> None:
        """What the machine did not append, it had already, or does not want."""
        self._received.clear()

    def append(self, entries: Sequence[LogEntry], accepted: Sequence[Accepted], *, hold: bool) -> None:
        """Appends what the machine says, in its order.

        Args:
            entries: contiguous, after the last of the log.
            accepted: which of them are proposals.
            hold: the log is to wait for its `start`.
        """
        tokens = {mark.op_id: mark.token for mark in accepted}
        records = []
        for logged in entries:
            entry = self._entry(logged, tokens.get(logged.op_id))
            self._applier.keep(entry)
            records.append(Record(entry.op_id, entry.record))
        self.appends += 1
        self._ends.append(records[-1].op_id)
        self._log.append(records, hold=hold)

    def durable_appends(self, op_id: OpId) -> int | None:
        """How many appends are durable, now that the log has reported this entry; None if no more than before."""
        ends = self._ends
        if not self._log.queued_bytes:
            # Also where appends were cut off in the queue, of which no report tells.
            ends.clear()
            return self.appends
        if op_id not in ends:
            return None
        # The first of equal ones: an entry may have been cut off and appended again.
        for _ in range(ends.index(op_id) + 1):
            ends.popleft()
        return self.appends - len(ends)

    def _entry(self, logged: LogEntry, token: Token | None) -> Entry:
        if token is not None:
            return self._proposed(logged, self._proposals.pop(token))
        received = self._received.get(logged.op_id.index)
        if received is not None and received.op_id == logged.op_id:
            self._time.note_appended(received.timestamp)
            return received
        if logged.kind is EntryKind.NO_OP:
            self.own_no_op = logged.op_id
        return self._own(logged, Proposal(b"", None))

    def _proposed(self, logged: LogEntry, proposal: Proposal) -> Entry:
        entry = self._own(logged, proposal)
        proposal.accepted = Round(entry.op_id, entry.timestamp, self._loop.create_future(), len(entry.record))
        self._rounds.add(proposal.accepted)
        return entry

    def _own(self, logged: LogEntry, proposal: Proposal) -> Entry:
        payload = proposal.payload
        if logged.config is not None:
            payload = config_to_pb(logged.config).SerializeToString()
        # Taken only now: safe time may have been announced up to any moment before.
        timestamp = self._time.assign()
        record = encode_record(logged.op_id, timestamp, logged.kind, payload)
        return Entry(logged.op_id, timestamp, logged.kind, payload, record, proposal.prepared)
