"""`Scanner`: the rows of a table as Arrow batches.

All tablets of a scan are read at one snapshot. A scan of one tablet in READ_LATEST mode leaves the choice to its
leader, which makes sure that it still leads; a scan of several asks the servers for their clocks and takes the
largest. Followers move their clocks past every entry they take, so a majority of each tablet's replicas is enough for
the snapshot to hold every write that was acknowledged before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kudu_py.client.errors import raises_public_async, raises_public_iter
from kudu_py.client.location_cache import Tablet
from kudu_py.client.scan_settings import ScanSetters, ScanSettings
from kudu_py.client.tablet_scan import ScanBroken, ScannedBatch, scan_tablet
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import tserver_pb2

if TYPE_CHECKING:
    from kudu_py.client.client import KuduClient

ScanPlan = tuple[tuple[Tablet, ...], tserver_pb2.ScanRequest]
"""The tablets that can hold matching rows, and the request for each."""


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


class Scanner(ScanSetters):
    """One scan. Made by `Table.scanner`; read it in one of the ways below, once."""

    def __init__(self, settings: ScanSettings, client: KuduClient, *, plan: ScanPlan | None = None) -> None:
        """With a plan if it is a token's: then the settings only say what the rows look like."""
        super().__init__(settings)
        self._client = client
        self._plan = plan
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
        self.settings.is_open = True
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

    async def plan(self, *, pin: bool) -> ScanPlan:
        """The tablets that can hold matching rows, and the request for each.

        Args:
            pin: choose a snapshot in any case.
        """
        if self._plan is not None:
            return self._plan
        locations = await self._client.locations(self.table)
        kept = locations.partitioner.prune(self.settings.predicates)
        tablets = tuple(locations.tablets[i] for i in kept)
        request = self.settings.request()
        if not request.batch_size_bytes:
            request.batch_size_bytes = self._client.options.scan_batch_bytes
        if tablets and (self.settings.needs_snapshot(len(tablets)) or (pin and self.settings.snapshot is None)):
            request.read_mode = tserver_pb2.READ_AT_SNAPSHOT
            request.snapshot_timestamp = await self._client.choose_snapshot(tablets)
        return tablets, request

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if self.settings.is_open and self._snapshot_seen is not None:
            raise KuduError(ErrorCode.ILLEGAL_STATE, "the scan was read already: make another scanner")
        self.settings.is_open = True
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
        timeout_s = self.settings.timeout_s or options.operation_timeout_s
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
