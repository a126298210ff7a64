"""How answers of a stream share messages, on virtual time."""

from __future__ import annotations

import asyncio
import random

import grpc.aio
import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import tserver_pb2
from kudu_py.pb.common_pb2 import ErrorDetail
from kudu_py.rpc.serve_stream import TOGETHER_S, serve_stream
from kudu_py.testing import sim_loop

Request, Response = tserver_pb2.WriteStreamRequest, tserver_pb2.WriteStreamResponse


def add(message, number, answer):
    message.items.add(id=number, **{"error" if isinstance(answer, ErrorDetail) else "response": answer})


async def times_and_ids(messages, delays_s, *, in_flight_max=100, write_s=0.0):
    """When each message of answers came, and the ids in it; item n is answered after `delays_s[n]`."""
    loop = asyncio.get_running_loop()

    async def requests():
        for ids in messages:
            yield Request(items=[Request.Item(id=number) for number in ids])

    def take(item, respond):
        if delays_s[item.id] is None:
            raise KuduError(ErrorCode.TABLET_NOT_FOUND, "not here")
        loop.call_later(delays_s[item.id], respond, tserver_pb2.WriteResponse())

    started = loop.time()
    came = []

    class Context:
        """Of a call whose client takes each message after `write_s`."""

        async def write(self, message):
            came.append((loop.time() - started, [item.id for item in message.items]))
            await asyncio.sleep(write_s)

    await serve_stream(
        requests(),
        Context(),
        take=take,
        tag_of=lambda item: item.id,
        message_type=Response,
        add=add,
        in_flight_max=in_flight_max,
    )
    return came


def test_what_came_in_one_message_is_answered_in_one(simulate):
    ((at, ids),) = simulate(times_and_ids([[1, 2, 3]], {1: 0.0100, 2: 0.0104, 3: 0.0102}))
    assert ids == [1, 3, 2]
    assert at == pytest.approx(0.0104, abs=1e-4)


def test_a_slow_item_holds_the_others_up_for_a_moment_only(simulate):
    first, second = simulate(times_and_ids([[1, 2]], {1: 0.01, 2: 1.0}))
    assert first == (pytest.approx(0.01 + TOGETHER_S, abs=1e-4), [1])
    assert second == (pytest.approx(1.0, abs=1e-4), [2])


def test_later_answers_of_a_message_that_was_late_once_leave_as_soon(simulate):
    came = simulate(times_and_ids([[1, 2, 3]], {1: 0.01, 2: 0.5, 3: 1.0}))
    assert [ids for _, ids in came] == [[1], [2], [3]]
    assert came[1][0] == pytest.approx(0.5 + TOGETHER_S, abs=1e-4)


def test_items_of_different_messages_do_not_wait_for_each_other(simulate):
    first, second = simulate(times_and_ids([[1], [2]], {1: 0.01, 2: 0.0104}))
    assert first == (pytest.approx(0.01, abs=1e-4), [1])
    assert second == (pytest.approx(0.0104, abs=1e-4), [2])


def test_a_message_larger_than_the_bound_is_answered_in_parts(simulate):
    came = simulate(times_and_ids([[1, 2, 3, 4, 5]], dict.fromkeys(range(1, 6), 0.01), in_flight_max=2))
    assert [ids for _, ids in came] == [[1, 2], [3, 4], [5]]


def test_what_is_answered_while_a_message_is_written_shares_the_next_one(simulate):
    delays_s = {1: 0.010, 2: 0.012, 3: 0.014, 4: 0.5}
    came = simulate(times_and_ids([[1], [2], [3], [4]], delays_s, write_s=0.1))
    assert [ids for _, ids in came] == [[1], [2, 3], [4]]
    assert came[1][0] == pytest.approx(0.11, abs=1e-4)


class Leaving:
    """The context of a call whose client leaves at the first answer."""

    def __init__(self, error):
        self.error = error

    async def write(self, message):
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (grpc.aio.UsageError("RPC already finished."), asyncio.CancelledError),
        (asyncio.InvalidStateError("closed"), asyncio.CancelledError),
        (ValueError("what cannot be serialised"), ValueError),
    ],
)
def test_a_client_that_leaves_is_no_error_and_anything_else_is(simulate, error, raised):
    async def serve():
        async def requests():
            yield Request(items=[Request.Item(id=1)])
            await asyncio.Event().wait()

        with pytest.raises(raised):
            await serve_stream(
                requests(),
                Leaving(error),
                take=lambda item, respond: respond(tserver_pb2.WriteResponse()),
                tag_of=lambda item: item.id,
                message_type=Response,
                add=add,
                in_flight_max=10,
            )

    simulate(serve())


class Pipe:
    """The context of a call whose client takes messages as slowly as chance has it; after `breaks_after` it has left.

    Attributes:
        is_over: the call has ended, so that nothing may be written any more.
    """

    def __init__(self, rng, breaks_after):
        self.rng, self.breaks_after = rng, breaks_after
        self.taken, self.is_writing, self.is_over = [], False, False

    async def write(self, message):
        assert message.items
        assert not self.is_writing, "two writes at a time"
        assert not self.is_over, "a write after the end"
        self.is_writing = True
        try:
            if (delay_s := self.rng.choice([None, 0, 0.0001, 0.003])) is not None:
                await asyncio.sleep(delay_s)
            if len(self.taken) >= self.breaks_after:
                raise grpc.aio.UsageError("RPC already finished.")
            self.taken += [item.id for item in message.items]
        finally:
            self.is_writing = False


@pytest.mark.parametrize("end", ["in order", "broken", "cancelled"])
def test_whatever_happens_when_each_item_is_answered_at_most_once_and_all_are_if_the_client_stays(end):
    async def story(rng):
        loop = asyncio.get_running_loop()
        ids = iter(range(1000))
        messages = [[next(ids) for _ in range(rng.randrange(7))] for _ in range(rng.randrange(12))]
        pipe = Pipe(rng, breaks_after=rng.randrange(20) if end == "broken" else 1000)
        in_flight_max = rng.choice([1, 2, 5, 100])
        taken, answered, not_sent = [], [], [0]

        async def requests():
            for message in messages:
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.choice([0, 0.0005, 0.01]))
                yield Request(items=[Request.Item(id=number) for number in message])

        def take(item, respond):
            taken.append(item.id)
            not_sent.append(len(taken) - len(pipe.taken))
            if (dice := rng.random()) < 0.1:
                raise KuduError(ErrorCode.TABLET_NOT_FOUND, "not here")

            def answer():
                answered.append(item.id)
                respond(tserver_pb2.WriteResponse())

            if dice < 0.3:
                answer()
            else:
                loop.call_later(rng.choice([0, 0.0001, 0.001, 0.002, 0.5]), answer)

        served = loop.create_task(
            serve_stream(
                requests(),
                pipe,
                take=take,
                tag_of=lambda item: item.id,
                message_type=Response,
                add=add,
                in_flight_max=in_flight_max,
            )
        )
        if end == "cancelled":
            loop.call_later(rng.choice([0, 0.001, 0.01, 0.3]), served.cancel)
        await asyncio.wait([served])
        pipe.is_over = True
        assert taken == sorted(taken)
        assert max(not_sent) <= 2 * in_flight_max  # under way, and in the message that is being written
        assert len(pipe.taken) == len(set(pipe.taken))
        if not served.cancelled():
            served.result()
            assert sorted(pipe.taken) == [number for message in messages for number in message]
        else:
            assert end != "in order"
        await asyncio.sleep(1)  # what was taken is answered to nobody, without harm
        assert set(taken) >= set(answered)
        assert "stream-reader" not in [task.get_name() for task in asyncio.all_tasks()]

    for seed in range(60):
        sim_loop.run(story(random.Random(seed)), seed=seed)
