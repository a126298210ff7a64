"""A client that writes all the time, and knows what must be there afterwards.

`WriteWorkload` inserts unique keys and overwrites a few others, from a thread of its own and through a blocking client
of its own, in rounds: a round is acknowledged as a whole when `flush` returns. Whatever is hurt meanwhile, no row may
fail, because the client repeats until an answer comes, and `check` finds every acknowledged row, each once.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import kudu_py as kudu
from kudu_py.client import Client, FlushMode, KuduException, Partitioning, Table
from kudu_py.testing.process_cluster import wait_until

UPSERTED_KEYS = 50
FIRST_INSERTED_KEY = 1_000_000
STRIDE = 7919
"""Inserted keys jump about, so that no batch is sorted above all others."""


def make_table(client: Client, name: str, *, buckets: int = 4, replicas: int = 3) -> Table:
    """`key INT64, value INT64, text STRING`, hash-partitioned."""
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int64, nullable=False)
    builder.add_column("value", kudu.int64, nullable=False)
    builder.add_column("text", kudu.string, nullable=True)
    builder.set_primary_keys(["key"])
    partitioning = Partitioning().add_hash_partitions(["key"], buckets) if buckets > 1 else Partitioning()
    return client.create_table(name, builder.build(), partitioning, replicas)


class WriteWorkload:
    """Writes to one table until it is left; a context manager.

    Attributes:
        inserted: rows acknowledged, by key.
        upserted: the last acknowledged value by key.
        errors: what reached the caller; must stay empty.
        longest_pause_s: the longest time between two acknowledgements.
        acknowledged_at: monotonic seconds and number of rows of every acknowledged round.
    """

    def __init__(
        self,
        masters: str,
        table: str,
        *,
        first_key: int = FIRST_INSERTED_KEY,
        round_rows: int = 40,
        pause_s: float = 0.0,
    ) -> None:
        """A writer that has not begun.

        Args:
            round_rows: inserts of a round.
            pause_s: between rounds; 0: as fast as it gets answers.
        """
        self._masters = masters
        self._table = table
        self._next = first_key
        self._round_rows = round_rows
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self.inserted: dict[int, int] = {}
        self.upserted: dict[int, int] = {}
        self.errors: list[str] = []
        self.longest_pause_s = 0.0
        self.rounds = 0
        self.acknowledged_at: list[tuple[float, int]] = []

    def __enter__(self) -> WriteWorkload:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(90.0)
        assert not self._thread.is_alive(), "the writer hangs"

    def wait_for_rounds(self, count: int, timeout_s: float = 40.0) -> None:
        """Returns when so many more rounds were acknowledged (or a row failed, which `check` tells)."""
        wanted = self.rounds + count
        wait_until(
            lambda: self.rounds >= wanted or self.errors or not self._thread.is_alive(), "writes to go on", timeout_s
        )
        assert not self.errors, self.errors

    def rows_per_s(self, begin: float, end: float, window_s: float) -> list[float]:
        """Acknowledged rows per second in each whole window of this length between two monotonic times."""
        counts = [0] * int((end - begin) / window_s)
        for at, rows in list(self.acknowledged_at):
            window = int((at - begin) / window_s)
            if at >= begin and window < len(counts):
                counts[window] += rows
        return [count / window_s for count in counts]

    def check(self, client: Client) -> int:
        """Compares the table with what was acknowledged, after the writer ended; the number of rows.

        Every row that was sent was acknowledged, since none may fail; so the table holds these rows and no others.
        """
        assert not self.errors, self.errors[:3]
        assert self.rounds, "nothing was written"
        found = client.table(self._table).scanner().to_arrow().to_pydict()
        keys = found["key"]
        assert len(keys) == len(set(keys)), "a row is there twice"
        rows = dict(zip(keys, found["value"], strict=True))
        expected = {**self.inserted, **self.upserted}
        missing = [key for key in expected if key not in rows]
        assert not missing, f"{len(missing)} acknowledged rows are gone, such as {missing[:5]}"
        surplus = [key for key in rows if key not in expected]
        assert not surplus, f"{len(surplus)} rows were never written, such as {surplus[:5]}"
        wrong = {key: (rows[key], value) for key, value in expected.items() if rows[key] != value}
        assert not wrong, f"{len(wrong)} rows have old values, such as {list(wrong.items())[:5]}"
        return len(rows)

    def _run(self) -> None:
        try:
            with kudu.connect(self._masters) as client:
                table = client.table(self._table)
                session = client.new_session(FlushMode.MANUAL_FLUSH, timeout_ms=60_000)
                acknowledged_at = time.monotonic()
                while not self._stop.is_set() and not self.errors:
                    self._round(table, session)
                    now = time.monotonic()
                    self.longest_pause_s = max(self.longest_pause_s, now - acknowledged_at)
                    acknowledged_at = now
                    self._stop.wait(self._pause_s)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _round(self, table: Table, session: kudu.Session) -> None:
        inserts: dict[int, int] = {}
        upserts: dict[int, int] = {}
        for _ in range(self._round_rows):
            key = self._next
            self._next += STRIDE
            inserts[key] = self.rounds
            session.apply(table.new_insert({"key": key, "value": self.rounds, "text": f"row {key}"}))
        for i in range(self._round_rows // 4):
            key = (self.rounds * 13 + i) % UPSERTED_KEYS
            upserts[key] = self.rounds
            session.apply(table.new_upsert({"key": key, "value": self.rounds}))
        try:
            session.flush()
        except KuduException as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.errors += [str(each) for each in session.get_pending_errors()[0][:10]]
            return
        self.inserted |= inserts
        self.upserted |= upserts
        self.acknowledged_at.append((time.monotonic(), len(inserts) + len(upserts)))
        self.rounds += 1
