"""`TabletWriter`: the Writes of one client to one tablet: one in flight, what arrives meanwhile goes into the next.

There is one per tablet and client, shared by all sessions, because the server remembers answers by client id and
sequence
per tablet, and because grouping is what makes small writes fast: 64 callers that wait become one message.

What holds, and why:
1. A message is built once. Every attempt sends the same bytes under the same sequence, also when some of its callers
   have
   given up: the server answers a repetition from memory, so it takes effect at most once.
2. One message at a time, so rows of the same key are applied in the order of their submission.
3. A message is tried until it is answered, or until every caller's deadline has passed. Then its sequence is abandoned
   and the next message takes the next one. That is safe: the server never applies a sequence at or below the highest
   it has applied, and a copy that is still in a leader's log lies before whatever is sent later.
4. Callers are told "unknown" if any attempt may have been received and was not answered; "timed out, nothing changed"
   only if every attempt was refused or none was made.
5. A refusal of the whole message because of its rows is divided: each piece goes alone, and only the guilty fails.
   (Rows are checked before they are grouped; this is for what only the server knows.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from kudu_py.client.leader_probe import LeaderProbe
from kudu_py.client.location_cache import LocationCache
from kudu_py.client.locator import Locator, refresh_if_possible
from kudu_py.client.options import ClientOptions
from kudu_py.client.pieces import Piece, RowErrors, RowPiece, encode_group, fits_group
from kudu_py.client.row_encoder import RowEncoder
from kudu_py.client.write_link import Answer, WriteLinks
from kudu_py.client.write_pace import WritePace
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import from_micros
from kudu_py.env.clock import Clock
from kudu_py.pb import tserver_pb2
from kudu_py.rpc.retry import Backoff, RandomFraction

_BACKOFF = Backoff(initial_s=0.03, max_s=0.12)
_ROW_REFUSALS = frozenset({ErrorCode.INVALID_ARGUMENT, ErrorCode.INVALID_ROW_BLOCK, ErrorCode.INVALID_MUTATION})
_FINAL = frozenset({ErrorCode.REQUEST_STALE, ErrorCode.REQUEST_ID_REUSED})
_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_THE_LEADER,
        ErrorCode.TABLET_NOT_FOUND,
        ErrorCode.TABLET_NOT_RUNNING,
        ErrorCode.TABLET_FAILED,
        ErrorCode.WRONG_SERVER_UUID,
        ErrorCode.STEPPING_DOWN,
        ErrorCode.OPERATION_ABORTED,
    }
)
_ROW_ERRORS = {
    tserver_pb2.ALREADY_PRESENT: ErrorCode.ALREADY_PRESENT,
    tserver_pb2.NOT_FOUND: ErrorCode.NOT_FOUND,
}


def may_succeed_elsewhere_or_later(error: KuduError) -> bool:
    """Whether the same message is worth sending again, to the same server or another."""
    if error.code in _FINAL:
        return False
    return error.verdict is not Verdict.FAILED or error.code in _ELSEWHERE


class WriteLocator(Locator, Protocol):
    """What a writer needs of the client: to find tablets again, and the servers' time."""

    async def observe_clock(self, address: str) -> None:
        """Takes in the clock of the server at `address`; KuduError if it does not answer."""

    def latest_observed_timestamp(self) -> int:
        """The largest hybrid time that any server told this client."""


@dataclass(eq=False)
class WriteContext:
    """What the writers of one client share."""

    client_id: str
    cache: LocationCache
    links: WriteLinks
    pace: WritePace
    probe: LeaderProbe
    locator: WriteLocator
    clock: Clock
    rng: RandomFraction
    options: ClientOptions
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    observed: Callable[[int], None]
    """Told the timestamp of every Write."""


@dataclass(eq=False, slots=True)
class Message:
    """One Write: what is sent, and who waits for it.

    Attributes:
        request: never changed once built.
        pieces: whose rows these are, in order; those that gave up are taken out of `waiting` but stay here.
        in_doubt: some attempt may have reached a server and was not answered.
        late: pieces whose callers were told that the time is over.
        paced_rows: rows that `WritePace` was told of.
        sent_at: loop time of the first attempt.
    """

    request: tserver_pb2.WriteRequest
    pieces: list[Piece]
    in_doubt: bool = False
    late: set[int] = field(default_factory=set)
    answer: asyncio.Future[Answer] | None = None
    attempts: int = 0
    paced_rows: int = 0
    sent_at: float = 0.0


class TabletWriter:
    """Groups, sends and repeats the Writes of one client to one tablet."""

    def __init__(self, tablet_id: str, context: WriteContext) -> None:
        self.tablet_id = tablet_id
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._waiting: deque[Piece] = deque()
        self._message: Message | None = None
        self._on_link: tuple[str, int] | None = None
        self._is_scheduled = False
        self._was_stale = False
        self._encoder: RowEncoder | None = None
        # Runs while messages are sent, and is set again by itself rather than for each message.
        self._silence: asyncio.TimerHandle | None = None

    def submit(self, piece: Piece) -> None:
        """Takes rows in; their caller is told by `written` or `failed`. Does not wait: the caller has made room."""
        self._waiting.append(piece)
        if self._message is None:
            # Not at once: whatever else becomes ready in this turn of the loop goes into the same message.
            self._schedule()

    def submit_awaited(self, row: RowPiece) -> None:
        """`submit` of a row whose caller gives no other until it is told of this one's end; in a lone caller's case it
        leaves at once."""
        self._waiting.append(row)
        if self._message is None and not self._is_scheduled:
            self._is_scheduled = True
            self._context.pace.leave_alone(self._send_now)

    # -- the usual way: no task, no future
    # ------------------------------------------------------------------------------

    def _send_now(self) -> None:
        self._is_scheduled = False
        if self._message is not None:
            return
        pieces = self._take_group()
        if not pieces:
            return
        try:
            message = self._message = self._build(pieces)
        except Exception as error:  # whatever it was, these callers must hear of it and others go on
            refused = KuduError(ErrorCode.INVALID_ARGUMENT, f"rows cannot be encoded: {error}")
            for piece in pieces:
                piece.failed(error if isinstance(error, KuduError) else refused)
            self._schedule()
            return
        if isinstance(pieces[0], RowPiece):
            message.paced_rows = len(pieces)
            self._context.pace.sent(len(pieces))
        message.sent_at = self._loop.time()
        address = self._context.cache.leader(self.tablet_id)
        if address is None:
            self._context.spawn(self._recover(message, None), f"find leader {self.tablet_id[:8]}")
            return
        self._start_attempt(message, address)
        if self._silence is None:
            self._silence = self._loop.call_at(message.sent_at + self._context.options.silence_s, self._on_silence)

    def _take_group(self) -> list[Piece]:
        options = self._context.options
        waiting = self._waiting
        now = self._loop.time()
        group: list[Piece] = []
        rows = size = 0
        while waiting:
            piece = waiting[0]
            if piece.deadline <= now:
                waiting.popleft()
                piece.failed(_not_sent(self.tablet_id))
                continue
            full = rows + piece.rows > options.group_rows_max or size + piece.size_bytes > options.group_bytes_max
            if group and (full or not fits_group(group[0], piece)):
                break
            waiting.popleft()
            group.append(piece)
            rows += piece.rows
            size += piece.size_bytes
        return group

    def _build(self, pieces: list[Piece]) -> Message:
        schema = pieces[0].schema
        encoder = self._encoder
        if encoder is None or encoder.schema is not schema:
            encoder = self._encoder = RowEncoder(schema)
        rows, column_ids, has_unset = encode_group(pieces, encoder)
        self._sequence += 1
        request = tserver_pb2.WriteRequest(
            tablet_id=self.tablet_id,
            schema_version=schema.version,
            rows=rows,
            client_id=self._context.client_id,
            sequence=self._sequence,
            # Not the own clock alone: it may be behind, and servers refuse what looks too old to be remembered.
            first_attempt_time=max(
                from_micros(self._context.clock.wall_micros()), self._context.locator.latest_observed_timestamp()
            ),
            column_ids=column_ids,
            has_unset_column=has_unset,
        )
        return Message(request, pieces)

    def _start_attempt(self, message: Message, address: str) -> None:
        message.attempts += 1
        link = self._context.links.link(address)
        number = link.send(message.request, lambda answer: self._answered(message, address, answer))
        self._on_link = (address, number)

    def _answered(self, message: Message, address: str, answer: Answer) -> None:
        assert self._message is message, "an answer to a message that is not in flight"
        self._on_link = None
        if isinstance(answer, KuduError) and answer.verdict is Verdict.UNKNOWN:
            message.in_doubt = True
        if message.answer is not None:
            message.answer.set_result(answer)
        elif isinstance(answer, KuduError):
            if may_succeed_elsewhere_or_later(answer):
                self._note(address, answer)
                self._context.spawn(self._recover(message, answer), f"recover {self.tablet_id[:8]}")
            else:
                self._conclude_refused(message, answer)
        else:
            self._conclude_written(message, answer)

    # -- the other way
    # ---------------------------------------------------------------------------------------------------

    def _on_silence(self) -> None:
        self._silence = None
        message = self._message
        if message is None or self._on_link is None or message.answer is not None:
            return  # nothing is on its way, or `_recover` minds it
        due = message.sent_at + self._context.options.silence_s
        if due > self._loop.time():
            self._silence = self._loop.call_at(due, self._on_silence)
            return
        message.answer = self._loop.create_future()
        self._context.spawn(self._recover(message, None), f"silence {self.tablet_id[:8]}")

    async def _recover(self, message: Message, error: KuduError | None) -> None:
        """Brings a message that was refused, lost, or is without an answer to an end."""
        turn = 0
        tried: str | None = None
        # After a silence the first question who leads is asked at once: the time for an answer has passed already.
        wait_s = 0.0 if error is None else self._context.options.silence_s
        while True:
            if self._on_link is not None:
                tried = self._on_link[0]
                answer = await self._await_answer(message, wait_s)
                wait_s = self._context.options.silence_s
                if answer is None:
                    self._abandon(message, error)
                    return
                if not isinstance(answer, KuduError):
                    self._conclude_written(message, answer)
                    return
                error = answer
                if not may_succeed_elsewhere_or_later(error):
                    self._conclude_refused(message, error)
                    return
            if self._expire(message, error):
                self._abandon(message, error)
                return
            try:
                address = await self._locate(error, turn)
            except KuduError as gone:
                self._conclude_refused(message, gone)
                return
            if address is None or address == tried:
                # Nobody leads yet, or the same server is asked again: it needs time.
                await asyncio.sleep(_BACKOFF.delay_s(turn, self._context.rng) + 0.01)
            turn += 1
            if address is None:
                continue
            tried = address
            if self._expire(message, error):
                self._abandon(message, error)
                return
            message.answer = self._loop.create_future()
            self._start_attempt(message, address)
            self._context.links.flush()

    async def _await_answer(self, message: Message, wait_s: float) -> Answer | None:
        """The answer of the attempt under way; an error if another leads by now; None if all callers gave up.

        Args:
            wait_s: before the replicas are asked who leads.
        """
        assert self._on_link is not None
        assert message.answer is not None
        address, number = self._on_link
        options = self._context.options
        while True:
            wait_s = min(wait_s, max(0.01, min(piece.deadline for piece in message.pieces) - self._loop.time()))
            if message.late:
                wait_s = min(options.silence_s, 0.25)
            await asyncio.wait([message.answer], timeout=wait_s)
            if message.answer.done():
                answer = message.answer.result()
                message.answer = None
                if isinstance(answer, KuduError):
                    self._note(address, answer)
                return answer
            gave_up = self._expire(message, None, sent=True)
            link = self._context.links.link(address)
            leader = None
            if not gave_up:
                leader = await self._context.probe.find(self.tablet_id, patience_s=0.25)
                if message.answer.done():
                    continue
            if gave_up or (leader is not None and leader != address):
                message.in_doubt = True
                message.answer = None
                link.cancel(number)
                self._on_link = None
                link.reset_if_silent(options.silence_s)
                if gave_up:
                    return None
                return KuduError(
                    ErrorCode.NOT_THE_LEADER,
                    f"{address} did not answer, and the leader is now at {leader}",
                    verdict=Verdict.UNKNOWN,
                    details={"leader_address": leader or ""},
                )
            wait_s = 0.25

    async def _locate(self, error: KuduError | None, turn: int) -> str | None:
        """Where to try next; None: nowhere for now.

        Raises:
            KuduError: the table is gone.
        """
        cache = self._context.cache
        hint = error.details.get("leader_address") if error is not None and turn == 0 else None
        if hint:
            cache.leads(self.tablet_id, hint)
            return hint
        known = cache.leader(self.tablet_id)
        if known is not None and turn == 0:
            return known
        found = await self._context.probe.find(self.tablet_id, patience_s=0.3)
        if found is not None:
            return found
        missing = error is not None and error.code is ErrorCode.TABLET_NOT_FOUND
        if missing or turn % 8 == 4 or not cache.replicas(self.tablet_id):
            await refresh_if_possible(self._context.locator, self.tablet_id)
        return None

    def _note(self, address: str, error: KuduError) -> None:
        """Draws conclusions about who leads from an error of the server at `address`."""
        cache = self._context.cache
        if error.code in (ErrorCode.SERVER_TOO_BUSY, ErrorCode.THROTTLED, ErrorCode.DISK_FULL):
            return
        cache.does_not_lead(self.tablet_id, address)
        uuid = error.details.get("leader_uuid", "")
        hint = error.details.get("leader_address") or (cache.address_of(self.tablet_id, uuid) if uuid else None)
        if hint and hint != address:
            cache.leads(self.tablet_id, hint)

    # -- ends
    # ------------------------------------------------------------------------------------------------------------

    def _expire(self, message: Message, error: KuduError | None, *, sent: bool = False) -> bool:
        """Tells callers whose time is over; whether no caller of the message waits any more."""
        now = self._loop.time()
        for i, piece in enumerate(message.pieces):
            if i not in message.late and piece.deadline <= now:
                message.late.add(i)
                piece.failed(_late(self.tablet_id, error, in_doubt=message.in_doubt or sent, attempts=message.attempts))
        overdue = [piece for piece in self._waiting if piece.deadline <= now]
        if overdue:
            self._waiting = deque(piece for piece in self._waiting if piece.deadline > now)
            for piece in overdue:
                piece.failed(_not_sent(self.tablet_id))
        return len(message.late) == len(message.pieces)

    def _conclude_written(self, message: Message, response: tserver_pb2.WriteResponse) -> None:
        self._was_stale = False
        self._context.observed(response.timestamp)
        try:
            self._tell_written(message, response)
        finally:
            # Behind the callers, of whom many have their next row at once.
            self._end(message)

    def _tell_written(self, message: Message, response: tserver_pb2.WriteResponse) -> None:
        timestamp = response.timestamp
        if not response.row_errors:
            for i, piece in enumerate(message.pieces):
                if i not in message.late:
                    piece.written(timestamp, ())
            return
        errors = [(row.row_index, _ROW_ERRORS.get(row.code, ErrorCode.INTERNAL)) for row in response.row_errors]
        first = at = 0
        for i, piece in enumerate(message.pieces):
            own: RowErrors = ()
            if at < len(errors):
                end = at
                while end < len(errors) and errors[end][0] < first + piece.rows:
                    end += 1
                own = [(row - first, code) for row, code in errors[at:end]]
                at = end
            first += piece.rows
            if i not in message.late:
                piece.written(timestamp, own)

    def _conclude_refused(self, message: Message, error: KuduError) -> None:
        if error.code is ErrorCode.REQUEST_STALE and message.attempts == 1 and not self._was_stale:
            # There was no attempt before that the server could have forgotten: the own clock is behind the servers'.
            self._was_stale = True
            self._context.spawn(self._send_anew(message, error), f"take clock {self.tablet_id[:8]}")
            return
        self._end(message)
        if error.code in _ROW_REFUSALS and len(message.pieces) > 1:
            again = [piece for i, piece in enumerate(message.pieces) if i not in message.late]
            for piece in again:
                piece.alone = True
            self._waiting.extendleft(reversed(again))
            self._schedule()
            return
        if error.code in _FINAL:
            error = KuduError(error.code, error.message, verdict=Verdict.UNKNOWN, details=error.details)
        for i, piece in enumerate(message.pieces):
            if i not in message.late:
                piece.failed(error)

    async def _send_anew(self, message: Message, error: KuduError) -> None:
        """Sends the rows under a new sequence and a time that the leader does not take for old."""
        address = self._context.cache.leader(self.tablet_id)
        try:
            if address is not None:
                await self._context.locator.observe_clock(address)
        except KuduError as silent:
            error.__cause__ = silent
            self._conclude_refused(message, error)
            return
        self._waiting.extendleft(
            piece for i, piece in reversed(list(enumerate(message.pieces))) if i not in message.late
        )
        self._end(message)

    def _abandon(self, message: Message, error: KuduError | None) -> None:
        assert len(message.late) == len(message.pieces), "a caller still waits"
        self._end(message)

    def _end(self, message: Message) -> None:
        """The message is not under way any more; the next may leave."""
        assert self._message is message, "another message is under way"
        self._message = None
        if message.paced_rows:
            self._context.pace.answered(message.paced_rows, self._loop.time() - message.sent_at)
        self._schedule()

    def close(self) -> None:
        """Gives up: callers are told, nothing more is sent."""
        message, self._message = self._message, None
        if self._silence is not None:
            self._silence.cancel()
        if self._on_link is not None:
            address, number = self._on_link
            self._context.links.link(address).cancel(number)
        waiting, self._waiting = self._waiting, deque()
        if message is not None:
            for i, piece in enumerate(message.pieces):
                if i not in message.late:
                    piece.failed(_closed(self.tablet_id, sent=message.attempts > 0))
        for piece in waiting:
            piece.failed(_closed(self.tablet_id, sent=False))

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            pace = self._context.pace
            if isinstance(self._waiting[0], RowPiece):
                pace.leave_with_others(self._send_now)
            else:
                pace.leave(self._send_now)


def _not_sent(tablet_id: str) -> KuduError:
    return KuduError(
        ErrorCode.TIMED_OUT,
        f"rows for tablet {tablet_id} could not be sent in time: earlier writes to it are not answered yet",
        verdict=Verdict.TRY_LATER,
    )


def _closed(tablet_id: str, *, sent: bool) -> KuduError:
    return KuduError(
        ErrorCode.CANCELLED,
        f"the client was closed before a write to tablet {tablet_id} was answered",
        verdict=Verdict.UNKNOWN if sent else Verdict.FAILED,
    )


def _late(tablet_id: str, error: KuduError | None, *, in_doubt: bool, attempts: int) -> KuduError:
    last = f"; the last error was {error}" if error is not None else ""
    if in_doubt:
        return KuduError(
            ErrorCode.TIMED_OUT,
            f"a write to tablet {tablet_id} was not answered in time, after {attempts} attempts: it may or may "
            f"not have taken effect{last}",
            verdict=Verdict.UNKNOWN,
        )
    return KuduError(
        ErrorCode.TIMED_OUT,
        f"a write to tablet {tablet_id} was not accepted in time, after {attempts} attempts{last}",
        verdict=Verdict.TRY_LATER,
    )
