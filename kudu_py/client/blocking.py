"""The same surface for code that is not async, with kudu-python's names.

All clients of a process share one background thread with an event loop. A client belongs to the process that made it,
and so does gRPC: a process that was forked from one that had connected cannot connect, since gRPC would hang there and
take the parent's answers away. Fork before the first `connect`, or start processes by spawn. Methods may be called from
any thread; a session or scanner from one at a time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from kudu_py.client import client as aio_client
from kudu_py.client import scan_token as aio_scan_token
from kudu_py.client import scanner as aio_scanner
from kudu_py.client import session as aio_session
from kudu_py.client.client import Master, TableStatistics, TabletServer
from kudu_py.client.errors import KuduBadStatus, not_supported
from kudu_py.client.location_cache import Tablet
from kudu_py.client.options import ClientOptions
from kudu_py.client.scan_settings import ScanSetters
from kudu_py.client.scan_token import PartOfScan
from kudu_py.client.scanner import RowBatch, tuples_of
from kudu_py.client.schema_builder import Partitioning
from kudu_py.client.session import FlushMode, RowError
from kudu_py.client.table import TableInfo, WriteOperation
from kudu_py.common.errors import ErrorCode
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import Schema

T = TypeVar("T")


class _Background:
    """The loop thread of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kudu-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop and waits for it; an interrupt cancels it."""
        if self.pid != os.getpid():
            work.close()
            raise _after_fork()
        assert threading.current_thread() is not self._thread, "a blocking call on the client's own thread"
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _after_fork() -> KuduBadStatus:
    return KuduBadStatus(
        ErrorCode.ILLEGAL_STATE,
        "this process was forked from one that had connected, and gRPC does not outlive a fork: fork before the first "
        "connect, or start processes by spawn (multiprocessing.set_start_method('spawn'))",
    )


_background: _Background | None = None
_lock = threading.Lock()


def _this_process() -> _Background:
    global _background
    with _lock:
        if _background is None:
            _background = _Background()
        elif _background.pid != os.getpid():
            raise _after_fork()
        return _background


def _forget_lock() -> None:
    """A fork may have copied the lock while another thread held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def connect(
    host: str | Sequence[str],
    port: int | str | Sequence[int | str] | None = None,
    admin_timeout_ms: int | None = None,
    rpc_timeout_ms: int | None = None,
    *,
    options: ClientOptions | None = None,
    require_authentication: bool = False,
    encryption_policy: str | None = None,
) -> Client:
    """Connects to a cluster through its masters.

    Args:
        host: the masters, in a list or separated by commas, each with or without a port.
        port: for hosts without one; 7051 if not given.
        admin_timeout_ms: for calls that ask or change the catalog, retries included.
        rpc_timeout_ms: for writes and for a scan's steps, retries included.
        options: everything else.

    Raises:
        KuduUnavailable: no master can be reached; names the addresses.
        KuduNotSupported: the server there is no master, or authentication or encryption is asked for.
        KuduBadStatus: ILLEGAL_STATE: this process was forked from one that had connected.
    """
    if require_authentication or str(encryption_policy or "").lower() in ("required", "required_remote"):
        raise not_supported("authentication and encryption are not supported yet")
    background = _this_process()
    made = background.run(
        aio_client.connect(
            host, port, admin_timeout_ms=admin_timeout_ms, rpc_timeout_ms=rpc_timeout_ms, options=options
        )
    )
    return Client(made, background)


class Client:
    """A cluster. Made by `connect`; used as `with` it closes at the end."""

    def __init__(self, client: aio_client.KuduClient, background: _Background) -> None:
        self._aio = client
        self._background = background

    @property
    def client_id(self) -> str:
        """Random per client; with sequences it makes retried writes take effect once."""
        return self._aio.client_id

    @property
    def master_addresses(self) -> tuple[str, ...]:
        """The addresses that the client was made with."""
        return self._aio.master_addresses

    @property
    def is_multimaster(self) -> bool:
        """Whether the client was made with several masters."""
        return self._aio.is_multimaster

    def create_table(
        self,
        table_name: str,
        schema: Schema,
        partitioning: Partitioning | None = None,
        n_replicas: int | None = None,
        owner: str | None = None,
        comment: str | None = None,
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> Table:
        """Creates a table and waits until every tablet has a leader; see the asyncio client."""
        made = self._background.run(
            self._aio.create_table(
                table_name, schema, partitioning, n_replicas, owner, comment, wait=wait, timeout_s=timeout_s
            )
        )
        return Table(made, self)

    def delete_table(self, table_name: str, *, timeout_s: float | None = None) -> None:
        """Deletes a table and its rows; durable on return."""
        self._background.run(self._aio.delete_table(table_name, timeout_s=timeout_s))

    def table_exists(self, table_name: str) -> bool:
        """Whether there is a table of this name."""
        return self._background.run(self._aio.table_exists(table_name))

    def table(self, table_name: str) -> Table:
        """Opens a table; KuduNotFound if there is none."""
        return Table(self._background.run(self._aio.table(table_name)), self)

    def list_tables(self, match_substring: str | None = None) -> list[str]:
        """The names of all tables, or of those that contain a text, in order."""
        return self._background.run(self._aio.list_tables(match_substring))

    def get_table_statistics(self, table_name: str) -> TableStatistics:
        """Rows and bytes of a table, as last reported."""
        return self._background.run(self._aio.get_table_statistics(table_name))

    def list_tablet_servers(self) -> list[TabletServer]:
        """All tablet servers that registered, alive or not."""
        return self._background.run(self._aio.list_tablet_servers())

    def list_masters(self) -> list[Master]:
        """The masters and their roles."""
        return self._background.run(self._aio.list_masters())

    def soft_delete_table(self, table_name: str, reserve_seconds: int = 0) -> None:
        """Not offered yet."""
        self._background.run(self._aio.soft_delete_table(table_name, reserve_seconds))

    def recall_table(self, table_id: str) -> None:
        """Not offered yet."""
        self._background.run(self._aio.recall_table(table_id))

    def new_table_alterer(self, table: Table) -> None:
        """Not offered yet."""
        self._aio.new_table_alterer(table._aio)

    def new_session(
        self, flush_mode: FlushMode | str = FlushMode.MANUAL_FLUSH, timeout_ms: int | None = None
    ) -> Session:
        """A new session."""

        async def make() -> aio_session.KuduSession:
            return self._aio.new_session(flush_mode, timeout_ms)

        return Session(self._background.run(make()), self._background)

    def deserialize_token_into_scanner(self, serialized_token: bytes | PartOfScan) -> Scanner:
        """The scanner of a serialised scan token."""

        async def make() -> aio_scanner.Scanner:
            return self._aio.deserialize_token_into_scanner(serialized_token)

        return Scanner(self._background.run(make()), self._background)

    def latest_observed_timestamp(self) -> int:
        """The largest hybrid time that this client has seen."""
        return self._aio.latest_observed_timestamp()

    def close(self) -> None:
        """Ends everything: rows that have no outcome yet fail as unknown. Flush sessions before."""
        self._background.run(self._aio.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Table(TableInfo):
    """A table, opened."""

    def __init__(self, table: aio_client.Table, client: Client) -> None:
        super().__init__(
            table.id, table.name, table.schema, table.partition_schema, table.num_replicas, table.owner, table.comment
        )
        self._aio = table
        self.client = client

    def scanner(self) -> Scanner:
        """A new scan."""
        return Scanner(self._aio.scanner(), self.client._background)

    def scan_token_builder(self) -> ScanTokenBuilder:
        """A new scan to be divided among processes."""
        return ScanTokenBuilder(self._aio.scan_token_builder(), self.client._background)

    def tablets(self) -> tuple[Tablet, ...]:
        """The table's tablets, in partition order."""
        return self.client._background.run(self._aio.tablets())

    def drop(self) -> None:
        """Deletes the table and its rows."""
        self.client.delete_table(self.name)


class Session:
    """Writes through one client. Used as `with`, it flushes at the end."""

    def __init__(self, session: aio_session.KuduSession, background: _Background) -> None:
        self._aio = session
        self._background = background

    @property
    def flush_mode(self) -> FlushMode:
        """The present mode."""
        return self._aio.flush_mode

    def set_flush_mode(self, flush_mode: FlushMode | str) -> None:
        """Changes the mode; refused while rows wait for `flush`."""
        self._aio.set_flush_mode(flush_mode)

    def set_timeout_ms(self, ms: int) -> None:
        """For each row from now on: the time until it must be durable, retries included."""
        self._aio.set_timeout_ms(ms)

    def set_mutation_buffer_space(self, size_bytes: int) -> None:
        """Taken for compatibility."""

    def set_mutation_buffer_flush_watermark(self, watermark_pct: float) -> None:
        """Taken for compatibility."""

    def set_mutation_buffer_flush_interval(self, millis: int) -> None:
        """Taken for compatibility."""

    def set_mutation_buffer_max_num(self, max_num: int) -> None:
        """Taken for compatibility."""

    def apply(self, operation: WriteOperation) -> None:
        """Writes one row, as the flush mode says; see the asyncio session."""
        if self._aio.flush_mode is FlushMode.MANUAL_FLUSH:
            self._aio.hold_back(operation)  # no network, no loop: a hop to the other thread would be most of the time
        else:
            self._background.run(self._aio.apply(operation))

    def write(
        self,
        table: TableInfo,
        data: Any,
        operation: RowOperation | str = RowOperation.UPSERT,
        *,
        nulls_are_unset: bool = False,
    ) -> None:
        """Writes Arrow data, the fast way; see the asyncio session."""
        self._background.run(self._aio.write(table, data, operation, nulls_are_unset=nulls_are_unset))

    def flush(self) -> None:
        """Sends what waits, and returns when everything given before has an outcome; raises if rows failed."""
        self._background.run(self._aio.flush())

    def get_pending_errors(self) -> tuple[list[RowError], bool]:
        """The errors since the last time they were asked for, and whether there were more than are kept."""
        return self._aio.get_pending_errors()

    def count_pending_errors(self) -> int:
        """How many errors `get_pending_errors` would answer."""
        return self._aio.count_pending_errors()

    def has_pending_operations(self) -> bool:
        """Whether rows wait for `flush` or for an outcome."""
        return self._aio.has_pending_operations()

    def close(self) -> None:
        """Flushes; the session takes no more rows."""
        self._background.run(self._aio.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._aio.__aexit__(kind, error, trace))


class Scanner(ScanSetters):
    """One scan; read it in one of the ways below, once."""

    def __init__(self, scanner: aio_scanner.Scanner, background: _Background) -> None:
        super().__init__(scanner.settings)
        self._aio = scanner
        self._background = background

    @property
    def snapshot_timestamp(self) -> int | None:
        """The hybrid time that the rows are of, once the scan has begun."""
        return self._aio.snapshot_timestamp

    def open(self) -> Scanner:
        """Begins the scan: nothing can be set any more."""
        self._background.run(self._aio.open())
        return self

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches."""
        try:
            while (batch := self._background.run(self._aio.next_record_batch())) is not None:
                yield batch
        finally:
            self.close()

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return self._background.run(self._aio.to_arrow())

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame; asks for pandas."""
        return self.to_arrow().to_pandas()

    def read_all_tuples(self) -> list[tuple[object, ...]]:
        """All rows as tuples of Python values. For small scans."""
        return [row for batch in self.record_batches() for row in tuples_of(batch)]

    def read_next_batch_tuples(self) -> list[tuple[object, ...]]:
        """The next batch as tuples; empty at the end."""
        return self._background.run(self._aio.read_next_batch_tuples())

    def next_batch(self) -> RowBatch:
        """The next batch; empty at the end."""
        return self._background.run(self._aio.next_batch())

    def xbatches(self) -> Iterator[RowBatch]:
        """The batches one by one."""
        for batch in self.record_batches():
            yield RowBatch(batch)

    def has_more_rows(self) -> bool:
        """Whether there is another batch; reads it if need be."""
        return self._background.run(self._aio.has_more_rows())

    def count(self) -> int:
        """The number of rows; no columns are read."""
        return self._background.run(self._aio.count())

    def close(self) -> None:
        """Ends the scan."""
        self._background.run(self._aio.close())

    def __enter__(self) -> Scanner:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class ScanToken(PartOfScan):
    """A part of a scan that any process can carry out: `serialize` it here, `deserialize_token_into_scanner` there."""

    def __init__(self, token: aio_scan_token.ScanToken, background: _Background) -> None:
        super().__init__(token.pb)
        self._aio = token
        self._background = background

    def into_kudu_scanner(self) -> Scanner:
        """The scanner of this part, by the client that made the token."""

        async def make() -> aio_scanner.Scanner:
            return self._aio.into_kudu_scanner()

        return Scanner(self._background.run(make()), self._background)


class ScanTokenBuilder(ScanSetters):
    """Divides a scan into tokens, one for each tablet that can hold matching rows, all at one snapshot."""

    def __init__(self, builder: aio_scan_token.ScanTokenBuilder, background: _Background) -> None:
        super().__init__(builder.settings)
        self._aio = builder
        self._background = background

    def build(self) -> list[ScanToken]:
        """The tokens, in partition order."""
        return [ScanToken(token, self._background) for token in self._background.run(self._aio.build())]
