"""The master as a process: what the flags mean for its parts, and how they are put together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from kudu_py.daemon import composition_root
from kudu_py.daemon.flags import Loaded
from kudu_py.daemon.options import MasterOptions
from kudu_py.daemon.process import Process, Ready
from kudu_py.daemon.replica_flags import replica_options
from kudu_py.daemon.surroundings import Surroundings
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.master import Master, MasterSettings
from kudu_py.master.pages import MasterPages
from kudu_py.master.rebalancer import RebalancerOptions

HISTORY_MAX_AGE_S = 600.0
"""The catalog is only read as of now; history would keep every version of every entry."""


def serve(process: Process, loaded: Loaded[MasterOptions]) -> AbstractAsyncContextManager[Ready]:
    """A composition root, see `daemon.process.Serve`."""
    return composition_root.serve(process, loaded, _build)


def settings_of(options: MasterOptions) -> MasterSettings:
    """What the flags mean for the parts."""
    return MasterSettings(
        master_addresses=options.all_master_addresses,
        replica=replace(replica_options(options), history_max_age_s=HISTORY_MAX_AGE_S),
        catalog=CatalogOptions(
            default_num_replicas=options.default_num_replicas,
            max_num_replicas=options.max_num_replicas,
            max_create_tablets_per_ts=options.max_create_tablets_per_ts,
            tserver_unresponsive_timeout_s=options.tserver_unresponsive_timeout_ms / 1000,
            tablet_creation_timeout_s=options.tablet_creation_timeout_ms / 1000,
            heartbeat_interval_s=options.heartbeat_interval_ms / 1000,
            table_locations_ttl_s=options.table_locations_ttl_ms / 1000,
            follower_unavailable_considered_failed_s=options.follower_unavailable_considered_failed_sec,
            copies_per_server_max=options.max_copies_per_server,
        ),
        rebalancer=RebalancerOptions(
            enabled=options.auto_rebalancing_enabled,
            interval_s=options.auto_rebalancing_interval_seconds,
            moves_per_server_max=options.auto_rebalancing_max_moves_per_server,
            cooldown_s=options.rebalance_cooldown_s,
        ),
        flush_age_s=float(options.flush_threshold_secs),
        calls_max=options.rpc_service_queue_length,
        memory_limit_bytes=options.memory_limit_bytes,
    )


def _build(options: MasterOptions, surroundings: Surroundings) -> tuple[Master, MasterPages]:
    master = Master(surroundings, settings_of(options))
    return master, MasterPages(master, surroundings.clock)
