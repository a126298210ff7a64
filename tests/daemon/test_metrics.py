"""What every daemon tells of itself."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest

from kudu_py.daemon.metrics import LAG_WINDOW_S, LoopLag, function_gauge, new_registry
from kudu_py.testing import sim_loop


def test_build_memory_and_collections_are_there_and_every_name_is_ours():
    registry = new_registry(role="master", version="1.2.3")

    text = generate_latest(registry).decode()

    assert 'kudu_build_info{python="' in text
    assert 'version="1.2.3"' in text
    assert registry.get_sample_value("kudu_process_resident_memory_bytes") > 0
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert all(name.startswith("kudu_") for name in names)


def test_a_name_that_is_not_ours_is_a_bug():
    with pytest.raises(AssertionError):
        function_gauge(new_registry(role="master", version="0"), "things", "Things.", lambda: 0.0)


def test_the_loops_lag_is_the_worst_of_a_while_and_then_forgotten():
    registry = new_registry(role="master", version="0")

    async def main():
        lag = LoopLag(registry)
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(1.0)
        quiet = lag.worst_s
        asyncio.get_running_loop()._now += 0.25  # something held the loop up
        await asyncio.sleep(1.0)
        shown = registry.get_sample_value("kudu_event_loop_lag_seconds")
        await asyncio.sleep(LAG_WINDOW_S + 1.0)
        watch.cancel()
        return quiet, shown, lag.worst_s

    quiet, shown, later = sim_loop.run(main())

    assert quiet == pytest.approx(0.0, abs=1e-6)
    assert shown >= 0.15
    assert later == pytest.approx(0.0, abs=1e-6)
