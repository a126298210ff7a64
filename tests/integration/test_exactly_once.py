"""Replies are lost again and again while a client inserts: every row is there once, and no caller hears of it."""

import random
import re
import urllib.request
from contextlib import ExitStack

import pytest

import kudu_py as kudu
from kudu_py.testing.process_cluster import ProcessCluster
from kudu_py.testing.tcp_proxy import TcpProxy
from kudu_py.testing.workload import WriteWorkload, make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TSERVERS = ("tserver-1", "tserver-2", "tserver-3")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A cluster whose tablet servers are reached, by clients and by each other, through proxies only."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ProcessCluster(tmp_path_factory.mktemp("proxied") / "playground"))
        proxies = {name: stack.enter_context(TcpProxy(cluster.daemon(name).rpc_address)) for name in TSERVERS}
        for name, proxy in proxies.items():
            cluster.terminate(name)
            cluster.restart(name, f"--rpc_advertised_addresses={proxy.address}")
        with kudu.connect(cluster.masters) as client:
            reached = {server.rpc_address for server in client.list_tablet_servers()}
            assert reached == {proxy.address for proxy in proxies.values()}
            yield cluster, client, list(proxies.values())


def retries_answered(cluster):
    total = 0
    for name in TSERVERS:
        with urllib.request.urlopen(f"http://{cluster.daemon(name).http_address}/metrics", timeout=10) as page:
            found = re.search(r"^kudu_tablet_write_retries_answered (\S+)$", page.read().decode(), re.MULTILINE)
        total += int(float(found[1]))
    return total


def test_inserts_whose_replies_are_lost_take_effect_once(proxied):
    cluster, client, proxies = proxied
    make_table(client, "replies_lost")
    rng = random.Random(7)
    with WriteWorkload(cluster.masters, "replies_lost") as workload:
        for _ in range(40):
            workload.wait_for_rounds(2)
            for proxy in proxies:
                if rng.random() < 0.5:
                    proxy.lose_next_reply()
        workload.wait_for_rounds(2)
    rows = workload.check(client)
    lost = sum(proxy.replies_lost for proxy in proxies)
    again = retries_answered(cluster)
    print(f"\n{rows} rows, {lost} connections lost replies, {again} writes were answered again; the longest pause "
          f"was {workload.longest_pause_s:.2f} s")  # fmt: skip
    assert lost > 40
    assert again > 0, "no reply to a write was lost: this shows nothing"
    cluster.wait_healthy()


def test_inserts_are_not_applied_twice_when_leaders_die_and_replies_are_lost(proxied):
    cluster, client, proxies = proxied
    make_table(client, "both")
    with WriteWorkload(cluster.masters, "both") as workload:
        for _ in range(2):
            workload.wait_for_rounds(10)
            for proxy in proxies:
                proxy.lose_next_reply()
            leader = cluster.kill(cluster.busiest_leader().name)
            workload.wait_for_rounds(5)
            for proxy in proxies:
                proxy.cut()
            cluster.restart(leader.name)
        workload.wait_for_rounds(10)
    workload.check(client)
    cluster.wait_healthy()


def test_unary_writes_are_exactly_once_too(proxied):
    cluster, _, proxies = proxied
    options = kudu.ClientOptions(stream_writes=False, operation_timeout_s=60.0)
    with kudu.connect(cluster.masters, options=options) as client:
        table = make_table(client, "unary", buckets=2)
        session = client.new_session("sync")
        for key in range(60):
            if key % 4 == 0:
                proxies[key // 4 % 3].lose_next_reply()
            session.apply(table.new_insert({"key": key, "value": key}))
        assert sorted(table.scanner().to_arrow()["key"].to_pylist()) == list(range(60))
