"""Pending rounds."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.consensus.rounds import Round, Rounds


def add(rounds, index, size=10, term=1):
    future = asyncio.get_running_loop().create_future()
    rounds.add(Round(OpId(term, index), HybridTime(index), future, size))
    return future


async def test_a_round_is_resolved_with_what_apply_returned_and_no_longer_counted():
    rounds = Rounds()
    future = add(rounds, 5)
    rounds.resolve(OpId(1, 4), "of somebody else's entry")
    rounds.resolve(OpId(1, 5), "rows")
    assert await future == "rows"
    assert (len(rounds), rounds.size_bytes) == (0, 0)


async def test_an_overwritten_round_may_still_come_back():
    """Another replica may hold the entry and lead later: only a committed entry in its place decides."""
    rounds = Rounds()
    future = add(rounds, 5)
    rounds.overwrite_after(4)
    assert not future.done()
    again = add(rounds, 5, term=3)
    rounds.overwrite_after(4)
    assert (len(rounds), rounds.size_bytes) == (2, 20)
    rounds.resolve(OpId(1, 4), "before")
    assert not future.done()
    rounds.resolve(OpId(1, 5), "rows")
    assert await future == "rows"
    with pytest.raises(KuduError, match="OPERATION_ABORTED"):
        again.result()
    assert (len(rounds), rounds.size_bytes) == (0, 0)


async def test_overwritten_rounds_fail_when_a_later_term_is_committed_below():
    rounds = Rounds()
    order = []
    futures = [add(rounds, index) for index in (3, 4, 5)]
    for index, future in enumerate(futures):
        future.add_done_callback(lambda _, index=index: order.append(index))
    rounds.overwrite_after(3)
    rounds.resolve(OpId(1, 3), "rows")
    await asyncio.sleep(0)
    assert order == [0]
    rounds.resolve(OpId(2, 4), "of the later leader")
    await asyncio.sleep(0)
    assert order == [0, 2, 1]
    with pytest.raises(KuduError) as aborted:
        futures[2].result()
    assert aborted.value.code is ErrorCode.OPERATION_ABORTED
    assert aborted.value.verdict is Verdict.FAILED
    assert (len(rounds), rounds.size_bytes) == (0, 0)


async def test_the_outcome_of_an_overwritten_round_is_unknown_at_a_stop():
    rounds = Rounds()
    future = add(rounds, 5)
    rounds.overwrite_after(4)
    rounds.fail_all("stopped")
    with pytest.raises(KuduError) as failed:
        future.result()
    assert failed.value.verdict is Verdict.UNKNOWN
    assert (len(rounds), rounds.size_bytes) == (0, 0)


async def test_a_waiter_that_left_is_no_trouble():
    rounds = Rounds()
    first, second = add(rounds, 1), add(rounds, 2)
    first.cancel()
    second.cancel()
    rounds.resolve(OpId(1, 1), None)
    rounds.fail_all("stopped")
    assert len(rounds) == 0
