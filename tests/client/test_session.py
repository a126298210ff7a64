"""Sessions against a simulated cluster: rows that were given have an outcome, whatever ends the waiting for it."""

import asyncio

import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.testing.sim_cluster import SimCluster


@pytest.fixture
def with_table(simulate):
    """Runs `main(cluster, client, table)`; the client's options are keyword arguments."""

    def run(main, **options):
        async def story():
            cluster = SimCluster(1)
            await cluster.start()
            client = cluster.client(kudu.ClientOptions(**options))
            table = await cluster.create_table(client, "t")
            await main(cluster, client, table)
            await client.close()
            await cluster.stop()

        simulate(story())

    return run


async def reconnected(cluster, **options):
    """A client that has not asked where tablets are, and its handle of the table."""
    client = cluster.client(kudu.ClientOptions(**options))
    return client, await client.table("t")


def test_rows_that_could_not_be_placed_are_told_of_by_flush(with_table):
    async def main(cluster, _client, _table):
        client, table = await reconnected(cluster, admin_timeout_s=2.0)
        session = client.new_session()
        for key in range(3):
            await session.apply(table.new_insert((key, 1)))
        await cluster.masters[0].stop()

        with pytest.raises(kudu.KuduUnavailable, match="3 rows were not applied; the first: UNAVAILABLE: no master"):
            await session.flush()

        assert [error.row["key"] for error in session.get_pending_errors()[0]] == [0, 1, 2]
        await session.flush()
        await cluster.masters[0].start()
        assert await table.scanner().count() == 0
        await client.close()

    with_table(main)


def test_a_flush_that_is_cancelled_leaves_the_rest_to_the_next(with_table):
    async def main(cluster, _client, _table):
        client, table = await reconnected(cluster)
        session = client.new_session()
        for key in range(10):
            await session.apply(table.new_insert((key, 1)))
        flushing = asyncio.create_task(session.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)

        assert session.has_pending_operations()
        await session.flush()

        assert await table.scanner().count() == 10
        await client.close()

    with_table(main)


def test_a_flush_goes_behind_the_rows_of_a_flush_that_waits_for_room(with_table):
    async def main(_cluster, client, table):
        others = client.new_session("background")
        for key in range(4):
            await others.apply(table.new_upsert((key, 0)))
        assert not client.budget.try_take(40), "there is room"
        session = client.new_session()
        for key in (1, 2):
            await session.apply(table.new_upsert((key, 1)))
        first = asyncio.create_task(session.flush())
        await asyncio.sleep(0)
        await session.apply(table.new_upsert((2, 2)))
        await session.flush()

        assert sorted(await table.scanner().read_all_tuples())[1:3] == [(1, 1, None), (2, 2, None)]
        assert not session.has_pending_operations()
        await first

    with_table(main, buffered_bytes_max=200)


async def apply_and_flush(session, table):
    await session.apply(table.new_upsert((1, 2)))
    await session.flush()


@pytest.mark.parametrize("mode", ["sync", "background", "manual"])
def test_rows_given_after_the_client_was_closed_are_refused(with_table, mode):
    async def main(_cluster, client, table):
        session = client.new_session(mode)
        await session.apply(table.new_upsert((1, 1)))
        await session.flush()
        await client.close()

        async with asyncio.timeout(60):
            with pytest.raises(kudu.KuduBadStatus, match="the client is closed"):
                await apply_and_flush(session, table)
        with pytest.raises(kudu.KuduBadStatus, match="the client is closed"):
            await session.write(table, pa.record_batch([pa.array([1])], ["key"]))

    with_table(main)


@pytest.mark.parametrize("mode", ["sync", "background"])
def test_rows_that_wait_for_room_when_the_client_is_closed_are_told(with_table, mode):
    async def main(cluster, client, table):
        session = client.new_session(mode)
        await session.apply(table.new_upsert((1, 1)))
        for tserver in cluster.tservers:
            await tserver.stop()
        waiting = [asyncio.create_task(session.apply(table.new_upsert((key, 1)))) for key in range(10)]
        await asyncio.sleep(1)
        await client.close()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            if mode == "background":
                with pytest.raises(kudu.KuduBadStatus, match="10 rows were not applied"):
                    await session.flush()
            else:
                assert [isinstance(outcome, kudu.KuduBadStatus) for outcome in outcomes] == [True] * 10
        assert client.budget.taken == 0
        assert not session.has_pending_operations()

    with_table(main, buffered_bytes_max=100)
