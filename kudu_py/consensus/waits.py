"""`Waits`: who waits until an entry is applied, or until a timestamp is safe to read."""

from __future__ import annotations

import asyncio

from kudu_py.common.errors import KuduError
from kudu_py.common.hybrid_time import HybridTime


class Waits:
    """Futures by what they wait for. Whoever gives up cancels its own and is forgotten at the next occasion."""

    def __init__(self) -> None:
        self._applied: list[tuple[int, asyncio.Future[int]]] = []
        self._safe: list[tuple[HybridTime, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._applied) + len(self._safe)

    def applied(self, index: int) -> asyncio.Future[int]:
        """Resolves with an applied index that is not below `index`."""
        applied: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._applied.append((index, applied))
        return applied

    def safe(self, timestamp: HybridTime) -> asyncio.Future[None]:
        """Resolves once `timestamp` is safe."""
        safe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._safe.append((timestamp, safe))
        return safe

    def note_applied(self, index: int) -> None:
        """Everything up to `index` is applied."""
        if not self._applied:
            return
        waits, self._applied = self._applied, []
        for wanted, applied in waits:
            if applied.done():
                continue
            if wanted > index:
                self._applied.append((wanted, applied))
            else:
                applied.set_result(index)

    def note_safe(self, safe_time: HybridTime) -> None:
        """Snapshots up to `safe_time` are complete."""
        if not self._safe:
            return
        waits, self._safe = self._safe, []
        for timestamp, safe in waits:
            if safe.done():
                continue
            if timestamp > safe_time:
                self._safe.append((timestamp, safe))
            else:
                safe.set_result(None)

    def fail_all(self, reason: KuduError) -> None:
        """The replica stops."""
        waits: list[asyncio.Future[int] | asyncio.Future[None]] = [
            *(applied for _, applied in self._applied),
            *(safe for _, safe in self._safe),
        ]
        self._applied.clear()
        self._safe.clear()
        for wait in waits:
            if not wait.done():
                wait.set_exception(reason)
