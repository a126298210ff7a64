"""`CopyTarget`: one copy to this server while it is under way, and how it is ended early."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.tablet.copy_order import CopyOrder
from kudu_py.tablet.metadata import Superblock

T = TypeVar("T")


class CopyTarget:
    """A copy, from the moment it is accepted to its end; made by the task that carries it out.

    Attributes:
        order: what was asked for.
        remembered: the tombstone that answers candidates meanwhile; None while there is none: until the replica that
            lived is deleted, and once the consensus metadata is being merged.
        copying: the superblock on disk while it says COPYING.
        is_in_doubt: what the metadata on disk says is not known: the process ends, and nothing more is written.
        ended: resolved when the replica is in a state of rest again.
    """

    def __init__(self, order: CopyOrder, remembered: Superblock | None) -> None:
        self.order = order
        self.remembered = remembered
        self.copying: Superblock | None = None
        self.is_in_doubt = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None, "a copy is carried out by a task"
        self._task: asyncio.Task[object] = task
        self._is_cancelled = False
        self._is_installing = False
        self._is_ending = False

    def cancel(self) -> None:
        """Asks for its end; `ended` says when. What was fetched is kept for the next.

        Raises:
            KuduError: ILLEGAL_STATE: all is fetched, and the replica is about to run.
        """
        if self._is_installing:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"tablet {self.order.tablet_id} is all here and is being put in place; it is too late to cancel its "
                "copy",
            )
        if not self._is_cancelled and not self._is_ending:
            self._is_cancelled = True
            self._task.cancel()

    async def begin_install(self) -> None:
        """From now on it goes through to its end: what remains is short, and half of it is not left behind.

        Raises:
            asyncio.CancelledError: it was cancelled before.
        """
        await asyncio.sleep(0)  # the last moment at which a cancellation is heard
        self._is_installing = True
        self.remembered = None

    def failed(self, error: BaseException) -> BaseException:
        """It ended in this error, and is being cleared away: a cancellation comes too late from now on. Why it failed.

        Raises:
            asyncio.CancelledError: it was the task that was cancelled, not the copy.
        """
        self._is_ending, self._is_installing = True, False
        if not isinstance(error, asyncio.CancelledError):
            return error
        if not self._is_cancelled or self._task.uncancel():
            raise error
        return KuduError(ErrorCode.CANCELLED, f"the copy of tablet {self.order.tablet_id} to this server was cancelled")


async def to_its_end(work: Coroutine[object, object, T]) -> T:
    """Awaits what must not be left half done; a cancellation of the caller is raised when it has ended."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            is_cancelled = True
    result = task.result()
    if is_cancelled:
        raise asyncio.CancelledError
    return result
