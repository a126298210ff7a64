"""host:port as operators write it."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.rpc.address import HostPort, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7051", HostPort("127.0.0.1", 7051)),
        ("host.example:0", HostPort("host.example", 0)),
        ("[::1]:7051", HostPort("::1", 7051)),
        (" h:1 ", HostPort("h", 1)),
    ],
)
def test_an_address_is_read_and_shown_again(text, expected):
    assert parse_address(text) == expected
    assert str(expected) == text.strip()


@pytest.mark.parametrize(
    "text", ["", ":1", "h", "h:", "h:x", "h:65536", "h:-1", "::1:7051", "[::1", "[::1]7051", "a b:1", "h:1/x", "h:٣"]
)
def test_another_form_is_refused_and_shown(text):
    with pytest.raises(KuduError, match="tserver_master_addrs must be host:port") as raised:
        parse_address(text, what="tserver_master_addrs")

    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    assert repr(text) in str(raised.value)


def test_a_default_port_is_for_addresses_without_one():
    assert parse_address("h", default_port=7051) == HostPort("h", 7051)
    assert parse_address("[::1]", default_port=7051) == HostPort("::1", 7051)
    assert parse_address("h:1", default_port=7051) == HostPort("h", 1)


def test_a_list_names_each_address_once():
    assert parse_addresses("a:1,b:2") == (HostPort("a", 1), HostPort("b", 2))
    with pytest.raises(KuduError, match="twice"):
        parse_addresses("a:1,a:1")
    with pytest.raises(KuduError, match="host:port"):
        parse_addresses("a:1,")
