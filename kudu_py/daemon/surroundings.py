"""`Surroundings`: what a server stands on, whether a master or a tablet server, real or simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from kudu_py.common.ids import RandomBits, ServerId, TabletId
from kudu_py.daemon.disk_watch import DiskWatch
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.workers import Workers
from kudu_py.pb import common_pb2
from kudu_py.rpc.calls import AddToServer
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import RandomFraction
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.manager import TabletManager
from kudu_py.tablet.memory import MemoryBudget


class Chance(RandomBits, RandomFraction, Protocol):
    """What of `random.Random` a server draws with: ids, and timeouts."""


class ServiceRegistry(Protocol):
    """The server that services are added to, real or simulated."""

    def add(
        self, add_to_server: AddToServer, servicer: object, *, checks_dest_uuid: bool, in_flight_max: int | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The seams of one server, and who it is.

    Attributes:
        uuid: of this server.
        address: host:port under which others reach its services.
        start_number: names the process among those of the same uuid, and rises with each start.
        start_time_micros: when the process started.
        software_version: what it says of itself.
        directories: where the replicas' files are.
        registry: where its metrics are registered.
        on_fatal: told that the process has to end.
    """

    uuid: ServerId
    address: str
    start_number: int
    start_time_micros: int
    software_version: str
    directories: ReplicaDirectories
    threads: DiskThreads
    workers: Workers
    dialer: Dialer
    clock: Clock
    rng: Chance
    registry: CollectorRegistry
    on_fatal: Callable[[BaseException], None]

    def registration(self, *, http_address: str, fault_domain: str = "") -> common_pb2.ServerRegistration:
        """What the server says of itself."""
        return common_pb2.ServerRegistration(
            uuid=self.uuid,
            rpc_address=self.address,
            http_address=http_address,
            software_version=self.software_version,
            fault_domain=fault_domain,
            start_time_micros=self.start_time_micros,
        )

    def tablet_manager(
        self,
        options: ReplicaOptions,
        *,
        hybrid_clock: HybridClock,
        memory: MemoryBudget,
        on_report: Callable[[TabletId], None],
    ) -> TabletManager:
        """The server's replicas, not opened yet; see `TabletManager` for the arguments."""
        return TabletManager(
            uuid=self.uuid,
            address=self.address,
            directories=self.directories,
            threads=self.threads,
            workers=self.workers,
            dialer=self.dialer,
            clock=self.clock,
            hybrid_clock=hybrid_clock,
            rng=self.rng,
            options=options,
            memory=memory,
            on_report=on_report,
            on_fatal=self.on_fatal,
        )

    def disk_watch(self, manager: TabletManager, options: ReplicaOptions) -> DiskWatch:
        """The watch over the disk that the manager's replicas lie on."""
        return DiskWatch(
            threads=self.threads,
            directory=self.directories.root,
            reserved_bytes=options.wal.disk_reserved_bytes,
            logs_without_room=manager.logs_without_room,
        )
