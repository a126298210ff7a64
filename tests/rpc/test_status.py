"""Every error goes over the wire and comes back the same; strangers' statuses become something to act on."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from kudu_py.common.errors import ErrorCode, KuduError, Verdict, not_the_leader
from kudu_py.pb import common_pb2
from kudu_py.rpc.status import (
    DETAILS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    STATUS_CODES,
    error_detail,
    from_error_detail,
    from_rpc_error,
    to_status,
)

CODES = {code.value[0]: code for code in grpc.StatusCode}


def as_received(status: status_pb2.Status) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(CODES[status.code], grpc.aio.Metadata(), trailers, details=status.message)


def bare(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def facts(error: KuduError) -> tuple[object, ...]:
    return error.code, error.message, error.verdict, error.details


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("verdict", Verdict)
def test_an_error_comes_back_from_a_call_as_it_was(code, verdict):
    error = KuduError(code, "tablet t1: it went so; do this", verdict=verdict, details={"tablet_id": "t1"})

    received = as_received(to_status(error))

    assert facts(from_rpc_error(received)) == facts(error)
    assert received.code() is STATUS_CODES[code]
    assert received.details().startswith(f"{code.value}: ")


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("verdict", Verdict)
def test_an_error_comes_back_from_a_stream_as_it_was(code, verdict):
    error = KuduError(code, "what went wrong", verdict=verdict, details={"key": "value"})

    assert facts(from_error_detail(error_detail(error))) == facts(error)


def test_the_table_has_a_row_for_every_code_and_none_says_ok():
    assert set(STATUS_CODES) == set(ErrorCode)
    assert grpc.StatusCode.OK not in STATUS_CODES.values()


def test_foreign_clients_find_reason_hint_and_delay_in_the_standard_messages():
    status = to_status(not_the_leader("tablet t1", "b" * 32, "h:1", 7))

    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain) == ("NOT_THE_LEADER", "kudu_py")
    assert info.metadata == {"term": "7", "leader_uuid": "b" * 32, "leader_address": "h:1", "verdict": "try later"}
    assert retry.retry_delay.ToMilliseconds() > 0


def test_long_messages_and_details_are_cut_to_what_a_trailer_holds():
    error = KuduError(ErrorCode.INTERNAL, "é" * 10_000, details={"first": "x" * 5_000, "second": "y"})

    status = to_status(error)

    assert len(status.message.encode()) <= MESSAGE_BYTES_MAX
    assert status.ByteSize() < MESSAGE_BYTES_MAX + DETAILS_BYTES_MAX + 300
    assert from_rpc_error(as_received(status)).details["first"].endswith("...")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ErrorCode.TIMED_OUT),
        (grpc.StatusCode.CANCELLED, ErrorCode.CANCELLED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorCode.SERVER_TOO_BUSY),
    ],
)
def test_an_end_without_our_servers_word_is_try_later_for_reads_and_unknown_for_writes(code, expected):
    read, write = from_rpc_error(bare(code)), from_rpc_error(bare(code), wrote=True)

    assert (read.code, read.verdict) == (expected, Verdict.TRY_LATER)
    assert (write.code, write.verdict) == (expected, Verdict.UNKNOWN)


def test_a_call_that_the_server_does_not_offer_has_failed_even_if_it_was_a_write():
    error = from_rpc_error(bare(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), wrote=True, address="h:7051")

    assert (error.code, error.verdict) == (ErrorCode.NOT_SUPPORTED, Verdict.FAILED)
    assert "h:7051" in error.message


def test_a_message_beyond_the_size_limit_is_not_worth_a_retry():
    error = from_rpc_error(bare(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (70000000 vs. 1)"))

    assert (error.code, error.verdict) == (ErrorCode.INVALID_ARGUMENT, Verdict.FAILED)


def test_the_address_is_taken_from_grpcs_own_text_when_the_caller_gives_none():
    refused = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7051: Connection refused"
    error = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, None, refused, refused))

    assert error.details["address"] == "127.0.0.1:7051"
    assert "127.0.0.1:7051" in error.message


def test_a_port_of_web_pages_is_told_as_one():
    said = "failed to connect to all addresses; last error: UNIMPLEMENTED: ipv4:127.0.0.1:8051: Failed parsing HTTP/2"
    said += " (Expected SETTINGS frame as the first frame) (Trying to connect an http1.x server (HTTP status 404))"
    error = from_rpc_error(bare(grpc.StatusCode.UNAVAILABLE, said), address="127.0.0.1:8051")

    assert error.message == (
        "the server at 127.0.0.1:8051 cannot be reached: web pages are served there; give the address of its RPCs"
    )


def test_a_reason_of_a_newer_server_keeps_its_name_and_verdict():
    info = error_details_pb2.ErrorInfo(reason="MOON_TOO_FULL", domain="kudu_py", metadata={"verdict": "try later"})
    status = status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0], message="MOON_TOO_FULL: wait")
    status.details.add().Pack(info)

    error = from_rpc_error(as_received(status))

    assert (error.code, error.verdict) == (ErrorCode.NOT_FOUND, Verdict.TRY_LATER)
    assert error.details == {"reason": "MOON_TOO_FULL"}
    assert error.message == "wait"


def test_a_strangers_trailer_does_no_harm():
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    error = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, trailers, "gone"))

    assert error.code is ErrorCode.UNAVAILABLE


def test_a_stream_error_without_a_verdict_is_unknown():
    assert from_error_detail(common_pb2.ErrorDetail(reason="INTERNAL")).verdict is Verdict.UNKNOWN
