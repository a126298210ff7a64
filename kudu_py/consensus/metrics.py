"""What an operator sees of the replicas of a server; read when asked for, so that it costs a running replica
nothing."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kudu_py.consensus.core.model import Role
from kudu_py.consensus.lookup import ReplicaLookup


class ConsensusCollector(Collector):
    """Register it with the process's registry: `registry.register(ConsensusCollector(lookup))`."""

    def __init__(self, lookup: ReplicaLookup) -> None:
        self._lookup = lookup

    def collect(self) -> Iterable[Metric]:
        """One sample per replica and metric."""
        term = GaugeMetricFamily("kudu_raft_term", "Latest term the replica knows.", labels=["tablet"])
        leads = GaugeMetricFamily("kudu_raft_is_leader", "1 if the replica leads its group.", labels=["tablet"])
        lag = GaugeMetricFamily(
            "kudu_raft_commit_lag_entries", "Entries in the log that are not known to be committed.", labels=["tablet"]
        )
        apply_lag = GaugeMetricFamily(
            "kudu_raft_apply_lag_entries", "Committed entries that are not applied.", labels=["tablet"]
        )
        rounds = GaugeMetricFamily(
            "kudu_raft_rounds_in_flight", "Own proposals that are not applied.", labels=["tablet"]
        )
        started = CounterMetricFamily(
            "kudu_raft_elections_started", "Elections the replica campaigned in.", labels=["tablet"]
        )
        won = CounterMetricFamily("kudu_raft_elections_won", "Elections the replica won.", labels=["tablet"])
        log_bytes = GaugeMetricFamily("kudu_log_size_bytes", "Bytes of the replica's log segments.", labels=["tablet"])
        batches = CounterMetricFamily(
            "kudu_log_batches_written", "Group commits of the replica's log.", labels=["tablet"]
        )
        for tablet_id, replica in self._lookup.consensus_all():
            labels = [tablet_id]
            term.add_metric(labels, replica.term)
            leads.add_metric(labels, replica.role is Role.LEADER)
            lag.add_metric(labels, replica.last_op_id.index - replica.commit_index)
            apply_lag.add_metric(labels, replica.commit_index - replica.applied_index)
            rounds.add_metric(labels, replica.rounds_in_flight)
            started.add_metric(labels, replica.elections_started)
            won.add_metric(labels, replica.elections_won)
            log_bytes.add_metric(labels, replica.log.size_bytes)
            batches.add_metric(labels, replica.log.batches_written)
        return [term, leads, lag, apply_lag, rounds, started, won, log_bytes, batches]
