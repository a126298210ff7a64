"""What tests of most layers stand on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.testing import sim_loop


@pytest.fixture
def simulate() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on virtual time, with a shuffled order of what is ready."""
    return lambda main: sim_loop.run(main, seed=1)
