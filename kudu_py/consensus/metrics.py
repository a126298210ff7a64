"""What an operator sees of the replicas of a server; read when asked for, so that it costs a running replica
nothing."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kudu_py.consensus.lookup import ReplicaLookup


class ConsensusCollector(Collector):
    """Register it with the process's registry: `registry.register(ConsensusCollector(lookup))`.

    Sums over the server's replicas, and for what is behind the largest: a label per tablet would make as many series as
    there are tablets. Single replicas are on the page of tablets and in `GetConsensusState`.
    """

    def __init__(self, lookup: ReplicaLookup) -> None:
        self._lookup = lookup

    def collect(self) -> Iterable[Metric]:
        """One sample a metric."""
        replicas = [replica for _, replica in self._lookup.consensus_all()]
        yield GaugeMetricFamily(
            "kudu_raft_commit_lag_entries_max",
            "Most entries in a replica's log that are not known to be committed.",
            value=max((replica.last_op_id.index - replica.commit_index for replica in replicas), default=0),
        )
        yield GaugeMetricFamily(
            "kudu_raft_apply_lag_entries_max",
            "Most committed entries of a replica that are not applied.",
            value=max((replica.commit_index - replica.applied_index for replica in replicas), default=0),
        )
        yield GaugeMetricFamily(
            "kudu_raft_rounds_in_flight",
            "Own proposals that are not applied.",
            value=sum(replica.rounds_in_flight for replica in replicas),
        )
        yield GaugeMetricFamily(
            "kudu_raft_term_max",
            "Latest term of any replica.",
            value=max((replica.term for replica in replicas), default=0),
        )
        yield CounterMetricFamily(
            "kudu_raft_elections_started",
            "Elections that replicas campaigned in.",
            value=sum(replica.elections_started for replica in replicas),
        )
        yield CounterMetricFamily(
            "kudu_raft_elections_won",
            "Elections that replicas won.",
            value=sum(replica.elections_won for replica in replicas),
        )
        yield GaugeMetricFamily(
            "kudu_log_size_bytes",
            "Bytes of all log segments.",
            value=sum(replica.log.size_bytes for replica in replicas),
        )
        yield CounterMetricFamily(
            "kudu_log_batches_written",
            "Group commits: one write and one sync each.",
            value=sum(replica.log.batches_written for replica in replicas),
        )
