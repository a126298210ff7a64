"""What an operator's graphs show of tablet copies; read when asked for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kudu_py.tablet.tablet_copy.board import CopyProgressBoard, CopyState
from kudu_py.tablet.tablet_copy.source import CopySessions


class CopyCollector(Collector):
    """Register it with the process's registry, once a server."""

    def __init__(self, board: CopyProgressBoard, sessions: CopySessions) -> None:
        self._board = board
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        """One sample a metric and label."""
        to_here = self._board.copies_to_here()
        by_state = GaugeMetricFamily(
            "kudu_tablet_copy_target_sessions", "Copies to this server that have not ended.", labels=["state"]
        )
        for state in (CopyState.QUEUED, CopyState.FETCHING, CopyState.INSTALLING):
            by_state.add_metric([state.value], sum(copy.state is state for copy in to_here))
        yield by_state
        yield GaugeMetricFamily(
            "kudu_tablet_copy_source_sessions", "Open sessions of copies from this server.", value=len(self._sessions)
        )
        yield GaugeMetricFamily(
            "kudu_tablet_copy_log_handovers",
            "Logs that are kept after a copy until the leader hears of the new replica.",
            value=self._sessions.handovers,
        )
        yield CounterMetricFamily(
            "kudu_tablet_copy_fetched_bytes", "Bytes fetched by copies to this server.", value=self._board.bytes_fetched
        )
        yield CounterMetricFamily(
            "kudu_tablet_copy_resumed_bytes",
            "Bytes that copies to this server did not fetch, since an earlier one had.",
            value=self._board.bytes_resumed,
        )
        yield CounterMetricFamily(
            "kudu_tablet_copy_sent_bytes", "Bytes sent for copies from this server.", value=self._board.bytes_sent
        )
        ended = CounterMetricFamily(
            "kudu_tablet_copy_ended", "Copies to this server that ended, by outcome.", labels=["outcome"]
        )
        for state, count in self._board.copies_ended.items():
            ended.add_metric([state.value], count)
        yield ended
