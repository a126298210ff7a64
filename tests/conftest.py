"""What tests of most layers stand on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import structlog

from kudu_py.daemon import logs
from kudu_py.testing import sim_loop


@pytest.fixture
def restored_logs() -> Iterator[None]:
    """Undoes what a test does to the process's logging."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    logs._process_fields.clear()


@pytest.fixture
def simulate() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on virtual time, with a shuffled order of what is ready."""
    return lambda main: sim_loop.run(main, seed=1)
