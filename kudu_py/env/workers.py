"""`Workers`: CPU work off the loop, on a small pool whose kernels release the GIL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Workers(Protocol):
    """The seam for work that would hold the loop up: sorting, encoding, compaction. For disk work see `DiskThreads`."""

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `fn` off the loop. Arguments and result are handed over: nobody may change them meanwhile.

        Cancelling the caller does not stop `fn`. Exceptions of `fn` are raised here.
        """


class ThreadWorkers:
    """A few threads; worth it only for functions that spend their time in Arrow and NumPy, which release the GIL."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="worker")

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._pool.submit(fn, *args, **kwargs))

    def close(self) -> None:
        """Waits for running work, drops what has not begun. Blocks."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class InlineWorkers:
    """Does the work at once, on the loop: for virtual time, where threads would bring chance in, and for tools."""

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)  # a caller must expect that other things happen before the result
        return fn(*args, **kwargs)
