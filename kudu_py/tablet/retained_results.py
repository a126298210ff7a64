"""Recent answers by client and sequence: a retried write is answered, not applied twice.

The memory is part of the replicated state: it changes only when an entry is applied, by the entry and its timestamp
alone, so that every replica decides alike and a new leader remembers what the old one answered. Hence its bounds are
constants and not options. It travels with checkpoints and copies.

What is remembered of a client is the highest sequence that was applied and the last few answers. A sequence at or
below the highest is answered from memory or refused as unknown, never applied: it may have been applied and its answer
forgotten.

Why a forgotten client cannot make a write apply twice: a client is forgotten a retention time after it was last heard
(or when there are too many), and `forgotten_through` then rises to when that was. A write is refused as unknown if its
first attempt is not later than that, so a write of a forgotten client is either refused here or younger than
everything forgotten. (Google's RIFL, Lee et al., SOSP 2015, has the same idea with leases; upstream's `ResultTracker`
forgets by the wall clock.)
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime, add_micros, physical_micros
from kudu_py.pb import storage_pb2, tserver_pb2
from kudu_py.tablet.write_result import RowErrorCode, WriteResult

REMEMBER_CLIENTS_MICROS = 3600 * 1_000_000
"""A client is forgotten when nothing of it was applied for so long, as upstream's `remember_clients_ttl_ms`."""

CLIENTS_MAX = 16_384
"""More clients than this in an hour push the one out that was heard least recently."""

ANSWERS_PER_CLIENT_MAX = 16
"""A client keeps one write in flight per tablet, so one would do; clients of other makes may keep some more."""

ROW_ERRORS_MAX = 1 << 18
"""All remembered row errors of a tablet; above it the oldest answers with errors go, the latest one never."""

CLIENT_CLOCK_AHEAD_MICROS_MAX = 600 * 1_000_000
"""A first attempt further in the future than this comes from a broken clock and could not be forgotten in time."""

NOTHING_FORGOTTEN = HybridTime(0)
_COPIED_BYTES_MAX = 4096
"""So many bytes are copied and hashed at once in less time than a hasher takes to be made."""


RowErrors = tuple[tuple[int, RowErrorCode], ...]


class RequestIdentity(NamedTuple):
    """What tells one write from another."""

    client_id: str
    """Not empty."""
    sequence: int
    """From 1, rising per client and tablet."""
    digest: bytes
    """128-bit hash of what the write carries."""
    first_attempt_time: HybridTime


class Answer(NamedTuple):
    """The answer to an applied write."""

    sequence: int
    digest: bytes
    timestamp: HybridTime
    row_errors: RowErrors
    """Rows that were not applied, by rising number."""


class ClientMemory(NamedTuple):
    """What is remembered of one client; replaced, never changed, so that a snapshot is a shallow copy."""

    highest_sequence: int
    last_time: HybridTime
    """Timestamp of the last applied write, or its first attempt's time if a client's clock was ahead."""
    answers: tuple[Answer, ...]
    """The latest of them, in the order of application."""


class RetainedSnapshot(NamedTuple):
    """The memory at one moment; frozen, may be encoded in another thread."""

    forgotten_through: HybridTime
    clients: dict[str, ClientMemory]

    def to_pb(self) -> storage_pb2.RetainedResults:
        """The form that a superblock holds."""
        message = storage_pb2.RetainedResults(forgotten_through=self.forgotten_through)
        for client_id, memory in self.clients.items():
            client = message.clients.add(
                client_id=client_id, highest_sequence=memory.highest_sequence, last_time=memory.last_time
            )
            for answer in memory.answers:
                client.answers.add(
                    sequence=answer.sequence,
                    digest=answer.digest,
                    timestamp=answer.timestamp,
                    error_rows=[row for row, _ in answer.row_errors],
                    error_codes=[ROW_ERROR_TO_PB[code] for _, code in answer.row_errors],
                )
        return message

    @staticmethod
    def from_pb(message: storage_pb2.RetainedResults) -> RetainedSnapshot:
        """The memory that a superblock holds."""
        clients = {
            client.client_id: ClientMemory(
                client.highest_sequence,
                HybridTime(client.last_time),
                tuple(
                    Answer(answer.sequence, answer.digest, HybridTime(answer.timestamp), _row_errors_of(answer))
                    for answer in client.answers
                ),
            )
            for client in message.clients
        }
        return RetainedSnapshot(HybridTime(message.forgotten_through), clients)


EMPTY_SNAPSHOT = RetainedSnapshot(NOTHING_FORGOTTEN, {})

ROW_ERROR_TO_PB = {
    RowErrorCode.ALREADY_PRESENT: tserver_pb2.ALREADY_PRESENT,
    RowErrorCode.NOT_FOUND: tserver_pb2.NOT_FOUND,
}
_CODE_FROM_PB = {number: code for code, number in ROW_ERROR_TO_PB.items()}


def _row_errors_of(answer: storage_pb2.RetainedResults.Answer) -> RowErrors:
    codes = [_CODE_FROM_PB[code] for code in answer.error_codes]
    return tuple(zip(answer.error_rows, codes, strict=True))


def digest_of(request: tserver_pb2.WriteRequest) -> bytes:
    """A 128-bit hash of everything that decides what the write does; not of who sends it and when."""
    rows, column_ids = request.rows, request.column_ids
    listed = list(column_ids) if column_ids else "[]"  # most have none, and an empty list of protobuf's costs much
    tail = f"|{request.schema_version}|{request.has_unset_column:d}|{listed}".encode()
    if len(rows) <= _COPIED_BYTES_MAX:
        return xxhash.xxh3_128_digest(rows + tail)
    hasher = xxhash.xxh3_128(rows)
    hasher.update(tail)
    return hasher.digest()


def identity_of(request: tserver_pb2.WriteRequest) -> RequestIdentity | None:
    """Who this write says it is; None if it says nothing, and a retry may then apply twice."""
    if not request.client_id:
        return None
    return RequestIdentity(
        request.client_id, request.sequence, digest_of(request), HybridTime(request.first_attempt_time)
    )


class RetainedResults:
    """The memory of one tablet. Not thread-safe: only the event loop calls it."""

    def __init__(self, snapshot: RetainedSnapshot = EMPTY_SNAPSHOT) -> None:
        self._forgotten_through = snapshot.forgotten_through
        # In the order of last application, which is the order of the log: the first is the first to be forgotten.
        self._clients = dict(snapshot.clients)
        with_errors = sorted(
            (answer.timestamp, client_id, answer.sequence, len(answer.row_errors))
            for client_id, memory in self._clients.items()
            for answer in memory.answers
            if answer.row_errors
        )
        # Row errors by remembered answer, oldest first. Exact, else a restarted replica would drop other answers than
        # its peers.
        self._with_errors = {(client_id, sequence): errors for _, client_id, sequence, errors in with_errors}
        self._row_errors = sum(self._with_errors.values())

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def forgotten_through(self) -> HybridTime:
        """No client heard of after this has been forgotten."""
        return self._forgotten_through

    def lookup(self, identity: RequestIdentity, now: HybridTime) -> Answer | None:
        """The remembered answer, or None if the write is new and may be applied.

        `now` is the entry's timestamp at apply, the clock before that.

        Raises:
            KuduError: REQUEST_ID_REUSED if the sequence was used for another payload; REQUEST_STALE, outcome unknown,
                if the write may have been applied and forgotten.
        """
        memory = self._clients.get(identity.client_id)
        if memory is not None and identity.sequence <= memory.highest_sequence:
            for answer in memory.answers:
                if answer.sequence == identity.sequence:
                    if answer.digest != identity.digest:
                        raise id_reused(identity)
                    return answer
            raise _stale(identity, f"the client's sequence has reached {memory.highest_sequence}")
        first_time = identity.first_attempt_time
        if first_time <= self._forgotten_through or first_time <= add_micros(now, -REMEMBER_CLIENTS_MICROS):
            raise _stale(identity, "its first attempt is older than what is remembered")
        return None

    def remember(self, identity: RequestIdentity, timestamp: HybridTime, result: WriteResult) -> None:
        """Notes the answer of a write that was just applied, and forgets what is too old. `timestamp` never falls."""
        client_id, sequence, digest, last_time = identity
        answers: tuple[Answer, ...] = (Answer(sequence, digest, timestamp, result.row_errors),)
        # Not the time of applying alone: a client's clock may be ahead, and its retry brings that time again.
        if timestamp > last_time:
            last_time = timestamp
        before = self._clients.pop(client_id, None)
        if before is not None:
            kept = before.answers
            if len(kept) == ANSWERS_PER_CLIENT_MAX:
                self._drop_row_errors(client_id, kept[:1])
                kept = kept[1:]
            answers = kept + answers
            if before.last_time > last_time:
                last_time = before.last_time
        self._clients[client_id] = ClientMemory(sequence, last_time, answers)
        if result.row_errors:
            self._bound_row_errors(identity, len(result.row_errors))
        self.forget(timestamp)

    def forget(self, timestamp: HybridTime) -> None:
        """Forgets whom nothing was heard of for the retention time before `timestamp`, an entry's."""
        horizon = add_micros(timestamp, -REMEMBER_CLIENTS_MICROS)
        while self._clients:
            client_id = next(iter(self._clients))
            memory = self._clients[client_id]
            if memory.last_time > horizon and len(self._clients) <= CLIENTS_MAX:
                return
            del self._clients[client_id]
            self._drop_row_errors(client_id, memory.answers)
            self._forgotten_through = max(self._forgotten_through, memory.last_time)

    def _bound_row_errors(self, identity: RequestIdentity, errors: int) -> None:
        self._with_errors[identity.client_id, identity.sequence] = errors
        self._row_errors += errors
        while self._row_errors > ROW_ERRORS_MAX and len(self._with_errors) > 1:
            client_id, sequence = next(iter(self._with_errors))
            self._row_errors -= self._with_errors.pop((client_id, sequence))
            memory = self._clients[client_id]
            kept = tuple(answer for answer in memory.answers if answer.sequence != sequence)
            self._clients[client_id] = memory._replace(answers=kept)

    def _drop_row_errors(self, client_id: str, answers: tuple[Answer, ...]) -> None:
        for answer in answers:
            if answer.row_errors:
                self._row_errors -= self._with_errors.pop((client_id, answer.sequence), 0)

    def snapshot(self) -> RetainedSnapshot:
        """The memory as of now, for a checkpoint."""
        return RetainedSnapshot(self._forgotten_through, dict(self._clients))


def id_reused(identity: RequestIdentity) -> KuduError:
    """The refusal of a sequence that was used for something else."""
    return KuduError(
        ErrorCode.REQUEST_ID_REUSED,
        f"client {identity.client_id} used sequence {identity.sequence} for another write before; "
        "a retry repeats the first attempt byte for byte, a new write takes a new sequence",
        details={"client_id": identity.client_id, "sequence": str(identity.sequence)},
    )


def _stale(identity: RequestIdentity, why: str) -> KuduError:
    return KuduError(
        ErrorCode.REQUEST_STALE,
        f"whether write {identity.sequence} of client {identity.client_id} was applied is no longer known: {why}",
        verdict=Verdict.UNKNOWN,
        details={
            "client_id": identity.client_id,
            "sequence": str(identity.sequence),
            "first_attempt_micros": str(physical_micros(identity.first_attempt_time)),
        },
    )
