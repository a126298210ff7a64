"""A scan of one tablet at a server that plays a script: its patience, and where it goes on."""

import asyncio
import random
from contextlib import aclosing

import pytest

from kudu_py.client.leader_probe import LeaderProbe
from kudu_py.client.location_cache import LocationCache, Replica, Tablet
from kudu_py.client.tablet_scan import ScanBroken, ScanContext, scan_tablet
from kudu_py.common.ids import ServerId
from kudu_py.common.partition import Partition
from kudu_py.pb import tserver_pb2
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceServicer, add_TabletServerServiceServicer_to_server
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_network import SimNetwork

ADDRESS = "tserver:7050"
UUID = ServerId("0" * 32)
TABLET = "1" * 32


class SlowServer(TabletServerServiceServicer):
    """Answers a row each time after a pause."""

    def __init__(self, pauses_s):
        self.pauses_s = pauses_s

    async def Scan(self, request, context):
        for pause_s in self.pauses_s:
            await asyncio.sleep(pause_s)
            yield tserver_pb2.ScanResponse(row_count=1, snapshot_timestamp=7)


class NoMaster:
    async def refresh_tablet(self, tablet_id):
        """Knows nothing new."""


async def rows_of_scan(server, *, timeout_s, taking_s=0.0):
    """The number of rows that a scan gives to somebody who takes so long for each."""
    rng = random.Random(1)
    network = SimNetwork(rng)
    listening = network.server(ADDRESS, UUID)
    listening.add(add_TabletServerServiceServicer_to_server, server, checks_dest_uuid=False)
    await listening.start()
    cache = LocationCache()
    cache.learn([Tablet(TABLET, Partition(()), 1, (Replica(UUID, ADDRESS),), UUID)])
    dialer = network.dialer("client:1")
    probe = LeaderProbe(dialer=dialer, cache=cache, timeout_s=1.0)
    context = ScanContext(cache, probe, NoMaster(), dialer, SimClock(), rng, silence_s=1.0)
    count = 0
    request = tserver_pb2.ScanRequest(count_only=True)
    async with aclosing(scan_tablet(context, TABLET, request, timeout_s=timeout_s)) as answers:
        async for answer in answers:
            count += answer.rows.num_rows
            await asyncio.sleep(taking_s)
    await probe.close()
    await listening.stop()
    return count


def test_a_scan_goes_on_as_long_as_each_answer_comes_in_time(simulate):
    assert simulate(rows_of_scan(SlowServer([3.0] * 5), timeout_s=4.0)) == 5


def test_the_time_in_which_nobody_takes_rows_is_not_the_servers(simulate):
    assert simulate(rows_of_scan(SlowServer([0.0, 12.0]), timeout_s=4.0, taking_s=10.0)) == 2


def test_a_scan_without_an_answer_in_time_breaks(simulate):
    with pytest.raises(ScanBroken, match=r"TIMED_OUT: the scan of tablet 1+ broke after some of its rows were read"):
        simulate(rows_of_scan(SlowServer([1.0, 5.0]), timeout_s=4.0))
