"""`KuduError`: everything that can go wrong outside the program, by code, with data to act on and a verdict.

Codes carry upstream's names where there is one (`TabletServerErrorPB`, `MasterErrorPB`, `ConsensusErrorPB`). How a code
becomes a gRPC status is said in one table, `rpc/status.py`. Protocol outcomes such as a refused vote are replies, not
errors.
"""

from __future__ import annotations

from enum import Enum, unique


@unique
class Verdict(Enum):
    """What the caller may conclude. "Failed" and "unknown" are different answers."""

    FAILED = "failed"
    """Nothing was changed, and asking again unchanged will fail again."""
    UNKNOWN = "unknown"
    """The operation may or may not have taken effect."""
    TRY_LATER = "try later"
    """Nothing was changed; the same request may succeed later or elsewhere."""


@unique
class ErrorCode(Enum):
    """The reason of an error; the value is what `ErrorInfo.reason` carries on the wire."""

    # Anyone.
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_PRESENT = "ALREADY_PRESENT"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    ILLEGAL_STATE = "ILLEGAL_STATE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"
    CORRUPTION = "CORRUPTION"
    IO_ERROR = "IO_ERROR"
    DISK_FULL = "DISK_FULL"
    SERVER_TOO_BUSY = "SERVER_TOO_BUSY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"
    WRONG_SERVER_UUID = "WRONG_SERVER_UUID"
    NOT_THE_LEADER = "NOT_THE_LEADER"
    # Tablet servers.
    TABLET_NOT_FOUND = "TABLET_NOT_FOUND"
    TABLET_ALREADY_EXISTS = "TABLET_ALREADY_EXISTS"
    TABLET_NOT_RUNNING = "TABLET_NOT_RUNNING"
    TABLET_FAILED = "TABLET_FAILED"
    TABLET_HAS_A_NEWER_SCHEMA = "TABLET_HAS_A_NEWER_SCHEMA"
    MISMATCHED_SCHEMA = "MISMATCHED_SCHEMA"
    INVALID_SCHEMA = "INVALID_SCHEMA"
    INVALID_ROW_BLOCK = "INVALID_ROW_BLOCK"
    INVALID_MUTATION = "INVALID_MUTATION"
    INVALID_SCAN_SPEC = "INVALID_SCAN_SPEC"
    INVALID_SCAN_CALL_SEQ_ID = "INVALID_SCAN_CALL_SEQ_ID"
    INVALID_SNAPSHOT = "INVALID_SNAPSHOT"
    SCANNER_EXPIRED = "SCANNER_EXPIRED"
    THROTTLED = "THROTTLED"
    REQUEST_STALE = "REQUEST_STALE"
    """The request is older than what the server remembers; whether it was applied cannot be told."""
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    """A client id and sequence came back with another payload."""
    # Consensus.
    INVALID_CONFIG = "INVALID_CONFIG"
    INVALID_TERM = "INVALID_TERM"
    CAS_FAILED = "CAS_FAILED"
    CONFIG_CHANGE_PENDING = "CONFIG_CHANGE_PENDING"
    STEPPING_DOWN = "STEPPING_DOWN"
    ALREADY_IN_PROGRESS = "ALREADY_IN_PROGRESS"
    OPERATION_ABORTED = "OPERATION_ABORTED"
    """Another leader's entry was committed in its place: it did not and will not take effect."""
    # Masters.
    TABLE_NOT_FOUND = "TABLE_NOT_FOUND"
    TABLE_ALREADY_PRESENT = "TABLE_ALREADY_PRESENT"
    COLUMN_NOT_FOUND = "COLUMN_NOT_FOUND"
    TOO_MANY_TABLETS = "TOO_MANY_TABLETS"
    REPLICATION_FACTOR_TOO_HIGH = "REPLICATION_FACTOR_TOO_HIGH"
    EVEN_REPLICATION_FACTOR = "EVEN_REPLICATION_FACTOR"
    ILLEGAL_REPLICATION_FACTOR = "ILLEGAL_REPLICATION_FACTOR"
    CATALOG_MANAGER_NOT_INITIALIZED = "CATALOG_MANAGER_NOT_INITIALIZED"
    TABLET_SERVER_NOT_FOUND = "TABLET_SERVER_NOT_FOUND"


class KuduError(Exception):
    """An error of the world (input, peer, disk, time), never of the program.

    Attributes:
        code: the reason.
        message: a sentence that names the thing and, where there is one, says what to do.
        verdict: what the caller may conclude.
        details: small facts to act on, such as `leader_uuid` and `leader_address`; strings, safe to log.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, verdict: Verdict = Verdict.FAILED, details: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{code.value}: {message}")
        self.code = code
        self.message = message
        self.verdict = verdict
        self.details: dict[str, str] = details or {}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.message, self.verdict, self.details)


def _rebuild(
    kind: type[KuduError], code: ErrorCode, message: str, verdict: Verdict, details: dict[str, str]
) -> KuduError:
    error = kind.__new__(kind)
    KuduError.__init__(error, code, message, verdict=verdict, details=details)
    return error


def not_the_leader(what: str, leader_uuid: str | None, leader_address: str | None, term: int) -> KuduError:
    """The refusal of a replica that does not lead, with the leader it knows, if any, as a hint."""
    details = {"term": str(term)}
    if leader_uuid:
        details["leader_uuid"] = leader_uuid
    if leader_address:
        details["leader_address"] = leader_address
    known = f"the leader is {leader_uuid} at {leader_address}" if leader_uuid else "no leader is known at the moment"
    return KuduError(
        ErrorCode.NOT_THE_LEADER, f"{what} is not led here; {known}", verdict=Verdict.TRY_LATER, details=details
    )
