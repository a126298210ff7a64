"""When Writes leave, on virtual time."""

import asyncio

from kudu_py.client.write_pace import BUSY_ROWS, WAIT_S_MAX, WAIT_SHARE, WritePace
from kudu_py.testing import sim_loop

ANSWER_S = 0.01


class Paced:
    """A pace, and what left: names of Writes, and a bar at the end of each group."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.pace = WritePace(lambda: self.left.append("|"))

    def write(self, name: str):
        return lambda: self.left.append(name)

    def rows(self, *names: str) -> None:
        for name in names:
            self.pace.leave_with_others(self.write(name))


def answered_once(pace: WritePace, rows: int = 1) -> None:
    """Often enough for the pace to know how long an answer takes."""
    for _ in range(100):
        pace.sent(rows)
        pace.answered(rows, ANSWER_S)


async def turn() -> None:
    await asyncio.sleep(0)


def test_what_becomes_ready_in_one_turn_leaves_together():
    async def main() -> None:
        paced = Paced()
        paced.rows("a", "b")
        paced.pace.leave(paced.write("batch"))
        assert paced.left == []
        await turn()
        assert sorted(paced.left[:-1]) == ["a", "b", "batch"]
        assert paced.left[-1] == "|"

    sim_loop.run(main())


def test_the_row_of_a_caller_who_alone_was_answered_leaves_at_once():
    async def main() -> None:
        paced = Paced()
        paced.pace.sent(1)
        paced.pace.answered(1, ANSWER_S)
        paced.pace.leave_alone(paced.write("next"))
        assert paced.left == ["next", "|"]

    sim_loop.run(main())


def test_callers_who_were_answered_together_go_on_together():
    async def main() -> None:
        paced = Paced()
        paced.pace.sent(2)
        paced.pace.answered(2, ANSWER_S)
        paced.pace.leave_alone(paced.write("a"))
        paced.pace.leave_alone(paced.write("b"))
        assert paced.left == []
        await turn()
        assert paced.left == ["a", "b", "|"]

    sim_loop.run(main())


def test_a_lone_caller_never_waits_for_rows_of_others_that_are_few():
    async def main() -> None:
        paced = Paced()
        paced.pace.sent(BUSY_ROWS - 1)
        paced.rows("a")
        await turn()
        assert paced.left == ["a", "|"]

    sim_loop.run(main())


def test_a_tablet_that_is_free_waits_for_the_callers_of_the_others():
    async def main() -> None:
        paced = Paced()
        pace = paced.pace
        answered_once(pace)
        pace.sent(BUSY_ROWS)
        pace.sent(BUSY_ROWS)
        paced.rows("a", "b")
        pace.answered(BUSY_ROWS, ANSWER_S)
        await turn()
        assert paced.left == []
        pace.answered(BUSY_ROWS, ANSWER_S)
        assert paced.left == [], "callers that were just told come first"
        await turn()
        assert paced.left == ["a", "b", "|"]

    sim_loop.run(main())


def test_who_waits_already_waits_for_the_last():
    async def main() -> None:
        paced = Paced()
        pace = paced.pace
        answered_once(pace)
        pace.sent(BUSY_ROWS)
        pace.sent(1)
        paced.rows("a")
        await turn()
        pace.answered(BUSY_ROWS, ANSWER_S)
        paced.rows("b")
        await turn()
        await turn()
        assert paced.left == []
        pace.answered(1, ANSWER_S)
        await turn()
        assert paced.left == ["a", "b", "|"]

    sim_loop.run(main())


def test_arrow_batches_never_wait():
    async def main() -> None:
        paced = Paced()
        answered_once(paced.pace)
        paced.pace.sent(BUSY_ROWS)
        paced.rows("a")
        paced.pace.leave(paced.write("batch"))
        await turn()
        assert paced.left == ["batch", "|"]

    sim_loop.run(main())


def test_no_tablet_waits_much_longer_than_an_answer_takes():
    async def main() -> None:
        paced, released = Paced(), asyncio.Event()
        answered_once(paced.pace)
        paced.pace.sent(BUSY_ROWS)  # never answered: its server hangs
        begun = asyncio.get_running_loop().time()
        paced.pace.leave_with_others(released.set)
        await released.wait()
        waited = asyncio.get_running_loop().time() - begun
        assert 0 < waited <= ANSWER_S * WAIT_SHARE * 1.01

    sim_loop.run(main())


def test_slow_answers_make_nobody_wait_for_long():
    async def main() -> None:
        paced, released = Paced(), asyncio.Event()
        paced.pace.sent(1)
        paced.pace.answered(1, 1000)
        paced.pace.sent(BUSY_ROWS)
        begun = asyncio.get_running_loop().time()
        paced.pace.leave_with_others(released.set)
        await released.wait()
        assert asyncio.get_running_loop().time() - begun <= WAIT_S_MAX * 1.01

    sim_loop.run(main())


def test_each_that_was_held_is_sent_once():
    async def main() -> None:
        paced = Paced()
        answered_once(paced.pace)
        paced.pace.sent(BUSY_ROWS)
        paced.rows("a")
        await turn()
        paced.pace.answered(BUSY_ROWS, ANSWER_S)
        await asyncio.sleep(1)
        assert paced.left == ["a", "|"]

    sim_loop.run(main())
