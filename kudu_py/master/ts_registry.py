"""`TsRegistry`: soft state from heartbeats: which tablet servers there are, whether they live, what they last reported.

Every master keeps one, leader or not, so that none is cold when it is elected. Reports are taken by the leader only,
and a newly elected one asks every server for a full report (seed 004, "Send full heartbeats to newly elected leader
masters"): what was reported to an earlier leadership is dropped. Nothing here is ever written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.placement import Candidate
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica

_NO_HOSTS: Mapping[ServerId, ReportedReplica] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Registration:
    """What a tablet server says of itself once per process."""

    rpc_address: str
    http_address: str = ""
    software_version: str = ""
    fault_domain: str = ""
    start_time_micros: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The part of a heartbeat that every master takes in.

    Attributes:
        instance_sequence: rises with each start of the server's process.
        registration: with the first heartbeat of a process to this master, and when asked for.
    """

    server: ServerId
    instance_sequence: int
    registration: Registration | None = None
    live_tablet_count: int = 0
    leader_count: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The part that only the leader takes in: all replicas of a server, or those that changed.

    Attributes:
        sequence: one more than that of the server's last report to this master.
    """

    is_incremental: bool
    sequence: int
    updated: Sequence[ReportedReplica] = ()
    removed: Sequence[TabletId] = ()


@dataclass(slots=True)
class TabletServer:
    """One known tablet server.

    Attributes:
        last_heartbeat_s: monotonic time at which it was last heard of.
        report_sequence: of the last report taken in; None: a full report is needed.
        replicas: what it last reported, tombstones included.
    """

    uuid: ServerId
    instance_sequence: int
    registration: Registration
    last_heartbeat_s: float
    live_tablet_count: int = 0
    leader_count: int = 0
    report_sequence: int | None = None
    replicas: dict[TabletId, ReportedReplica] = field(default_factory=dict)

    @property
    def as_candidate(self) -> Candidate:
        """The server as placement sees it."""
        return Candidate(self.uuid, self.registration.rpc_address, self.registration.fault_domain)


class TsRegistry:
    """Tablet servers by uuid. Bounded by the number of servers and of their replicas.

    Args:
        started_s: monotonic time at which this master began to listen.
        unresponsive_timeout_s: silence after which a server counts as dead.
        settle_s: how long after its start every living server may be expected to have been heard of.
    """

    def __init__(self, *, started_s: float, unresponsive_timeout_s: float, settle_s: float) -> None:
        self._settled_at_s = started_s + settle_s
        self._unresponsive_timeout_s = unresponsive_timeout_s
        self._servers: dict[ServerId, TabletServer] = {}
        self._hosts: dict[TabletId, dict[ServerId, ReportedReplica]] = {}

    def take_heartbeat(self, heartbeat: Heartbeat, now_s: float) -> TabletServer | None:
        """Notes that a server lives. None: it is not known yet and must register.

        Raises:
            KuduError: ALREADY_PRESENT if a later process of the same uuid has been heard of: this one must stop.
        """
        server = self._servers.get(heartbeat.server)
        if server is not None and heartbeat.instance_sequence < server.instance_sequence:
            raise KuduError(
                ErrorCode.ALREADY_PRESENT,
                f"tablet server {heartbeat.server} has been started again since (instance {server.instance_sequence},"
                f" at {server.registration.rpc_address}); this is the older process of"
                f" instance {heartbeat.instance_sequence}",
            )
        is_new_process = server is None or heartbeat.instance_sequence > server.instance_sequence
        if is_new_process and heartbeat.registration is None:
            return None
        if server is None:
            assert heartbeat.registration is not None
            server = TabletServer(heartbeat.server, heartbeat.instance_sequence, heartbeat.registration, now_s)
            self._servers[heartbeat.server] = server
        elif is_new_process:
            server.instance_sequence = heartbeat.instance_sequence
            self._forget_report(server)
        if heartbeat.registration is not None:
            server.registration = heartbeat.registration
        server.last_heartbeat_s = now_s
        server.live_tablet_count = heartbeat.live_tablet_count
        server.leader_count = heartbeat.leader_count
        return server

    def accepts(self, server: TabletServer, report: Report) -> bool:
        """Whether the report continues what was taken in before: a full one that is not older, an incremental one
        without a gap.

        A repeated sequence is accepted: the answer to the first copy may have been lost.
        """
        if not report.is_incremental:
            return server.report_sequence is None or report.sequence >= server.report_sequence
        return server.report_sequence is not None and report.sequence in (
            server.report_sequence,
            server.report_sequence + 1,
        )

    def take_report(self, server: TabletServer, report: Report) -> set[TabletId]:
        """Remembers a report, after what it changes in the records is replicated; answers the tablets concerned."""
        concerned: set[TabletId] = set()
        if not report.is_incremental:
            concerned.update(server.replicas)
            self._forget_report(server)
        for tablet_id in report.removed:
            if server.replicas.pop(tablet_id, None) is not None:
                self._unhost(tablet_id, server.uuid)
            concerned.add(tablet_id)
        for replica in report.updated:
            server.replicas[replica.tablet_id] = replica
            self._hosts.setdefault(replica.tablet_id, {})[server.uuid] = replica
            concerned.add(replica.tablet_id)
        server.report_sequence = report.sequence
        return concerned

    def forget_reports(self) -> None:
        """Drops what was reported to an earlier leadership; every server will be asked for a full report."""
        for server in self._servers.values():
            self._forget_report(server)

    def get(self, uuid: ServerId) -> TabletServer | None:
        """The server of this uuid, if it ever registered."""
        return self._servers.get(uuid)

    @property
    def servers(self) -> list[TabletServer]:
        """All that ever registered, by uuid."""
        return [self._servers[uuid] for uuid in sorted(self._servers)]

    def is_live(self, uuid: ServerId, now_s: float) -> bool:
        """Whether the server was heard of lately."""
        server = self._servers.get(uuid)
        return server is not None and now_s - server.last_heartbeat_s <= self._unresponsive_timeout_s

    def is_settling(self, now_s: float) -> bool:
        """Whether servers that live may still be unknown because this master has just started."""
        return now_s < self._settled_at_s

    def hosts(self, tablet_id: TabletId) -> Mapping[ServerId, ReportedReplica]:
        """The last report of each server that has, or had, a replica of the tablet."""
        return self._hosts.get(tablet_id, _NO_HOSTS)

    def leader_of(self, tablet_id: TabletId) -> ServerId | None:
        """The leader of the highest term that any replica reported; it may have been replaced since.

        A leader's own word wins over a follower's within a term; they cannot contradict each other, but the leader may
        have stepped down, which its own report tells first.
        """
        best: tuple[int, ServerId] | None = None
        for server, replica in self._hosts.get(tablet_id, _NO_HOSTS).items():
            leader = server if replica.role is Role.LEADER else replica.leader
            if (
                leader is not None
                and replica.state is ReplicaState.RUNNING
                and (best is None or replica.term > best[0])
            ):
                best = (replica.term, leader)
        return best[1] if best is not None else None

    def _forget_report(self, server: TabletServer) -> None:
        for tablet_id in server.replicas:
            self._unhost(tablet_id, server.uuid)
        server.replicas.clear()
        server.report_sequence = None

    def _unhost(self, tablet_id: TabletId, uuid: ServerId) -> None:
        hosts = self._hosts.get(tablet_id)
        if hosts is not None and hosts.pop(uuid, None) is not None and not hosts:
            del self._hosts[tablet_id]
