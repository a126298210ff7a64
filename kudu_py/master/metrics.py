"""What a master counts, asked for when it is scraped."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from kudu_py.consensus.metrics import ConsensusCollector
from kudu_py.daemon.metrics import function_gauge
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.member_policy import MemberPolicy
from kudu_py.master.rebalancer import Rebalancer
from kudu_py.master.reconciler import Reconciler
from kudu_py.master.ts_registry import TsRegistry
from kudu_py.tablet.manager import TabletManager


def register_metrics(
    registry: CollectorRegistry,
    *,
    manager: TabletManager,
    committer: Committer,
    reconciler: Reconciler,
    policy: MemberPolicy,
    rebalancer: Rebalancer,
    servers: TsRegistry,
    clock: Clock,
) -> None:
    """Adds the master's metrics to its registry."""

    def tables() -> float:
        reign = committer.reign
        return float(len(reign.state.ids_by_name)) if reign is not None else 0.0

    def live() -> float:
        now_s = clock.monotonic()
        return float(sum(servers.is_live(server.uuid, now_s) for server in servers.servers))

    def open_operations() -> float:
        reign = committer.reign
        return float(len(reign.state.open_operations)) if reign is not None else 0.0

    registry.register(ConsensusCollector(manager))
    function_gauge(
        registry,
        "kudu_master_is_leader",
        "1 if this master leads and serves the catalog, else 0.",
        lambda: float(committer.reign is not None),
    )
    function_gauge(registry, "kudu_master_tables", "Tables in the catalog; 0 unless this master leads.", tables)
    function_gauge(registry, "kudu_master_live_tablet_servers", "Tablet servers heard of lately.", live)
    function_gauge(
        registry,
        "kudu_master_unsettled_tablets",
        "Tablets whose replicas are not yet what the catalog says; 0 unless this master leads.",
        lambda: float(reconciler.unsettled_count),
    )
    function_gauge(
        registry,
        "kudu_master_unrepairable_tablets",
        "Tablets that ought to get or lose a replica and cannot, for now; 0 unless this master leads.",
        lambda: float(policy.blocked_count),
    )
    function_gauge(
        registry,
        "kudu_master_open_operations",
        "Long operations that have not ended; 0 unless this master leads.",
        open_operations,
    )
    function_gauge(
        registry,
        "kudu_master_replica_skew",
        "Replicas of the tablet server with most less those of the one with fewest; 0 unless this master leads.",
        lambda: float(rebalancer.skews.replicas),
    )
    function_gauge(
        registry,
        "kudu_master_leader_skew",
        "Leaders of the tablet server with most less those of the one with fewest; 0 unless this master leads.",
        lambda: float(rebalancer.skews.leaders),
    )
    function_gauge(
        registry,
        "kudu_master_rebalancing_held",
        "1 if nothing is moved for the sake of balance because something else is to be done first, else 0.",
        lambda: float(rebalancer.is_held),
    )
