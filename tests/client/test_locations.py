"""How long a client goes by what a master once said of where tablets are."""

import asyncio

import pytest

import kudu_py as kudu
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.testing.sim_cluster import SimCluster

TTL_S = 30.0


@pytest.fixture
def with_table(simulate):
    """Runs `main(cluster, client, table)`; the table has a row, and the client knows where its tablets are."""

    def run(main):
        async def story():
            cluster = SimCluster(1, catalog=CatalogOptions(table_locations_ttl_s=TTL_S))
            await cluster.start()
            client = cluster.client()
            table = await cluster.create_table(client, "t")
            async with client.new_session() as session:
                await session.apply(table.new_insert((1, 1)))
            await main(cluster, client, table)
            await client.close()
            await cluster.stop()

        simulate(story())

    return run


def test_the_master_is_asked_again_once_its_answer_is_older_than_it_said(with_table):
    async def main(cluster, client, table):
        other = cluster.client()
        await other.delete_table("t")
        await other.close()

        assert len(await table.tablets()) == 2, "known, and new enough"
        await asyncio.sleep(TTL_S)
        with pytest.raises(kudu.KuduNotFound):
            await table.tablets()
        with pytest.raises(kudu.KuduNotFound):
            await table.scanner().count()

    with_table(main)


def test_old_locations_do_while_the_master_is_away(with_table):
    async def main(cluster, client, table):
        await cluster.masters[0].stop()
        await asyncio.sleep(TTL_S)

        async with asyncio.timeout(1):
            assert await table.scanner().count() == 1
        await asyncio.sleep(2 * client.options.admin_timeout_s)
        async with asyncio.timeout(1):
            assert await table.scanner().count() == 1
        session = client.new_session("sync")
        async with asyncio.timeout(1):
            await session.apply(table.new_insert((2, 2)))
        await cluster.masters[0].start()

    with_table(main)


def test_a_scan_finds_tablets_whose_known_servers_are_gone(simulate):
    async def main():
        cluster = SimCluster(1, tservers=4)
        await cluster.start()
        client = cluster.client()
        table = await cluster.create_table(client, "t", replicas=1)
        async with client.new_session() as session:
            for key in range(10):
                await session.apply(table.new_insert((key, 1)))
        known, reader = await opened(cluster)
        hosts = {tablet.replicas[0].uuid for tablet in await known.tablets()}
        free = next(tserver.uuid for tserver in cluster.tservers if tserver.uuid not in hosts)
        for tablet in await table.tablets():
            await move(cluster, tablet.tablet_id, tablet.replicas[0].uuid, free)
        for tserver in cluster.tservers:
            if tserver.uuid in hosts:
                await tserver.stop()

        async with asyncio.timeout(10):
            assert await known.scanner().count() == 10
        await reader.close()
        await client.close()
        await cluster.stop()

    simulate(main())


async def opened(cluster):
    """The table, by a client that knows where its tablets are, and the client."""
    client = cluster.client()
    table = await client.table("t")
    assert len(await table.tablets()) == 2
    return table, client


async def move(cluster, tablet_id, from_uuid, to_uuid):
    """Moves a replica; returns when the tablet has a leader there and nowhere else."""
    address = cluster.master_addresses[0]
    stub = master_pb2_grpc.MasterServiceStub(cluster.network.dialer("admin:1").channel(address))
    request = master_pb2.MoveReplicaRequest(tablet_id=tablet_id, from_ts_uuid=from_uuid, to_ts_uuid=to_uuid)
    await call(stub.MoveReplica(request, timeout=10), address=address, wrote=True)

    def moved():
        members = cluster.members(tablet_id)
        return members is not None and [member.consensus.uuid for member in members] == [to_uuid]

    await cluster.wait_until(moved)
