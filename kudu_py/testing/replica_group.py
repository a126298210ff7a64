"""Servers that host tablet replicas, on virtual time: real `TabletManager`s over simulated disks, network and clocks.

A `ReplicaHost` is what a tablet server is without its own services and heartbeats; a `ReplicaGroup` some of them that
share a network. Tables have the columns `key INT64, value INT64 nullable, text STRING nullable` unless told otherwise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kudu_py.common.errors import KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId, mint_id
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, RaftOptions
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.service import ConsensusServicer
from kudu_py.env.clock import HybridClock
from kudu_py.env.workers import InlineWorkers
from kudu_py.pb import tserver_pb2
from kudu_py.pb.consensus_pb2_grpc import add_ConsensusServiceServicer_to_server
from kudu_py.pb.tablet_copy_pb2_grpc import add_TabletCopyServiceServicer_to_server
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.manager import NewTablet, TabletManager
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet_copy.service import TabletCopyServicer
from kudu_py.tablet.tablet_copy.source import CopySessions
from kudu_py.tablet.tablet_replica import TabletReplica
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import SimDisk, SimDiskThreads
from kudu_py.testing.sim_network import SimNetwork, SimNetworkOptions, SimServer
from kudu_py.testing.waiting import wait_until

SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.INT64, column_id=0),
        ColumnSchema("value", DataType.INT64, nullable=True, column_id=1),
        ColumnSchema("text", DataType.STRING, nullable=True, column_id=2),
    ),
    key_count=1,
)
TESTING_OPTIONS = ReplicaOptions(
    consensus=ConsensusOptions(raft=RaftOptions(check_invariants=True)), log_retain_bytes=0
)
DEFAULT_NETWORK = SimNetworkOptions()
Row = tuple[int, int | None, str | None]


def batch_of(
    rows: Sequence[Row], operation: RowOperation = RowOperation.INSERT, *, schema: Schema = SCHEMA
) -> RowBatch:
    """Rows of `SCHEMA` with one operation."""
    keys, values, texts = zip(*rows, strict=True)
    arrays = [pa.array(keys, pa.int64()), pa.array(values, pa.int64()), pa.array(texts, pa.string())]
    record_batch = pa.RecordBatch.from_arrays(arrays, names=list(schema.names))
    return RowBatch(schema, np.full(len(rows), operation, np.uint8), record_batch, tuple(range(len(schema.columns))))


def request_of(
    tablet_id: str,
    batch: RowBatch,
    *,
    client_id: str = "",
    sequence: int = 0,
    first_attempt_time: int = 0,
) -> tserver_pb2.WriteRequest:
    """A client's Write."""
    return tserver_pb2.WriteRequest(
        tablet_id=tablet_id,
        schema_version=batch.schema.version,
        rows=batch.encode(),
        client_id=client_id,
        sequence=sequence,
        first_attempt_time=first_attempt_time,
        column_ids=batch.column_ids,
        has_unset_column=batch.unset is not None,
    )


def rows_of(replica: TabletReplica, timestamp: HybridTime | None = None) -> list[Row]:
    """All rows of a replica, by key; by default as of what it has applied, without asking anybody."""
    at = replica.tablet.applied_timestamp if timestamp is None else timestamp
    spec = ScanSpec(columns=SCHEMA.names, timestamp=at)
    rows: list[Row] = []
    for record_batch in replica.tablet.scan(spec):
        rows.extend(zip(*(column.to_pylist() for column in record_batch.columns), strict=True))
    return sorted(rows)


@dataclass(eq=False)
class ReplicaHost:
    """One server. Its disk outlives its process: `start` after `stop` or a crash finds what was durable.

    Attributes:
        fatal: what ended the process, if anything.
        reports: tablets that something was reported of.
        halted: of processes that ended without a word. Kept: a task that is collected as garbage would speak once more.
        log_delay_s: how long a write of log or metadata takes, at least and at most.
    """

    uuid: ServerId
    address: str
    disk: SimDisk
    network: SimNetwork
    clock: SimClock
    rng: random.Random
    options: ReplicaOptions = TESTING_OPTIONS
    memory_limit_bytes: int = 1 << 30
    log_delay_s: tuple[float, float] = (0.000_05, 0.002)
    fatal: list[BaseException] = field(default_factory=list)
    reports: list[TabletId] = field(default_factory=list)
    running: TabletManager | None = None
    halted: list[TabletManager] = field(default_factory=list)
    copy_sessions: CopySessions | None = None
    server: SimServer | None = None

    @property
    def manager(self) -> TabletManager:
        """Of the process that runs."""
        assert self.running is not None, f"server {self.uuid} does not run"
        return self.running

    @property
    def member(self) -> Member:
        """This server as a voter."""
        return Member(self.uuid, MemberType.VOTER, self.address)

    async def start(self) -> None:
        """Starts the process and opens its replicas."""
        self.fatal = []  # of this process: what is left of a crashed one may yet speak
        self.running = TabletManager(
            uuid=self.uuid,
            address=self.address,
            directories=ReplicaDirectories("/data"),
            threads=SimDiskThreads(self.disk, self.rng, delay_s=self.log_delay_s),
            workers=InlineWorkers(),
            dialer=self.network.dialer(self.address),
            clock=self.clock,
            hybrid_clock=HybridClock(self.clock),
            rng=self.rng,
            options=self.options,
            memory=MemoryBudget(self.memory_limit_bytes),
            on_report=self.reports.append,
            on_fatal=self.fatal.append,
        )
        self.server = self.network.server(self.address, self.uuid)
        self.server.add(add_ConsensusServiceServicer_to_server, ConsensusServicer(self.running), checks_dest_uuid=True)
        self.copy_sessions = CopySessions(self.running.context, self.running)
        self.server.add(
            add_TabletCopyServiceServicer_to_server,
            TabletCopyServicer(self.copy_sessions, self.running.context.copies, self.running),
            checks_dest_uuid=True,
        )
        await self.server.start()
        await self.running.start()

    async def stop(self) -> None:
        """Ends the process in good order."""
        assert self.server is not None
        await self.server.stop()
        if self.copy_sessions is not None:
            await self.copy_sessions.close()
        await self.manager.stop()
        self.running = None

    async def halt(self) -> None:
        """Ends a process whose disk has crashed: it says nothing any more, to anybody."""
        self.network.kill(self.address)
        running, self.running = self.running, None
        if running is not None:
            self.halted.append(running)
            for _, consensus in running.consensus_all():
                await consensus.stop()

    async def crash(self) -> None:
        """Power is cut: what was not synced is gone, or a part of it."""
        if not self.disk.is_crashed:
            self.disk.power_cut()
        await self.halt()

    async def restart(self) -> None:
        """After `crash` or `stop`."""
        if self.disk.is_crashed:
            self.disk.restart()
        await self.start()


class ReplicaGroup:
    """Some servers on one network, from one seed.

    Attributes:
        hosts: by number.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        size: int = 1,
        options: ReplicaOptions = TESTING_OPTIONS,
        network_options: SimNetworkOptions = DEFAULT_NETWORK,
        survival: float | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(self.rng, network_options)
        self.hosts = [self._host(number, options, survival) for number in range(size)]

    def _host(self, number: int, options: ReplicaOptions, survival: float | None) -> ReplicaHost:
        disk = SimDisk(self.rng, survival=survival)
        disk.make_dir("/data")
        disk.sync_dir("/")
        return ReplicaHost(
            uuid=ServerId(mint_id(self.rng)),
            address=f"server-{number}:7050",
            disk=disk,
            network=self.network,
            clock=SimClock(),
            rng=random.Random(self.rng.getrandbits(64)),
            options=options,
        )

    async def start(self) -> None:
        """Starts all servers."""
        for host in self.hosts:
            await host.start()

    async def stop(self) -> None:
        """Stops those that run."""
        for host in self.hosts:
            if host.running is not None:
                await host.stop()

    def new_tablet(self, tablet_id: str | None = None, *, schema: Schema = SCHEMA) -> NewTablet:
        """A tablet whose members are all hosts."""
        members = sorted((host.member for host in self.hosts), key=lambda member: member.uuid)
        return NewTablet(
            tablet_id=TabletId(tablet_id or mint_id(self.rng)),
            table_id=mint_id(self.rng),
            table_name="table",
            schema=schema,
            partition_schema=PartitionSchema(),
            partition=Partition(),
            config=RaftConfig(0, tuple(members)),
        )

    async def create(self, new: NewTablet | None = None) -> TabletId:
        """Creates a tablet on all hosts."""
        new = new or self.new_tablet()
        for host in self.hosts:
            await host.manager.create_tablet(new)
        return new.tablet_id

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Waits, in steps of virtual time, until something holds."""
        await wait_until(holds, timeout_s=timeout_s, step_s=0.000_5, state=lambda: f"fatal: {self.fatal()}")

    def fatal(self) -> list[BaseException]:
        """What ended processes."""
        return [error for host in self.hosts for error in host.fatal]

    def replicas(self, tablet_id: TabletId, among: Iterable[ReplicaHost] | None = None) -> list[TabletReplica]:
        """The tablet's replicas on hosts that run."""
        hosts = self.hosts if among is None else among
        return [host.manager.replica(tablet_id) for host in hosts if host.running is not None]

    async def leader(self, tablet_id: TabletId, among: Iterable[ReplicaHost] | None = None) -> TabletReplica:
        """Waits for a leader that takes writes."""
        hosts = list(self.hosts if among is None else among)

        def ready() -> list[TabletReplica]:
            return [
                replica
                for replica in self.replicas(tablet_id, hosts)
                if replica.is_leader and replica.consensus.is_leader_ready()
            ]

        await self.wait_until(lambda: bool(ready()))
        return max(ready(), key=lambda replica: replica.consensus.term)

    async def write(self, tablet_id: TabletId, batch: RowBatch) -> None:
        """Writes through whoever leads, until it is applied there; the batch may be applied twice."""
        while True:
            replica = await self.leader(tablet_id)
            try:
                await replica.write_batch(batch)
            except KuduError:
                await asyncio.sleep(0.01)
            else:
                return

    async def settle(self, tablet_id: TabletId) -> None:
        """Waits until all replicas that run have applied the same."""
        await self.wait_until(lambda: len({(r.applied, r.consensus.last_op_id) for r in self.replicas(tablet_id)}) == 1)
