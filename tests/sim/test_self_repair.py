"""A cluster mends itself: servers that are gone for good are replaced, new ones are put to use, while writes go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_tserver import SimTabletServer
from kudu_py.testing.sim_writers import SimWriters

IMPATIENT = CatalogOptions(follower_unavailable_considered_failed_s=5.0, tserver_unresponsive_timeout_s=3.0)


@asynccontextmanager
async def written_to(cluster: SimCluster, *, buckets: int):
    """The tablets of a table under load; afterwards all acknowledged rows must be there, alike on all members."""
    await cluster.start()
    async with cluster.client() as client:
        table = await cluster.create_table(client, "t", buckets=buckets)
        tablet_ids = [tablet.tablet_id for tablet in await table.tablets()]
        writers = SimWriters(client, table, cluster.rng)
        writers.start()
        yield tablet_ids
        await writers.stop()
        await cluster.settle_members(tablet_ids)
        cluster.check_replicas_agree(tablet_ids)
        await writers.check()
    await cluster.stop()


def hosts(cluster: SimCluster, tablet_ids: Sequence[str]) -> list[list[str]]:
    """The servers of each tablet's voters, all of which run and count; empty for one that is not so."""
    return [sorted(member.consensus.uuid for member in cluster.members(tablet_id) or ()) for tablet_id in tablet_ids]


def test_replicas_of_a_server_that_is_gone_for_good_are_made_anew_elsewhere():
    async def main():
        cluster = SimCluster(7, tservers=4, catalog=IMPATIENT)
        async with written_to(cluster, buckets=3) as tablet_ids:
            await asyncio.sleep(2)
            gone = cluster.tservers[1]
            await gone.crash()

            await cluster.wait_until(
                lambda: all(len(each) == 3 and gone.uuid not in each for each in hosts(cluster, tablet_ids))
            )

    sim_loop.run(main(), seed=7)


def test_a_short_absence_moves_nothing():
    async def main():
        cluster = SimCluster(8, tservers=4, catalog=IMPATIENT)
        async with written_to(cluster, buckets=3) as tablet_ids:
            await asyncio.sleep(2)
            before = hosts(cluster, tablet_ids)
            away = cluster.tservers[1]
            await away.crash()
            await asyncio.sleep(2)
            await away.restart()
            await asyncio.sleep(20)

            assert hosts(cluster, tablet_ids) == before
            assert all(len(each) == 3 for each in before)

    sim_loop.run(main(), seed=8)


def test_a_restart_of_the_master_moves_nothing():
    async def main():
        cluster = SimCluster(9, tservers=4, catalog=IMPATIENT)
        async with written_to(cluster, buckets=3) as tablet_ids:
            await asyncio.sleep(2)
            before = hosts(cluster, tablet_ids)
            for _ in range(3):
                await cluster.masters[0].crash()
                await asyncio.sleep(4)
                await cluster.masters[0].restart()
                await asyncio.sleep(3)

            assert hosts(cluster, tablet_ids) == before

    sim_loop.run(main(), seed=9)


def test_an_empty_server_that_joins_gets_its_share():
    async def main():
        cluster = SimCluster(10, tservers=3)
        async with written_to(cluster, buckets=8) as tablet_ids:
            await asyncio.sleep(2)
            joined = cluster.add_tserver()
            await joined.start()

            await cluster.wait_until(
                lambda: sum(joined.uuid in each for each in hosts(cluster, tablet_ids)) == 6, timeout_s=600
            )

    sim_loop.run(main(), seed=10)


def test_a_server_that_lost_its_disk_comes_back_under_a_new_name_and_its_old_replicas_are_replaced():
    async def main():
        cluster = SimCluster(11, tservers=3, catalog=IMPATIENT)
        async with written_to(cluster, buckets=2) as tablet_ids:
            await asyncio.sleep(2)
            lost = cluster.tservers.pop(1)
            await lost.crash()
            found = SimTabletServer.make(
                cluster.network, lost.address, master_addresses=cluster.master_addresses, settings=lost.settings
            )
            cluster.tservers.append(found)
            await found.start()

            channel = cluster.network.dialer("admin:1").channel(lost.address)
            request = consensus_pb2.GetConsensusStateRequest(dest_uuid=lost.uuid)
            with pytest.raises(KuduError) as refused:
                await call(consensus_pb2_grpc.ConsensusServiceStub(channel).GetConsensusState(request, timeout=5.0))
            assert refused.value.code is ErrorCode.WRONG_SERVER_UUID
            await cluster.wait_until(
                lambda: all(len(each) == 3 and found.uuid in each for each in hosts(cluster, tablet_ids))
            )

    sim_loop.run(main(), seed=11)
