"""`Committer`: the only writer of the catalog. Lock, plan, replicate, publish, then let others act.

Every operation goes through these steps (seed 004, "Ensure strict ordering for all state changes"):

1. Take the locks it names: table names, then tables, then tablets, then tablet servers, each kind in the order of the
keys. One order for all, so that
   no two operations wait for each other. A *name* is locked while a table of that name is created: two creations of one
   name must not both find it free.
2. Plan on the published snapshot. A planner is a pure function; it cannot reach the published maps, so nothing
unreplicated is
   ever visible. If it refuses, nothing has happened.
3. Replicate the change as one batch. If that fails, the change is dropped, the locks are released and nothing has
happened. 4. From here on the operation cannot fail.
5. Publish by swapping the snapshot: tablets and tables at once, so that no reader sees one without the other. The
change is laid
   over the snapshot of that moment, not over the one it was planned on: others may have published meanwhile, but
       nothing
   that the locks guard.
6. Release the locks.
7. The reconciler is told which tablets changed and asks servers to act until they have.

The time from winning an election to losing the role is a *reign*. Its state is built from the sys catalog and
thrown away with it. If it ends while a change is being replicated, the caller is told that the outcome is unknown, and
the next reign finds the change in the sys catalog or not. If the sys catalog itself cannot tell what became of a
change, the reign ends too: no further plan may rest on a snapshot that may be missing something.

A caller that is cancelled stops waiting; from step 3 on the operation goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from enum import IntEnum, unique
from typing import NamedTuple, Protocol

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.state import CatalogState

_log = structlog.get_logger(__name__)

Plan = Callable[[CatalogState], CatalogChange]


class CatalogStore(Protocol):
    """Where changes are made durable."""

    async def write(self, change: CatalogChange) -> None:
        """Replicates the change as one batch; returns once it is committed and applied.

        Raises:
            KuduError: with verdict UNKNOWN if it may yet take effect; with any other it did not and will not.
        """


@unique
class LockKind(IntEnum):
    """What a lock guards, in locking order."""

    NAME = 0
    TABLE = 1
    TABLET = 2
    SERVER = 3
    OPERATION = 4


class LockKey(NamedTuple):
    """One lock; sorts in locking order."""

    kind: LockKind
    key: str


class Locks:
    """Exclusive locks by key, held by one operation each; first come, first served."""

    def __init__(self) -> None:
        self._waiting: dict[LockKey, list[asyncio.Future[None]]] = {}
        """By held key: who waits for it, in order. A key that is not here is free."""

    async def acquire(self, keys: Iterable[LockKey]) -> Callable[[], None]:
        """Takes all keys, in locking order; answers the function that releases them. Cancelling leaves none taken."""
        wanted = sorted(set(keys))
        held: list[LockKey] = []
        try:
            for key in wanted:
                await self._take(key)
                held.append(key)
        except BaseException:
            self._release(held)
            raise
        return lambda: self._release(held)

    def is_held(self, key: LockKey) -> bool:
        """Whether somebody has it."""
        return key in self._waiting

    @property
    def count(self) -> int:
        """Keys that are held."""
        return len(self._waiting)

    async def _take(self, key: LockKey) -> None:
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = []
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release([key])  # It was handed over in the very moment of the cancellation.
            raise

    def _release(self, keys: list[LockKey]) -> None:
        while keys:
            key = keys.pop()
            queue = self._waiting[key]
            while queue and queue[0].done():
                queue.pop(0)
            if queue:
                queue.pop(0).set_result(None)
            else:
                del self._waiting[key]


class Reign:
    """The time from winning an election to losing the role.

    Attributes:
        term: of the sys catalog's consensus.
        state: the published snapshot.
        ended: done when the reign is over.
    """

    def __init__(self, term: int, state: CatalogState) -> None:
        self.term = term
        self.state = state
        self.locks = Locks()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _none(_: CatalogState) -> Iterable[LockKey]:
    return ()


class Committer:
    """The only writer of the catalog, and where readers find the published snapshot.

    Args:
        store: the sys catalog.
        on_published: told of each change right after it is published.
        on_doubt: told of a reign that ended because the outcome of a write is unknown, so that a new one is begun.
    """

    def __init__(
        self,
        store: CatalogStore,
        *,
        on_published: Callable[[CatalogChange], None],
        on_doubt: Callable[[int], None],
    ) -> None:
        self._store = store
        self._on_published = on_published
        self._on_doubt = on_doubt
        self._reign: Reign | None = None
        self._reigns = asyncio.Event()
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def reign(self) -> Reign | None:
        """The present reign, if this master leads and has its catalog ready."""
        return self._reign

    def require_reign(self) -> Reign:
        """The present reign.

        Raises:
            KuduError: CATALOG_MANAGER_NOT_INITIALIZED (try later) if there is none. Ask first whether this master leads
            at all.
        """
        if self._reign is None:
            raise KuduError(
                ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
                "this master is still reading the catalog; ask again in a moment",
                verdict=Verdict.TRY_LATER,
            )
        return self._reign

    async def wait_for_reign(self, timeout_s: float) -> Reign | None:
        """The present reign, or the next one if it begins in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._reigns.wait()
        return self._reign

    def begin(self, term: int, state: CatalogState) -> Reign:
        """Serves `state`, which holds everything that was committed before `term`'s first own entry, from now on."""
        assert self._reign is None, f"the reign of term {self._reign.term} is not over"
        self._reign = Reign(term, state)
        self._reigns.set()
        return self._reign

    def end(self) -> None:
        """Drops the snapshot; whoever waits for a write is told that its outcome is unknown. Idempotent."""
        reign, self._reign = self._reign, None
        self._reigns.clear()
        if reign is not None and not reign.ended.done():
            reign.ended.set_result(None)

    async def commit(
        self, locks: Iterable[LockKey], plan: Plan, *, tablet_locks: Callable[[CatalogState], Iterable[LockKey]] = _none
    ) -> CatalogChange:
        """Carries out one operation; see the head of the module. Answers the change, which is published on return.

        Args:
            locks: with `tablet_locks`, of everything that the plan reads to decide, and changes.
            plan: called once with the locks held; an empty change replicates nothing.
            tablet_locks: asked once `locks` are held for more, which sort after those: which tablets a table has can
                only be told while the table is locked.

        Raises:
            KuduError: what `plan` raises; what replication fails with; UNAVAILABLE with verdict UNKNOWN if the role was
            lost
                meanwhile.
        """
        reign = self.require_reign()
        release = await self._acquire(reign, locks, tablet_locks)
        try:
            if self._reign is not reign:
                raise KuduError(
                    ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
                    "this master lost the role of leader before it began; ask again",
                    verdict=Verdict.TRY_LATER,
                )
            change = plan(reign.state)
            if change.is_empty:
                release()
                return change
        except BaseException:
            release()
            raise
        write = self._spawn(self._replicate_and_publish(reign, change))
        write.add_done_callback(lambda _: release())
        await asyncio.wait({write, reign.ended}, return_when=asyncio.FIRST_COMPLETED)
        if not write.done() or write.cancelled():
            raise KuduError(
                ErrorCode.UNAVAILABLE,
                "this master lost the role of leader while the change was replicated; look whether it took effect",
                verdict=Verdict.UNKNOWN,
            )
        write.result()
        return change

    async def close(self) -> None:
        """Ends the reign and waits for no write; what they end in is decided by the sys catalog."""
        self.end()
        writes = list(self._writes)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)

    async def _acquire(
        self,
        reign: Reign,
        locks: Iterable[LockKey],
        tablet_locks: Callable[[CatalogState], Iterable[LockKey]],
    ) -> Callable[[], None]:
        first = sorted(set(locks))
        release_first = await reign.locks.acquire(first)
        try:
            more = sorted(set(tablet_locks(reign.state)))
            assert not (first and more) or first[-1] < more[0], f"{more[0]} is taken after {first[-1]}"
            release_more = await reign.locks.acquire(more)
        except BaseException:
            release_first()
            raise

        def release() -> None:
            release_more()
            release_first()

        return release

    async def _replicate_and_publish(self, reign: Reign, change: CatalogChange) -> None:
        try:
            await self._store.write(change)
        except KuduError as error:
            if error.verdict is Verdict.UNKNOWN:
                self._doubt(reign, error)
            raise
        except BaseException as error:
            self._doubt(reign, error)
            raise
        if self._reign is reign:
            reign.state = reign.state.applying(change)
            self._on_published(change)

    def _doubt(self, reign: Reign, error: BaseException) -> None:
        if self._reign is reign:
            _log.warning("catalog_write_in_doubt", term=reign.term, error=str(error))
            self.end()
            self._on_doubt(reign.term)

    def _spawn(self, write: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(write, name="catalog write")
        self._writes.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # The caller may be gone; its error was for it alone.
