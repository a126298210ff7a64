"""What a tablet server's pages show."""

from __future__ import annotations

from collections.abc import Iterable

from kudu_py.common.hybrid_time import physical_micros
from kudu_py.common.partition import describe_partition
from kudu_py.consensus.core.model import Member
from kudu_py.daemon.copies_page import copies_page
from kudu_py.env.clock import Clock
from kudu_py.tablet.tablet_replica import ReplicaState
from kudu_py.tserver.scanners import Scanner
from kudu_py.tserver.tablet_server import TabletServer
from kudu_py.webui.page import Cell, Health, Row, TablePage, serving_health


class TabletServerPages:
    """The pages of one tablet server."""

    def __init__(self, server: TabletServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    def pages(self) -> list[TablePage]:
        """In the order of the navigation."""
        return [
            TablePage(
                "/tablets",
                "Tablets",
                (
                    "table",
                    "tablet_id",
                    "partition",
                    "state",
                    "data_state",
                    "role",
                    "rows",
                    "on_disk_bytes",
                    "memory_bytes",
                    "schema_version",
                    "error",
                ),
                self._tablets,
            ),
            TablePage(
                "/tombstones",
                "Tombstones",
                ("table", "tablet_id", "data_state", "last_op_id", "quarantine", "copy_error"),
                self._tombstones,
            ),
            TablePage(
                "/tablet-consensus-status",
                "Consensus",
                (
                    "tablet_id",
                    "role",
                    "term",
                    "leader",
                    "config_index",
                    "members",
                    "pending_members",
                    "last_op_id",
                    "committed_index",
                    "applied_index",
                    "log_bytes",
                    "log_segments",
                ),
                self._consensus,
            ),
            TablePage(
                "/scans",
                "Scans",
                ("scan", "tablet_id", "query_id", "outcome", "age_s", "idle_s", "rows", "bytes", "snapshot_micros"),
                self._scans,
            ),
            copies_page(self._server.manager.context.copies, self._clock),
            TablePage(
                "/masters",
                "Masters",
                ("address", "is_leader", "answered_s_ago", "failures"),
                self._masters,
            ),
        ]

    def health(self) -> Health:
        """SERVING once the replicas are opened; DEGRADED while there is a problem that it outlives."""
        replicas = self._server.manager.replicas()
        running = sum(replica.state is ReplicaState.RUNNING for replica in replicas)
        failed = sum(replica.state is ReplicaState.FAILED for replica in replicas)
        facts: dict[str, Cell] = {"running": running, "failed": failed}
        if not self._server.is_serving:
            return Health(False, "NOT_SERVING", facts)
        return serving_health(self._server.disk_watch.problems(), facts)

    def facts(self) -> list[tuple[str, Cell]]:
        """For the home page."""
        registration = self._server.registration()
        memory = self._server.memory
        return [
            ("uuid", registration.uuid),
            ("rpc_address", registration.rpc_address),
            ("http_address", registration.http_address),
            ("software_version", registration.software_version),
            ("fault_domain", registration.fault_domain),
            ("disk_free_bytes", self._server.disk_watch.free_bytes),
            ("replicas", len(self._server.manager.replicas())),
            ("leaders", sum(replica.is_leader for replica in self._server.manager.replicas())),
            ("memory_used_bytes", memory.used_bytes),
            ("memory_limit_bytes", memory.limit_bytes),
            ("flushes", self._server.maintenance.flushes),
            ("compactions", self._server.maintenance.compactions),
        ]

    def _tablets(self) -> Iterable[Row]:
        for replica in self._server.manager.replicas():
            status, superblock = replica.status(), replica.superblock
            running = status.state is ReplicaState.RUNNING
            partition = (
                describe_partition(superblock.schema, superblock.partition_schema, superblock.partition)
                if superblock.schema.columns
                else ""
            )
            yield (
                status.table_name,
                status.tablet_id,
                partition,
                status.state.value,
                status.data_state.value,
                replica.consensus.role.value if running else None,
                status.row_count,
                status.on_disk_bytes,
                status.memory_bytes,
                status.schema_version,
                status.error,
            )

    def _tombstones(self) -> Iterable[Row]:
        """What is left of deleted replicas, for good: it keeps their votes, and a late CreateTablet from making them
        anew. Apart from the tablets, which it would soon outnumber.

        In the quarantine lies what the deletion left, until it is purged; why the last copy to here failed is known
        until the next one or a restart.
        """
        for tombstone in self._server.manager.tombstones():
            last = tombstone.tombstone_last_op_id
            yield (
                tombstone.table_name,
                tombstone.tablet_id,
                tombstone.data_state.value,
                str(last) if last is not None else None,
                tombstone.quarantine or None,
                self._server.manager.copy_error(tombstone.tablet_id) or None,
            )

    def _consensus(self) -> Iterable[Row]:
        for replica in self._server.manager.replicas():
            if replica.state is not ReplicaState.RUNNING:
                continue
            consensus, log = replica.consensus, replica.log
            pending = consensus.pending_config
            yield (
                replica.tablet_id,
                consensus.role.value,
                consensus.term,
                consensus.leader,
                consensus.committed_config.config_index,
                _members(consensus.committed_config.members),
                _members(pending.members) if pending is not None else None,
                str(consensus.last_op_id),
                consensus.commit_index,
                consensus.applied_index,
                log.size_bytes,
                log.segment_count,
            )

    def _scans(self) -> Iterable[Row]:
        for scanner in [*self._server.scanners.running(), *self._server.scanners.finished()]:
            yield self._scan(scanner)

    def _scan(self, scanner: Scanner) -> Row:
        now = self._clock.monotonic()
        return (
            scanner.number,
            scanner.tablet_id,
            scanner.query_id,
            scanner.outcome,
            round(now - scanner.started_s, 3),
            round(now - scanner.last_active_s, 3),
            scanner.rows,
            scanner.bytes,
            physical_micros(scanner.timestamp) if scanner.timestamp else None,
        )

    def _masters(self) -> Iterable[Row]:
        now = self._clock.monotonic()
        for master in self._server.heartbeater.masters:
            answered = master.last_answered_s
            yield (
                master.address,
                master.is_leader,
                round(now - answered, 3) if answered is not None else None,
                master.failures,
            )


def _members(members: Iterable[Member]) -> str:
    return ", ".join(f"{m.uuid} {m.member_type.value} {m.address}" for m in members)
