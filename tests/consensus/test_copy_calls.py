"""A leader asks members that cannot be served from its log to fetch a replica: one request at a time, and patiently."""

from __future__ import annotations

import asyncio
import random

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.copy_calls import CopyCalls
from kudu_py.consensus.core.model import Member, MemberType
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.retry import Backoff
from kudu_py.testing.sim_clock import SimClock

MEMBER = Member(ServerId("b"), MemberType.PRE_VOTER, "b:7050")


class Server:
    """Answers StartTabletCopy with what it was told to, after a second."""

    def __init__(self):
        self.asked = []
        self.error = None

    def stub(self, address):
        assert address == MEMBER.address
        return self

    async def StartTabletCopy(self, request, timeout):
        self.asked.append((asyncio.get_running_loop().time(), request))
        await asyncio.sleep(1.0)
        if self.error is not None:
            raise self.error
        return consensus_pb2.StartTabletCopyResponse()


def calls_to(server, tasks):
    return CopyCalls(
        tablet_id=TabletId("t"),
        uuid=ServerId("a"),
        address="a:7050",
        links=server,
        clock=SimClock(),
        rng=random.Random(1),
        timeout_s=5.0,
        backoff=Backoff(initial_s=0.5, max_s=30.0),
        spawn=lambda work, name: tasks.append(asyncio.ensure_future(work)),
        logger=structlog.get_logger(),
    )


async def ask_for(calls, seconds):
    """What the machine does while a follower needs a copy: it names it with each heartbeat."""
    for _ in range(int(seconds / 0.25)):
        calls.ask(MEMBER, term=3, committed=OpId(3, 9), state=consensus_pb2.DELETED)
        await asyncio.sleep(0.25)


def test_one_request_at_a_time_with_all_that_the_target_checks(simulate):
    async def story():
        server, tasks = Server(), []
        calls = calls_to(server, tasks)
        await ask_for(calls, 1.0)
        ((_, request),) = server.asked
        assert request == consensus_pb2.StartTabletCopyRequest(
            dest_uuid="b",
            tablet_id="t",
            caller_uuid="a",
            caller_term=3,
            expected_state=consensus_pb2.DELETED,
            committed_op_id={"term": 3, "index": 9},
            source_uuid="a",
            source_address="a:7050",
        )
        await asyncio.gather(*tasks)

    simulate(story())


def test_refusals_are_followed_by_longer_and_longer_pauses(simulate):
    async def story():
        server, tasks = Server(), []
        server.error = KuduError(ErrorCode.ILLEGAL_STATE, "not now")
        calls = calls_to(server, tasks)
        await ask_for(calls, 300.0)
        assert 12 < len(server.asked) < 60
        assert max(later[0] - earlier[0] for earlier, later in zip(server.asked, server.asked[1:], strict=False)) > 15.0
        await asyncio.gather(*tasks)

    simulate(story())


def test_a_copy_that_is_under_way_already_is_no_refusal(simulate):
    async def story():
        server, tasks = Server(), []
        server.error = KuduError(ErrorCode.ALREADY_IN_PROGRESS, "it is being copied")
        calls = calls_to(server, tasks)
        await ask_for(calls, 30.0)
        assert len(server.asked) > 15
        await asyncio.gather(*tasks)

    simulate(story())


def test_the_next_leadership_begins_anew(simulate):
    async def story():
        server, tasks = Server(), []
        server.error = KuduError(ErrorCode.ILLEGAL_STATE, "not now")
        calls = calls_to(server, tasks)
        await ask_for(calls, 100.0)
        calls.clear()
        asked = len(server.asked)
        await ask_for(calls, 0.25)
        assert len(server.asked) == asked + 1
        await asyncio.gather(*tasks)

    simulate(story())
