"""The loop on virtual time."""

import asyncio

import pytest

from kudu_py.testing import sim_loop
from kudu_py.testing.sim_loop import SimDeadlock


def test_an_hour_takes_no_time():
    async def main():
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(3_600)
        return loop.time() - start

    assert sim_loop.run(main()) == pytest.approx(3_600)


def test_timers_fire_in_order_and_timeouts_work():
    async def main():
        order = []

        async def note(delay, name):
            await asyncio.sleep(delay)
            order.append(name)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.gather(note(2, "late"), note(0.001, "a"), note(1, "b"))
        return order

    assert sim_loop.run(main()) == ["a", "b"]


def test_waiting_for_what_never_happens_is_reported():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimDeadlock):
        sim_loop.run(main())


def order_of(seed):
    async def main():
        order = []
        for i in range(20):
            asyncio.get_running_loop().call_soon(order.append, i)
        await asyncio.sleep(1)
        return order

    return sim_loop.run(main(), seed=seed)


def test_a_seed_shuffles_what_is_ready_together_and_always_alike():
    assert order_of(None) == list(range(20))
    assert sorted(order_of(1)) == list(range(20))
    assert order_of(1) != list(range(20))
    assert order_of(1) == order_of(1) != order_of(2)


def test_threads_are_refused():
    async def main():
        await asyncio.to_thread(lambda: None)

    with pytest.raises(AssertionError, match="no threads"):
        sim_loop.run(main())
