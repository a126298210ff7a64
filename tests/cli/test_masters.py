"""Servers as users name them."""

from __future__ import annotations

import pytest

from kudu_py.cli.masters import match_server
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb.master_pb2 import ListTabletServersResponse

SERVERS = [
    ListTabletServersResponse.Server(uuid="aaaa1" + "0" * 27, rpc_address="127.0.0.1:7050"),
    ListTabletServersResponse.Server(uuid="aaaa2" + "0" * 27, rpc_address="127.0.0.1:7150"),
]


@pytest.mark.parametrize("given", ["aaaa2" + "0" * 27, "aaaa2", "127.0.0.1:7150"])
def test_a_server_is_named_by_its_uuid_the_beginning_of_it_or_its_address(given):
    assert match_server(SERVERS, given) is SERVERS[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [("aaaa", "names several"), ("aaa", "names no"), ("127.0.0.1:7250", "names no"), ("", "names no")],
)
def test_a_name_of_none_or_several_is_refused_with_those_that_there_are(given, said):
    with pytest.raises(KuduError, match=said) as refused:
        match_server(SERVERS, given)

    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert all(server.uuid in refused.value.message for server in SERVERS)
