"""`KuduError` to gRPC status and back, in one table.

On the wire an error is a `google.rpc.Status`: the gRPC code from the table below, a message that begins with `REASON:
`, and an `ErrorInfo` whose `reason` is the code, whose `domain` is `kudu_py`, and whose metadata are the error's
details plus `verdict`. On streams the same travels as an `ErrorDetail` inside the item's answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.pb import common_pb2

DOMAIN: Final = "kudu_py"
VERDICT_KEY: Final = "verdict"
"""The metadata key that carries the verdict; details may not use it."""

RETRY_DELAY_MS: Final = 50
"""What `RetryInfo` asks of foreign clients after "try later"; our own back off by themselves."""

MESSAGE_BYTES_MAX: Final = 1200
DETAILS_BYTES_MAX: Final = 1200
"""Status and details travel in the trailer, encoded twice, and clients accept 8 KiB of that by default."""

STATUS_CODES: Final[Mapping[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ALREADY_PRESENT: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.NOT_SUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.ILLEGAL_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.NOT_AUTHORIZED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.CORRUPTION: grpc.StatusCode.DATA_LOSS,
    ErrorCode.IO_ERROR: grpc.StatusCode.INTERNAL,
    ErrorCode.DISK_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.SERVER_TOO_BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CONFIGURATION_ERROR: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.WRONG_SERVER_UUID: grpc.StatusCode.FAILED_PRECONDITION,
    # Not UNAVAILABLE: gRPC's own retries would ask the same server again, and another one must be asked.
    ErrorCode.NOT_THE_LEADER: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.TABLET_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TABLET_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.TABLET_NOT_RUNNING: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.TABLET_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.TABLET_HAS_A_NEWER_SCHEMA: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.MISMATCHED_SCHEMA: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_SCHEMA: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_ROW_BLOCK: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_MUTATION: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_SCAN_SPEC: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_SCAN_CALL_SEQ_ID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_SNAPSHOT: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.SCANNER_EXPIRED: grpc.StatusCode.NOT_FOUND,
    ErrorCode.THROTTLED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.REQUEST_STALE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.REQUEST_ID_REUSED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_CONFIG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_TERM: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.CAS_FAILED: grpc.StatusCode.ABORTED,
    ErrorCode.CONFIG_CHANGE_PENDING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.STEPPING_DOWN: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ALREADY_IN_PROGRESS: grpc.StatusCode.ABORTED,
    ErrorCode.OPERATION_ABORTED: grpc.StatusCode.ABORTED,
    ErrorCode.TABLE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TABLE_ALREADY_PRESENT: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.COLUMN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TOO_MANY_TABLETS: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.REPLICATION_FACTOR_TOO_HIGH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.EVEN_REPLICATION_FACTOR: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ILLEGAL_REPLICATION_FACTOR: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.TABLET_SERVER_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
}
"""The one table. Every code has a row."""

_CONNECT_NOISE = "Failed to connect to remote host: "
"""gRPC puts what was refused behind two wordings of its own and the address, which our message names already."""
_SPEAKS_HTTP1 = "connect an http1"

_WITHOUT_ERROR_INFO: Final[Mapping[grpc.StatusCode, tuple[ErrorCode, Verdict]]] = {
    grpc.StatusCode.UNAVAILABLE: (ErrorCode.UNAVAILABLE, Verdict.TRY_LATER),
    grpc.StatusCode.DEADLINE_EXCEEDED: (ErrorCode.TIMED_OUT, Verdict.TRY_LATER),
    grpc.StatusCode.CANCELLED: (ErrorCode.CANCELLED, Verdict.TRY_LATER),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER),
    grpc.StatusCode.ABORTED: (ErrorCode.UNAVAILABLE, Verdict.TRY_LATER),
    grpc.StatusCode.UNIMPLEMENTED: (ErrorCode.NOT_SUPPORTED, Verdict.FAILED),
    grpc.StatusCode.UNAUTHENTICATED: (ErrorCode.NOT_AUTHORIZED, Verdict.FAILED),
    grpc.StatusCode.PERMISSION_DENIED: (ErrorCode.NOT_AUTHORIZED, Verdict.FAILED),
    grpc.StatusCode.INVALID_ARGUMENT: (ErrorCode.INVALID_ARGUMENT, Verdict.FAILED),
    grpc.StatusCode.NOT_FOUND: (ErrorCode.NOT_FOUND, Verdict.FAILED),
    grpc.StatusCode.ALREADY_EXISTS: (ErrorCode.ALREADY_PRESENT, Verdict.FAILED),
    grpc.StatusCode.FAILED_PRECONDITION: (ErrorCode.ILLEGAL_STATE, Verdict.FAILED),
    grpc.StatusCode.OUT_OF_RANGE: (ErrorCode.INVALID_ARGUMENT, Verdict.FAILED),
    grpc.StatusCode.DATA_LOSS: (ErrorCode.CORRUPTION, Verdict.FAILED),
}
"""What a status says that no servicer of ours sent: gRPC itself, a proxy, a stranger, or a newer server."""

_NEVER_EXECUTED: Final = frozenset(
    {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
)
"""Codes that gRPC gives before a servicer sees the request, so that even a write has not taken effect."""

_VERDICT_TO_PB: Final = {
    Verdict.FAILED: common_pb2.FAILED,
    Verdict.UNKNOWN: common_pb2.OUTCOME_UNKNOWN,
    Verdict.TRY_LATER: common_pb2.TRY_LATER,
}
_VERDICT_FROM_PB: Final = {number: verdict for verdict, number in _VERDICT_TO_PB.items()}
_PEER: Final = re.compile(r"ipv[46]:(?:%5B|\[)?([^\s{},]*?)(?:%5D|\])?:(\d+)")


def to_status(error: KuduError) -> status_pb2.Status:
    """The error as a rich gRPC status; long messages and details are cut to what a trailer may hold."""
    details = _bounded(error.details)
    assert VERDICT_KEY not in details, f"details may not use the key {VERDICT_KEY!r}: {details}"
    status = status_pb2.Status(code=STATUS_CODES[error.code].value[0], message=_cut(str(error), MESSAGE_BYTES_MAX))
    info = error_details_pb2.ErrorInfo(
        reason=error.code.value, domain=DOMAIN, metadata={**details, VERDICT_KEY: error.verdict.value}
    )
    status.details.add().Pack(info)
    if error.verdict is Verdict.TRY_LATER:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(RETRY_DELAY_MS)
        status.details.add().Pack(retry)
    return status


def from_rpc_error(error: grpc.RpcError, *, wrote: bool = False, address: str = "") -> KuduError:
    """The error that a failed call tells of.

    Args:
        error: what a call of either gRPC API raised.
        wrote: the request, once received, may have changed something; then an end without our servicer's word (a broken
            connection, a deadline) leaves the outcome UNKNOWN.
        address: the server that was called, for the message; taken from gRPC's own text if not given.
    """
    code, text, trailers = _facts(error)
    status = _rich_status(trailers)
    if status is not None:
        for packed in status.details:
            info = error_details_pb2.ErrorInfo()
            if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR) and packed.Unpack(info) and info.domain == DOMAIN:
                return _rebuild(info.reason, status.message or text, dict(info.metadata), code, wrote=wrote)
    where = address or _peer(error)
    kind, verdict = _WITHOUT_ERROR_INFO.get(code, (ErrorCode.INTERNAL, Verdict.FAILED))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        kind, verdict = ErrorCode.INVALID_ARGUMENT, Verdict.FAILED  # too large a message: the same again fails again
    if wrote and code not in _NEVER_EXECUTED:
        verdict = Verdict.UNKNOWN
    server = f"the server at {where}" if where else "the server"
    is_web_port = _SPEAKS_HTTP1 in text
    said = text.rpartition(_CONNECT_NOISE)[2] or "no reason was given"
    if is_web_port:
        said = "web pages are served there; give the address of its RPCs"
    message = {
        ErrorCode.UNAVAILABLE: f"{server} cannot be reached: {said}",
        ErrorCode.TIMED_OUT: f"{server} did not answer in time",
        ErrorCode.CANCELLED: f"the call to {server} was cancelled: {said}",
        ErrorCode.NOT_SUPPORTED: f"{server} does not offer this call ({said}); is it a daemon of another kind?",
    }.get(kind, f"{server} answered {code.name}: {said}")
    details = {"grpc_code": code.name}
    if where:
        details["address"] = where
    if is_web_port:
        details["is_web_port"] = "true"
    return KuduError(kind, message, verdict=verdict, details=details)


def error_detail(error: KuduError) -> common_pb2.ErrorDetail:
    """The error as an item's answer on a stream."""
    return common_pb2.ErrorDetail(
        reason=error.code.value,
        message=_cut(str(error), MESSAGE_BYTES_MAX),
        verdict=_VERDICT_TO_PB[error.verdict],
        details=_bounded(error.details),
    )


def from_error_detail(detail: common_pb2.ErrorDetail) -> KuduError:
    """The error that an item's answer tells of; without a verdict the outcome is UNKNOWN, the safe side."""
    verdict = _VERDICT_FROM_PB.get(detail.verdict, Verdict.UNKNOWN)
    code, message, details = _named(detail.reason, detail.message, dict(detail.details), ErrorCode.INTERNAL)
    return KuduError(code, message, verdict=verdict, details=details)


def _rebuild(reason: str, message: str, metadata: dict[str, str], code: grpc.StatusCode, *, wrote: bool) -> KuduError:
    fallback, default_verdict = _WITHOUT_ERROR_INFO.get(code, (ErrorCode.INTERNAL, Verdict.FAILED))
    try:
        verdict = Verdict(metadata.pop(VERDICT_KEY, ""))
    except ValueError:
        verdict = Verdict.UNKNOWN if wrote else default_verdict
    kind, message, details = _named(reason, message, metadata, fallback)
    return KuduError(kind, message, verdict=verdict, details=details)


def _named(
    reason: str, message: str, details: dict[str, str], fallback: ErrorCode
) -> tuple[ErrorCode, str, dict[str, str]]:
    """Code, message without its prefix, and details; a reason of a newer server is kept in the details."""
    text = message.removeprefix(f"{reason}: ")
    try:
        return ErrorCode(reason), text, details
    except ValueError:
        return fallback, text, {**details, "reason": reason}


def _facts(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, list[tuple[str, str | bytes]]]:
    """Code, text and trailers of an error of the asyncio or the blocking API, whose errors are calls too."""
    if not hasattr(error, "code"):
        return grpc.StatusCode.UNKNOWN, str(error), []
    trailers = cast("Iterable[tuple[str, str | bytes]] | None", error.trailing_metadata())
    return error.code(), error.details() or "", list(trailers or ())


def _rich_status(trailers: list[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in trailers:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None  # a stranger's trailer
    return None


def _peer(error: grpc.RpcError) -> str:
    text = error.debug_error_string() if hasattr(error, "debug_error_string") else ""
    found = _PEER.search(text or "")
    return f"{found[1]}:{found[2]}" if found else ""


def _cut(text: str, size_max: int) -> str:
    raw = text.encode()
    if len(raw) <= size_max:
        return text
    return raw[: size_max - 3].decode(errors="ignore") + "..."


def _bounded(details: Mapping[str, str]) -> dict[str, str]:
    """The details, each cut so that all of them fit; those beyond the bound are left out."""
    bounded: dict[str, str] = {}
    left = DETAILS_BYTES_MAX
    for key, value in details.items():
        left -= len(key.encode())
        if left <= 0:
            break
        bounded[key] = _cut(value, max(left, 3))
        left -= len(bounded[key].encode())
    return bounded
