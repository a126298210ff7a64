"""`CopyTarget`: one copy to this server while it is under way: what it remembers, and how it is ended early."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.tablet.copy_order import CopyOrder
from kudu_py.tablet.metadata import Superblock

T = TypeVar("T")


class CopyTarget:
    """A copy, from the moment it is accepted to its end.

    Attributes:
        order: what was asked for.
        remembered: the tombstone that answers candidates meanwhile; None while there is none: until the replica that
            lived is deleted, and once the consensus metadata is being merged.
        copying: the superblock on disk while it says COPYING.
        ended: resolved when the replica is in a state of rest again.
    """

    def __init__(self, order: CopyOrder, remembered: Superblock | None) -> None:
        self.order = order
        self.remembered = remembered
        self.copying: Superblock | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._work: asyncio.Task[object] | None = None
        self._is_cancelled = False
        self._is_installing = False

    async def interruptible(self, work: Coroutine[object, object, T]) -> T:
        """Does what may take long and may be cut short at any point: waits for a turn, fetches.

        Raises:
            asyncio.CancelledError: the copy was cancelled; not the caller.
        """
        if self._is_cancelled:
            work.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(work, name=f"copy {self.order.tablet_id}")
        self._work = task
        try:
            return await task
        finally:
            self._work = None

    def begin_install(self) -> None:
        """From now on it goes through to its end: what remains is short, and half of it is not left behind.

        Raises:
            asyncio.CancelledError: it was cancelled before.
        """
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._is_installing = True
        self.remembered = None

    def cancel(self) -> None:
        """Ends it; `ended` says when.

        Raises:
            KuduError: ILLEGAL_STATE: all is fetched, and the replica is about to run.
        """
        if self._is_installing:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"the copy of tablet {self.order.tablet_id} has fetched everything and is being put in place",
                verdict=Verdict.TRY_LATER,
            )
        self._is_cancelled = True
        if self._work is not None:
            self._work.cancel()
