"""The tablet server as a process: what the flags mean for its parts, and how they are put together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from kudu_py.daemon import composition_root
from kudu_py.daemon.flags import Loaded
from kudu_py.daemon.options import TabletServerOptions
from kudu_py.daemon.process import Process, Ready
from kudu_py.daemon.replica_flags import replica_options
from kudu_py.daemon.surroundings import Surroundings
from kudu_py.tserver.heartbeater import HeartbeatOptions
from kudu_py.tserver.maintenance import MaintenanceOptions
from kudu_py.tserver.pages import TabletServerPages
from kudu_py.tserver.tablet_server import TabletServer, TabletServerSettings


def serve(process: Process, loaded: Loaded[TabletServerOptions]) -> AbstractAsyncContextManager[Ready]:
    """A composition root, see `daemon.process.Serve`."""

    def build(options: TabletServerOptions, surroundings: Surroundings) -> tuple[TabletServer, TabletServerPages]:
        server = TabletServer(surroundings, settings_of(options, host_name=process.host_name))
        return server, TabletServerPages(server, surroundings.clock)

    return composition_root.serve(process, loaded, build)


def settings_of(options: TabletServerOptions, *, host_name: str) -> TabletServerSettings:
    """What the flags mean for the parts."""
    return TabletServerSettings(
        master_addresses=options.master_addresses,
        fault_domain=options.fault_domain_or(host_name),
        replica=replace(
            replica_options(options),
            history_max_age_s=float(options.tablet_history_max_age_sec),
            open_concurrently_max=options.num_tablets_to_open_simultaneously,
        ),
        heartbeat=HeartbeatOptions(
            interval_s=options.heartbeat_interval_ms / 1000, timeout_s=options.heartbeat_rpc_timeout_ms / 1000
        ),
        maintenance=MaintenanceOptions(
            flushes_max=options.maintenance_manager_num_threads,
            compactions_max=options.maintenance_manager_num_threads if options.enable_rowset_compaction else 0,
            flush_age_s=float(options.flush_threshold_secs),
        ),
        calls_max=options.rpc_service_queue_length,
        scanner_ttl_s=options.scanner_ttl_ms / 1000,
        memory_limit_bytes=options.memory_limit_bytes,
    )
