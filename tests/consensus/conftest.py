"""Groups on virtual time."""

from __future__ import annotations

import pytest

from kudu_py.consensus.peer_links import PeerLinkOptions, Transport


@pytest.fixture(params=[Transport.STREAM, Transport.UNARY], ids=lambda transport: transport.value)
def link_options(request: pytest.FixtureRequest) -> PeerLinkOptions:
    """Each test that takes this runs over both transports."""
    return PeerLinkOptions(transport=request.param)
