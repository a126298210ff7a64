"""A background task that dies is never quiet."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.daemon.supervisor import Supervisor, TaskEnded


async def fail():
    raise ValueError("dead")


async def nothing():
    pass


async def forever():
    await asyncio.Event().wait()


async def test_an_exception_is_fatal_and_names_the_task():
    fatal = []
    async with Supervisor(fatal.append) as tasks:
        await asyncio.wait({tasks.run(fail(), name="heartbeater")})
        await asyncio.sleep(0)

    (error,) = fatal
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["in the background task heartbeater"]


async def test_the_end_of_a_task_that_runs_forever_is_fatal():
    fatal = []
    async with Supervisor(fatal.append) as tasks:
        await asyncio.wait({tasks.run_forever(nothing(), name="reconciler")})
        await asyncio.sleep(0)

    assert isinstance(fatal[0], TaskEnded)
    assert "reconciler" in str(fatal[0])


async def test_the_end_or_cancellation_of_other_tasks_is_not():
    fatal = []
    async with Supervisor(fatal.append) as tasks:
        cancelled = tasks.run(forever(), name="call")
        await asyncio.wait({tasks.run(nothing(), name="flush")})
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await asyncio.sleep(0)

    assert fatal == []


async def test_leaving_cancels_what_runs_and_waits_for_its_end():
    fatal, ended = [], []

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with Supervisor(fatal.append) as tasks:
        tasks.run_forever(slow_to_end(), name="slow")
        await asyncio.sleep(0)

    assert (ended, fatal) == ([True], [])


async def test_nothing_is_started_while_the_owner_stops():
    tasks = Supervisor(lambda error: None)
    async with tasks:
        pass
    work = nothing()
    with pytest.raises(AssertionError):
        tasks.run(work, name="late")
    work.close()
