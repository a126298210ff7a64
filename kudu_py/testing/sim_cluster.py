"""`SimCluster`: masters, tablet servers and clients in one loop, on virtual time, from one seed.

All of it is the real thing but disks, network, clocks and chance: what a seed did once it does again. See `SimWriters`
for callers that know what must be true afterwards, and `SimTrouble` for what happens to the cluster meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from kudu_py.client import Partitioning
from kudu_py.client.client import KuduClient, Table
from kudu_py.client.options import ClientOptions
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.master import MasterSettings
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, rows_of
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_master import SimMaster
from kudu_py.testing.sim_network import SimNetwork, SimNetworkOptions
from kudu_py.testing.sim_tserver import TESTING_SETTINGS, SimTabletServer
from kudu_py.testing.waiting import wait_until
from kudu_py.tserver.tablet_server import TabletServerSettings

SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.INT64),
        ColumnSchema("value", DataType.INT64, nullable=True),
        ColumnSchema("text", DataType.STRING, nullable=True),
    ),
    key_count=1,
)
_NETWORK = SimNetworkOptions()
_CATALOG = CatalogOptions()


class SimCluster:
    """A cluster. `start`, then `stop`.

    Attributes:
        masters, tservers: by number; more may be added while it runs.
    """

    def __init__(
        self,
        seed: int,
        *,
        masters: int = 1,
        tservers: int = 3,
        settings: TabletServerSettings = TESTING_SETTINGS,
        catalog: CatalogOptions = _CATALOG,
        network: SimNetworkOptions = _NETWORK,
    ) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(self.rng, network)
        self.master_addresses = tuple(f"master-{number}:7051" for number in range(masters))
        peers = self.master_addresses if masters > 1 else ()
        self.masters = [
            SimMaster.make(
                self.network,
                address,
                master_addresses=peers,
                settings=MasterSettings(replica=TESTING_OPTIONS, catalog=catalog),
            )
            for address in self.master_addresses
        ]
        self._settings = settings
        self.tservers: list[SimTabletServer] = []
        for _ in range(tservers):
            self.add_tserver()
        self._clients = 0

    @property
    def nodes(self) -> list[SimMaster | SimTabletServer]:
        """All servers."""
        return [*self.masters, *self.tservers]

    def add_tserver(self) -> SimTabletServer:
        """One more, not started yet."""
        address = f"tserver-{len(self.tservers)}:7050"
        tserver = SimTabletServer.make(
            self.network, address, master_addresses=self.master_addresses, settings=self._settings
        )
        self.tservers.append(tserver)
        return tserver

    async def start(self) -> None:
        """Starts all servers; returns when a master reigns and knows every tablet server."""
        await asyncio.gather(*(master.start() for master in self.masters))
        for tserver in self.tservers:
            await tserver.start()
        await self.wait_until(
            lambda: any(
                master.running is not None
                and master.running.committer.reign is not None
                and len(master.running.registry.servers) == len(self.tservers)
                for master in self.masters
            )
        )

    async def stop(self) -> None:
        """Stops those that run."""
        for node in reversed(self.nodes):
            if node.running is not None:
                await node.stop()

    def client(self, options: ClientOptions | None = None) -> KuduClient:
        """A client on a machine of its own; to be closed."""
        self._clients += 1
        return KuduClient(
            list(self.master_addresses),
            options=options or ClientOptions(),
            dialer=self.network.dialer(f"client-{self._clients}:1"),
            clock=SimClock(),
            rng=random.Random(self.rng.getrandbits(64)),
        )

    async def create_table(self, client: KuduClient, name: str, *, buckets: int = 2, replicas: int = 3) -> Table:
        """`key INT64, value INT64, text STRING`, hash-partitioned."""
        partitioning = Partitioning().add_hash_partitions(["key"], buckets) if buckets > 1 else Partitioning()
        return await client.create_table(name, SCHEMA, partitioning, replicas)

    def fatal(self) -> list[BaseException]:
        """What ended processes; the simulated disk's own end is not among it."""
        return [error for node in self.nodes for error in node.fatal]

    def replicas(self, tablet_id: str) -> list[TabletReplica]:
        """The replicas that run, on servers that run."""
        return [
            replica
            for tserver in self.tservers
            if tserver.running is not None
            for replica in tserver.running.manager.replicas()
            if replica.tablet_id == tablet_id and replica.state is ReplicaState.RUNNING
        ]

    def leader_of(self, tablet_id: str) -> SimTabletServer | None:
        """The server of the replica that leads, or believes so, in the latest term."""
        leading = [replica.consensus for replica in self.replicas(tablet_id) if replica.consensus.role is Role.LEADER]
        if not leading:
            return None
        latest = max(leading, key=lambda consensus: consensus.term)
        return next(tserver for tserver in self.tservers if tserver.uuid == latest.uuid)

    async def wait_until(self, holds: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Waits, in steps of virtual time, until something holds; fails if a process ended."""

        def looked() -> bool:
            assert not self.fatal(), self.fatal()
            return bool(holds())

        await wait_until(looked, timeout_s=timeout_s)

    async def settle(self, tablet_ids: Sequence[str], replicas: int = 3, *, at_rest: bool = True) -> None:
        """Waits until so many replicas of each tablet run, with a leader, and, if nobody writes any more, have applied
        the same."""

        def settled(tablet_id: str) -> bool:
            found = self.replicas(tablet_id)
            leader = self.leader_of(tablet_id)
            return (
                leader is not None
                and len(found) == replicas
                and (not at_rest or len({(replica.applied, replica.consensus.last_op_id) for replica in found}) == 1)
            )

        await self.wait_until(lambda: all(settled(tablet_id) for tablet_id in tablet_ids))

    def members(self, tablet_id: str) -> list[TabletReplica] | None:
        """The replicas of all members of the config that the leader has committed; None while there is no leader, a
        change under way, or a member that does not run or does not count."""
        leader = self.leader_of(tablet_id)
        if leader is None:
            return None
        consensus = leader.process.manager.replica(tablet_id).consensus
        voters = consensus.committed_config.voters
        if consensus.pending_config is not None or len(voters) < len(consensus.committed_config.members):
            return None
        found = [replica for replica in self.replicas(tablet_id) if replica.consensus.uuid in voters]
        return found if len(found) == len(voters) else None

    async def settle_members(self, tablet_ids: Sequence[str]) -> None:
        """Waits until each tablet has a leader and all its members have applied the same; nobody may write any more."""

        def settled(tablet_id: str) -> bool:
            members = self.members(tablet_id)
            return members is not None and len({(each.applied, each.consensus.last_op_id) for each in members}) == 1

        await self.wait_until(lambda: all(settled(tablet_id) for tablet_id in tablet_ids))

    def check_replicas_agree(self, tablet_ids: Sequence[str]) -> None:
        """All members of each tablet hold the same rows. To be called when they have settled."""
        for tablet_id in tablet_ids:
            members = self.members(tablet_id)
            assert members, f"tablet {tablet_id} has not settled"
            rows = [rows_of(replica) for replica in members]
            assert all(each == rows[0] for each in rows), f"the replicas of tablet {tablet_id} differ"
