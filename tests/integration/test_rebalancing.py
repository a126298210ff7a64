"""Real processes spread replicas and leaders by themselves while they are written to."""

from __future__ import annotations

import pytest

import kudu_py as kudu
from kudu_py.pb import master_pb2
from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, run_command, wait_until
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CONFIG = """
[master]
auto_rebalancing_interval_seconds = 0.5
rebalance_cooldown_s = 1.0
[tserver]
heartbeat_interval_ms = 200
"""


def test_an_empty_fourth_server_is_filled_while_rows_come_in(tmp_path):
    with ProcessCluster(tmp_path / "playground", config=CONFIG) as cluster, kudu.connect(cluster.masters) as client:
        make_table(client, "metrics", buckets=4)
        with AdminCalls(cluster) as admin:

            def operations(*, include_ended: bool) -> list[master_pb2.Operation]:
                request = master_pb2.ListOperationsRequest(include_ended=include_ended)
                return list(admin.master().ListOperations(request).operations)

            def is_even() -> bool:
                told = admin.master().GetBalance(master_pb2.GetBalanceRequest())
                shares = [(each.replicas, each.leaders) for each in told.servers]
                is_quiet = not told.holds and not told.steps and not operations(include_ended=False)
                return shares == [(3, 1)] * 4 and is_quiet

            with WriteWorkload(cluster.masters, "metrics") as workload:
                run_command("playground", "add_tserver", "--dir", str(cluster.directory))
                wait_until(is_even, "replicas and leaders to be even", 60.0)
            assert workload.errors == []
            moves = [(each.kind, each.state) for each in operations(include_ended=True)]
            assert moves == [(master_pb2.MOVE_REPLICA, master_pb2.Operation.DONE)] * 3
        assert cluster.wait_healthy()["notes"] == []
        workload.check(client)
