"""`SysCatalog`: the system tablet: an ordinary `TabletReplica` with a fixed id and schema.

Its rows are (entry type, entry id, part) -> (part count, bytes). An entry is one protobuf message (`catalog.proto`);
one that is larger than a cell may be (a table of 300 columns with long comments) takes several rows. The rows of one
change are one batch and so one log entry: an entry is never half new. Rows left over from a longer version of an entry
are told by the part count of the newer one, and ignored.

It has no log, consensus or bootstrap of its own: `TabletManager` serves it in the master as it serves any tablet in a
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict, not_the_leader
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.row_batch import RowBatch, RowOperation
from kudu_py.common.schema import MAX_CELL_BYTES, ColumnSchema, DataType, Schema
from kudu_py.consensus.core.model import Role
from kudu_py.consensus.raft_consensus import RaftConsensus
from kudu_py.master import codec
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import ClusterEntry, OperationEntry, TableEntry, TabletEntry, TabletServerEntry
from kudu_py.master.catalog.state import CatalogState
from kudu_py.pb import catalog_pb2
from kudu_py.tablet.scan_spec import ScanSpec
from kudu_py.tablet.tablet_replica import TabletReplica

_log = structlog.get_logger(__name__)

SYS_CATALOG_TABLE_NAME = "sys.catalog"
SYS_CATALOG_SCHEMA = Schema(
    (
        ColumnSchema("entry_type", DataType.INT8, column_id=0),
        ColumnSchema("entry_id", DataType.STRING, column_id=1),
        ColumnSchema("part", DataType.INT16, column_id=2),
        ColumnSchema("part_count", DataType.INT16, column_id=3),
        ColumnSchema("entry", DataType.BINARY, column_id=4),
    ),
    key_count=3,
)
SYS_CATALOG_PARTITION_SCHEMA = PartitionSchema()
SYS_CATALOG_PARTITION = Partition()

_CLUSTER_ID = "cluster"
_UPKEEP_INTERVAL_S = 10.0
_FLUSH_BYTES = 8 << 20
_FLUSH_AGE_BYTES_MIN = 1 << 20
_LOG_BYTES = 32 << 20
_REMOVED_PARTS = 96
"""The largest change that may be asked for has no more: see `CatalogOptions.change_bytes_max`."""
_READ_SLICE_ROWS = 256
"""Entries decoded before the loop gets its turn: a new leader must go on sending heartbeats while it reads."""


class EncodedEntry(NamedTuple):
    """An entry as the sys catalog holds it."""

    entry_type: int
    entry_id: str
    content: bytes


def encode_change(change: CatalogChange) -> list[EncodedEntry]:
    """The entries of a change, tablets first."""
    entries = [EncodedEntry(catalog_pb2.TABLET, t.tablet_id, codec.encode_tablet(t)) for t in change.tablets]
    entries.extend(EncodedEntry(catalog_pb2.TABLE, t.table_id, codec.encode_table(t)) for t in change.tables)
    if change.cluster is not None:
        entries.append(EncodedEntry(catalog_pb2.CLUSTER, _CLUSTER_ID, codec.encode_cluster(change.cluster)))
    entries.extend(EncodedEntry(catalog_pb2.TABLET_SERVER, s.uuid, codec.encode_server(s)) for s in change.servers)
    entries.extend(
        EncodedEntry(catalog_pb2.OPERATION, o.operation_id, codec.encode_operation(o)) for o in change.operations
    )
    # An entry without content is one that is removed; no message that is kept is empty.
    entries.extend(EncodedEntry(catalog_pb2.OPERATION, operation_id, b"") for operation_id in change.forgotten)
    return entries


def rows_of(entries: Iterable[EncodedEntry]) -> RowBatch:
    """One UPSERT per part of each entry; an entry without content is removed with all parts that it may have."""
    columns: tuple[list[object], ...] = ([], [], [], [], [])
    operations: list[RowOperation] = []
    for entry in entries:
        starts = range(0, len(entry.content) or MAX_CELL_BYTES * _REMOVED_PARTS, MAX_CELL_BYTES)
        for part, start in enumerate(starts):
            row = (entry.entry_type, entry.entry_id, part, len(starts), entry.content[start : start + MAX_CELL_BYTES])
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        operations += [RowOperation.UPSERT if entry.content else RowOperation.DELETE_IGNORE] * len(starts)
    return _batch(columns, operations)


def _batch(columns: tuple[list[object], ...], operations: Sequence[RowOperation]) -> RowBatch:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SYS_CATALOG_SCHEMA.arrow, strict=True)],
        schema=pa.schema([field.with_nullable(True) for field in SYS_CATALOG_SCHEMA.arrow]),
    )
    return RowBatch(SYS_CATALOG_SCHEMA, np.array(operations, np.uint8), rows, (0, 1, 2, 3, 4))


class EntryReader:
    """Puts scanned rows together again, in any order, and builds the state."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, str], dict[int, tuple[int, bytes]]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a batch with all columns of the schema."""
        for entry_type, entry_id, part, part_count, content in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            self._parts.setdefault((entry_type, entry_id), {})[part] = (part_count, content)

    def entries(self) -> list[EncodedEntry]:
        """The entries, whole.

        Raises:
            KuduError: CORRUPTION if a part is missing.
        """
        return [
            EncodedEntry(entry_type, entry_id, _joined(entry_type, entry_id, parts))
            for (entry_type, entry_id), parts in sorted(self._parts.items())
        ]


def _joined(entry_type: int, entry_id: str, parts: dict[int, tuple[int, bytes]]) -> bytes:
    count = parts[0][0] if 0 in parts else 0
    if not count or any(part not in parts or parts[part][0] != count for part in range(count)):
        raise KuduError(
            ErrorCode.CORRUPTION, f"the sys catalog's entry {entry_id!r} of type {entry_type} lacks a part of {count}"
        )
    return b"".join(parts[part][1] for part in range(count))


class StateReader:
    """Decodes entries into a state, a slice at a time."""

    def __init__(self) -> None:
        self._cluster: ClusterEntry | None = None
        self._tables: list[TableEntry] = []
        self._tablets: list[TabletEntry] = []
        self._servers: list[TabletServerEntry] = []
        self._operations: list[OperationEntry] = []

    def add(self, entries: Iterable[EncodedEntry]) -> None:
        """Decodes some entries.

        Raises:
            KuduError: CORRUPTION that names the entry; NOT_SUPPORTED for a type that a newer release has written.
        """
        for entry in entries:
            if entry.entry_type == catalog_pb2.TABLE:
                self._tables.append(codec.decode_table(entry.entry_id, entry.content))
            elif entry.entry_type == catalog_pb2.TABLET:
                self._tablets.append(codec.decode_tablet(entry.entry_id, entry.content))
            elif entry.entry_type == catalog_pb2.CLUSTER:
                self._cluster = codec.decode_cluster(entry.content)
            elif entry.entry_type == catalog_pb2.TABLET_SERVER:
                self._servers.append(codec.decode_server(entry.entry_id, entry.content))
            elif entry.entry_type == catalog_pb2.OPERATION:
                self._operations.append(codec.decode_operation(entry.entry_id, entry.content))
            else:
                raise KuduError(
                    ErrorCode.NOT_SUPPORTED,
                    f"the sys catalog has an entry of type {entry.entry_type}, which this release does not know;"
                    " run the release that wrote it",
                )

    def state(self) -> CatalogState:
        """All of them together."""
        return CatalogState.build(self._cluster, self._tables, self._tablets, self._servers, self._operations)


class SysCatalog:
    """The replica of the system tablet on this master. The `CatalogStore` of the committer.

    Args:
        replica: gives the replica of the tablet `SYS_CATALOG_TABLET_ID`, or raises KuduError while there is none.
        change_bytes_max: the largest change, encoded.
        flush_age_s: unflushed entries are flushed after so long, as a tablet server's rows are.
    """

    def __init__(self, replica: Callable[[], TabletReplica], *, change_bytes_max: int, flush_age_s: float) -> None:
        self._replica = replica
        self._change_bytes_max = change_bytes_max
        self._flush_age_s = flush_age_s
        self._unflushed_since: float | None = None
        self._log_bytes = 0
        """Size of the log after the last checkpoint: what is kept of it for followers."""

    @property
    def consensus(self) -> RaftConsensus:
        """The replica's consensus.

        Raises:
            KuduError: CATALOG_MANAGER_NOT_INITIALIZED (try later) while it starts or stops; TABLET_FAILED.
        """
        try:
            return self._replica().consensus
        except KuduError as error:
            if error.code is ErrorCode.TABLET_FAILED:
                raise
            raise KuduError(
                ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
                f"this master is starting or stopping: {error.message}",
                verdict=Verdict.TRY_LATER,
            ) from error

    @property
    def leading_term(self) -> int | None:
        """The term in which this master leads, ready or not; None if it does not."""
        try:
            consensus = self.consensus
        except KuduError:
            return None
        return consensus.term if consensus.role is Role.LEADER else None

    @property
    def is_leader_ready(self) -> bool:
        """Whether it leads and has applied everything that was committed before."""
        try:
            return self.consensus.is_leader_ready()
        except KuduError:
            return False

    def require_leader(self) -> None:
        """Refuses unless this master leads, as far as it knows.

        Raises:
            KuduError: NOT_THE_LEADER with the leader's address, if it is known; as `consensus`.
        """
        consensus = self.consensus
        if consensus.role is not Role.LEADER:
            raise not_the_leader("the catalog", consensus.leader, consensus.leader_address, consensus.term)

    async def confirm_leader(self) -> None:
        """Returns once a majority of the masters has confirmed, after the call, that this one leads.

        Raises:
            KuduError: NOT_THE_LEADER and the like.
        """
        await self.consensus.read_index()

    async def write(self, change: CatalogChange) -> None:
        """Replicates a change as one batch; see `CatalogStore`."""
        entries = encode_change(change)
        size = sum(len(entry.content) + len(entry.entry_id) for entry in entries)
        if size > self._change_bytes_max:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT,
                f"the operation would write {size} bytes to the catalog at once; the limit is {self._change_bytes_max}:"
                " use fewer partitions, or shorter names, comments and defaults",
            )
        await self._replica().write_batch(rows_of(entries))

    async def settle(self) -> None:
        """Returns once every earlier write of this term is decided, those included whose outcome is unknown.

        By a write of its own that changes nothing: entries are decided in the order of the log.
        """
        nothing: tuple[list[object], ...] = ([0], [""], [0], [0], [b""])
        await self._replica().write_batch(_batch(nothing, [RowOperation.DELETE_IGNORE]))

    async def keep_up(self) -> None:
        """Until cancelled: checkpoints and compacts the replica, leader or not, so that log and history stay small."""
        while True:
            await asyncio.sleep(_UPKEEP_INTERVAL_S)
            try:
                replica = self._replica()
                if (
                    replica.tablet.unflushed_bytes > _FLUSH_BYTES
                    or replica.log.size_bytes > self._log_bytes + _LOG_BYTES
                    or self._is_old(replica)
                ):
                    await replica.checkpointer.flush()
                    self._log_bytes = replica.log.size_bytes
                    self._unflushed_since = None
                await replica.checkpointer.compact()
            except KuduError as error:
                if error.code is ErrorCode.CORRUPTION:
                    self._replica().fail(error)
                    continue
                _log.warning("sys_catalog_upkeep_put_off", error=str(error))

    def _is_old(self, replica: TabletReplica) -> bool:
        if not replica.checkpointer.has_unflushed:
            self._unflushed_since = None
            return False
        now = asyncio.get_running_loop().time()
        if self._unflushed_since is None:
            self._unflushed_since = now
        is_much = replica.tablet.unflushed_bytes >= _FLUSH_AGE_BYTES_MIN
        return is_much and now - self._unflushed_since >= self._flush_age_s

    async def load(self) -> CatalogState:
        """Everything that is committed. Leaves the loop its turns.

        Raises:
            KuduError: NOT_THE_LEADER if it does not lead or is not ready; CORRUPTION, NOT_SUPPORTED.
        """
        replica = self._replica()
        snapshot = await replica.latest_snapshot()
        reader = EntryReader()
        for batch in replica.scan(ScanSpec(columns=SYS_CATALOG_SCHEMA.names, timestamp=snapshot)):
            reader.add(batch)
            await asyncio.sleep(0)
        states = StateReader()
        entries = reader.entries()
        for start in range(0, len(entries), _READ_SLICE_ROWS):
            states.add(entries[start : start + _READ_SLICE_ROWS])
            await asyncio.sleep(0)
        return states.state()
