"""`SimNode`: one server process after another on one simulated disk, network and clock, whatever the server is."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from prometheus_client import CollectorRegistry

from kudu_py.common.ids import ServerId, mint_id
from kudu_py.daemon.start_number import take_start_number
from kudu_py.daemon.surroundings import ServiceRegistry, Surroundings
from kudu_py.env.workers import InlineWorkers
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.testing.sim_network import SimNetwork, SimServer


class Server(Protocol):
    """What lives in the process."""

    def add_services(self, server: ServiceRegistry) -> None: ...
    async def start(self) -> None: ...
    async def drain(self) -> None: ...
    async def stop(self) -> None: ...
    async def abandon(self) -> None: ...


S = TypeVar("S", bound=Server)
SettingsT = TypeVar("SettingsT")


@dataclass(eq=False)
class SimNode(ABC, Generic[S, SettingsT]):
    """One server. Its disk outlives its process: `start` after `stop` or a crash finds what was durable.

    Attributes:
        settings: of the next process.
        fatal: what ended the process, if anything.
        running: the process. threads: its way to the disk.
    """

    uuid: ServerId
    address: str
    master_addresses: tuple[str, ...]
    settings: SettingsT
    network: SimNetwork
    disk: SimDisk
    clock: SimClock
    rng: random.Random
    fatal: list[BaseException] = field(default_factory=list)
    running: S | None = None
    server: SimServer | None = None
    threads: SimDiskThreads | None = None
    _crashed: list[S] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        network: SimNetwork,
        address: str,
        *,
        master_addresses: tuple[str, ...] = (),
        settings: SettingsT | None = None,
    ) -> Self:
        """A server with an empty disk that is not started yet; everything drawn from the network's rng.

        Args:
            master_addresses: of all masters; a master that is alone needs none.
            settings: `testing_settings` if not given.
        """
        disk = SimDisk(network.rng)
        disk.make_dir("/data")
        disk.sync_dir("/")
        return cls(
            uuid=ServerId(mint_id(network.rng)),
            address=address,
            master_addresses=master_addresses,
            settings=settings if settings is not None else cls.testing_settings(),
            network=network,
            disk=disk,
            clock=SimClock(),
            rng=random.Random(network.rng.getrandbits(64)),
        )

    @staticmethod
    @abstractmethod
    def testing_settings() -> SettingsT:
        """What tests run with."""

    @abstractmethod
    def build(self, surroundings: Surroundings) -> S:
        """The server, over these seams."""

    @property
    def process(self) -> S:
        """The process that runs."""
        assert self.running is not None, f"{self.address} does not run"
        return self.running

    async def start(self) -> None:
        """Starts the process."""
        fatal: list[BaseException] = []
        self.fatal = fatal  # of this process: what is heard of an earlier one, which crashed, is no news
        self.threads = SimDiskThreads(self.disk, self.rng)
        wall_micros = self.clock.wall_micros()
        self.running = self.build(
            Surroundings(
                uuid=self.uuid,
                address=self.address,
                start_number=take_start_number(self.disk, "/data", wall_micros),
                start_time_micros=wall_micros,
                software_version="simulated",
                directories=ReplicaDirectories("/data"),
                threads=self.threads,
                workers=InlineWorkers(),
                dialer=self.network.dialer(self.address),
                clock=self.clock,
                rng=self.rng,
                registry=CollectorRegistry(),
                on_fatal=fatal.append,
            )
        )
        self.server = self.network.server(self.address, self.uuid)
        self.running.add_services(self.server)
        await self.server.start()
        await self.running.start()

    async def stop(self) -> None:
        """Ends the process in good order."""
        await self.process.drain()
        assert self.server is not None
        await self.server.stop()
        await self.process.stop()
        self.running = None

    async def crash(self) -> None:
        """Power is cut: what was not synced is gone, or a part of it."""
        self.network.kill(self.address)
        if not self.disk.is_crashed:
            self.disk.power_cut()
        running, self.running = self.running, None
        if running is not None:
            self._crashed.append(running)  # its tasks wait for ever; nobody is to close them
            await running.abandon()

    async def restart(self) -> None:
        """After `crash` or `stop`."""
        if self.disk.is_crashed:
            self.disk.restart()
        await self.start()
