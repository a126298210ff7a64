"""`Supervisor`: the owner of background tasks, whose unexpected death ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import structlog

_log = structlog.get_logger("supervisor")


class TaskEnded(Exception):
    """A task that was meant to run for the life of the process has returned."""


class Supervisor:
    """Owns tasks: `async with Supervisor(on_fatal) as tasks`; leaving cancels them and waits until they have ended.

    A daemon whose heartbeater or log writer has died quietly is worse than one that has ended: the others believe in
        it.

    Args:
        on_fatal: called on the loop with the exception of a task that failed.
    """

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run_forever(self, work: Coroutine[Any, Any, object], *, name: str) -> asyncio.Task[Any]:
        """Starts a task that only cancellation may end: its return is as fatal as its exception."""
        return self._start(work, name, self._done_forever)

    def run(self, work: Coroutine[Any, Any, object], *, name: str) -> asyncio.Task[Any]:
        """Starts a task that may end, or be cancelled by its starter; only an exception is fatal."""
        return self._start(work, name, self._done)

    def _start(
        self, work: Coroutine[Any, Any, object], name: str, done: Callable[[asyncio.Task[Any]], None]
    ) -> asyncio.Task[Any]:
        assert not self._closing, f"{name} was started while its owner stops"
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    def _done_forever(self, task: asyncio.Task[Any]) -> None:
        self._done(task)
        if not self._closing and not task.cancelled() and task.exception() is None:
            self._on_fatal(TaskEnded(f"the task {task.get_name()} has ended"))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._closing:
            _log.warning("task_failed_while_stopping", task=task.get_name(), exc_info=error)
            return
        error.add_note(f"in the background task {task.get_name()}")
        self._on_fatal(error)
