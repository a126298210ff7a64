"""`SimTabletServer`: a whole tablet server on virtual time, over simulated disk, network and clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from kudu_py.common.ids import ServerId, mint_id
from kudu_py.daemon.surroundings import Surroundings
from kudu_py.env.workers import InlineWorkers
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.testing.replica_group import TESTING_OPTIONS
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.testing.sim_network import SimNetwork, SimServer
from kudu_py.tserver.tablet_server import TabletServer, TabletServerSettings

TESTING_SETTINGS = TabletServerSettings(replica=TESTING_OPTIONS)


@dataclass(eq=False)
class SimTabletServer:
    """One server. Its disk outlives its process: `start` after `stop` or a crash finds what was durable.

    Attributes:
        fatal: what ended the process, if anything.
    """

    uuid: ServerId
    address: str
    master_addresses: tuple[str, ...]
    network: SimNetwork
    disk: SimDisk
    clock: SimClock
    rng: random.Random
    settings: TabletServerSettings = TESTING_SETTINGS
    fatal: list[BaseException] = field(default_factory=list)
    running: TabletServer | None = None
    server: SimServer | None = None

    @classmethod
    def make(
        cls,
        network: SimNetwork,
        address: str,
        *,
        master_addresses: tuple[str, ...] = (),
        settings: TabletServerSettings = TESTING_SETTINGS,
    ) -> SimTabletServer:
        """A server with an empty disk that is not started yet; everything drawn from the network's rng."""
        disk = SimDisk(network.rng)
        disk.make_dir("/data")
        disk.sync_dir("/")
        return cls(
            uuid=ServerId(mint_id(network.rng)),
            address=address,
            master_addresses=master_addresses,
            network=network,
            disk=disk,
            clock=SimClock(),
            rng=random.Random(network.rng.getrandbits(64)),
            settings=settings,
        )

    @property
    def tablet_server(self) -> TabletServer:
        """The process that runs."""
        assert self.running is not None, f"server {self.uuid} does not run"
        return self.running

    async def start(self) -> None:
        """Starts the process."""
        self.fatal.clear()
        self.running = TabletServer(
            Surroundings(
                uuid=self.uuid,
                address=self.address,
                start_time_micros=self.clock.wall_micros(),
                software_version="simulated",
                directories=ReplicaDirectories("/data"),
                threads=SimDiskThreads(self.disk, self.rng),
                workers=InlineWorkers(),
                dialer=self.network.dialer(self.address),
                clock=self.clock,
                rng=self.rng,
                registry=CollectorRegistry(),
                on_fatal=self.fatal.append,
            ),
            replace(self.settings, master_addresses=self.master_addresses, fault_domain=self.address),
        )
        self.server = self.network.server(self.address, self.uuid)
        self.running.add_services(self.server)
        await self.server.start()
        await self.running.start()

    async def stop(self) -> None:
        """Ends the process in good order."""
        running = self.tablet_server
        await running.drain()
        assert self.server is not None
        await self.server.stop()
        await running.stop()
        self.running = None

    async def crash(self) -> None:
        """Power is cut: what was not synced is gone, or a part of it."""
        self.network.kill(self.address)
        if not self.disk.is_crashed:
            self.disk.power_cut()
        running, self.running = self.running, None
        if running is not None:
            await running.abandon()

    async def restart(self) -> None:
        """After `crash` or `stop`."""
        if self.disk.is_crashed:
            self.disk.restart()
        await self.start()
