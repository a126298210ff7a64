"""Cluster check: gathers what masters and servers say, and judges whether they agree.

`gather` does the calls and never fails because one server does not answer; `assess` is a pure function of what was
gathered. Upstream's `kudu cluster ksck` is the model of sections and verdicts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
LOOKS_MAX = 4
LOOK_AGAIN_S = 1.0
"""Servers are asked one after the other, and the masters hear of a change a heartbeat later than its group: what only
disagrees is looked at again before it is called a problem."""


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
    """One tablet server the masters know, and what it answered: its replicas and tombstones by tablet id.

    Attributes:
        state, mode: names of TabletServerState and TabletServerMode.
        fault_domain: may be empty; see `domain`.
    """

    uuid: str
    address: str
    state: str
    mode: str = "NORMAL"
    fault_domain: str = ""
    is_serving: bool = False
    error: str = ""
    problems: list[str] = field(default_factory=list)
    replicas: dict[str, tserver_pb2.TabletStatus] = field(default_factory=dict)
    tombstones: dict[str, tserver_pb2.TabletStatus] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """What fails as one with it: the domain that the operator named, or else the host."""
        return self.fault_domain or self.address.rpartition(":")[0]

    @property
    def is_away(self) -> bool:
        """Whether it does not answer, or the masters have not heard of it lately."""
        return bool(self.error) or self.state != "LIVE"


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
    """One tablet's health.

    Attributes:
        verdict: HEALTHY; RECOVERING: it lacks something that is being made; DEGRADED: it lacks something; UNAVAILABLE:
            no majority of its voters runs.
        problems: what is wrong with it, worst first.
        notes: what goes on and is no problem.
        disagrees: its replicas and the masters say different things, as they may for a moment.
    """

    tablet_id: str
    table_name: str
    leader: str
    replicas: int
    row_count: int
    verdict: str
    problems: list[str]
    notes: list[str] = field(default_factory=list)
    disagrees: bool = False


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
    """Asks every master and every server; again, a few times, while some only disagree.

    Raises:
        KuduError: UNAVAILABLE if no master answers.
    """
    dialer = GrpcDialer()
    try:
        seen = await _look(dialer, addresses)
        for _ in range(LOOKS_MAX - 1):
            if not any(tablet.disagrees for tablet in assess(seen).tablets):
                break
            await asyncio.sleep(LOOK_AGAIN_S)
            seen = await _look(dialer, addresses)
        if checksum:
            await _checksum_all(dialer, seen)
        return seen
    finally:
        await dialer.close()


async def _look(dialer: GrpcDialer, addresses: list[str]) -> ClusterSeen:
    leader, masters, cluster_id = await leader_master(dialer, addresses)
    stub = master_pb2_grpc.MasterServiceStub(dialer.channel(leader))
    seen = ClusterSeen(cluster_id=cluster_id, masters=masters)
    known = await call(stub.ListTabletServers(master_pb2.ListTabletServersRequest(), timeout=CALL_TIMEOUT_S))
    seen.servers = [
        ServerSeen(
            server.uuid,
            server.rpc_address,
            state=master_pb2.TabletServerState.Name(server.state),
            mode=master_pb2.TabletServerMode.Name(server.mode or master_pb2.NORMAL),
            fault_domain=server.fault_domain,
        )
        for server in known.servers
    ]
    await asyncio.gather(
        *[_ask_master(dialer, master) for master in masters if not master.error],
        *[_ask_server(dialer, server) for server in seen.servers],
    )
    tables = await call(stub.ListTables(master_pb2.ListTablesRequest(), timeout=CALL_TIMEOUT_S))
    for info in tables.tables:
        locations = await call(
            stub.GetTableLocations(master_pb2.GetTableLocationsRequest(table_id=info.table_id), timeout=CALL_TIMEOUT_S)
        )
        seen.tables.append(TableSeen(info.table_id, info.name, info.num_replicas, list(locations.tablet_locations)))
    return seen


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
    for status in answer.tablets:
        of_kind = server.tombstones if status.data_state == tserver_pb2.DELETED else server.replicas
        of_kind[status.tablet_id] = status


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
        server_problems, server_notes = _assess_server(server, seen)
        problems += server_problems
        notes += server_notes
    servers = {server.uuid: server for server in seen.servers}
    checksums: dict[str, list[ReplicaChecksum]] = {}
    for each in seen.checksums or []:
        checksums.setdefault(each.tablet_id, []).append(each)
    tablets = []
    for table in seen.tables:
        for tablet in table.tablets:
            verdict = _assess_tablet(table, tablet, servers, checksums.get(tablet.tablet_id, []))
            tablets.append(verdict)
            what = f"tablet {tablet.tablet_id} of table {table.name}"
            problems += [f"{what}: {problem}" for problem in verdict.problems]
            notes += [f"{what}: {note}" for note in verdict.notes]
    notes += _shared_domains(seen, servers)
    if not seen.servers:
        notes.append("no tablet server has registered yet")
    return Report(seen, tablets, problems, notes)


def _assess_server(server: ServerSeen, seen: ClusterSeen) -> tuple[list[str], list[str]]:
    """Problems and notes of one tablet server.

    One whose absence an operator has announced is no problem; the tablets that lack its replicas may be.
    """
    name = f"tablet server {server.uuid} at {server.address}"
    problems = [f"{name}: {each}" for each in server.problems]
    notes = []
    away = ""
    if server.error:
        away = f"does not answer: {server.error}"
    elif server.state != "LIVE":
        away = f"is {server.state} for the masters"
    elif not server.is_serving:
        away = "is not serving yet"
    left = sum(r.ts_uuid == server.uuid for table in seen.tables for tablet in table.tablets for r in tablet.replicas)
    if server.mode == "MAINTENANCE":
        notes.append(f"{name} is in maintenance" + (f" and {away}" if away else ""))
    elif server.mode == "RETIRED" and not left:
        notes.append(f"{name} is retired" + (f" and {away}" if away else ": it can be stopped"))
    else:
        if server.mode in ("RETIRING", "RETIRED"):
            notes.append(
                f"{name} is being retired: {counted(left, 'replica')} {'is' if left == 1 else 'are'} left on it"
            )
        if away:
            problems.append(f"{name} {away}")
    return problems, notes


def _shared_domains(seen: ClusterSeen, servers: dict[str, ServerSeen]) -> list[str]:
    """A note on tablets that one failure can hit twice. Where there is another way, the rebalancer takes it."""
    found: list[tuple[str, str, str, int]] = []
    for table in seen.tables:
        for tablet in table.tablets:
            voters = [r for r in tablet.replicas if r.member_type == consensus_pb2.VOTER]
            if len(voters) > _wanted_voters(table, tablet):
                continue  # one of them is about to go
            domains = Counter(servers[r.ts_uuid].domain for r in voters if r.ts_uuid in servers)
            domain, most = max(domains.items(), key=lambda item: (item[1], item[0]), default=("", 0))
            if most > 1:
                found.append((tablet.tablet_id, table.name, domain, most))
    if not found:
        return []
    tablet_id, table_name, domain, most = found[0]
    one = f"tablet {tablet_id} of table {table_name} has {most} replicas in fault domain {domain}"
    there = counted(len({server.domain for server in seen.servers}), "domain")
    more = f", and {counted(len(found) - 1, 'more tablet')} share domains" if len(found) > 1 else ""
    return [f"{one}{more}: one failure can take several replicas; servers are in {there}"]


def _wanted_voters(table: TableSeen, tablet: master_pb2.TabletLocations) -> int:
    return tablet.wanted_voters or table.num_replicas


def _assess_tablet(
    table: TableSeen,
    tablet: master_pb2.TabletLocations,
    servers: dict[str, ServerSeen],
    checksums: list[ReplicaChecksum],
) -> TabletVerdict:
    problems: list[str] = []
    notes: list[str] = []
    voters = {replica.ts_uuid for replica in tablet.replicas if replica.member_type == consensus_pb2.VOTER}
    wanted = _wanted_voters(table, tablet)
    running: dict[str, tserver_pb2.TabletStatus] = {}
    is_copied = False
    for replica in tablet.replicas:
        server = servers.get(replica.ts_uuid)
        status = server.replicas.get(tablet.tablet_id) if server else None
        trouble = _replica_trouble(replica.ts_uuid, server, tablet.tablet_id)
        is_copied |= status is not None and status.data_state == tserver_pb2.COPYING
        if not trouble:
            assert status is not None
            running[replica.ts_uuid] = status
        if replica.ts_uuid in voters:
            problems += [trouble] if trouble else []
        else:
            # A learner counts for nothing yet: whatever it lacks is lacking nowhere else.
            notes.append(f"replica {replica.ts_uuid} is joining" + (f": {trouble}" if trouble else " and catches up"))
    if len(voters) < wanted:
        joining = len(tablet.replicas) - len(voters)
        more = f", {joining} joining" if joining else ""
        problems.append(f"{len(voters)} of {wanted} voters{more}: under-replicated")
    elif len(voters) > wanted:
        notes.append(f"it has {counted(len(voters), 'voter')} and is meant to have {wanted}: some are about to go")
    if tablet.waits_for:
        notes.append(f"the masters wait: {tablet.waits_for}")
    if len(running.keys() & voters) * 2 <= len(voters):
        problems.insert(0, "no majority of its voters is running: the tablet is unavailable")
    leaders = {uuid for uuid, status in running.items() if status.consensus_state.role == consensus_pb2.LEADER}
    newest = max((status.consensus_state.term for status in running.values()), default=0)
    current = sorted(uuid for uuid in leaders if running[uuid].consensus_state.term == newest)
    leader = current[0] if current else ""
    if running and not leader:
        problems.append("it has no leader")
    disagreements = _disagreements(tablet, running, leader)
    problems += disagreements
    problems += _checksum_problems([each for each in checksums if each.ts_uuid in voters or not each.error])
    verdict = _verdict(problems, is_recovering=is_copied or len(voters) < len(tablet.replicas))
    return TabletVerdict(
        tablet_id=tablet.tablet_id,
        table_name=table.name,
        leader=leader,
        replicas=len(tablet.replicas),
        row_count=running[leader].row_count if leader else 0,
        verdict=verdict,
        problems=problems,
        notes=notes,
        disagrees=verdict != "UNAVAILABLE" and (bool(disagreements) or not leader),
    )


def _verdict(problems: list[str], *, is_recovering: bool) -> str:
    if not problems:
        return "HEALTHY"
    if any("unavailable" in problem for problem in problems):
        return "UNAVAILABLE"
    return "RECOVERING" if is_recovering else "DEGRADED"


def _replica_trouble(uuid: str, server: ServerSeen | None, tablet_id: str) -> str:
    """Why a replica does not run; empty if it does."""
    if server is None or server.error:
        return f"the server of replica {uuid} does not answer"
    status = server.replicas.get(tablet_id)
    if status is None:
        tombstone = server.tombstones.get(tablet_id)
        if tombstone is None:
            return f"server {uuid} does not have its replica"
        return f"of replica {uuid} only a tombstone is left{': ' + tombstone.error if tombstone.error else ''}"
    if status.data_state == tserver_pb2.COPYING:
        return f"replica {uuid} is being copied"
    if status.state != tserver_pb2.RUNNING:
        state = tserver_pb2.TabletState.Name(status.state)
        return f"replica {uuid} is {state}{': ' + status.error if status.error else ''}"
    return ""


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
