"""`Scanner` and scan tokens: the rows of a table as Arrow batches.

All tablets of a scan are read at one snapshot. A scan of one tablet in READ_LATEST mode leaves the choice to its
leader, which makes sure that it still leads; a scan of several asks the servers for their clocks and takes the
largest. Followers move their clocks past every entry they take, so a majority of each tablet's replicas is enough for
the snapshot to hold every write that was acknowledged before.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kudu_py.client.errors import invalid, raises_public, raises_public_async, raises_public_iter
from kudu_py.client.location_cache import Tablet, tablet_from_pb
from kudu_py.client.table import TableInfo
from kudu_py.client.tablet_scan import ScanBroken, ScannedBatch, scan_tablet
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import from_micros
from kudu_py.common.partition import PartitionSchema
from kudu_py.common.predicate import Predicate
from kudu_py.common.schema import ColumnSchema, DataType
from kudu_py.common.values import canonical, micros_since_epoch
from kudu_py.common.wire import partition_to_pb, predicate_to_pb, predicates_from_pb, schema_from_pb, schema_to_pb
from kudu_py.pb import client_pb2, consensus_pb2, master_pb2, tserver_pb2

if TYPE_CHECKING:
    from kudu_py.client.client import KuduClient

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


class ScanSettings:
    """What is to be read: the setters that scanners and token builders share, with kudu-python's names.

    Setters check what they are given and answer the object itself.
    """

    def __init__(self, table: TableInfo) -> None:
        self.table = table
        self._columns: tuple[str, ...] | None = None
        self._predicates: list[Predicate] = []
        self._mode = ReadMode.READ_LATEST
        self._snapshot: int | None = None
        self._limit = 0
        self._batch_bytes: int | None = None
        self._ordered = False
        self._followers = False
        self._timeout_s: float | None = None
        self._query_id = ""
        self._is_open = False

    @raises_public
    def set_projected_column_names(self, names: Sequence[str]) -> ScanSettings:
        """Reads these columns, in this order; none: rows without columns, for counting."""
        self._require_unopened()
        for name in names:
            self.table.schema.column(name)
        if len(set(names)) != len(names):
            raise invalid(f"a column is twice in the projection: {', '.join(names)}")
        self._columns = tuple(names)
        return self

    @raises_public
    def set_projected_column_indexes(self, indexes: Sequence[int]) -> ScanSettings:
        """Reads the columns at these positions of the schema."""
        columns = self.table.schema.columns
        for index in indexes:
            if not 0 <= index < len(columns):
                raise invalid(f"table {self.table.name} has columns 0 to {len(columns) - 1}, not {index}")
        self.set_projected_column_names([columns[index].name for index in indexes])
        return self

    @raises_public
    def add_predicate(self, predicate: Predicate) -> ScanSettings:
        """Reads only rows for which this holds, and all others that were added."""
        self._require_unopened()
        if not isinstance(predicate, Predicate):
            raise invalid(f"a predicate is made from a column, such as table['c'] == 5, not {type(predicate).__name__}")
        predicate.bind(self.table.schema)
        self._predicates.append(predicate)
        return self

    def add_predicates(self, predicates: Sequence[Predicate]) -> ScanSettings:
        """Adds several."""
        for predicate in predicates:
            self.add_predicate(predicate)
        return self

    def set_read_mode(self, read_mode: ReadMode | str) -> ScanSettings:
        """`latest`, `snapshot` or `read_your_writes`."""
        self._require_unopened()
        self._mode = read_mode_of(read_mode)
        return self

    @raises_public
    def set_snapshot(self, timestamp: datetime.datetime | int | str) -> ScanSettings:
        """Reads the rows as of a time: a datetime (naive: UTC), ISO 8601 text, or microseconds since the epoch."""
        self._require_unopened()
        if isinstance(timestamp, int):
            micros = timestamp
        else:
            when = canonical(ColumnSchema("snapshot", DataType.UNIXTIME_MICROS), timestamp)
            assert isinstance(when, datetime.datetime)
            micros = micros_since_epoch(when)
        if micros <= 0:
            raise invalid(f"a snapshot lies after the epoch, not at {timestamp}")
        return self.set_snapshot_hybrid_time(from_micros(micros))

    def set_snapshot_hybrid_time(self, timestamp: int) -> ScanSettings:
        """Reads the rows as of a hybrid time, such as another scan's `snapshot_timestamp`."""
        self._require_unopened()
        self._snapshot = timestamp
        self._mode = ReadMode.READ_AT_SNAPSHOT
        return self

    def set_limit(self, limit: int) -> ScanSettings:
        """Reads at most so many rows, of all tablets together (of a token: of its tablets)."""
        self._require_unopened()
        if limit < 1:
            raise invalid(f"a limit is at least 1, not {limit}")
        self._limit = limit
        return self

    def set_batch_size_bytes(self, size_bytes: int) -> ScanSettings:
        """Wanted size of one batch, at most 8 MiB."""
        self._require_unopened()
        if not 0 <= size_bytes <= BATCH_BYTES_MAX:
            raise invalid(f"a batch has 0 to {BATCH_BYTES_MAX} bytes, not {size_bytes}")
        self._batch_bytes = size_bytes
        return self

    def set_fault_tolerant(self, fault_tolerant: bool = True) -> ScanSettings:
        """Reads each tablet in primary key order, so that a broken scan goes on at another replica."""
        self._require_unopened()
        self._ordered = fault_tolerant
        return self

    def set_selection(self, replica_selection: str) -> ScanSettings:
        """`leader` (default), or `closest` or `first`: any replica may answer; the rows are the same."""
        self._require_unopened()
        if str(replica_selection).lower() not in ("leader", "leader_only", "closest", "closest_replica", "first"):
            raise invalid(f"{replica_selection!r} is no replica selection; those are leader, closest, first")
        self._followers = not str(replica_selection).lower().startswith("leader")
        return self

    def set_timeout_millis(self, millis: int) -> ScanSettings:
        """How long the scan may be without progress, retries included."""
        if millis <= 0:
            raise invalid(f"a timeout is positive, not {millis} ms")
        self._timeout_s = millis / 1000
        return self

    def set_query_id(self, query_id: str) -> ScanSettings:
        """Shown on the servers' pages of scans."""
        self._query_id = query_id
        return self

    def set_cache_blocks(self, cache_blocks: bool) -> ScanSettings:
        """Taken for compatibility."""
        return self

    def get_projection_schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        schema = self.table.schema
        names = schema.names if self._columns is None else self._columns
        return pa.schema([schema.column(name).arrow_field for name in names])

    def request(self) -> tserver_pb2.ScanRequest:
        """The request to each tablet, without its id and without a snapshot that is not chosen yet."""
        request = tserver_pb2.ScanRequest(
            columns=self._columns or (),
            count_only=self._columns == (),
            predicates=[predicate_to_pb(self.table.schema, predicate) for predicate in self._predicates],
            read_mode=tserver_pb2.READ_LATEST,
            limit=self._limit,
            batch_size_bytes=self._batch_bytes or 0,
            ordered=self._ordered,
            allow_followers=self._followers,
            schema_version=self.table.schema.version,
            query_id=self._query_id,
        )
        if self._snapshot is not None:
            request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
            request.snapshot_timestamp = self._snapshot
        return request

    def needs_snapshot(self, tablet_count: int) -> bool:
        """Whether one must be chosen before the tablets are read."""
        if self._snapshot is not None:
            return False
        # A follower may answer only at a given snapshot, and several tablets must share one.
        return tablet_count > 1 or self._mode is not ReadMode.READ_LATEST or self._followers

    def _require_unopened(self) -> None:
        if self._is_open:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "the scan has begun: set it up before")


class RowBatch:
    """A batch of a scan, as kudu-python's `next_batch` and `xbatches` give them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.arrow = batch

    def as_tuples(self) -> list[tuple[object, ...]]:
        """The rows as Python values."""
        return tuples_of(self.arrow)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return iter(self.as_tuples())


class Scanner(ScanSettings):
    """One scan. Made by `Table.scanner`; read it in one of the ways below, once."""

    def __init__(self, table: TableInfo, client: KuduClient) -> None:
        super().__init__(table)
        self._client = client
        self._tablets: tuple[Tablet, ...] | None = None
        self._fixed_request: tserver_pb2.ScanRequest | None = None
        self._iterator: AsyncGenerator[pa.RecordBatch, None] | None = None
        self._snapshot_seen: int | None = None
        self._ahead: pa.RecordBatch | None = None  # read by `has_more_rows`, not given yet
        self._has_ended = False

    @property
    def snapshot_timestamp(self) -> int | None:
        """The hybrid time that the rows are of, once the scan has begun."""
        return self._snapshot_seen

    async def open(self) -> Scanner:
        """Begins the scan: nothing can be set any more. Reading opens by itself."""
        self._is_open = True
        return self

    @raises_public_iter
    async def record_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows in batches, tablet by tablet in partition order; closing the generator ends the scan."""
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                yield batch

    @raises_public_async
    async def next_record_batch(self) -> pa.RecordBatch | None:
        """The next batch, None at the end and after `close`."""
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        if self._has_ended:
            return None
        if self._iterator is None:
            self._iterator = self._batches()
        batch = await anext(self._iterator, None)
        self._has_ended = batch is None
        return batch

    async def has_more_rows(self) -> bool:
        """Whether there is another batch; reads it if need be."""
        if self._ahead is None:
            self._ahead = await self.next_record_batch()
        return self._ahead is not None

    async def next_batch(self) -> RowBatch:
        """The next batch; empty at the end."""
        batch = await self.next_record_batch()
        return RowBatch(empty_batch(self.get_projection_schema()) if batch is None else batch)

    async def read_next_batch_tuples(self) -> list[tuple[object, ...]]:
        """The next batch as tuples; empty at the end."""
        return (await self.next_batch()).as_tuples()

    async def xbatches(self) -> AsyncGenerator[RowBatch, None]:
        """The batches one by one."""
        async with aclosing(self.record_batches()) as batches:
            async for batch in batches:
                yield RowBatch(batch)

    async def to_arrow(self) -> pa.Table:
        """All rows."""
        batches = [batch async for batch in self.record_batches()]
        schema = self.get_projection_schema()
        if not len(schema):
            struct = pa.Array.from_buffers(pa.struct([]), sum(batch.num_rows for batch in batches), [None])
            return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)])
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)

    async def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame; asks for pandas."""
        return (await self.to_arrow()).to_pandas()

    async def read_all_tuples(self) -> list[tuple[object, ...]]:
        """All rows as tuples of Python values. For small scans."""
        rows: list[tuple[object, ...]] = []
        async for batch in self.record_batches():
            rows.extend(tuples_of(batch))
        return rows

    async def count(self) -> int:
        """The number of rows; no columns are read."""
        self.set_projected_column_names([])
        return sum([batch.num_rows async for batch in self.record_batches()])

    async def close(self) -> None:
        """Ends the scan."""
        self._has_ended, self._ahead = True, None
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            await iterator.aclose()

    async def __aenter__(self) -> Scanner:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def plan(self, *, pin: bool) -> tuple[tuple[Tablet, ...], tserver_pb2.ScanRequest]:
        """The tablets that can hold matching rows, and the request for each.

        Args:
            pin: choose a snapshot in any case.
        """
        if self._fixed_request is not None:
            assert self._tablets is not None
            return self._tablets, self._fixed_request
        locations = await self._client.locations(self.table)
        kept = locations.partitioner.prune(self._predicates)
        tablets = tuple(locations.tablets[i] for i in kept)
        request = self.request()
        if not request.batch_size_bytes:
            request.batch_size_bytes = self._client.options.scan_batch_bytes
        if tablets and (self.needs_snapshot(len(tablets)) or (pin and self._snapshot is None)):
            request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
            request.snapshot_timestamp = await self._client.choose_snapshot(tablets)
        return tablets, request

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if self._is_open and self._snapshot_seen is not None:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "the scan was read already: make another scanner")
        self._is_open = True
        tablets, request = await self.plan(pin=False)
        self._snapshot_seen = request.snapshot_timestamp or 0
        left = request.limit or None
        async with aclosing(self._read_tablets(tablets, request)) as batches:
            async for batch in batches:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                if batch.num_rows:
                    yield batch
                if left == 0:
                    return

    async def _read_tablets(
        self, tablets: Sequence[Tablet], request: tserver_pb2.ScanRequest
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The batches of each tablet after those of the one before; some tablets are read ahead."""
        options = self._client.options
        timeout_s = self._timeout_s or options.operation_timeout_s
        # With a limit the first tablet may be all that is needed.
        ahead = 1 if request.limit else options.scan_tablets_max
        waiting = deque(tablets)
        feeds: deque[_Feed] = deque()
        try:
            while waiting or feeds:
                while waiting and len(feeds) < ahead:
                    tablet_id = waiting.popleft().tablet_id
                    feeds.append(_Feed(self._client, tablet_id, request, timeout_s, options.scan_queue_batches))
                async for item in feeds[0].batches():
                    if item.snapshot_timestamp:
                        self._snapshot_seen = item.snapshot_timestamp
                        self._client.observe(item.snapshot_timestamp)
                    yield item.rows
                feeds.popleft()
        finally:
            for feed in feeds:
                feed.task.cancel()
            await asyncio.gather(*(feed.task for feed in feeds), return_exceptions=True)


class _Feed:
    """One tablet being read ahead."""

    def __init__(
        self, client: KuduClient, tablet_id: str, request: tserver_pb2.ScanRequest, timeout_s: float, queue_max: int
    ) -> None:
        self._client = client
        self._tablet_id = tablet_id
        self._request = request
        self._timeout_s = timeout_s
        self._ready: deque[ScannedBatch] = deque()
        self._queue_max = queue_max
        self._changed = asyncio.Event()
        self._is_taken = False
        self.task = asyncio.create_task(self._run(), name=f"scan {tablet_id[:8]}")

    async def batches(self) -> AsyncGenerator[ScannedBatch, None]:
        """What was read; raises what ended the reading."""
        while True:
            while not self._ready:
                if self.task.done():
                    self.task.result()
                    return
                self._changed.clear()
                waiter = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([waiter, self.task], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiter.cancel()
            self._is_taken = True
            item = self._ready.popleft()
            self._changed.set()
            yield item

    async def _run(self) -> None:
        attempts = 0
        while True:
            scan = scan_tablet(self._client.scan_context, self._tablet_id, self._request, timeout_s=self._timeout_s)
            try:
                async with aclosing(scan) as answers:
                    async for item in answers:
                        if not item.rows.num_rows:
                            continue
                        while len(self._ready) >= self._queue_max:
                            self._changed.clear()
                            await self._changed.wait()
                        self._ready.append(item)
                        self._changed.set()
                return
            except ScanBroken:
                # Nobody has seen a row of this tablet yet: it can be read again from the start.
                attempts += 1
                if self._is_taken or attempts > 10:
                    raise
                self._ready.clear()


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """No rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def tuples_of(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    """The rows of a batch as Python values."""
    if not batch.num_columns:
        return [()] * batch.num_rows
    return list(zip(*[column.to_pylist() for column in batch.columns], strict=True))


# -- tokens ------------------------------------------------------------------------------------------------------------


class ScanToken:
    """A part of a scan that any process can carry out: `serialize` it here, `deserialize_token_into_scanner` there."""

    def __init__(self, pb: client_pb2.ScanToken, client: KuduClient) -> None:
        self.pb = pb
        self._client = client

    def serialize(self) -> bytes:
        """Plain bytes (protobuf)."""
        return self.pb.SerializeToString()

    def into_kudu_scanner(self) -> Scanner:
        """The scanner of this part, by the client that made the token."""
        return scanner_of_token(self._client, self.serialize())

    @property
    def tablet_ids(self) -> tuple[str, ...]:
        """The tablets that it reads."""
        return tuple(tablet.tablet_id for tablet in self.pb.tablets)

    @property
    def snapshot_timestamp(self) -> int:
        """The hybrid time that the rows are of."""
        return self.pb.request.snapshot_timestamp


class ScanTokenBuilder(ScanSettings):
    """Divides a scan into tokens, one for each tablet that can hold matching rows, all at one snapshot."""

    def __init__(self, table: TableInfo, client: KuduClient) -> None:
        super().__init__(table)
        self._client = client

    @raises_public_async
    async def build(self) -> list[ScanToken]:
        """The tokens, in partition order."""
        scanner = Scanner(self.table, self._client)
        settings = {name: value for name, value in vars(self).items() if name not in ("_client", "table")}
        vars(scanner).update(settings)
        tablets, request = await scanner.plan(pin=True)
        self._is_open = True
        schema = schema_to_pb(self.table.schema)
        return [
            ScanToken(
                client_pb2.ScanToken(
                    table_id=self.table.id,
                    table_name=self.table.name,
                    schema=schema,
                    tablets=[_tablet_to_pb(tablet)],
                    request=request,
                ),
                self._client,
            )
            for tablet in tablets
        ]


@raises_public
def scanner_of_token(client: KuduClient, serialized: bytes) -> Scanner:
    """The scanner of a serialised token.

    Raises:
        KuduInvalidArgument: the bytes are no token.
    """
    try:
        pb = client_pb2.ScanToken.FromString(serialized)
    except Exception as error:
        raise invalid("the bytes are no scan token") from error
    if not pb.table_id or not pb.tablets:
        raise invalid("the bytes are no scan token")
    schema = schema_from_pb(pb.schema)
    table = TableInfo(pb.table_id, pb.table_name, schema, PartitionSchema(), 0)
    scanner = Scanner(table, client)
    tablets = tuple(tablet_from_pb(tablet) for tablet in pb.tablets)
    client.cache.learn(tablets)
    scanner._tablets = tablets
    scanner._fixed_request = pb.request
    scanner._columns = () if pb.request.count_only else tuple(pb.request.columns) or None
    scanner._predicates = list(predicates_from_pb(schema, pb.request.predicates))
    return scanner


def _tablet_to_pb(tablet: Tablet) -> master_pb2.TabletLocations:
    return master_pb2.TabletLocations(
        tablet_id=tablet.tablet_id,
        partition=partition_to_pb(tablet.partition),
        config_index=tablet.config_index,
        replicas=[
            master_pb2.ReplicaLocation(
                ts_uuid=replica.uuid,
                rpc_address=replica.address,
                role=consensus_pb2.LEADER if replica.uuid == tablet.leader_uuid else consensus_pb2.FOLLOWER,
                member_type=consensus_pb2.VOTER if replica.votes else consensus_pb2.PRE_VOTER,
            )
            for replica in tablet.replicas
        ],
    )
