"""The metrics of a process: one registry, handed to whoever measures, and what every daemon tells of itself.

Names begin with `kudu_` and end in their unit. Whoever counts on a hot path looks its label children up once and
keeps them.
"""

from __future__ import annotations

import asyncio
import gc
import platform
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.process_collector import ProcessCollector

LAG_PERIOD_S = 0.1
"""How often the loop's lag is taken; short enough to meet stalls that a caller would feel."""

LAG_WINDOW_S = 15.0
"""The gauge shows the worst of this long, so that a scrape every 15 s misses none."""


def new_registry(*, role: str, version: str) -> CollectorRegistry:
    """A registry with what every daemon tells: build, CPU, memory, files, garbage collections."""
    registry = CollectorRegistry()
    ProcessCollector(namespace="kudu", registry=registry)
    build = Gauge(
        "kudu_build_info", "Always 1; the labels say what runs.", ["role", "version", "python"], registry=registry
    )
    build.labels(role, version, platform.python_version()).set(1)
    function_gauge(
        registry,
        "kudu_gc_full_collections",
        "Full collections of Python's garbage collector since the start; each stops the process for a moment.",
        lambda: float(gc.get_stats()[2]["collections"]),
    )
    return registry


def function_gauge(registry: CollectorRegistry, name: str, help: str, value: Callable[[], float]) -> Gauge:
    """A gauge that asks for its value when it is scraped, and costs nothing otherwise."""
    assert name.startswith("kudu_"), f"{name} must begin with kudu_"
    gauge = Gauge(name, help, registry=registry)
    gauge.set_function(value)
    return gauge


class LoopLag:
    """How late the event loop runs its timers: the delay that anything else on the loop feels as well."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._recent: deque[float] = deque(maxlen=round(LAG_WINDOW_S / LAG_PERIOD_S))
        function_gauge(
            registry,
            "kudu_event_loop_lag_seconds",
            f"How late the event loop ran a timer, at worst, within the last {LAG_WINDOW_S:.0f} s.",
            lambda: self.worst_s,
        )

    @property
    def worst_s(self) -> float:
        """The worst within the window."""
        return max(self._recent, default=0.0)

    async def watch(self) -> None:
        """Measures until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._recent.append(max(0.0, loop.time() - wanted))
