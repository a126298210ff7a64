"""Groups on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.consensus.peer_links import PeerLinkOptions, Transport
from kudu_py.testing import sim_loop


@pytest.fixture
def simulate() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on virtual time."""
    return lambda main: sim_loop.run(main, seed=1)


@pytest.fixture(params=[Transport.STREAM, Transport.UNARY], ids=lambda transport: transport.value)
def link_options(request: pytest.FixtureRequest) -> PeerLinkOptions:
    """Each test that takes this runs over both transports."""
    return PeerLinkOptions(transport=request.param)
