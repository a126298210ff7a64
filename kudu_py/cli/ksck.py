"""Cluster check: gathers what masters and servers say, and judges whether they agree.

`gather` does the calls and never fails because one server does not answer; `assess` is a pure function of what was
gathered. Upstream's `kudu cluster ksck` is the model of sections and verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from kudu_py.cli.health import is_serving
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import (
    consensus_pb2,
    master_pb2,
    master_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tserver_pb2,
    tserver_pb2_grpc,
)
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
CHECKSUM_TIMEOUT_S = 600.0


@dataclass(slots=True)
class MasterSeen:
    """One master address, and what it answered."""

    address: str
    uuid: str = ""
    role: str = "UNREACHABLE"
    error: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ServerSeen:
    """One tablet server the masters know, and what it answered: its replicas by tablet id."""

    uuid: str
    address: str
    state: str
    is_serving: bool = False
    error: str = ""
    problems: list[str] = field(default_factory=list)
    replicas: dict[str, tserver_pb2.TabletStatus] = field(default_factory=dict)


@dataclass(slots=True)
class TableSeen:
    """One table and its tablets as the leader master has them."""

    table_id: str
    name: str
    num_replicas: int
    tablets: list[master_pb2.TabletLocations] = field(default_factory=list)


@dataclass(slots=True)
class ReplicaChecksum:
    """The checksum of one replica, or why there is none."""

    tablet_id: str
    ts_uuid: str
    checksum: int = 0
    row_count: int = 0
    error: str = ""


@dataclass(slots=True)
class ClusterSeen:
    """Everything `gather` found out."""

    cluster_id: str = ""
    masters: list[MasterSeen] = field(default_factory=list)
    servers: list[ServerSeen] = field(default_factory=list)
    tables: list[TableSeen] = field(default_factory=list)
    checksums: list[ReplicaChecksum] | None = None
    snapshot_timestamp: int = 0


@dataclass(slots=True)
class TabletVerdict:
    """One tablet's health: "HEALTHY", or what is wrong with it, worst first."""

    tablet_id: str
    table_name: str
    leader: str
    replicas: int
    row_count: int
    verdict: str
    problems: list[str]


@dataclass(slots=True)
class Report:
    """The judgement. `problems` make a cluster unhealthy; `notes` do not."""

    seen: ClusterSeen
    tablets: list[TabletVerdict]
    problems: list[str]
    notes: list[str]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def leader_master(dialer: GrpcDialer, addresses: Iterable[str]) -> tuple[str, list[MasterSeen], str]:
    """The address of the leader master, every master's answer, and the cluster id.

    Raises:
        KuduError: UNAVAILABLE naming all addresses if none answers (exit status 3), or none leads.
    """

    async def ask(address: str) -> tuple[MasterSeen, str]:
        seen = MasterSeen(address)
        stub = master_pb2_grpc.MasterServiceStub(dialer.channel(address))
        try:
            answer = await call(
                stub.GetMasterRegistration(master_pb2.GetMasterRegistrationRequest(), timeout=CALL_TIMEOUT_S)
            )
        except KuduError as error:
            seen.error = error.message
            return seen, ""
        seen.uuid = answer.registration.uuid
        seen.role = consensus_pb2.Role.Name(answer.role)
        return seen, answer.cluster_id

    answers = await asyncio.gather(*[ask(address) for address in addresses])
    masters = [seen for seen, _ in answers]
    if all(seen.error for seen in masters):
        raise KuduError(
            ErrorCode.UNAVAILABLE,
            "no master is reachable at "
            + "; ".join(f"{seen.address} ({seen.error})" for seen in masters)
            + ". Check the addresses and that the masters run",
            details={"unreachable": "masters"},
        )
    leader = next((seen.address for seen in masters if seen.role == "LEADER"), None)
    if leader is None:
        raise KuduError(
            ErrorCode.UNAVAILABLE,
            "no master leads at the moment; try again in a few seconds",
            details={"unreachable": "leader"},
        )
    return leader, masters, next((cluster_id for _, cluster_id in answers if cluster_id), "")


async def gather(addresses: list[str], *, checksum: bool) -> ClusterSeen:
    """Asks every master and every server.

    Raises:
        KuduError: UNAVAILABLE if no master answers.
    """
    dialer = GrpcDialer()
    try:
        leader, masters, cluster_id = await leader_master(dialer, addresses)
        stub = master_pb2_grpc.MasterServiceStub(dialer.channel(leader))
        seen = ClusterSeen(cluster_id=cluster_id, masters=masters)
        known = await call(stub.ListTabletServers(master_pb2.ListTabletServersRequest(), timeout=CALL_TIMEOUT_S))
        seen.servers = [
            ServerSeen(server.uuid, server.rpc_address, master_pb2.TabletServerState.Name(server.state))
            for server in known.servers
        ]
        await asyncio.gather(
            *[_ask_master(dialer, master) for master in masters if not master.error],
            *[_ask_server(dialer, server) for server in seen.servers],
        )
        tables = await call(stub.ListTables(master_pb2.ListTablesRequest(), timeout=CALL_TIMEOUT_S))
        for info in tables.tables:
            locations = await call(
                stub.GetTableLocations(
                    master_pb2.GetTableLocationsRequest(table_id=info.table_id), timeout=CALL_TIMEOUT_S
                )
            )
            seen.tables.append(TableSeen(info.table_id, info.name, info.num_replicas, list(locations.tablet_locations)))
        if checksum:
            await _checksum_all(dialer, seen)
        return seen
    finally:
        await dialer.close()


async def _ask_master(dialer: GrpcDialer, master: MasterSeen) -> None:
    stub = server_pb2_grpc.GenericServiceStub(dialer.channel(master.address))
    try:
        node = await call(stub.GetStatus(server_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S))
    except KuduError as error:
        master.error = error.message
        return
    master.problems = list(node.problems)


async def _ask_server(dialer: GrpcDialer, server: ServerSeen) -> None:
    channel = dialer.channel(server.address)
    stub = tserver_pb2_grpc.TabletServerServiceStub(channel)
    try:
        node = await call(
            server_pb2_grpc.GenericServiceStub(channel).GetStatus(server_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        )
        if node.registration.uuid != server.uuid:
            server.error = f"another server, {node.registration.uuid}, answers at {server.address}"
            return
        server.problems = list(node.problems)
        answer = await call(stub.ListTablets(tserver_pb2.ListTabletsRequest(), timeout=CALL_TIMEOUT_S))
    except KuduError as error:
        server.error = error.message
        return
    server.is_serving = await is_serving(channel)
    server.replicas = {status.tablet_id: status for status in answer.tablets}


async def _checksum_all(dialer: GrpcDialer, seen: ClusterSeen) -> None:
    """Every replica's checksum at one snapshot that holds every write acknowledged before."""
    reachable = {server.uuid: server for server in seen.servers if not server.error}

    async def clock(server: ServerSeen) -> int:
        stub = tserver_pb2_grpc.TabletServerServiceStub(dialer.channel(server.address))
        answer = await call(stub.GetServerClock(tserver_pb2.GetServerClockRequest(), timeout=CALL_TIMEOUT_S))
        return answer.timestamp

    seen.snapshot_timestamp = max(await asyncio.gather(*[clock(server) for server in reachable.values()]), default=0)
    # One replica a server at a time: a check must not starve the work of the cluster.
    turns = {uuid: asyncio.Semaphore(1) for uuid in reachable}

    async def checksum(tablet_id: str, ts_uuid: str) -> ReplicaChecksum:
        server = reachable.get(ts_uuid)
        if server is None:
            return ReplicaChecksum(tablet_id, ts_uuid, error="its server does not answer")
        stub = tserver_pb2_grpc.TabletServerServiceStub(dialer.channel(server.address))
        request = tserver_pb2.ChecksumRequest(tablet_id=tablet_id, snapshot_timestamp=seen.snapshot_timestamp)
        async with turns[ts_uuid]:
            try:
                answer = await call(stub.Checksum(request, timeout=CHECKSUM_TIMEOUT_S))
            except KuduError as error:
                return ReplicaChecksum(tablet_id, ts_uuid, error=error.message)
        return ReplicaChecksum(tablet_id, ts_uuid, answer.checksum, answer.row_count)

    pending: list[Awaitable[ReplicaChecksum]] = [
        checksum(tablet.tablet_id, replica.ts_uuid)
        for table in seen.tables
        for tablet in table.tablets
        for replica in tablet.replicas
    ]
    seen.checksums = list(await asyncio.gather(*pending))


def assess(seen: ClusterSeen) -> Report:
    """Judges what was gathered; pure."""
    problems = [f"master {master.address} does not answer: {master.error}" for master in seen.masters if master.error]
    problems += [f"master {master.address}: {problem}" for master in seen.masters for problem in master.problems]
    notes: list[str] = []
    for server in seen.servers:
        problems += [f"tablet server {server.uuid} at {server.address}: {each}" for each in server.problems]
        if server.error:
            problems.append(f"tablet server {server.uuid} at {server.address} does not answer: {server.error}")
        elif server.state != "LIVE":
            problems.append(f"tablet server {server.uuid} at {server.address} is {server.state} for the masters")
        elif not server.is_serving:
            problems.append(f"tablet server {server.uuid} at {server.address} is not serving yet")
    servers = {server.uuid: server for server in seen.servers}
    checksums: dict[str, list[ReplicaChecksum]] = {}
    for each in seen.checksums or []:
        checksums.setdefault(each.tablet_id, []).append(each)
    tablets = []
    for table in seen.tables:
        for tablet in table.tablets:
            verdict = _assess_tablet(table, tablet, servers, checksums.get(tablet.tablet_id, []))
            tablets.append(verdict)
            problems.extend(
                f"tablet {tablet.tablet_id} of table {table.name}: {problem}" for problem in verdict.problems
            )
    if not seen.servers:
        notes.append("no tablet server has registered yet")
    return Report(seen, tablets, problems, notes)


def _assess_tablet(
    table: TableSeen,
    tablet: master_pb2.TabletLocations,
    servers: dict[str, ServerSeen],
    checksums: list[ReplicaChecksum],
) -> TabletVerdict:
    problems: list[str] = []
    voters = {replica.ts_uuid for replica in tablet.replicas if replica.member_type == consensus_pb2.VOTER}
    running: dict[str, tserver_pb2.TabletStatus] = {}
    for replica in tablet.replicas:
        server = servers.get(replica.ts_uuid)
        status = server.replicas.get(tablet.tablet_id) if server else None
        if server is None or server.error:
            problems.append(f"the server of replica {replica.ts_uuid} does not answer")
        elif status is None:
            problems.append(f"server {replica.ts_uuid} does not have its replica")
        elif status.state != tserver_pb2.RUNNING:
            state = tserver_pb2.TabletState.Name(status.state)
            problems.append(f"replica {replica.ts_uuid} is {state}{': ' + status.error if status.error else ''}")
        else:
            running[replica.ts_uuid] = status
    if len(voters) < table.num_replicas:
        problems.append(f"{len(voters)} of {table.num_replicas} voters: under-replicated")
    if len(running.keys() & voters) * 2 <= len(voters):
        problems.insert(0, "no majority of its voters is running: the tablet is unavailable")
    leaders = {uuid for uuid, status in running.items() if status.consensus_state.role == consensus_pb2.LEADER}
    newest = max((status.consensus_state.term for status in running.values()), default=0)
    current = sorted(uuid for uuid in leaders if running[uuid].consensus_state.term == newest)
    leader = current[0] if current else ""
    if running and not leader:
        problems.append("it has no leader")
    problems += _disagreements(tablet, running, leader)
    problems += _checksum_problems(checksums)
    unavailable = any("unavailable" in problem for problem in problems)
    verdict = "HEALTHY" if not problems else "UNAVAILABLE" if unavailable else "DEGRADED"
    return TabletVerdict(
        tablet_id=tablet.tablet_id,
        table_name=table.name,
        leader=leader,
        replicas=len(tablet.replicas),
        row_count=running[leader].row_count if leader else 0,
        verdict=verdict,
        problems=problems,
    )


def _disagreements(
    tablet: master_pb2.TabletLocations, running: dict[str, tserver_pb2.TabletStatus], leader: str
) -> list[str]:
    problems = []
    for uuid, status in sorted(running.items()):
        state = status.consensus_state
        if leader and state.leader_uuid != leader:
            problems.append(f"replica {uuid} takes {state.leader_uuid or 'nobody'} for the leader, not {leader}")
        if (
            leader
            and state.committed_config.config_index != running[leader].consensus_state.committed_config.config_index
        ):
            problems.append(f"replica {uuid} has another committed config than the leader")
    if leader:
        index = running[leader].consensus_state.committed_config.config_index
        if index != tablet.config_index:
            problems.append(f"the master knows config {tablet.config_index}, the leader has {index}")
    return problems


def _checksum_problems(checksums: list[ReplicaChecksum]) -> list[str]:
    problems = [f"no checksum of replica {each.ts_uuid}: {each.error}" for each in checksums if each.error]
    values = {(each.checksum, each.row_count) for each in checksums if not each.error}
    if len(values) > 1:
        shown = ", ".join(
            f"{c.ts_uuid[:8]} {c.checksum:016x} of {counted(c.row_count, 'row')}" for c in checksums if not c.error
        )
        problems.append(f"replicas hold different rows: {shown}")
    return problems
