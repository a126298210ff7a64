"""`Dialer`: address to channel, cached and bounded; the network seam."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import grpc.aio

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.rpc.address import parse_address
from kudu_py.rpc.options import METADATA_BYTES_MAX, OptionList


class Dialer(Protocol):
    """The way to other servers. Bound to one event loop."""

    def channel(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`; the same one each time, connecting by itself when used. Not to be closed by the
        caller.

        Raises:
            KuduError: INVALID_ARGUMENT if the address has another form; UNAVAILABLE if too many servers are dialled
                already.
        """

    def permit(self, address: str) -> AbstractAsyncContextManager[None]:
        """One of a bounded number of calls outstanding to the address: `async with dialer.permit(address): await
        stub...`.

        Waits for a free one, the longest waiter first. Long-lived streams need none: there are a few per server pair.
        """

    async def close(self) -> None:
        """Closes all channels; calls outstanding end as cancelled."""


@dataclass(frozen=True, slots=True)
class DialerOptions:
    """How channels behave.

    Attributes:
        message_bytes_max: the largest message either way.
        calls_per_channel_max: permits; beyond about a thousand unary calls outstanding grpcio 1.85 cancels some by
            itself.
        channels_max: addresses that may be dialled; addresses come from other servers' answers too, so they are
            bounded.
        reconnect_backoff_initial_ms, reconnect_backoff_max_ms: waits between connection attempts; gRPC's own maximum of
            two minutes would outlast every failover.
        connect_timeout_ms: how long one attempt may take. A dead host, unlike a dead process, does not refuse.
        keepalive_time_ms, keepalive_timeout_ms: when a silent connection is tried, and when it counts as broken.
    """

    message_bytes_max: int = 64 << 20
    calls_per_channel_max: int = 256
    channels_max: int = 1024
    reconnect_backoff_initial_ms: int = 50
    reconnect_backoff_max_ms: int = 200
    connect_timeout_ms: int = 1000
    keepalive_time_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def channel_options(self) -> OptionList:
        """As gRPC takes them."""
        return [
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.initial_reconnect_backoff_ms", self.reconnect_backoff_initial_ms),
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_backoff_max_ms),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # A proxy from the environment is meant for web pages; a cluster's traffic through it fails in puzzling
            # ways.
            ("grpc.enable_http_proxy", 0),
            # Our retry loop decides; gRPC's own would retry under it.
            ("grpc.enable_retries", 0),
        ]


class _Permit:
    """`async with` over one permit; a class because `contextlib`'s generators cost three times as much."""

    __slots__ = ("_permits",)

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits

    async def __aenter__(self) -> None:
        await self._permits.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._permits.release()


class _Peer(NamedTuple):
    """A channel and its permits."""

    channel: grpc.aio.Channel
    permits: asyncio.Semaphore


class GrpcDialer:
    """The real `Dialer`: plain-text gRPC channels. Made and used on one running event loop."""

    def __init__(self, options: DialerOptions = DialerOptions()) -> None:
        self._options = options
        self._channel_options = options.channel_options()
        self._peers: dict[str, _Peer] = {}
        self._closed = False

    def channel(self, address: str) -> grpc.aio.Channel:
        return self._peer(address).channel

    def permit(self, address: str) -> AbstractAsyncContextManager[None]:
        return _Permit(self._peer(address).permits)

    async def close(self) -> None:
        self._closed = True
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.channel.close() for peer in peers))

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            assert not self._closed, f"the dialer was closed before {address} was asked for"
            target = str(parse_address(address))
            if len(self._peers) >= self._options.channels_max:
                raise KuduError(
                    ErrorCode.UNAVAILABLE,
                    f"{address} is not dialled: connections to {len(self._peers)} other servers are open already",
                )
            channel = grpc.aio.insecure_channel(target, options=self._channel_options)
            peer = self._peers[address] = _Peer(channel, asyncio.Semaphore(self._options.calls_per_channel_max))
        return peer
