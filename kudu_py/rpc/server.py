"""`RpcServer`: a `grpc.aio` server whose servicers are wrapped, with reflection and health built in."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.rpc.address import HostPort, parse_address
from kudu_py.rpc.calls import AddToServer, Wrapping, call_remaining_s
from kudu_py.rpc.health import HealthServicer
from kudu_py.rpc.options import METADATA_BYTES_MAX, OptionList
from kudu_py.rpc.reflection_pool import SymbolPool
from kudu_py.rpc.serve_stream import serve_stream

__all__ = ["RpcServer", "RpcServerOptions", "call_remaining_s", "serve_stream"]

_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


@dataclass(frozen=True, slots=True)
class RpcServerOptions:
    """How the server behaves.

    Attributes:
        message_bytes_max: the largest message either way.
        streams_per_connection_max: calls outstanding on one connection; gRPC makes a client wait with more.
        keepalive_time_ms, keepalive_timeout_ms: when a silent connection is tried, and when it counts as broken.
        ping_interval_min_ms: a client that pings more often is disconnected; below the keepalive of our dialer.
    """

    message_bytes_max: int = 64 << 20
    streams_per_connection_max: int = 1024
    keepalive_time_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000
    ping_interval_min_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def server_options(self) -> OptionList:
        """As gRPC takes them."""
        return [
            # Without this a second server shares the port and takes half of the connections, without a word.
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.max_concurrent_streams", self.streams_per_connection_max),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", self.ping_interval_min_ms),
        ]


class RpcServer:
    """One gRPC server of a daemon: `add` servicers, `start` (or `bind`, then `start`), `set_serving`, `stop`.

    Args:
        uuid: of this server; what the `dest_uuid` of requests must say.
        registry: where its metrics are registered.
    """

    def __init__(
        self, *, uuid: ServerId, registry: CollectorRegistry, options: RpcServerOptions = RpcServerOptions()
    ) -> None:
        self._wrapping = Wrapping(uuid=uuid, registry=registry)
        self._server = grpc.aio.server(options=options.server_options())
        self._health = HealthServicer()
        self._services: list[str] = []
        self._started = False
        self._address: str | None = None
        self.add(health_pb2_grpc.add_HealthServicer_to_server, self._health, checks_dest_uuid=False)

    def add(
        self, add_to_server: AddToServer, servicer: object, *, checks_dest_uuid: bool, in_flight_max: int | None = None
    ) -> None:
        """Registers a servicer; before `start`. See `Wrapping.handlers` for the arguments."""
        assert not self._started, "servicers are added before the server starts"
        wrapped = self._wrapping.handlers(
            add_to_server, servicer, checks_dest_uuid=checks_dest_uuid, in_flight_max=in_flight_max
        )
        for service, handlers in wrapped.items():
            self._mount(service, handlers)
            self._services.append(service)
            self._health.add(service)

    async def bind(self, bind_address: str) -> str:
        """Takes `host:port` without serving yet, for parts that must know the address before they are made.

        Returns it with the port in use, which the system chose if it was 0.

        A host name is resolved here and bound at one address: gRPC binds all that a name stands for, and is content
        when only some of them were free.

        Raises:
            KuduError: CONFIGURATION_ERROR that names the address, if it is taken or not of this machine.
        """
        assert self._address is None, f"bound at {self._address} already"
        wanted = parse_address(bind_address, what="rpc_bind_addresses")
        target = await _resolve(wanted)
        try:
            port = self._server.add_insecure_port(str(target))
        except RuntimeError as error:
            raise KuduError(
                ErrorCode.CONFIGURATION_ERROR,
                f"cannot listen at {wanted}: {_why_not(target)}; "
                "stop what listens there or choose another address with --rpc_bind_addresses",
                details={"address": str(wanted)},
            ) from error
        self._address = str(HostPort(wanted.host, port))
        return self._address

    async def start(self, bind_address: str | None = None) -> str:
        """Serves, at `bind_address` or where `bind` was told to, and returns the address; raises as `bind`."""
        if bind_address is not None:
            await self.bind(bind_address)
        assert self._address is not None, "an address is needed"
        self._add_reflection()
        self._started = True
        await self._server.start()
        return self._address

    def set_serving(self, serving: bool) -> None:
        """What the health service says from now on, of the server ("") and of each service."""
        self._health.set_serving(serving)

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, ends streams, gives calls under way `grace_s` seconds, cancels the rest. Idempotent."""
        self._health.set_serving(False)
        self._wrapping.end_streams()
        await self._server.stop(grace_s)

    def _add_reflection(self) -> None:
        """Reflection v1alpha, and the same under its v1 name, which tools ask for first.

        The messages are identical. v1 is not among the listed names: its descriptor is not compiled in, and tools that
        list all services would stumble over a name that cannot be described.
        """
        names = [*self._services, reflection.SERVICE_NAME]
        servicer = reflection.aio.ReflectionServicer(names, pool=SymbolPool())
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self._server)
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        self._mount(_REFLECTION_V1, {"ServerReflectionInfo": handler})

    def _mount(self, service: str, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_registered_method_handlers(service, handlers)


async def _resolve(address: HostPort) -> HostPort:
    """The address with its host as a number: the first IPv4 one of a name, else the first of any kind."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise KuduError(
            ErrorCode.CONFIGURATION_ERROR,
            f"cannot listen at {address}: the host is not known ({error.strerror})",
            details={"address": str(address)},
        ) from error
    chosen = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return HostPort(str(chosen[4][0]), address.port)


def _why_not(address: HostPort) -> str:
    """What the system says to a plain attempt; gRPC tells only its log."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(address)
            attempt.listen()
        except OSError as error:
            return error.strerror or str(error)
    return "it was taken a moment ago"
