"""When a Write of single rows waits for those of other tablets, on virtual time."""

import asyncio

from kudu_py.client.write_pace import BUSY_ROWS, WAIT_S_MAX, WritePace
from kudu_py.testing import sim_loop

ANSWER_S = 0.01


async def answered_once(pace: WritePace, rows: int = 1) -> None:
    """One Write whose answer took `ANSWER_S`, often enough for the pace to know."""
    for _ in range(100):
        sent_at = pace.sent(rows)
        await asyncio.sleep(ANSWER_S)
        pace.answered(rows, sent_at)


def test_a_lone_caller_never_waits():
    async def main() -> None:
        pace = WritePace()
        assert not pace.holds(lambda: None)
        pace.sent(BUSY_ROWS - 1)
        assert not pace.holds(lambda: None)

    sim_loop.run(main())


def test_a_tablet_that_is_free_waits_for_the_callers_of_the_others():
    async def main() -> None:
        pace, released = WritePace(), []
        await answered_once(pace)
        first, second = pace.sent(BUSY_ROWS), pace.sent(BUSY_ROWS)
        assert pace.holds(lambda: released.append("a"))
        assert pace.holds(lambda: released.append("b"))
        pace.answered(BUSY_ROWS, first)
        await asyncio.sleep(0)
        assert released == []
        pace.answered(BUSY_ROWS, second)
        assert released == [], "callers that were just told come first"
        await asyncio.sleep(0)
        assert released == ["a", "b"]
        assert not pace.holds(lambda: None)

    sim_loop.run(main())


def test_no_tablet_waits_longer_than_an_answer_takes():
    async def main() -> None:
        pace, released = WritePace(), asyncio.Event()
        await answered_once(pace)
        pace.sent(BUSY_ROWS)  # never answered: its server hangs
        begun = asyncio.get_running_loop().time()
        assert pace.holds(released.set)
        await released.wait()
        waited = asyncio.get_running_loop().time() - begun
        assert 0 < waited <= ANSWER_S * 1.01

    sim_loop.run(main())


def test_slow_answers_make_nobody_wait_for_long():
    async def main() -> None:
        pace, released = WritePace(), asyncio.Event()
        sent_at = pace.sent(1)
        await asyncio.sleep(1000)
        pace.answered(1, sent_at)
        pace.sent(BUSY_ROWS)
        begun = asyncio.get_running_loop().time()
        assert pace.holds(released.set)
        await released.wait()
        assert asyncio.get_running_loop().time() - begun <= WAIT_S_MAX * 1.01

    sim_loop.run(main())


def test_each_that_was_held_is_sent_once():
    async def main() -> None:
        pace, released = WritePace(), []
        await answered_once(pace)
        sent_at = pace.sent(BUSY_ROWS)
        assert pace.holds(lambda: released.append(1))
        pace.answered(BUSY_ROWS, sent_at)
        await asyncio.sleep(1)
        assert released == [1]

    sim_loop.run(main())
