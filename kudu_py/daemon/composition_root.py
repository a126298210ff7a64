"""The composition root of both daemons: real disk, network, clock and pages, in the order in which they stand on each
other.

1. The data directory, and with it who this is. Its lock is let go last.
2. The RPC port, not served yet: a taken one is found out before any other file is touched, and replicas must know
   their address.
3. The server's parts, and the pages, which show how the rest starts.
4. The services: other servers ask for this one while it starts. Until the replicas are listed, calls are told that
   the server starts.
5. The replicas and what stands on them. Only then it is SERVING.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

from kudu_py.daemon import layout
from kudu_py.daemon.flags import Loaded
from kudu_py.daemon.options import CommonOptions, reachable_address
from kudu_py.daemon.process import Process, Ready
from kudu_py.daemon.start_number import take_start_number
from kudu_py.daemon.surroundings import ServiceRegistry, Surroundings
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.env.workers import ThreadWorkers
from kudu_py.rpc.dialer import DialerOptions, GrpcDialer
from kudu_py.rpc.server import RpcServer, RpcServerOptions
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.webui.app import make_app
from kudu_py.webui.page import Cell, DetailPage, Health, TablePage
from kudu_py.webui.server import WebServer

OptionsT = TypeVar("OptionsT", bound=CommonOptions)


class Server(Protocol):
    """What lives in the process, a master or a tablet server.

    Attributes:
        http_address: of its pages; may be empty. Set before `start`.
    """

    http_address: str

    def add_services(self, server: ServiceRegistry) -> None:
        """Registers its services, before the RPC server starts."""

    async def start(self) -> None:
        """Opens its replicas and begins to work; its services are reachable already."""

    async def drain(self) -> None:
        """Hands leaderships over, for a process on its way out; bounded in time."""

    async def stop(self) -> None:
        """Stops all parts; the RPC server takes no more calls already."""


class ServerPages(Protocol):
    """What the server shows over HTTP; see `webui.app.make_app`."""

    def health(self) -> Health: ...

    def facts(self) -> Iterable[tuple[str, Cell]]: ...

    def pages(self) -> Sequence[TablePage | DetailPage]: ...


Build = Callable[[OptionsT, Surroundings], tuple[Server, ServerPages]]
"""Puts the parts of a server together, from what the operator said and what it stands on; starts nothing."""


@asynccontextmanager
async def serve(process: Process, loaded: Loaded[OptionsT], build: Build[OptionsT]) -> AsyncIterator[Ready]:
    """With `build` bound, a `daemon.process.Serve`."""
    options = loaded.options
    assert options is not None, f"nothing is to be served: {loaded.request}"
    async with AsyncExitStack() as stack:
        threads = PosixDiskThreads()
        stack.callback(threads.close)
        workers = ThreadWorkers()
        stack.callback(workers.close)
        owned = layout.open_or_create(
            threads.disk,
            options.data_root,
            role=options.role,
            rng=process.rng,
            wall_micros=process.clock.wall_micros(),
            expected_uuid=options.expected_server_uuid,
        )
        stack.callback(owned.close)
        start_number = take_start_number(threads.disk, owned.root, process.clock.wall_micros())

        rpc_server = RpcServer(
            uuid=owned.uuid,
            registry=process.registry,
            options=RpcServerOptions(message_bytes_max=options.rpc_max_message_size),
        )
        bound = await rpc_server.bind(options.rpc_bind_address)
        address = options.advertised_address(bound, process.host_name)
        dialer = GrpcDialer(DialerOptions(message_bytes_max=options.rpc_max_message_size))
        stack.push_async_callback(dialer.close)

        server, pages = build(
            options,
            Surroundings(
                uuid=owned.uuid,
                address=address,
                start_number=start_number,
                start_time_micros=process.clock.wall_micros(),
                software_version=process.version,
                directories=ReplicaDirectories(owned.root),
                threads=threads,
                workers=workers,
                dialer=dialer,
                clock=process.clock,
                rng=process.rng,
                registry=process.registry,
                on_fatal=process.fatal,
            ),
        )
        if options.webserver_enabled:
            web = WebServer(
                make_app(
                    title=f"{options.role} {owned.uuid[:8]}",
                    registry=process.registry,
                    health=pages.health,
                    facts=pages.facts,
                    settings=loaded.values,
                    pages=pages.pages(),
                )
            )
            bound_http = await web.start(*options.webserver_bind_address)
            stack.push_async_callback(web.stop)
            server.http_address = reachable_address(bound_http, process.host_name)
        stack.push_async_callback(server.stop)
        server.add_services(rpc_server)
        # Pushed after the server's own stop, so done before: no call meets a half-stopped server.
        stack.push_async_callback(rpc_server.stop, options.shutdown_grace_ms / 1000)
        await rpc_server.start()
        await server.start()
        rpc_server.set_serving(True)

        async def leave() -> None:
            rpc_server.set_serving(False)
            await server.drain()

        process.on_drain("hand leaderships over", leave)
        yield Ready(owned.uuid, address, server.http_address)
