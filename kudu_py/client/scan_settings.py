"""`ScanSettings`: what a scan reads, and the setters that scanners and token builders share, asyncio and blocking."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Self

import pyarrow as pa

from kudu_py.client.errors import KuduBadStatus, invalid, raises_public
from kudu_py.client.table import TableInfo
from kudu_py.common.errors import ErrorCode
from kudu_py.common.hybrid_time import from_micros
from kudu_py.common.predicate import Predicate
from kudu_py.common.schema import ColumnSchema, DataType
from kudu_py.common.values import canonical, micros_since_epoch
from kudu_py.common.wire import predicate_to_pb
from kudu_py.pb import tserver_pb2

BATCH_BYTES_MAX = 8 << 20


@unique
class ReadMode(Enum):
    """What a scan may see."""

    READ_LATEST = "latest"
    """Everything acknowledged before the scan began (linearizable)."""
    READ_AT_SNAPSHOT = "snapshot"
    """The rows at the timestamp of `set_snapshot`, or at one chosen as for READ_LATEST."""
    READ_YOUR_WRITES = "read_your_writes"
    """At least what this client wrote and read; here the same as READ_LATEST."""


@raises_public
def read_mode_of(given: ReadMode | str) -> ReadMode:
    """A read mode by constant or by kudu-python's name."""
    if isinstance(given, ReadMode):
        return given
    for mode in ReadMode:
        if str(given).lower() in (mode.value, mode.name.lower()):
            return mode
    raise invalid(f"{given!r} is no read mode; modes are {', '.join(mode.value for mode in ReadMode)}")


@dataclass(slots=True, eq=False)
class ScanSettings:
    """What is to be read.

    Attributes:
        table: that is read.
        columns: in this order; None: all; (): rows without columns, for counting.
        predicates: all of them hold for the rows.
        mode, snapshot: what the scan may see; a snapshot is a hybrid time.
        limit: of rows; 0: none.
        batch_bytes: wanted size of one batch; None: as the client's options say.
        ordered: each tablet in primary key order, so that a broken scan goes on at another replica.
        followers: any replica may answer.
        timeout_s: without progress, retries included; None: as the client's options say.
        query_id: shown on the servers' pages.
        is_open: the scan has begun, and nothing can be set any more.
    """

    table: TableInfo
    columns: tuple[str, ...] | None = None
    predicates: list[Predicate] = field(default_factory=list)
    mode: ReadMode = ReadMode.READ_LATEST
    snapshot: int | None = None
    limit: int = 0
    batch_bytes: int | None = None
    ordered: bool = False
    followers: bool = False
    timeout_s: float | None = None
    query_id: str = ""
    is_open: bool = False

    @property
    def arrow_schema(self) -> pa.Schema:
        """Of the rows."""
        schema = self.table.schema
        names = schema.names if self.columns is None else self.columns
        return pa.schema([schema.column(name).arrow_field for name in names])

    def request(self) -> tserver_pb2.ScanRequest:
        """The request to each tablet, without its id and without a snapshot that is not chosen yet."""
        request = tserver_pb2.ScanRequest(
            columns=self.columns or (),
            count_only=self.columns == (),
            predicates=[predicate_to_pb(self.table.schema, predicate) for predicate in self.predicates],
            read_mode=tserver_pb2.READ_LATEST,
            limit=self.limit,
            batch_size_bytes=self.batch_bytes or 0,
            ordered=self.ordered,
            allow_followers=self.followers,
            schema_version=self.table.schema.version,
            query_id=self.query_id,
        )
        if self.snapshot is not None:
            request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
            request.snapshot_timestamp = self.snapshot
        return request

    def needs_snapshot(self, tablet_count: int) -> bool:
        """Whether one must be chosen before the tablets are read."""
        if self.snapshot is not None:
            return False
        # A follower may answer only at a given snapshot, and several tablets must share one.
        return tablet_count > 1 or self.mode is not ReadMode.READ_LATEST or self.followers

    def require_unopened(self) -> None:
        """Raises KuduBadStatus once the scan has begun."""
        if self.is_open:
            raise KuduBadStatus(ErrorCode.ILLEGAL_STATE, "the scan has begun: set it up before")


class ScanSetters:
    """The setters of scanners and token builders, with kudu-python's names.

    They check what they are given and answer the object itself.
    """

    def __init__(self, settings: ScanSettings) -> None:
        self.settings = settings

    @property
    def table(self) -> TableInfo:
        """The table that is read."""
        return self.settings.table

    @raises_public
    def set_projected_column_names(self, names: Sequence[str]) -> Self:
        """Reads these columns, in this order; none: rows without columns, for counting."""
        self.settings.require_unopened()
        for name in names:
            self.settings.table.schema.column(name)
        if len(set(names)) != len(names):
            raise invalid(f"a column is twice in the projection: {', '.join(names)}")
        self.settings.columns = tuple(names)
        return self

    @raises_public
    def set_projected_column_indexes(self, indexes: Sequence[int]) -> Self:
        """Reads the columns at these positions of the schema."""
        columns = self.settings.table.schema.columns
        for index in indexes:
            if not 0 <= index < len(columns):
                raise invalid(f"table {self.settings.table.name} has columns 0 to {len(columns) - 1}, not {index}")
        self.set_projected_column_names([columns[index].name for index in indexes])
        return self

    @raises_public
    def add_predicate(self, predicate: Predicate) -> Self:
        """Reads only rows for which this holds, and all others that were added."""
        self.settings.require_unopened()
        if not isinstance(predicate, Predicate):
            raise invalid(f"a predicate is made from a column, such as table['c'] == 5, not {type(predicate).__name__}")
        predicate.bind(self.settings.table.schema)
        self.settings.predicates.append(predicate)
        return self

    def add_predicates(self, predicates: Sequence[Predicate]) -> Self:
        """Adds several."""
        for predicate in predicates:
            self.add_predicate(predicate)
        return self

    def set_read_mode(self, read_mode: ReadMode | str) -> Self:
        """`latest`, `snapshot` or `read_your_writes`."""
        self.settings.require_unopened()
        self.settings.mode = read_mode_of(read_mode)
        return self

    @raises_public
    def set_snapshot(self, timestamp: datetime.datetime | int | str) -> Self:
        """Reads the rows as of a time: a datetime (naive: UTC), ISO 8601 text, or microseconds since the epoch."""
        self.settings.require_unopened()
        if isinstance(timestamp, int):
            micros = timestamp
        else:
            when = canonical(ColumnSchema("snapshot", DataType.UNIXTIME_MICROS), timestamp)
            assert isinstance(when, datetime.datetime)
            micros = micros_since_epoch(when)
        if micros <= 0:
            raise invalid(f"a snapshot lies after the epoch, not at {timestamp}")
        return self.set_snapshot_hybrid_time(from_micros(micros))

    def set_snapshot_hybrid_time(self, timestamp: int) -> Self:
        """Reads the rows as of a hybrid time, such as another scan's `snapshot_timestamp`."""
        self.settings.require_unopened()
        self.settings.snapshot = timestamp
        self.settings.mode = ReadMode.READ_AT_SNAPSHOT
        return self

    def set_limit(self, limit: int) -> Self:
        """Reads at most so many rows, of all tablets together (of a token: of its tablets)."""
        self.settings.require_unopened()
        if limit < 1:
            raise invalid(f"a limit is at least 1, not {limit}")
        self.settings.limit = limit
        return self

    def set_batch_size_bytes(self, size_bytes: int) -> Self:
        """Wanted size of one batch, at most 8 MiB."""
        self.settings.require_unopened()
        if not 0 <= size_bytes <= BATCH_BYTES_MAX:
            raise invalid(f"a batch has 0 to {BATCH_BYTES_MAX} bytes, not {size_bytes}")
        self.settings.batch_bytes = size_bytes
        return self

    def set_fault_tolerant(self, fault_tolerant: bool = True) -> Self:
        """Reads each tablet in primary key order, so that a broken scan goes on at another replica."""
        self.settings.require_unopened()
        self.settings.ordered = fault_tolerant
        return self

    def set_selection(self, replica_selection: str) -> Self:
        """`leader` (default), or `closest` or `first`: any replica may answer; the rows are the same."""
        self.settings.require_unopened()
        if str(replica_selection).lower() not in ("leader", "leader_only", "closest", "closest_replica", "first"):
            raise invalid(f"{replica_selection!r} is no replica selection; those are leader, closest, first")
        self.settings.followers = not str(replica_selection).lower().startswith("leader")
        return self

    def set_timeout_millis(self, millis: int) -> Self:
        """How long the scan may be without progress, retries included."""
        if millis <= 0:
            raise invalid(f"a timeout is positive, not {millis} ms")
        self.settings.timeout_s = millis / 1000
        return self

    def set_query_id(self, query_id: str) -> Self:
        """Shown on the servers' pages of scans."""
        self.settings.query_id = query_id
        return self

    def set_cache_blocks(self, cache_blocks: bool) -> Self:
        """Taken for compatibility."""
        return self

    def get_projection_schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self.settings.arrow_schema
