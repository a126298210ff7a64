"""The superblock: which files make up a replica, and what state they are in (seed 002; upstream's `TabletMetadata`).

A replica exists if and only if its superblock does. It is replaced as a whole and atomically, so what it names is
always one consistent checkpoint: the rows' files and the retained results as of one OpId. What it does not name does
not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, unique

from google.protobuf.message import DecodeError

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.common.wire import (
    column_from_pb,
    column_to_pb,
    op_id_from_pb,
    op_id_to_pb,
    partition_from_pb,
    partition_schema_from_pb,
    partition_schema_to_pb,
    partition_to_pb,
    schema_from_pb,
    schema_to_pb,
)
from kudu_py.env import atomic_file
from kudu_py.env.disk import Disk
from kudu_py.pb import storage_pb2, tserver_pb2
from kudu_py.tablet.records import (
    DeltaLayerRecord,
    FileRecord,
    KeyIndexRecord,
    RowIdRange,
    RowSetRecord,
    TabletRecords,
)
from kudu_py.tablet.retained_results import EMPTY_SNAPSHOT, RetainedSnapshot

NO_TIME = HybridTime(0)
NO_ROWS = TabletRecords()
"""Of a replica that never flushed."""


@unique
class DataState(Enum):
    """What a replica's files amount to (seed 002, "Note on deleted tablets"). No superblock at all: DOES_NOT_EXIST."""

    COPYING = "COPYING"
    """They are being fetched; found at a start, they are worth nothing and the replica goes back to DELETED."""
    READY = "READY"
    """They are one checkpoint; the log has the rest."""
    DELETED = "DELETED"
    """They are gone, or about to be. Term, vote and last OpId stay for ever, so that it can vote without amnesia."""


_STATE_TO_PB = {
    DataState.COPYING: tserver_pb2.COPYING,
    DataState.READY: tserver_pb2.READY,
    DataState.DELETED: tserver_pb2.DELETED,
}
_STATE_FROM_PB = {number: state for state, number in _STATE_TO_PB.items()}


@dataclass(frozen=True, slots=True)
class Superblock:
    """What is known of a replica without its log.

    Attributes:
        tablet_id, table_id, table_name: what it is a replica of.
        schema: the tablet's schema as of the checkpoint.
        partition_schema, partition: which rows of the table it holds.
        data_state: what the files amount to.
        tombstone_last_op_id: the last entry its log held when it was deleted; None if it is not known, and then it
            cannot vote. Kept while COPYING, so that an interrupted copy finds it again.
        checkpoint: everything up to this OpId is in the files named here; MIN_OP_ID: nothing is, all is in the log.
        checkpoint_timestamp: of that entry; 0 with MIN_OP_ID.
        rows: the files of the rows.
        retained: what retried writes are answered from, as of the checkpoint.
        quarantine: name of the directory below quarantine/ that log and rows go to when DELETED, or are gathered in
            while COPYING; empty if there is none.
        copy_source: while COPYING, the server they come from.
        is_forgotten: when DELETED, that term and vote and this superblock are to go as well.
    """

    tablet_id: TabletId
    table_id: str
    table_name: str
    schema: Schema
    partition_schema: PartitionSchema
    partition: Partition
    data_state: DataState
    tombstone_last_op_id: OpId | None = None
    checkpoint: OpId = MIN_OP_ID
    checkpoint_timestamp: HybridTime = NO_TIME
    rows: TabletRecords = NO_ROWS
    retained: RetainedSnapshot = EMPTY_SNAPSHOT
    quarantine: str = ""
    copy_source: ServerId | None = None
    is_forgotten: bool = False

    @staticmethod
    def unknown(tablet_id: TabletId, data_state: DataState) -> Superblock:
        """Of a replica of which nothing but the tablet's id is known: its first copy has not brought more yet, or its
        superblock cannot be read.
        """
        return Superblock(
            tablet_id=tablet_id,
            table_id="",
            table_name="",
            schema=Schema((), 0),
            partition_schema=PartitionSchema(),
            partition=Partition((), b"", b""),
            data_state=data_state,
        )

    def as_tombstone(self, last_op_id: OpId | None, quarantine: str = "") -> Superblock:
        """What stays when the replica is deleted: its identity and the end of its log, no files."""
        return replace(
            self._without_files(), data_state=DataState.DELETED, tombstone_last_op_id=last_op_id, quarantine=quarantine
        )

    def as_copying(self, source: ServerId, quarantine: str) -> Superblock:
        """A tombstone that is being copied to: what it remembers stays, in case the copy fails."""
        assert self.data_state is DataState.DELETED, self.data_state
        return replace(self, data_state=DataState.COPYING, quarantine=quarantine, copy_source=source)

    def _without_files(self) -> Superblock:
        return replace(
            self,
            checkpoint=MIN_OP_ID,
            checkpoint_timestamp=NO_TIME,
            rows=NO_ROWS,
            retained=EMPTY_SNAPSHOT,
            copy_source=None,
        )


def write(disk: Disk, path: str, superblock: Superblock) -> None:
    """Durably replaces the superblock at `path`. Blocks: for disk jobs.

    Raises:
        OSError: whether the old or the new one holds is not known before a restart; fatal for the process.
    """
    atomic_file.replace(disk, path, to_pb(superblock).SerializeToString())


def read(disk: Disk, path: str, tablet_id: TabletId) -> Superblock:
    """The superblock at `path`. Blocks: for disk jobs.

    Raises:
        FileNotFoundError: there is none.
        KuduError: CORRUPTION that names the file, if it is damaged or another tablet's.
    """
    content = atomic_file.read(disk, path)
    try:
        message = storage_pb2.Superblock.FromString(content)
    except DecodeError as error:
        raise _corruption(path, "it is no superblock") from error
    if message.tablet_id != tablet_id:
        raise _corruption(path, f"it is the superblock of tablet {message.tablet_id[:64]!r}")
    if message.data_state not in _STATE_FROM_PB:
        raise _corruption(path, f"its data state is {message.data_state}, which this version does not know")
    return from_pb(message)


def to_pb(superblock: Superblock) -> storage_pb2.Superblock:
    """For the file, and for a server that copies the replica."""
    message = storage_pb2.Superblock(
        tablet_id=superblock.tablet_id,
        table_id=superblock.table_id,
        table_name=superblock.table_name,
        schema=schema_to_pb(superblock.schema),
        partition_schema=partition_schema_to_pb(superblock.partition_schema),
        partition=partition_to_pb(superblock.partition),
        data_state=_STATE_TO_PB[superblock.data_state],
        checkpoint_op_id=op_id_to_pb(superblock.checkpoint),
        checkpoint_timestamp=superblock.checkpoint_timestamp,
        row_records=_rows_to_pb(superblock.rows),
        retained_results=superblock.retained.to_pb(),
        quarantine_directory=superblock.quarantine,
        copy_source_uuid=superblock.copy_source or "",
        is_forgotten=superblock.is_forgotten,
    )
    if superblock.tombstone_last_op_id is not None:
        message.tombstone_last_op_id.CopyFrom(op_id_to_pb(superblock.tombstone_last_op_id))
    return message


def from_pb(message: storage_pb2.Superblock) -> Superblock:
    """From the file, or from the server that is copied from.

    Raises:
        KuduError: its schema or partition is none.
    """
    return Superblock(
        tablet_id=TabletId(message.tablet_id),
        table_id=message.table_id,
        table_name=message.table_name,
        schema=schema_from_pb(message.schema),
        partition_schema=partition_schema_from_pb(message.partition_schema),
        partition=partition_from_pb(message.partition),
        data_state=_STATE_FROM_PB[message.data_state],
        tombstone_last_op_id=(
            op_id_from_pb(message.tombstone_last_op_id) if message.HasField("tombstone_last_op_id") else None
        ),
        checkpoint=op_id_from_pb(message.checkpoint_op_id),
        checkpoint_timestamp=HybridTime(message.checkpoint_timestamp),
        rows=_rows_from_pb(message.row_records),
        retained=RetainedSnapshot.from_pb(message.retained_results),
        quarantine=message.quarantine_directory,
        copy_source=ServerId(message.copy_source_uuid) or None,
        is_forgotten=message.is_forgotten,
    )


def _rows_to_pb(rows: TabletRecords) -> storage_pb2.TabletRecords:
    return storage_pb2.TabletRecords(
        op_id=op_id_to_pb(rows.op_id),
        timestamp=rows.timestamp,
        rowsets=[_rowset_to_pb(rowset) for rowset in rows.rowsets],
        delta_layers=[
            storage_pb2.DeltaLayerRecord(
                layer_id=layer.layer_id,
                file=_file_to_pb(layer.file),
                rows=layer.rows,
                min_timestamp=layer.min_timestamp,
                max_timestamp=layer.max_timestamp,
            )
            for layer in rows.delta_layers
        ],
        key_runs=[
            storage_pb2.KeyIndexRecord(
                run_id=run.run_id, file=_file_to_pb(run.file), first_row_id=run.first_row_id, entries=run.entries
            )
            for run in rows.key_runs
        ],
        next_row_id=rows.next_row_id,
        next_block_id=rows.next_block_id,
        live_rows=rows.live_rows,
        history_start=rows.history_start,
        max_key=rows.max_key,
        added_columns=[column_to_pb(column) for column in rows.added_columns],
    )


def _rows_from_pb(message: storage_pb2.TabletRecords) -> TabletRecords:
    if not message.next_block_id:
        return NO_ROWS
    return TabletRecords(
        op_id=op_id_from_pb(message.op_id),
        timestamp=HybridTime(message.timestamp),
        rowsets=tuple(_rowset_from_pb(rowset) for rowset in message.rowsets),
        delta_layers=tuple(
            DeltaLayerRecord(
                layer.layer_id,
                _file_from_pb(layer.file),
                layer.rows,
                HybridTime(layer.min_timestamp),
                HybridTime(layer.max_timestamp),
            )
            for layer in message.delta_layers
        ),
        key_runs=tuple(
            KeyIndexRecord(run.run_id, _file_from_pb(run.file), run.first_row_id, run.entries)
            for run in message.key_runs
        ),
        next_row_id=message.next_row_id,
        next_block_id=message.next_block_id,
        live_rows=message.live_rows,
        history_start=HybridTime(message.history_start),
        max_key=tuple(message.max_key),
        added_columns=tuple(column_from_pb(column) for column in message.added_columns),
    )


def _rowset_to_pb(rowset: RowSetRecord) -> storage_pb2.RowSetRecord:
    message = storage_pb2.RowSetRecord(
        rowset_id=rowset.rowset_id,
        rows_file=_file_to_pb(rowset.rows_file),
        row_ids=[storage_pb2.RowIdRange(first=ids.first, count=ids.count) for ids in rowset.row_ids],
        rows=rowset.rows,
        undo_layers=rowset.undo_layers,
        redo_layers=rowset.redo_layers,
        first_snapshot=rowset.first_snapshot,
    )
    if rowset.locations_file is not None:
        message.locations_file.CopyFrom(_file_to_pb(rowset.locations_file))
    return message


def _rowset_from_pb(message: storage_pb2.RowSetRecord) -> RowSetRecord:
    return RowSetRecord(
        rowset_id=message.rowset_id,
        rows_file=_file_from_pb(message.rows_file),
        locations_file=_file_from_pb(message.locations_file) if message.HasField("locations_file") else None,
        row_ids=tuple(RowIdRange(ids.first, ids.count) for ids in message.row_ids),
        rows=message.rows,
        undo_layers=tuple(message.undo_layers),
        redo_layers=tuple(message.redo_layers),
        first_snapshot=HybridTime(message.first_snapshot),
    )


def _file_to_pb(file: FileRecord) -> storage_pb2.FileRecord:
    return storage_pb2.FileRecord(name=file.name, size_bytes=file.size_bytes, checksum=file.checksum)


def _file_from_pb(message: storage_pb2.FileRecord) -> FileRecord:
    return FileRecord(message.name, message.size_bytes, message.checksum)


def _corruption(path: str, why: str) -> KuduError:
    return KuduError(ErrorCode.CORRUPTION, f"{path}: {why}", details={"path": path})
