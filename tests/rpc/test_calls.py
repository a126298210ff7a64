"""The wrapping by itself, around a context that gives what a real one cannot be made to give."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import status_pb2
from prometheus_client import CollectorRegistry

from kudu_py.common.errors import ErrorCode
from kudu_py.common.ids import ServerId
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc, tserver_admin_pb2_grpc
from kudu_py.rpc.calls import Wrapping
from kudu_py.testing.waiting import wait_until

UUID = ServerId("a" * 32)


class Aborted(Exception):
    """What ends a handler that aborts."""


class Context:
    """A call with so much time left."""

    def __init__(self, remaining_s: float | None) -> None:
        self._remaining_s = remaining_s
        self.status: status_pb2.Status | None = None

    def time_remaining(self) -> float | None:
        return self._remaining_s

    async def abort_with_status(self, status: grpc.Status) -> None:
        self.status = status_pb2.Status.FromString(dict(status.trailing_metadata)["grpc-status-details-bin"])
        raise Aborted


class Servicer(consensus_pb2_grpc.ConsensusServiceServicer):
    """Counts the calls that reach it; each waits for one round."""

    def __init__(self) -> None:
        self.calls = 0
        self.round: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def GetLastOpId(self, request, context):
        self.calls += 1
        await asyncio.shield(self.round)
        return consensus_pb2.GetLastOpIdResponse()

    def UpdateConsensusStream(self, request_iterator, context):
        raise AssertionError("the servicer was called")


def wrapped(servicer):
    wrapping = Wrapping(uuid=UUID, registry=CollectorRegistry())
    handlers = wrapping.handlers(
        consensus_pb2_grpc.add_ConsensusServiceServicer_to_server, servicer, checks_dest_uuid=True
    )
    return handlers["kudu.consensus.v1.ConsensusService"]["GetLastOpId"].unary_unary


async def test_a_call_whose_deadline_has_passed_is_refused_before_any_work():
    servicer, context = Servicer(), Context(remaining_s=0.0)

    with pytest.raises(Aborted):
        await wrapped(servicer)(consensus_pb2.GetLastOpIdRequest(dest_uuid=UUID).SerializeToString(), context)

    assert servicer.calls == 0
    assert context.status is not None
    assert context.status.message.startswith(ErrorCode.TIMED_OUT.value)


async def test_a_client_that_gives_up_does_not_cancel_what_the_servicer_shields():
    servicer, context = Servicer(), Context(remaining_s=5.0)
    raw = consensus_pb2.GetLastOpIdRequest(dest_uuid=UUID).SerializeToString()
    call = asyncio.create_task(wrapped(servicer)(raw, context))
    await wait_until(lambda: servicer.calls, step_s=0)

    call.cancel()
    await asyncio.wait({call})

    assert call.cancelled()
    assert not servicer.round.done()
    assert context.status is None


async def test_every_service_of_ours_can_be_wrapped_with_its_destinations_checked():
    wrapping = Wrapping(uuid=UUID, registry=CollectorRegistry())

    class Admin(tserver_admin_pb2_grpc.TabletServerAdminServiceServicer):
        """Refuses everything, as generated."""

    handlers = wrapping.handlers(
        tserver_admin_pb2_grpc.add_TabletServerAdminServiceServicer_to_server, Admin(), checks_dest_uuid=True
    )

    assert "CreateTablet" in handlers["kudu.tserver.v1.TabletServerAdminService"]


async def test_a_stream_that_begins_after_the_others_were_ended_is_refused_and_holds_no_stop_up():
    wrapping, context = Wrapping(uuid=UUID, registry=CollectorRegistry()), Context(None)
    handlers = wrapping.handlers(
        consensus_pb2_grpc.add_ConsensusServiceServicer_to_server, Servicer(), checks_dest_uuid=True
    )
    begin = handlers["kudu.consensus.v1.ConsensusService"]["UpdateConsensusStream"].stream_stream
    wrapping.end_streams()
    with pytest.raises(Aborted):
        await begin(None, context)
    assert context.status.message == "SHUTTING_DOWN: the server is stopping"
