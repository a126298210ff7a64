"""The tablet server as a process: real disk, network, clock and pages, each on those that it needs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from kudu_py.consensus.core.model import RaftOptions
from kudu_py.consensus.peer_links import PeerLinkOptions
from kudu_py.consensus.raft_consensus import ConsensusOptions
from kudu_py.daemon.flags import Loaded
from kudu_py.daemon.layout import open_or_create
from kudu_py.daemon.options import TabletServerOptions, reachable_address
from kudu_py.daemon.process import Process, Ready
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.env.workers import ThreadWorkers
from kudu_py.rpc.dialer import DialerOptions, GrpcDialer
from kudu_py.rpc.server import RpcServer, RpcServerOptions
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tserver.heartbeater import HeartbeatOptions
from kudu_py.tserver.maintenance import MaintenanceOptions
from kudu_py.tserver.pages import TabletServerPages
from kudu_py.tserver.tablet_server import TabletServer, TabletServerSettings, TabletServerSurroundings
from kudu_py.wal.options import WalOptions
from kudu_py.webui.app import make_app
from kudu_py.webui.server import WebServer

_MESSAGE_OVERHEAD_BYTES = 64 << 10
"""What wraps a write on its way to a follower: entry, request, stream item; far less than this."""


def settings_of(options: TabletServerOptions) -> TabletServerSettings:
    """What the flags mean for the parts."""
    heartbeat_s = options.raft_heartbeat_interval_ms / 1000
    message_bytes_max = options.rpc_max_message_size
    first_segment_bytes = min(WalOptions().segment_size_bytes_min, options.log_segment_size_mb << 20)
    return TabletServerSettings(
        replica=ReplicaOptions(
            consensus=ConsensusOptions(
                raft=RaftOptions(
                    heartbeat_interval_s=heartbeat_s,
                    election_timeout_s=options.election_timeout_s,
                    initial_election_timeout_s=min(
                        RaftOptions().initial_election_timeout_s, options.election_timeout_s
                    ),
                    check_invariants=options.raft_check_invariants,
                ),
                append_bytes_max=min(ConsensusOptions().append_bytes_max, message_bytes_max // 2),
            ),
            links=PeerLinkOptions(message_bytes_max=min(PeerLinkOptions().message_bytes_max, message_bytes_max // 2)),
            wal=WalOptions(
                segment_size_bytes_min=first_segment_bytes,
                segment_size_bytes_max=options.log_segment_size_mb << 20,
                disk_reserved_bytes=options.fs_wal_dir_reserved_bytes,
            ),
            tablet=TabletOptions(flush_bytes=options.flush_threshold_mb << 20),
            # What a client can send must also fit into a message to a follower, else the tablet would stand still.
            write_bytes_max=min(ReplicaOptions().write_bytes_max, message_bytes_max - _MESSAGE_OVERHEAD_BYTES),
            log_retain_bytes=options.log_retain_mb << 20,
            history_max_age_s=float(options.tablet_history_max_age_sec),
            open_concurrently_max=options.num_tablets_to_open_simultaneously,
        ),
        heartbeat=HeartbeatOptions(
            interval_s=options.heartbeat_interval_ms / 1000, timeout_s=options.heartbeat_rpc_timeout_ms / 1000
        ),
        maintenance=MaintenanceOptions(
            flushes_max=options.maintenance_manager_num_threads,
            compactions_max=options.maintenance_manager_num_threads,
            flush_age_s=float(options.flush_threshold_secs),
        ),
        calls_max=options.rpc_service_queue_length,
        scanner_ttl_s=options.scanner_ttl_ms / 1000,
        memory_limit_bytes=options.memory_limit_bytes,
    )


@asynccontextmanager
async def serve(process: Process, loaded: Loaded[TabletServerOptions]) -> AsyncIterator[Ready]:
    """A composition root, see `daemon.process.Serve`.

    1. The data directory, and with it who this is. Its lock is let go last.
    2. The RPC port, not served yet: a taken one is found out before any file is touched, and replicas must know their
       address.
    3. The server's parts, and the pages, which show how it starts.
    4. Services: until the replicas are listed, calls are told that the server starts.
    5. The replicas, heartbeats and upkeep. Only then it is SERVING.
    """
    options = loaded.options
    assert options is not None
    async with AsyncExitStack() as stack:
        threads = PosixDiskThreads()
        stack.callback(threads.close)
        workers = ThreadWorkers()
        stack.callback(workers.close)
        owned = open_or_create(
            threads.disk,
            absolute(options.fs_wal_dir),
            role=options.role,
            rng=process.rng,
            wall_micros=process.clock.wall_micros(),
            expected_uuid=options.expected_server_uuid,
        )
        stack.callback(owned.close)

        rpc_server = RpcServer(
            uuid=owned.uuid,
            registry=process.registry,
            options=RpcServerOptions(message_bytes_max=options.rpc_max_message_size),
        )
        bound = await rpc_server.bind(options.rpc_bind_address)
        dialer = GrpcDialer(DialerOptions(message_bytes_max=options.rpc_max_message_size))
        stack.push_async_callback(dialer.close)

        server = TabletServer(
            TabletServerSurroundings(
                uuid=owned.uuid,
                address=options.advertised_address(bound, process.host_name),
                start_time_micros=process.clock.wall_micros(),
                software_version=process.version,
                fault_domain=options.fault_domain_or(process.host_name),
                master_addresses=options.master_addresses,
                directories=ReplicaDirectories(owned.root),
                threads=threads,
                workers=workers,
                dialer=dialer,
                clock=process.clock,
                rng=process.rng,
                registry=process.registry,
                on_fatal=process.fatal,
            ),
            settings_of(options),
        )
        server.http_address = await _serve_pages(server, process, loaded, stack)
        stack.push_async_callback(server.stop)
        server.add_services(rpc_server)
        # Stopped before the parts that its calls need.
        stack.push_async_callback(rpc_server.stop, options.shutdown_grace_ms / 1000)
        await rpc_server.start()
        await server.start()
        rpc_server.set_serving(True)

        async def leave() -> None:
            rpc_server.set_serving(False)
            await server.drain()

        process.on_drain("hand leaderships over", leave)
        yield Ready(owned.uuid, server.address, server.http_address)


def absolute(path: str) -> str:
    """The path as the disk wants it."""
    return os.path.abspath(path)


async def _serve_pages(
    server: TabletServer, process: Process, loaded: Loaded[TabletServerOptions], stack: AsyncExitStack
) -> str:
    """Starts the pages, if they are wanted; host:port under which they are reached."""
    options = loaded.options
    assert options is not None
    if not options.webserver_enabled:
        return ""
    pages = TabletServerPages(server, process.clock)
    app = make_app(
        title=f"tserver {server.manager.uuid[:8]}",
        registry=process.registry,
        health=pages.health,
        facts=pages.facts,
        settings=loaded.values,
        pages=pages.pages(),
    )
    web = WebServer(app)
    wanted = options.webserver_bind_address
    bound = await web.start(wanted.host, wanted.port)
    stack.push_async_callback(web.stop)
    return reachable_address(bound, process.host_name)
