"""`host:port` as operators write it."""

from __future__ import annotations

from typing import NamedTuple

from kudu_py.common.errors import ErrorCode, KuduError


class HostPort(NamedTuple):
    """Where a server listens. `host` has no brackets, also for IPv6; port 0 asks the system to choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(address: str, *, what: str = "address", default_port: int | None = None) -> HostPort:
    """Reads `host:port`, `[ipv6]:port`, and without a port if there is a default.

    Raises:
        KuduError: INVALID_ARGUMENT that names `what` and shows the address.
    """
    text = address.strip()
    host, port_text = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise _refusal(address, what)
        port_text = rest[1:]
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    elif ":" in text:
        raise _refusal(address, what)  # an IPv6 address without brackets: where would the port begin?
    if port_text == "" and default_port is not None and not text.endswith(":"):
        port = default_port
    elif port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535:
        port = int(port_text)
    else:
        raise _refusal(address, what)
    if not host or any(c.isspace() or c in "/,[]" for c in host):
        raise _refusal(address, what)
    return HostPort(host, port)


def parse_addresses(
    addresses: str, *, what: str = "addresses", default_port: int | None = None
) -> tuple[HostPort, ...]:
    """Reads a comma-separated list without repetitions; empty parts are refused.

    Raises:
        KuduError: INVALID_ARGUMENT, as `parse_address`.
    """
    parsed = tuple(parse_address(part, what=what, default_port=default_port) for part in addresses.split(","))
    if len(set(parsed)) != len(parsed):
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"{what} names an address twice: {addresses[:256]!r}")
    return parsed


def _refusal(address: str, what: str) -> KuduError:
    return KuduError(
        ErrorCode.INVALID_ARGUMENT,
        f"{what} must be host:port, such as 127.0.0.1:7051 or [::1]:7051, not {address[:256]!r}",
    )
