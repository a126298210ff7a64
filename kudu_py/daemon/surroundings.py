"""`Surroundings`: what a server stands on, whether a master or a tablet server, real or simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from kudu_py.common.ids import RandomBits, ServerId
from kudu_py.env.clock import Clock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.workers import Workers
from kudu_py.rpc.calls import AddToServer
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import RandomFraction
from kudu_py.tablet.directories import ReplicaDirectories


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
        start_time_micros: when the process started; names it among processes of the same uuid.
        software_version: what it says of itself.
        directories: where the replicas' files are.
        registry: where its metrics are registered.
        on_fatal: told that the process has to end.
    """

    uuid: ServerId
    address: str
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
