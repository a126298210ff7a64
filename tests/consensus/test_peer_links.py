"""Links between servers, over the simulated network."""

from __future__ import annotations

import asyncio
import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.consensus.peer_links import PeerLinkOptions, PeerLinks, Transport
from kudu_py.consensus.update_stream import serve_updates
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceServicer, add_ConsensusServiceServicer_to_server
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_network import SimNetwork

SERVER = ServerId("5" * 32)
ADDRESS = "server:7050"


class Call:
    """One update: to a tablet, maybe padded."""

    def __init__(self, tablet_id, *, size_bytes=100, dest=SERVER):
        self.tablet_id, self.size_bytes, self.dest = tablet_id, size_bytes, dest
        self.answers = []

    def build(self, request):
        request.dest_uuid, request.tablet_id = self.dest, self.tablet_id

    def answered(self, answer):
        self.answers.append(answer)

    @property
    def error(self):
        assert len(self.answers) == 1, self.answers
        return self.answers[0].code if isinstance(self.answers[0], KuduError) else None


class Tablets(ConsensusServiceServicer):
    """Answers at once, except for tablets whose disk is slow, those that never answer and those that refuse."""

    def __init__(self, uuid):
        self.uuid = uuid
        self.message_sizes = []
        self.held = []

    def receive(self, request, respond):
        if request.tablet_id == "refused":
            raise KuduError(ErrorCode.TABLET_NOT_FOUND, "not here")
        if request.tablet_id == "broken":
            raise ValueError("a bug")
        response = consensus_pb2.UpdateConsensusResponse(responder_uuid=self.uuid)
        match request.tablet_id:
            case "never":
                self.held.append(respond)
            case "slow":
                asyncio.get_running_loop().call_later(1.0, respond, response)
            case _:
                respond(response)

    async def UpdateConsensus(self, request, context):
        answered = asyncio.get_running_loop().create_future()
        self.receive(request, answered.set_result)
        return await answered

    def UpdateConsensusStream(self, request_iterator, context):
        return serve_updates(request_iterator, context, self.receive, in_flight_max=64)


async def served(transport, *, network=None, **options):
    network = network or SimNetwork(random.Random(1))
    tablets = Tablets(SERVER)
    server = network.server(ADDRESS, SERVER)
    server.add(add_ConsensusServiceServicer_to_server, tablets, checks_dest_uuid=True)
    await server.start()
    links = PeerLinks(
        dialer=network.dialer("client:1"), clock=SimClock(), options=PeerLinkOptions(transport=transport, **options)
    )
    return network, links, links.link(ADDRESS), tablets


@pytest.fixture(params=list(Transport), ids=lambda transport: transport.value)
def transport(request):
    return request.param


def send(link, *tablet_ids, **arguments):
    calls = [Call(tablet_id, **arguments) for tablet_id in tablet_ids]
    for call in calls:
        link.send(call)
    return calls


def test_each_request_is_answered_exactly_once(simulate, transport):
    async def story():
        _, links, link, _ = await served(transport)
        calls = send(link, *(f"tablet-{i}" for i in range(200)))
        await asyncio.sleep(0.5)
        assert [call.error for call in calls] == [None] * 200
        await links.close()

    simulate(story())


def test_one_tablets_sync_does_not_hold_up_another_tablets_answer(simulate, transport):
    async def story():
        _, links, link, _ = await served(transport)
        slow, quick = send(link, "slow", "quick")
        await asyncio.sleep(0.1)
        assert (len(slow.answers), len(quick.answers)) == (0, 1)
        await asyncio.sleep(1.5)
        assert slow.error is None
        await links.close()

    simulate(story())


def test_an_error_is_the_answer_of_its_request_alone(simulate, transport):
    async def story():
        _, links, link, _ = await served(transport)
        refused, wrong, broken = (*send(link, "refused"), *send(link, "x", dest="6" * 32), *send(link, "broken"))
        (good,) = send(link, "good")
        await asyncio.sleep(0.5)
        assert refused.error is ErrorCode.TABLET_NOT_FOUND
        assert wrong.error is ErrorCode.WRONG_SERVER_UUID
        assert broken.error is ErrorCode.INTERNAL
        assert good.error is None
        await links.close()

    simulate(story())


def test_a_request_without_an_answer_fails_after_its_time_and_others_go_on(simulate, transport):
    async def story():
        _, links, link, tablets = await served(transport, request_timeout_s=2.0)
        (never,) = send(link, "never")
        await asyncio.sleep(1.9)
        assert never.answers == []
        await asyncio.sleep(0.2)
        assert never.error is ErrorCode.TIMED_OUT
        for respond in tablets.held if transport is Transport.STREAM else []:
            respond(consensus_pb2.UpdateConsensusResponse())
        (good,) = send(link, "good")
        await asyncio.sleep(0.1)
        assert good.error is None
        assert never.error is ErrorCode.TIMED_OUT, "an answer that comes too late is not a second one"
        await links.close()

    simulate(story())


def test_requests_beyond_the_window_fail_at_once(simulate, transport):
    async def story():
        _, links, link, _ = await served(transport, requests_in_flight_max=10)
        calls = send(link, *["never"] * 11)
        assert calls[-1].error is ErrorCode.SERVER_TOO_BUSY
        assert all(not call.answers for call in calls[:-1])
        await links.close()
        assert all(call.error is ErrorCode.SHUTTING_DOWN for call in calls[:-1])

    simulate(story())


def test_a_broken_link_fails_what_was_on_its_way_and_mends_itself(simulate, transport):
    async def story():
        network, links, link, _ = await served(transport)
        (lost,) = send(link, "never")
        await asyncio.sleep(0.1)
        network.kill(ADDRESS)
        await asyncio.sleep(0.5)
        assert lost.error is ErrorCode.UNAVAILABLE
        (refused,) = send(link, "x")
        await asyncio.sleep(0.5)
        assert refused.error is ErrorCode.UNAVAILABLE
        await served(transport, network=network)
        await asyncio.sleep(1.0)
        (good,) = send(link, "good")
        await asyncio.sleep(0.5)
        assert good.error is None
        await links.close()

    simulate(story())


def test_requests_that_wait_share_a_message_up_to_its_size(simulate):
    async def story():
        network, links, link, _ = await served(Transport.STREAM, message_bytes_max=1000)
        before = network.messages
        calls = send(link, *(f"t{i}" for i in range(30)), size_bytes=400)
        (large,) = send(link, "large", size_bytes=5000)
        await asyncio.sleep(0.5)
        assert all(call.error is None for call in [*calls, large])
        # 15 messages of two, one of one, one to open the stream; answers share messages as well.
        assert network.messages - before <= 2 * 17
        await links.close()

    simulate(story())


def test_a_caller_without_a_window_is_held_back(simulate):
    async def story():
        _, links, link, tablets = await served(Transport.STREAM)
        calls = send(link, *["never"] * 200)
        await asyncio.sleep(0.5)
        assert len(tablets.held) == 64
        for respond in list(tablets.held):
            respond(consensus_pb2.UpdateConsensusResponse())
        await asyncio.sleep(0.5)
        assert len(tablets.held) == 128
        assert sum(len(call.answers) for call in calls) == 64
        await links.close()

    simulate(story())
