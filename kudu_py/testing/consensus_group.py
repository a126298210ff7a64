"""Whole groups of `RaftConsensus` in one loop, for tests and benchmarks: real logs, metadata, links and services.

A `GroupServer` is one server with one replica of one tablet; what it stands on (disk, network, clocks) is given, so
that the same group runs on virtual time with simulated disks and networks, or on loopback with real ones.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId, mint_id
from kudu_py.common.opid import OpId
from kudu_py.consensus.bootstrap import read_bootstrap
from kudu_py.consensus.core.model import EntryKind, HardState, Member, MemberType, RaftConfig, RaftOptions
from kudu_py.consensus.core.output import RoleMark
from kudu_py.consensus.entry import Entry
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.peer_links import PeerLinkOptions, PeerLinks
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.consensus.rounds import Round
from kudu_py.consensus.service import ConsensusServicer
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import add_ConsensusServiceServicer_to_server
from kudu_py.rpc.calls import AddToServer
from kudu_py.rpc.dialer import Dialer
from kudu_py.testing.sim_clock import SimClock
from kudu_py.testing.sim_disk import Fault, Operation, SimDisk, SimDiskThreads
from kudu_py.testing.sim_network import SimNetwork, SimNetworkOptions
from kudu_py.testing.waiting import wait_until
from kudu_py.wal.log import Log
from kudu_py.wal.options import WalOptions

TESTING_OPTIONS = ConsensusOptions(raft=RaftOptions(check_invariants=True))
_POLL_S = 0.005
_LINKS, _WAL, _NETWORK = PeerLinkOptions(), WalOptions(), SimNetworkOptions()


class Server(Protocol):
    """What `RpcServer` and `SimServer` have in common."""

    def add(self, add_to_server: AddToServer, servicer: object, *, checks_dest_uuid: bool) -> None: ...

    async def start(self, bind_address: str) -> str: ...

    async def stop(self, grace_s: float) -> None: ...


@dataclass(eq=False)
class JournalMachine:
    """A state machine that writes down what it was given, and answers with the index.

    Attributes:
        entries: applied, in order.
        fail_at: an index whose application raises; 0 for none.
    """

    entries: list[Entry] = field(default_factory=list)
    fail_at: int = 0

    def apply(self, entry: Entry) -> int:
        if entry.op_id.index == self.fail_at:
            raise ValueError(f"told to fail at {self.fail_at}")
        assert not self.entries or entry.op_id.index == self.entries[-1].op_id.index + 1, entry.op_id
        assert not self.entries or entry.timestamp > self.entries[-1].timestamp, entry.op_id
        self.entries.append(entry)
        return entry.op_id.index

    @property
    def payloads(self) -> list[bytes]:
        """Of the writes."""
        return [entry.payload for entry in self.entries if entry.kind is EntryKind.WRITE]


@dataclass(eq=False)
class GroupServer:
    """One server. Its directory outlives its process: `start` after `stop` or a crash finds what was durable.

    Attributes:
        directory: exists on the disk of `threads`.
        serve: makes a server; each start gets a new one.
        fatal: what ended the replica, if anything.
        roles: every mark it was told.
        copies_asked: every StartTabletCopy that it was sent; all are accepted, and nothing is copied.
        changes_told: how often it was told that config or health of members changed.
        has_room: whether it has memory for a leader's entries.
    """

    uuid: ServerId
    tablet_id: TabletId
    address: str
    directory: str
    threads: DiskThreads
    clock: Clock
    rng: random.Random
    dialer: Dialer
    serve: Callable[[], Server]
    options: ConsensusOptions = TESTING_OPTIONS
    link_options: PeerLinkOptions = _LINKS
    wal_options: WalOptions = _WAL
    machine: JournalMachine = field(default_factory=JournalMachine)
    fatal: BaseException | None = None
    roles: list[RoleMark] = field(default_factory=list)
    copies_asked: list[consensus_pb2.StartTabletCopyRequest] = field(default_factory=list)
    changes_told: int = 0
    has_room: bool = True
    log: Log | None = None
    server: Server | None = None
    links: PeerLinks | None = None
    replica: RaftConsensus | None = None

    async def create(self, config: RaftConfig) -> None:
        """A new replica of a group with these members, on disk only."""
        record = ConsensusRecord(self.tablet_id, HardState(0, None), config)
        disk, path = self.threads.disk, self._metadata_path
        await self.threads.run(lambda: ConsensusMetadata.create(disk, path, record))

    async def start(self) -> None:
        """Starts the process: opens what is on disk, serves, takes part."""
        disk, path = self.threads.disk, self._metadata_path
        metadata = await self.threads.run(lambda: ConsensusMetadata.load(disk, path, self.tablet_id))
        self.machine = JournalMachine()
        self.log = await Log.open(
            directory=f"{self.directory}/wal",
            tablet_id=self.tablet_id,
            threads=self.threads,
            options=self.wal_options,
            on_durable=self._note_durable,
            on_failure=self._note_log_failure,
        )
        self.links = PeerLinks(dialer=self.dialer, clock=self.clock, options=self.link_options)
        self.replica = RaftConsensus(
            uuid=self.uuid,
            tablet_id=self.tablet_id,
            address=self.address,
            metadata=metadata,
            log=self.log,
            threads=self.threads,
            clock=self.clock,
            hybrid_clock=HybridClock(self.clock),
            rng=self.rng,
            links=self.links,
            options=self.options,
            state_machine=self.machine,
            bootstrap=await read_bootstrap(self.log),
            on_role_change=self.roles.append,
            on_fatal=self._note_fatal,
            on_members_change=self._note_members_change,
            has_room=lambda: self.has_room,
        )
        self.server = self.serve()
        self.server.add(add_ConsensusServiceServicer_to_server, ConsensusServicer(self), checks_dest_uuid=True)
        await self.server.start(self.address)
        await self.replica.start()

    async def stop(self) -> None:
        """Ends the process in good order."""
        if self.server is not None:
            await self.server.stop(0)
        await self.halt()
        if self.log is not None:
            await self.log.close()
        self.log = None

    async def halt(self) -> None:
        """Ends the process without another word to the disk; its owner makes the disk forget."""
        if self.replica is not None:
            await self.replica.stop()
        if self.links is not None:
            await self.links.close()
        self.replica = self.links = self.server = None

    def __str__(self) -> str:
        replica = self.replica
        if replica is None:
            return f"{self.address} does not run"
        return (
            f"{self.address} {replica.role.value} of term {replica.term}, last {replica.last_op_id}, "
            f"committed {replica.commit_index}, applied {replica.applied_index}, fatal {self.fatal!r}"
        )

    @property
    def raft(self) -> RaftConsensus:
        """The replica, which runs."""
        assert self.replica is not None, f"server {self.uuid} does not run"
        return self.replica

    # As `ReplicaLookup`.

    def propose(self, payload: bytes = b"x") -> Round:
        """A write on its way."""
        return self.raft.propose(EntryKind.WRITE, payload)

    def consensus(self, tablet_id: TabletId) -> RaftConsensus:
        if self.replica is None or tablet_id != self.tablet_id:
            raise KuduError(
                ErrorCode.TABLET_NOT_FOUND,
                f"tablet {tablet_id} is not here",
                details={"data_state": "DOES_NOT_EXIST"},
            )
        return self.replica

    def consensus_all(self) -> Iterable[tuple[TabletId, RaftConsensus]]:
        return [] if self.replica is None else [(self.tablet_id, self.replica)]

    async def start_tablet_copy(self, request: consensus_pb2.StartTabletCopyRequest) -> None:
        self.copies_asked.append(request)

    async def tombstone_vote(
        self, tablet_id: TabletId, request: consensus_pb2.RequestVoteRequest
    ) -> consensus_pb2.RequestVoteResponse | None:
        return None

    def _note_durable(self, op_id: OpId) -> None:
        if self.replica is not None:
            self.replica.entries_durable(op_id)

    def _note_log_failure(self, error: BaseException) -> None:
        if self.replica is not None:
            self.replica.log_failed(error)

    def _note_members_change(self) -> None:
        self.changes_told += 1

    def _note_fatal(self, error: BaseException) -> None:
        self.fatal = error

    @property
    def _metadata_path(self) -> str:
        return f"{self.directory}/consensus-meta"


def group_config(servers: Iterable[GroupServer]) -> RaftConfig:
    """The config in which all servers are voters."""
    members = [Member(server.uuid, MemberType.VOTER, server.address) for server in servers]
    return RaftConfig(0, tuple(sorted(members, key=lambda member: member.uuid)))


class SimGroup:
    """A group on virtual time, from one seed: `SimDisk`s, a `SimNetwork`, clocks that agree unless told otherwise.

    Attributes:
        servers: by number.
        disks: of each server.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        size: int = 3,
        options: ConsensusOptions = TESTING_OPTIONS,
        link_options: PeerLinkOptions = _LINKS,
        wal_options: WalOptions = _WAL,
        network_options: SimNetworkOptions = _NETWORK,
    ) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(self.rng, network_options)
        self.disks = [SimDisk(self.rng) for _ in range(size)]
        self.clocks = [SimClock() for _ in range(size)]
        tablet_id = TabletId(mint_id(self.rng))
        self.servers = [self._server(number, tablet_id, options, link_options, wal_options) for number in range(size)]

    def _server(
        self,
        number: int,
        tablet_id: TabletId,
        options: ConsensusOptions,
        link_options: PeerLinkOptions,
        wal_options: WalOptions,
    ) -> GroupServer:
        uuid, address = ServerId(mint_id(self.rng)), f"server-{number}:7050"
        disk = self.disks[number]
        disk.make_dir("/data")
        disk.sync_dir("/")
        return GroupServer(
            uuid=uuid,
            tablet_id=tablet_id,
            address=address,
            directory="/data",
            threads=SimDiskThreads(disk, self.rng),
            clock=self.clocks[number],
            rng=random.Random(self.rng.getrandbits(64)),
            dialer=self.network.dialer(address),
            serve=lambda: self.network.server(address, uuid),
            options=options,
            link_options=link_options,
            wal_options=wal_options,
        )

    async def start(self) -> None:
        """Creates the group and starts all servers."""
        config = group_config(self.servers)
        for server in self.servers:
            await server.create(config)
        for server in self.servers:
            await server.start()

    async def stop(self) -> None:
        """Stops what runs."""
        for server in self.servers:
            if server.replica is not None:
                await server.stop()

    async def crash(self, server: GroupServer) -> None:
        """Power is cut: what was not synced is gone."""
        self.network.kill(server.address)
        self.disks[self.servers.index(server)].power_cut()
        await server.halt()

    async def restart(self, server: GroupServer) -> None:
        """After `crash` or `stop`."""
        disk = self.disks[self.servers.index(server)]
        disk.restart()
        server.threads = SimDiskThreads(disk, self.rng)
        await server.start()

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Waits, in steps of virtual time, until something holds."""
        await wait_until(
            holds, timeout_s=timeout_s, step_s=_POLL_S, state=lambda: "\n".join(["servers:", *map(str, self.servers)])
        )

    def fill_disk(self, server: GroupServer) -> Fault:
        """From now on there is no room for another segment of the log."""
        disk = self.disks[self.servers.index(server)]
        return disk.inject(Fault(Operation.CREATE, errno.ENOSPC, path_contains="/wal/wal-", times=None))

    def others(self, *servers: GroupServer) -> list[GroupServer]:
        """All but these."""
        return [server for server in self.servers if server not in servers]

    def leaders(self) -> list[GroupServer]:
        """Whoever takes writes."""
        return [server for server in self.servers if server.replica is not None and server.raft.is_leader_ready()]

    async def leader(self, among: Iterable[GroupServer] | None = None) -> GroupServer:
        """Waits for a leader that takes writes; the one of the highest term."""
        wanted = self.servers if among is None else list(among)
        await self.wait_until(lambda: any(server in wanted for server in self.leaders()))
        return max((server for server in self.leaders() if server in wanted), key=lambda server: server.raft.term)

    async def write(self, payload: bytes, among: Iterable[GroupServer] | None = None) -> GroupServer:
        """Writes until somebody has committed it; returns the leader that did."""
        while True:
            leader = await self.leader(among)
            try:
                async with asyncio.timeout(5.0):
                    await leader.propose(payload).future
            except (KuduError, TimeoutError):
                await asyncio.sleep(_POLL_S)
            else:
                return leader

    async def settle(self, servers: Iterable[GroupServer] | None = None) -> None:
        """Waits until all that run have applied the same."""
        running = [server for server in (servers or self.servers) if server.replica is not None]
        await self.wait_until(lambda: len({(s.raft.applied_index, s.raft.last_op_id) for s in running}) == 1)
