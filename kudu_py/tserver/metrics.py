"""What a tablet server counts, asked for when it is scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kudu_py.consensus.metrics import ConsensusCollector
from kudu_py.tablet.manager import TabletManager
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.tserver.maintenance import Maintenance
from kudu_py.tserver.scanners import Scanners


def register_metrics(
    registry: CollectorRegistry,
    *,
    manager: TabletManager,
    memory: MemoryBudget,
    scanners: Scanners,
    maintenance: Maintenance,
) -> None:
    """Adds the server's metrics to its registry."""
    registry.register(ConsensusCollector(manager))
    registry.register(_TabletServerCollector(manager, memory, scanners, maintenance))


class _TabletServerCollector(Collector):
    """Sums over the replicas: a label per tablet would make as many series as there are tablets."""

    def __init__(
        self, manager: TabletManager, memory: MemoryBudget, scanners: Scanners, maintenance: Maintenance
    ) -> None:
        self._manager = manager
        self._memory = memory
        self._scanners = scanners
        self._maintenance = maintenance

    def collect(self) -> Iterable[Metric]:
        replicas = GaugeMetricFamily("kudu_tablet_replicas", "Replicas by state.", labels=["state"])
        statuses = [replica.status() for replica in self._manager.replicas()]
        for state in ReplicaState:
            replicas.add_metric([state.value], sum(status.state is state for status in statuses))
        yield replicas
        yield _gauge("kudu_tablet_tombstones", "Deleted replicas that still vote.", len(self._manager.tombstones()))
        yield _gauge(
            "kudu_tablet_leaders",
            "Replicas that lead their group.",
            sum(replica.is_leader for replica in self._manager.replicas()),
        )
        yield _gauge(
            "kudu_tablet_live_rows", "Live rows of all replicas.", sum(status.row_count for status in statuses)
        )
        yield _gauge(
            "kudu_tablet_on_disk_bytes",
            "Rows and logs of all replicas on disk.",
            sum(status.on_disk_bytes for status in statuses),
        )
        yield _gauge(
            "kudu_tablet_memory_bytes",
            "Unflushed rows of all replicas in memory.",
            sum(status.memory_bytes for status in statuses),
        )
        yield _gauge(
            "kudu_memory_budget_used_bytes", "Unflushed rows and writes on their way.", self._memory.used_bytes
        )
        yield _gauge(
            "kudu_memory_budget_limit_bytes", "Above this use, writes are told to try later.", self._memory.limit_bytes
        )
        yield _gauge(
            "kudu_tablet_write_retries_answered",
            "Writes that had come before and got the same answer again, over the replicas that run.",
            sum(replica.retries_answered for replica in self._manager.replicas()),
        )
        yield _gauge("kudu_scans_running", "Scans under way.", len(self._scanners))
        yield CounterMetricFamily(
            "kudu_maintenance_flushes", "Flushes done since the start.", value=self._maintenance.flushes
        )
        yield CounterMetricFamily(
            "kudu_maintenance_compactions", "Compactions done since the start.", value=self._maintenance.compactions
        )


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value)
