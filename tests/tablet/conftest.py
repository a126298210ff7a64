"""Fixtures of the row engine's tests."""

from __future__ import annotations

import pytest

from kudu_py.testing.tablet_rig import TabletRig


@pytest.fixture
def rig(tmp_path):
    """A tablet in a temporary directory with the usual three columns."""
    return TabletRig(str(tmp_path))
