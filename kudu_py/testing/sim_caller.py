"""`SimCaller`: somebody who asks something of a simulated cluster all the time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from kudu_py.testing.sim_cluster import SimCluster


class SimCaller(ABC):
    """Makes one call after another, each answered before the next.

    Attributes:
        done: answered calls by method. refused: reasons of those that were not.
    """

    def __init__(self, cluster: SimCluster, tablet_ids: Sequence[str], *, pause_s: float) -> None:
        """
        Args:
            tablet_ids: what the calls are about. pause_s: between two calls, on average.
        """
        self._cluster, self._tablet_ids, self._pause_s = cluster, tablet_ids, pause_s
        self._rng = cluster.rng
        self._task: asyncio.Task[None] | None = None
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Ends; a bug comes out here."""
        assert self._task is not None
        self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    @abstractmethod
    async def call_once(self) -> None:
        """Draws a call, makes it and notes how it ended."""

    async def _run(self) -> None:
        while True:
            await self.call_once()
            await asyncio.sleep(self._rng.random() * 2 * self._pause_s)
