"""The master as a process: real disk, network, clock and pages, in the order in which they stand on each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from kudu_py.consensus.core.model import RaftOptions
from kudu_py.consensus.metrics import ConsensusCollector
from kudu_py.consensus.raft_consensus import ConsensusOptions
from kudu_py.daemon import layout
from kudu_py.daemon.flags import Loaded
from kudu_py.daemon.metrics import function_gauge
from kudu_py.daemon.options import MasterOptions, reachable_address
from kudu_py.daemon.process import Process, Ready
from kudu_py.env.clock import HybridClock
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.env.workers import ThreadWorkers
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.master import Master, MasterSurroundings
from kudu_py.master.pages import MasterPages
from kudu_py.rpc.dialer import DialerOptions, GrpcDialer
from kudu_py.rpc.server import RpcServer, RpcServerOptions
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.wal.options import WalOptions
from kudu_py.webui.app import make_app
from kudu_py.webui.server import WebServer

HISTORY_MAX_AGE_S = 600.0
"""The catalog is only read as of now; history would keep every version of every entry."""


@asynccontextmanager
async def serve(process: Process, loaded: Loaded[MasterOptions]) -> AsyncIterator[Ready]:
    """A composition root, see `daemon.process.Serve`.

    1. The data directory, and with it who this is. Its lock is let go last.
    2. The RPC port, not served yet: a taken one is found out before any other file is touched, and the replica must
       know its address.
    3. The pages, which show how the rest starts.
    4. The services: other masters ask for this one on a first start.
    5. The sys catalog, and what stands on it.
    """
    options = loaded.options
    assert options is not None
    async with AsyncExitStack() as stack:
        threads = PosixDiskThreads()
        stack.callback(threads.close)
        workers = ThreadWorkers()
        stack.callback(workers.close)
        owned = layout.open_or_create(
            threads.disk,
            absolute(options.fs_wal_dir),
            role=options.role,
            rng=process.rng,
            wall_micros=process.clock.wall_micros(),
            expected_uuid=options.expected_server_uuid,
        )
        stack.callback(owned.close)
        server = RpcServer(
            uuid=owned.uuid,
            registry=process.registry,
            options=RpcServerOptions(message_bytes_max=options.rpc_max_message_size),
        )
        bound = await server.bind(options.rpc_bind_address)
        dialer = GrpcDialer(DialerOptions(message_bytes_max=options.rpc_max_message_size))
        stack.push_async_callback(dialer.close)
        master = Master(
            MasterSurroundings(
                uuid=owned.uuid,
                address=options.advertised_address(bound, process.host_name),
                software_version=process.version,
                start_time_micros=process.clock.wall_micros(),
                master_addresses=options.all_master_addresses,
                directories=ReplicaDirectories(owned.root),
                threads=threads,
                workers=workers,
                dialer=dialer,
                clock=process.clock,
                hybrid_clock=HybridClock(process.clock),
                rng=process.rng,
                memory=MemoryBudget(options.memory_limit_bytes),
                replica_options=replica_options(options),
                catalog_options=catalog_options(options),
                on_fatal=process.fatal,
            )
        )
        measure(master, process.registry)
        master.http_address = await start_pages(master, process, loaded, stack)
        stack.push_async_callback(master.stop)
        # Pushed after the master's own stop, so done before: no call meets a half-stopped master.
        stack.push_async_callback(server.stop, options.shutdown_grace_ms / 1000)
        master.add_services(server, calls_in_flight_max=options.rpc_service_queue_length)
        await server.start()
        await master.start()
        server.set_serving(True)

        async def drain() -> None:
            server.set_serving(False)
            await master.drain()

        process.on_drain("master", drain)
        yield Ready(uuid=owned.uuid, rpc_address=master.address, http_address=master.http_address)


def absolute(path: str) -> str:
    """The path as disks take it. Does not wait: it only looks at the working directory's name."""
    return str(Path(path).absolute())


async def start_pages(master: Master, process: Process, loaded: Loaded[MasterOptions], stack: AsyncExitStack) -> str:
    """Starts the pages, if they are wanted; host:port under which they are reached."""
    options = loaded.options
    assert options is not None
    if not options.webserver_enabled:
        return ""
    pages = MasterPages(master, process.clock)
    app = make_app(
        title=f"master {master.registration().uuid[:8]}",
        registry=process.registry,
        health=pages.health,
        facts=pages.facts,
        settings=loaded.values,
        pages=pages.pages,
    )
    web = WebServer(app)
    wanted = options.webserver_bind_address
    bound = await web.start(wanted.host, wanted.port)
    stack.push_async_callback(web.stop)
    return reachable_address(bound, process.host_name)


def replica_options(options: MasterOptions) -> ReplicaOptions:
    """Of the sys catalog's replica."""
    return ReplicaOptions(
        consensus=ConsensusOptions(
            raft=RaftOptions(
                heartbeat_interval_s=options.raft_heartbeat_interval_ms / 1000,
                election_timeout_s=options.election_timeout_s,
                initial_election_timeout_s=min(RaftOptions().initial_election_timeout_s, options.election_timeout_s),
                check_invariants=options.raft_check_invariants,
            )
        ),
        log_retain_bytes=options.log_retain_mb << 20,
        wal=WalOptions(
            segment_size_bytes_min=min(WalOptions().segment_size_bytes_min, options.log_segment_size_mb << 20),
            segment_size_bytes_max=options.log_segment_size_mb << 20,
            disk_reserved_bytes=options.fs_wal_dir_reserved_bytes,
        ),
        tablet=TabletOptions(flush_bytes=options.flush_threshold_mb << 20),
        history_max_age_s=HISTORY_MAX_AGE_S,
    )


def catalog_options(options: MasterOptions) -> CatalogOptions:
    """Of the catalog."""
    return CatalogOptions(
        default_num_replicas=options.default_num_replicas,
        max_num_replicas=options.max_num_replicas,
        max_create_tablets_per_ts=options.max_create_tablets_per_ts,
        tserver_unresponsive_timeout_s=options.tserver_unresponsive_timeout_ms / 1000,
        tablet_creation_timeout_s=options.tablet_creation_timeout_ms / 1000,
        heartbeat_interval_s=options.heartbeat_interval_ms / 1000,
        table_locations_ttl_s=options.table_locations_ttl_ms / 1000,
    )


def measure(master: Master, registry: CollectorRegistry) -> None:
    def tables() -> float:
        reign = master.committer.reign
        return float(len(reign.state.ids_by_name)) if reign is not None else 0.0

    def live() -> float:
        servers = master.registry
        now_s = master.clock.monotonic()
        return float(sum(servers.is_live(server.uuid, now_s) for server in servers.servers))

    registry.register(ConsensusCollector(master.manager))
    function_gauge(
        registry,
        "kudu_master_is_leader",
        "1 if this master leads and serves the catalog, else 0.",
        lambda: float(master.committer.reign is not None),
    )
    function_gauge(registry, "kudu_master_tables", "Tables in the catalog; 0 unless this master leads.", tables)
    function_gauge(registry, "kudu_master_live_tablet_servers", "Tablet servers heard of lately.", live)
    function_gauge(
        registry,
        "kudu_master_unsettled_tablets",
        "Tablets whose replicas are not yet what the catalog says; 0 unless this master leads.",
        lambda: float(master.reconciler.unsettled_count),
    )
