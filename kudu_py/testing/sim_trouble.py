"""`SimTrouble`: what happens to a simulated cluster while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kudu_py.testing.sim_cluster import SimCluster
from kudu_py.testing.sim_master import SimMaster
from kudu_py.testing.sim_tserver import SimTabletServer


class SimTrouble:
    """Faults of servers and network, one after another, drawn from the cluster's seed; `heal` ends them all."""

    def __init__(self, cluster: SimCluster, kinds: Sequence[str] = ()) -> None:
        """
        Args:
            kinds: names of the methods to draw from; all if none are given.
        """
        self._cluster, self._rng = cluster, cluster.rng
        self.log: list[str] = []
        table: dict[str, Callable[[], Awaitable[None]]] = {
            "crash_tserver": self.crash_tserver,
            "crash_leader": self.crash_leader,
            "crash_all": self.crash_all,
            "crash_master": self.crash_master,
            "restart_tserver": self.restart_tserver,
            "isolate": self.isolate,
            "cut": self.cut,
            "hang_disk": self.hang_disk,
            "step_clock": self.step_clock,
        }
        self._kinds = [(name, table[name]) for name in (kinds or table)]

    async def once(self) -> None:
        """One of them; returns when it is over."""
        name, happen = self._rng.choice(self._kinds)
        self.log.append(f"{asyncio.get_running_loop().time():.3f} {name}")
        await happen()

    async def heal(self) -> None:
        """Everything runs and is connected."""
        self._cluster.network.heal()
        for node in self._cluster.nodes:
            if node.running is None:
                await node.restart()

    async def crash_tserver(self) -> None:
        await self._crash(self._rng.choice(self._cluster.tservers))

    async def crash_leader(self) -> None:
        """Of whatever tablet."""
        tablet_ids = {
            replica.tablet_id
            for tserver in self._cluster.tservers
            if tserver.running is not None
            for replica in tserver.running.manager.replicas()
        }
        leader = self._cluster.leader_of(self._rng.choice(sorted(tablet_ids))) if tablet_ids else None
        if leader is not None:
            await self._crash(leader)

    async def crash_master(self) -> None:
        await self._crash(self._rng.choice(self._cluster.masters))

    async def crash_all(self) -> None:
        """At the same moment."""
        for node in self._cluster.nodes:
            await node.crash()
        await self._pause(0.5)
        for node in self._cluster.nodes:
            await node.restart()

    async def restart_tserver(self) -> None:
        """In good order."""
        tserver = self._rng.choice(self._cluster.tservers)
        await tserver.stop()
        await self._pause(1.0)
        await tserver.restart()

    async def isolate(self) -> None:
        tserver = self._rng.choice(self._cluster.tservers)
        self._cluster.network.isolate(tserver.address)
        await self._pause(5.0)
        self._cluster.network.heal()

    async def cut(self) -> None:
        """Between two servers, maybe in one direction only."""
        one, other = self._rng.sample(self._cluster.nodes, 2)
        self._cluster.network.cut(one.address, other.address, both_ways=self._rng.random() < 0.5)
        await self._pause(5.0)
        self._cluster.network.heal()

    async def hang_disk(self) -> None:
        """For a while, shorter than what a server takes for the end."""
        tserver = self._rng.choice(self._cluster.tservers)
        threads = tserver.threads
        assert threads is not None
        threads.hang()
        await self._pause(3.0)
        threads.release()

    async def step_clock(self) -> None:
        """A wall clock jumps, by less than what servers accept of each other."""
        self._rng.choice(self._cluster.nodes).clock.offset_s = self._rng.uniform(-4.0, 4.0)

    async def _crash(self, node: SimMaster | SimTabletServer) -> None:
        await node.crash()
        await self._pause(3.0)
        await node.restart()

    async def _pause(self, longest_s: float) -> None:
        await asyncio.sleep(self._rng.random() * longest_s)
