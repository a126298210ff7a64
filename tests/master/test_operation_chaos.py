"""Long operations under faults, from a seed: each ends, and the tablets are what was wanted in the end."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import master_pb2
from kudu_py.testing import sim_loop
from kudu_py.testing.sim_admin import SimAdmin
from kudu_py.testing.sim_cluster import SimCluster

PATIENCE_S = 15.0


async def live_through(seed: int) -> int:
    """Operations while masters and tablet servers lose power; how many were begun."""
    catalog = CatalogOptions(follower_unavailable_considered_failed_s=PATIENCE_S, tserver_unresponsive_timeout_s=5.0)
    cluster = SimCluster(seed, masters=3, tservers=5, catalog=catalog)
    await cluster.start()
    rng = cluster.rng
    async with cluster.client() as client:
        table = await cluster.create_table(client, "t", buckets=3)
        tablet_ids = [tablet.tablet_id for tablet in await table.tablets()]
        admin = SimAdmin(cluster, tablet_ids)
        begun: set[str] = set()
        for _ in range(8):
            await begin(admin, cluster, tablet_ids, begun)
            victim = rng.choice(cluster.nodes)
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            await victim.crash()
            await asyncio.sleep(rng.uniform(0.0, 5.0))
            await victim.restart()
        for server in cluster.tservers:  # Those that are retired are taken back, for the rest to have a place.
            await calm(admin, "ChangeTabletServerMode", ts_uuid=server.uuid, mode=master_pb2.NORMAL)
        deadline_s = asyncio.get_running_loop().time() + 300
        while True:
            answer = await calm(admin, "ListOperations", include_ended=True)
            if answer is not None and all(operation.ended_micros for operation in answer.operations):
                break
            assert asyncio.get_running_loop().time() < deadline_s, answer
            await asyncio.sleep(1)
        assert begun <= {operation.operation_id for operation in answer.operations}, "what was acknowledged is there"
        await cluster.wait_until(lambda: settled(cluster, tablet_ids))
    assert not cluster.fatal()
    await cluster.stop()
    return len(begun)


async def begin(admin: SimAdmin, cluster: SimCluster, tablet_ids: list[str], begun: set[str]) -> None:
    rng = cluster.rng
    one, other = (server.uuid for server in rng.sample(cluster.tservers, 2))
    match rng.randrange(5):
        case 0:
            answer = await calm(admin, "ChangeVotingReplicaCount", table_name="t", count=rng.choice([1, 3, 5]))
        case 1:
            answer = await calm(admin, "RetireTabletServer", ts_uuid=one)
        case 2 if begun:
            await calm(admin, "CancelOperation", operation_id=rng.choice(sorted(begun)))
            return
        case _:
            tablet_id = rng.choice(tablet_ids)
            answer = await calm(admin, "MoveReplica", tablet_id=tablet_id, from_ts_uuid=one, to_ts_uuid=other)
    if answer is not None:
        begun.add(answer.operation_id)


async def calm(admin: SimAdmin, method: str, **fields):
    """The answer of whoever leads; None if it was refused for good, or no master answers for long."""
    for _ in range(40):
        try:
            return await admin.ask(method, getattr(master_pb2, f"{method}Request")(**fields))
        except KuduError as error:
            if error.code is ErrorCode.INTERNAL:
                raise
            if error.code is not ErrorCode.NOT_THE_LEADER:
                return None
        await asyncio.sleep(0.25)
    return None


def settled(cluster: SimCluster, tablet_ids: list[str]) -> bool:
    """Whether a master reigns and every tablet has the voters that it is meant to have, and no other member."""
    reign = next((m.process.committer.reign for m in cluster.masters if m.running and m.process.committer.reign), None)
    if reign is None:
        return False
    state = reign.state
    assert not state.open_operations
    for tablet_id in tablet_ids:
        config = state.tablets[tablet_id].config
        if not len(config.voters) == len(config.members) == state.wanted_voters(state.tablets[tablet_id]):
            return False
    return all(cluster.members(tablet_id) is not None for tablet_id in tablet_ids)


@pytest.mark.parametrize("seed", range(2))
def test_every_operation_ends_and_tablets_are_what_was_wanted(seed):
    assert sim_loop.run(live_through(seed), seed=seed) > 0
