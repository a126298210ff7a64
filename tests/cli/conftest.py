"""Commands are run in this process, and some set up its logging."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _logs(restored_logs: None) -> None:
    """Whatever a command did to logging is undone."""
