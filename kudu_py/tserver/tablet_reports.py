"""What masters are told of this server's replicas."""

from __future__ import annotations

from collections.abc import Iterable

from kudu_py.common.ids import TabletId
from kudu_py.pb import master_pb2, tserver_pb2
from kudu_py.tablet.manager import TabletManager
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.tablet_copy.board import Copy
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tserver.service import data_state_to_pb, state_to_pb


class TabletReports:
    """Reports over a `TabletManager`."""

    def __init__(self, manager: TabletManager) -> None:
        self._manager = manager

    def full(self, sequence: int) -> master_pb2.TabletReport:
        """All replicas and tombstones."""
        report = master_pb2.TabletReport(is_incremental=False, sequence=sequence)
        report.updated_tablets.extend(self._of_replica(replica) for replica in self._manager.replicas())
        report.updated_tablets.extend(self._of_tombstone(tombstone) for tombstone in self._manager.tombstones())
        return report

    def incremental(self, sequence: int, tablet_ids: Iterable[TabletId]) -> master_pb2.TabletReport:
        """Those tablets as they are now."""
        report = master_pb2.TabletReport(is_incremental=True, sequence=sequence)
        replicas = {replica.tablet_id: replica for replica in self._manager.replicas()}
        tombstones = {tombstone.tablet_id: tombstone for tombstone in self._manager.tombstones()}
        for tablet_id in sorted(tablet_ids):
            if tablet_id in replicas:
                report.updated_tablets.append(self._of_replica(replicas[tablet_id]))
            elif tablet_id in tombstones:
                report.updated_tablets.append(self._of_tombstone(tombstones[tablet_id]))
            else:
                report.removed_tablet_ids.append(tablet_id)
        return report

    def copying(self) -> list[TabletId]:
        """Tablets that are being copied to here: how far they are changes all the time."""
        copies = {copy.tablet_id for copy in self._manager.context.copies.copies_to_here()}
        return [replica.tablet_id for replica in self._manager.replicas() if replica.tablet_id in copies]

    def counts(self) -> tuple[int, int]:
        """Replicas that are alive, and those that lead."""
        replicas = self._manager.replicas()
        alive = sum(replica.state is not ReplicaState.FAILED for replica in replicas)
        return alive, sum(replica.is_leader for replica in replicas)

    def sizes(self) -> dict[TabletId, tuple[int, int]]:
        """Row count and bytes on disk of the replicas that lead: what statistics are made of."""
        leaders = [replica.status() for replica in self._manager.replicas() if replica.is_leader]
        return {status.tablet_id: (status.row_count, status.on_disk_bytes) for status in leaders}

    def _of_replica(self, replica: TabletReplica) -> master_pb2.ReportedTablet:
        message = _of_replica(replica)
        copy = self._manager.context.copies.copy_to_here(replica.tablet_id)
        if copy is not None:
            message.copy_progress.CopyFrom(_progress_of(copy))
        return message

    def _of_tombstone(self, tombstone: Superblock) -> master_pb2.ReportedTablet:
        return master_pb2.ReportedTablet(
            tablet_id=tombstone.tablet_id,
            state=tserver_pb2.STOPPED,
            data_state=tserver_pb2.DELETED,
            schema_version=tombstone.schema.version,
            error=self._manager.copy_error(tombstone.tablet_id),
        )


def _of_replica(replica: TabletReplica) -> master_pb2.ReportedTablet:
    status = replica.status()
    message = master_pb2.ReportedTablet(
        tablet_id=status.tablet_id,
        state=state_to_pb(status.state),
        data_state=data_state_to_pb(status.data_state),
        schema_version=status.schema_version,
        error=status.error,
        row_count=status.row_count,
        on_disk_bytes=status.on_disk_bytes,
    )
    if status.state is ReplicaState.RUNNING:
        message.consensus_state.CopyFrom(replica.consensus.consensus_state())
    return message


def _progress_of(copy: Copy) -> master_pb2.CopyProgress:
    return master_pb2.CopyProgress(
        source_uuid=copy.source_uuid,
        bytes_total=copy.progress.bytes_total,
        bytes_done=copy.progress.bytes_done,
        bytes_per_s=copy.bytes_per_s,
    )
