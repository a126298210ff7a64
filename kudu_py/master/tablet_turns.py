"""`TabletTurns`: whose turn it is to change the members of a tablet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kudu_py.common.ids import TabletId
from kudu_py.master.catalog.committer import LockKey, LockKind, Locks


class TabletTurns:
    """One at a time within this master: two changes that rest on the same config get in each other's way."""

    def __init__(self) -> None:
        self._locks = Locks()

    def is_taken(self, tablet_id: TabletId) -> bool:
        """Whether somebody is at it."""
        return self._locks.is_held(LockKey(LockKind.TABLET, tablet_id))

    @asynccontextmanager
    async def turn(self, tablet_id: TabletId) -> AsyncIterator[None]:
        """Waits for the turn, first come, first served, and keeps it. Waits for nothing if it is free."""
        release = await self._locks.acquire([LockKey(LockKind.TABLET, tablet_id)])
        try:
            yield
        finally:
            release()
