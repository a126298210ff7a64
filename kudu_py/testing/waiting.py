"""`wait_until`: for what a test waits for although nobody tells when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(
    holds: Callable[[], object],
    *,
    timeout_s: float = 60.0,
    step_s: float = 0.01,
    state: Callable[[], object] | None = None,
) -> None:
    """Looks in steps of the loop's time, which on a `SimLoop` is virtual, until something holds.

    Args:
        step_s: 0 looks at every turn of the loop.
        state: what the error shows if it did not come to hold in time.

    Raises:
        AssertionError: not within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not holds():
        if loop.time() > deadline:
            shown = f"; {state()}" if state is not None else ""
            raise AssertionError(f"did not come to hold within {timeout_s:g} s{shown}")
        await asyncio.sleep(step_s)
