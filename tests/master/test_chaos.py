"""Masters under faults, from a seed: what was acknowledged holds, what was refused did not happen."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.pb import master_pb2


class Oracle:
    """A client that creates and deletes tables, and what may be true after each answer."""

    def __init__(self, world, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.may_be: dict[str, set[bool]] = {f"t{n}": {False} for n in range(6)}

    async def run(self) -> None:
        while True:
            name = self.rng.choice(sorted(self.may_be))
            creates = self.rng.random() < 0.6
            try:
                if creates:
                    await self.world.create(name)
                else:
                    node = await self.world.reigning()
                    await self.world.call(node, "DeleteTable", master_pb2.DeleteTableRequest(table_name=name))
            except KuduError as error:
                self._refused(name, error, creates)
            else:
                assert (not creates) in self.may_be[name], f"{name}: {'created' if creates else 'deleted'} twice"
                self.may_be[name] = {creates}
            await asyncio.sleep(self.rng.random() * 0.2)

    def _refused(self, name: str, error: KuduError, creates: bool) -> None:
        if error.verdict is Verdict.UNKNOWN:
            self.may_be[name] |= {creates}
        elif error.code is ErrorCode.TABLE_ALREADY_PRESENT:
            assert True in self.may_be[name], f"{name} is said to exist"
            self.may_be[name] = {True}
        elif error.code is ErrorCode.TABLE_NOT_FOUND:
            assert False in self.may_be[name], f"{name} is said not to exist"
            self.may_be[name] = {False}
        else:
            assert error.verdict is Verdict.TRY_LATER, error

    async def check(self) -> None:
        """Against the leader's answer, and its published state against the sys catalog."""
        node = await self.world.reigning()
        answer = await self.world.call(node, "ListTables", master_pb2.ListTablesRequest())
        present = {table.name for table in answer.tables}
        for name, allowed in self.may_be.items():
            assert (name in present) in allowed, f"{name}: {name in present}, but may be {allowed}"
        assert await node.process.sys_catalog.load() == node.process.committer.require_reign().state


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masters", [1, 3])
def test_acknowledged_changes_hold_through_power_cuts(simulate, masters, seed):
    async def story(world):
        rng = random.Random(seed)
        oracles = Oracle(world, rng)
        client = asyncio.create_task(oracles.run())
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.3, 3.0))
            victim = rng.choice(world.masters)
            await victim.crash()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            await victim.restart()
        await asyncio.sleep(3)
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client  # an assertion of the oracle comes out here
        await oracles.check()

    simulate(story, masters=masters, seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_changes_hold_while_masters_are_cut_off(simulate, seed):
    async def story(world):
        rng = random.Random(seed)
        oracle = Oracle(world, rng)
        client = asyncio.create_task(oracle.run())
        for _ in range(5):
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            lonely, *others = rng.sample(world.masters, 3)
            for other in others:
                world.network.cut(lonely.address, other.address)
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            world.network.heal()
        await asyncio.sleep(5)
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
        await oracle.check()

    simulate(story, masters=3, seed=seed)
