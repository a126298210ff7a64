"""`SimLoop`: an asyncio loop on virtual time, deterministic from one seed.

Nothing ever waits: when no callback is ready the clock jumps to the next timer. There are no threads and no sockets.
With a seed, callbacks that are ready together run in a drawn order instead of first come, first served, which shows
code that relies on an order nobody promised it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimDeadlock(RuntimeError):
    """Nothing is ready and no timer is set: whatever is still awaited will never happen."""


class _SimSelector(selectors.BaseSelector):
    """Keeps the registrations of the loop's own self-pipe and, instead of waiting, moves the clock."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        self._real = selectors.SelectSelector()
        self._advance = advance

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._advance(timeout)
        return []

    def close(self) -> None:
        self._real.close()


class SimLoop(asyncio.SelectorEventLoop):
    """See the module. `time()` starts at `start` seconds and only moves when nothing is ready."""

    _ready: deque[asyncio.Handle]
    _clock_resolution: float

    def __init__(self, seed: int | None = None, *, start: float = 1_000.0) -> None:
        self._now = start
        self._rng = random.Random(seed) if seed is not None else None
        super().__init__(_SimSelector(self._jump))
        self._clock_resolution = (
            1e-9  # two timers a nanosecond apart are one moment; floats are that exact up to months
        )

    def time(self) -> float:
        return self._now

    def _jump(self, timeout: float | None) -> None:
        if timeout is None:
            raise SimDeadlock(f"at {self._now:.6f} nothing is ready and no timer is set")
        self._now += timeout

    def _run_once(self) -> None:
        if self._rng is not None and len(self._ready) > 1:
            handles = list(self._ready)
            self._rng.shuffle(handles)
            self._ready.clear()
            self._ready.extend(handles)
        super()._run_once()  # type: ignore[misc]  # private to asyncio, the same in all versions that we support

    def _write_to_self(self) -> None:
        """There is nobody to be woken: the loop never waits."""

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise AssertionError("there are no threads on virtual time; use the seam that has a simulated twin")


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Runs `main` to its end on a new `SimLoop`. Raises SimDeadlock if it can never end."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(seed)) as runner:
        return runner.run(main)
