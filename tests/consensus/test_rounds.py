"""Pending rounds."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.consensus.rounds import Round, Rounds


def add(rounds, index, size=10):
    future = asyncio.get_running_loop().create_future()
    rounds.add(Round(OpId(1, index), HybridTime(index), future, size))
    return future


async def test_a_round_is_resolved_with_what_apply_returned_and_no_longer_counted():
    rounds = Rounds()
    future = add(rounds, 5)
    rounds.resolve(OpId(1, 4), "of somebody else's entry")
    rounds.resolve(OpId(1, 5), "rows")
    assert await future == "rows"
    assert (len(rounds), rounds.size_bytes) == (0, 0)


async def test_overwritten_rounds_fail_latest_first():
    rounds = Rounds()
    order = []
    futures = [add(rounds, index) for index in (3, 4, 5)]
    for index, future in enumerate(futures):
        future.add_done_callback(lambda _, index=index: order.append(index))
    rounds.abort_after(3)
    await asyncio.sleep(0)
    assert order == [2, 1]
    assert not futures[0].done()
    with pytest.raises(KuduError) as aborted:
        futures[2].result()
    assert aborted.value.code is ErrorCode.OPERATION_ABORTED
    assert aborted.value.verdict is Verdict.FAILED
    assert rounds.size_bytes == 10


async def test_a_waiter_that_left_is_no_trouble():
    rounds = Rounds()
    first, second = add(rounds, 1), add(rounds, 2)
    first.cancel()
    second.cancel()
    rounds.resolve(OpId(1, 1), None)
    rounds.fail_all("stopped")
    assert len(rounds) == 0
