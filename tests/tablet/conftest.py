"""Replica tests run on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.testing import sim_loop


@pytest.fixture
def simulate() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on virtual time."""
    return lambda main: sim_loop.run(main, seed=1)
