"""What surrounds every call of a real server on loopback."""

from __future__ import annotations

import asyncio
import socket

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc, server_pb2_grpc, tserver_pb2
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import DialerOptions, GrpcDialer
from kudu_py.rpc.server import RpcServer, RpcServerOptions

UUID = "a" * 32
OTHER = "b" * 32


async def last_op_id(served, dest_uuid=UUID, **options):
    return await call(
        served.consensus_stub.GetLastOpId(consensus_pb2.GetLastOpIdRequest(dest_uuid=dest_uuid), **options)
    )


def update(sequence, dest_uuid=UUID, tablet_id=""):
    request = consensus_pb2.UpdateConsensusRequest(dest_uuid=dest_uuid, tablet_id=tablet_id)
    return consensus_pb2.UpdateConsensusStreamRequest.Item(sequence=sequence, request=request)


async def answers_until_end(stream):
    items = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        items += message.items
    return items


@pytest.mark.parametrize("dest_uuid", ["", OTHER, UUID[:-1]])
async def test_a_request_for_another_server_is_refused_before_the_servicer_sees_it(served, dest_uuid):
    def fail():
        raise AssertionError("the servicer was called")

    served.consensus.on_last_op_id = fail

    with pytest.raises(KuduError) as raised:
        await last_op_id(served, dest_uuid)

    assert raised.value.code is ErrorCode.WRONG_SERVER_UUID
    assert UUID in raised.value.message
    assert dest_uuid in raised.value.message
    assert raised.value.__cause__.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_service_whose_requests_name_no_server_cannot_ask_for_the_check():
    server = RpcServer(uuid=ServerId(UUID), registry=CollectorRegistry(), options=RpcServerOptions())
    with pytest.raises(AssertionError, match="name no destination"):
        server.add(
            server_pb2_grpc.add_GenericServiceServicer_to_server,
            server_pb2_grpc.GenericServiceServicer(),
            checks_dest_uuid=True,
        )


async def test_a_servicers_error_reaches_the_client_whole(served):
    def fail():
        raise KuduError(ErrorCode.CAS_FAILED, "index 7 is not 8", verdict=Verdict.FAILED, details={"config_index": "8"})

    served.consensus.on_last_op_id = fail

    with pytest.raises(KuduError) as raised:
        await last_op_id(served)

    assert (raised.value.code, raised.value.details) == (ErrorCode.CAS_FAILED, {"config_index": "8"})
    assert raised.value.__cause__.code() is grpc.StatusCode.ABORTED


async def test_an_unexpected_exception_is_answered_with_an_id_and_no_text_of_it(served, capsys):
    def fail():
        raise ValueError("the secret")

    served.consensus.on_last_op_id = fail

    with pytest.raises(KuduError) as raised:
        await last_op_id(served)

    assert (raised.value.code, raised.value.verdict) == (ErrorCode.INTERNAL, Verdict.UNKNOWN)
    assert "secret" not in str(raised.value)
    assert raised.value.details["error_id"] in raised.value.message
    assert raised.value.details["error_id"] in capsys.readouterr().out


async def test_malformed_bytes_are_an_invalid_argument(served):
    raw = served.dialer.channel(served.address).unary_unary("/kudu.consensus.v1.ConsensusService/GetLastOpId")

    with pytest.raises(KuduError, match="malformed") as raised:
        await call(raw(b"\xff\xff\xff"))

    assert raised.value.code is ErrorCode.INVALID_ARGUMENT


async def test_a_servicer_knows_how_long_its_client_waits(served):
    stub = served.consensus_stub
    request = consensus_pb2.GetLastOpIdRequest(dest_uuid=UUID)
    await call(stub.GetLastOpId(request, timeout=30.0))
    await call(stub.GetLastOpId(request))

    with_deadline, without = served.consensus.remaining_s
    assert 20.0 < with_deadline < 31.0  # gRPC's own clock and the loop's differ by a little
    assert without is None


async def test_calls_beyond_the_services_bound_are_told_to_try_later(served):
    stub = served.consensus_stub
    held = [stub.RequestVote(consensus_pb2.RequestVoteRequest(dest_uuid=UUID)) for _ in range(2)]
    await call(served.tablet_stub.WriteStream().done_writing())  # another service is not counted

    async def refused():
        while True:  # the two above may not have arrived yet
            try:
                await last_op_id(served)
            except KuduError as error:
                return error

    error = await refused()
    served.consensus.held.set()
    await asyncio.gather(*held)

    assert (error.code, error.verdict) == (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER)
    await last_op_id(served)


async def test_a_scan_is_closed_on_the_server_when_its_client_leaves(served):
    scan = served.tablet_stub.Scan(tserver_pb2.ScanRequest())
    assert (await scan.read()).row_count == 1

    scan.cancel()

    await asyncio.wait_for(served.tablets.scan_closed.wait(), 10.0)


def write(number, rows):
    """A message of one write."""
    item = tserver_pb2.WriteStreamRequest.Item(id=number, request=tserver_pb2.WriteRequest(rows=rows))
    return tserver_pb2.WriteStreamRequest(items=[item])


async def test_a_message_beyond_the_size_limit_ends_its_stream_as_an_invalid_argument(served):
    stream = served.tablet_stub.WriteStream()
    await stream.write(write(1, b"x" * (2 << 20)))

    with pytest.raises(KuduError, match="larger than max") as raised:
        await call(stream.read())

    assert (raised.value.code, raised.value.verdict) == (ErrorCode.INVALID_ARGUMENT, Verdict.FAILED)


async def test_an_error_answers_its_item_and_the_stream_goes_on(served):
    def refuse_empty(request):
        if not request.rows:
            raise KuduError(ErrorCode.INVALID_ROW_BLOCK, "no rows")

    served.tablets.on_write = refuse_empty
    stream = served.tablet_stub.WriteStream()

    answers = []
    for number, rows in enumerate((b"", b"x"), 1):
        await stream.write(write(number, rows))
        answers += (await stream.read()).items
    await stream.done_writing()

    assert [answer.WhichOneof("outcome") for answer in answers] == ["error", "response"]
    assert answers[0].error.reason == "INVALID_ROW_BLOCK"
    assert await stream.code() is grpc.StatusCode.OK


async def test_an_unexpected_exception_on_a_stream_leaks_no_text(served):
    def fail(request):
        raise ValueError("the secret")

    served.tablets.on_write = fail
    stream = served.tablet_stub.WriteStream()
    await stream.write(write(1, b"x"))

    answer = (await stream.read()).items[0]
    await stream.done_writing()

    assert answer.error.reason == "INTERNAL"
    assert "secret" not in answer.error.message


async def test_each_item_of_a_stream_is_checked_for_its_destination(served):
    stream = served.consensus_stub.UpdateConsensusStream()
    items = [update(1), update(2, OTHER), update(3, ""), update(4)]
    await stream.write(consensus_pb2.UpdateConsensusStreamRequest(items=items))
    await stream.done_writing()

    outcomes = {item.sequence: item.error.reason for item in await answers_until_end(stream)}

    assert outcomes == {1: "", 2: "WRONG_SERVER_UUID", 3: "WRONG_SERVER_UUID", 4: ""}
    assert served.consensus.updates == [1, 4]


async def test_answers_come_as_they_become_ready_and_the_bound_holds_the_reader_back(served):
    stream = served.consensus_stub.UpdateConsensusStream()
    items = [update(1, tablet_id="held"), *(update(n) for n in range(2, 20))]
    await stream.write(consensus_pb2.UpdateConsensusStreamRequest(items=items))

    answered = []
    while len(answered) < 18:
        message = await stream.read()
        assert len(message.items) <= 4
        answered += [item.sequence for item in message.items]
    served.consensus.answer_waiting()
    await stream.done_writing()

    assert answered == list(range(2, 20))
    assert [item.sequence for item in await answers_until_end(stream)] == [1]


async def test_what_was_taken_from_a_stream_that_broke_goes_on_and_its_answer_finds_nobody(served):
    stream = served.consensus_stub.UpdateConsensusStream()
    await stream.write(consensus_pb2.UpdateConsensusStreamRequest(items=[update(1, tablet_id="held"), update(2)]))
    await stream.read()

    stream.cancel()
    await last_op_id(served)  # the server has learned of the end by then, or will in the middle of the answer
    served.consensus.answer_waiting()

    again = served.consensus_stub.UpdateConsensusStream()
    await again.write(consensus_pb2.UpdateConsensusStreamRequest(items=[update(3)]))
    await again.done_writing()
    assert [item.sequence for item in await answers_until_end(again)] == [3]
    assert served.consensus.updates == [1, 2, 3]


async def test_a_call_is_counted_by_service_method_and_code(served):
    await last_op_id(served)
    with pytest.raises(KuduError):
        await last_op_id(served, OTHER)

    def count(code):
        labels = {"service": "kudu.consensus.v1.ConsensusService", "method": "GetLastOpId", "code": code}
        return served.registry.get_sample_value("kudu_rpc_duration_seconds_count", labels)

    assert (count("OK"), count("WRONG_SERVER_UUID")) == (1, 1)


async def test_a_second_server_on_the_port_is_refused_by_name(served):
    second = RpcServer(uuid=ServerId(OTHER), registry=CollectorRegistry())

    with pytest.raises(KuduError, match=f"cannot listen at {served.address}: Address already in use") as raised:
        await second.start(served.address)

    assert raised.value.code is ErrorCode.CONFIGURATION_ERROR
    await second.stop(0)


async def test_a_name_is_not_half_bound_when_one_of_its_addresses_is_taken(served):
    """gRPC by itself binds localhost at [::1] and is content, while clients go to 127.0.0.1 and find the other
    server.
    """
    second = RpcServer(uuid=ServerId(OTHER), registry=CollectorRegistry())
    port = served.address.rpartition(":")[2]

    with pytest.raises(KuduError, match=f"cannot listen at localhost:{port}"):
        await second.start(f"localhost:{port}")
    await second.stop(0)


async def test_an_address_of_another_machine_or_an_unknown_host_is_refused_by_name():
    for address in ("192.0.2.1:7051", "no-such-host.invalid:7051"):
        server = RpcServer(uuid=ServerId(UUID), registry=CollectorRegistry())
        with pytest.raises(KuduError, match=f"cannot listen at {address}"):
            await server.start(address)
        await server.stop(0)


async def test_a_name_keeps_its_form_in_the_bound_address():
    server = RpcServer(uuid=ServerId(UUID), registry=CollectorRegistry())

    host, _, port = (await server.start("localhost:0")).rpartition(":")

    assert host == "localhost"
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5.0):
        pass
    await server.stop(0)


async def test_health_tells_of_the_server_and_each_service(served):
    stub = health_pb2_grpc.HealthStub(served.dialer.channel(served.address))
    HealthCheckResponse = health_pb2.HealthCheckResponse

    async def check(service):
        return (await call(stub.Check(health_pb2.HealthCheckRequest(service=service)))).status

    before = await check("")
    served.server.set_serving(True)

    assert before == HealthCheckResponse.NOT_SERVING
    assert await check("") == HealthCheckResponse.SERVING
    assert await check("kudu.consensus.v1.ConsensusService") == HealthCheckResponse.SERVING
    assert "kudu.tserver.v1.TabletServerService" in (await call(stub.List(health_pb2.HealthListRequest()))).statuses
    with pytest.raises(KuduError) as raised:
        await check("nobody")
    assert raised.value.code is ErrorCode.NOT_FOUND


async def test_a_watcher_of_health_sees_each_change(served):
    stub = health_pb2_grpc.HealthStub(served.dialer.channel(served.address))
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))

    seen = [(await watch.read()).status]
    for serving in (True, False):
        served.server.set_serving(serving)
        seen.append((await watch.read()).status)
    watch.cancel()

    Status = health_pb2.HealthCheckResponse
    assert seen == [Status.NOT_SERVING, Status.SERVING, Status.NOT_SERVING]


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_lists_the_services_and_describes_each(served, version):
    channel = served.dialer.channel(served.address)
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await ask.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await ask.read()).list_services_response.service}
    for name in sorted(names):
        await ask.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        assert (await ask.read()).file_descriptor_response.file_descriptor_proto, name
    await ask.done_writing()

    assert names == {
        "kudu.consensus.v1.ConsensusService",
        "kudu.tserver.v1.TabletServerService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("kudu.consensus.v1.ConsensusService.RequestVote", "kudu_py/pb/consensus.proto"),
        ("kudu.consensus.v1.Member.uuid", "kudu_py/pb/consensus.proto"),
        ("kudu.consensus.v1.MemberType", "kudu_py/pb/consensus.proto"),
        ("kudu.consensus.v1.ConsensusService.NoSuchMethod", None),
        ("kudu.consensus.v1.NoSuchMessage", None),
        ("nonsense", None),
    ],
)
async def test_reflection_finds_methods_and_fields_by_their_full_names(served, symbol, file):
    channel = served.dialer.channel(served.address)
    ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await ask.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
    answer = await ask.read()
    await ask.done_writing()

    found = [
        descriptor_pb2.FileDescriptorProto.FromString(raw).name
        for raw in answer.file_descriptor_response.file_descriptor_proto
    ]
    assert (file in found) if file else answer.HasField("error_response")


async def test_an_address_may_be_taken_before_anything_is_served():
    server = RpcServer(uuid=ServerId(UUID), registry=CollectorRegistry())

    bound = await server.bind("127.0.0.1:0")

    assert await server.start() == bound
    await server.stop(0)


async def test_stopping_ends_calls_under_way_as_unavailable(served):
    held = served.consensus_stub.RequestVote(consensus_pb2.RequestVoteRequest(dest_uuid=UUID))
    await last_op_id(served)

    await served.server.stop(0)

    with pytest.raises(KuduError) as raised:
        await call(held, wrote=True)
    assert raised.value.verdict is Verdict.UNKNOWN


async def test_nobody_at_the_address_is_an_error_that_names_it():
    dialer = GrpcDialer()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        stub = consensus_pb2_grpc.ConsensusServiceStub(dialer.channel(address))
        with pytest.raises(KuduError, match=f"the server at {address} cannot be reached"):
            await call(stub.GetLastOpId(consensus_pb2.GetLastOpIdRequest()), address=address)
    await dialer.close()


async def test_permits_bound_the_calls_to_an_address():
    dialer = GrpcDialer(DialerOptions(calls_per_channel_max=2))
    under_way, most = 0, 0

    async def one():
        nonlocal under_way, most
        async with dialer.permit("127.0.0.1:1"):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1

    await asyncio.gather(*(one() for _ in range(20)))
    await dialer.close()

    assert most == 2


async def test_a_channel_is_kept_for_its_address_and_their_number_is_bounded():
    dialer = GrpcDialer(DialerOptions(channels_max=1))

    assert dialer.channel("127.0.0.1:1") is dialer.channel("127.0.0.1:1")
    with pytest.raises(KuduError, match="not dialled"):
        dialer.channel("127.0.0.1:2")
    with pytest.raises(KuduError, match="must be host:port"):
        dialer.channel("nonsense")
    await dialer.close()
