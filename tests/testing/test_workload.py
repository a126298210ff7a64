"""The writer of the process tests knows how fast it was."""

from __future__ import annotations

import pytest

from kudu_py.testing.workload import WriteWorkload


def test_throughput_is_counted_in_whole_windows_between_two_times():
    workload = WriteWorkload("nowhere:1", "t")
    workload.acknowledged_at = [(9.9, 7), (10.0, 50), (11.9, 50), (12.0, 100), (15.99, 10), (16.5, 1000)]

    assert workload.rows_per_s(10.0, 16.9, 2.0) == pytest.approx([50.0, 50.0, 5.0])
