"""`SimWriters`: callers on virtual time that know what must be there afterwards, and a reader that watches them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from kudu_py.client import FlushMode, KuduException
from kudu_py.client.client import KuduClient, Table
from kudu_py.common.errors import ErrorCode, Verdict

FIRST_KEY = 1000
"""Below are the registers, by the number of their caller."""


@dataclass(eq=False)
class SimWriters:
    """Callers that write all the time, each waiting for its answer, and a reader that watches them.

    A caller inserts keys of its own, each once, and counts a register up. What it is told decides what must be there:
    acknowledged, there, once; failed, not there; unknown, either. A reader that begins after an acknowledgement sees
    it (linearizable reads of the latest state).

    Attributes:
        inserted: acknowledged, by key. doubtful: outcome unknown. failed: told that they were not applied.
        acknowledged, attempted: of each caller's register.
    """

    client: KuduClient
    table: Table
    rng: random.Random
    callers: int = 4
    pause_s: float = 0.1
    inserted: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    acknowledged: dict[int, int] = field(default_factory=dict)
    attempted: dict[int, int] = field(default_factory=dict)
    reads: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Begins."""
        self._tasks = [
            asyncio.create_task(self._write(caller), name=f"writer {caller}") for caller in range(self.callers)
        ]
        self._tasks.append(asyncio.create_task(self._read(), name="reader"))

    async def stop(self) -> None:
        """Ends; whatever they asserted comes out here."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def check_alive(self) -> None:
        """Raises what ended one of them."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def check(self) -> None:
        """Compares the table with what must be there. To be called after `stop`, of a cluster that is well."""
        rows = await self._rows()
        keys = [key for key in rows if key >= FIRST_KEY]
        missing = self.inserted - set(keys)
        assert not missing, f"{len(missing)} acknowledged rows are gone, such as {sorted(missing)[:5]}"
        surplus = set(keys) - self.inserted - self.doubtful
        assert not surplus, f"{len(surplus)} rows are there that were refused or never written: {sorted(surplus)[:5]}"
        self._check_registers(rows, dict(self.acknowledged))

    async def _write(self, caller: int) -> None:
        session = self.client.new_session(FlushMode.AUTO_FLUSH_SYNC, timeout_ms=20_000)
        number = 0
        while True:
            number += 1
            key = FIRST_KEY + number * self.callers + caller
            self.doubtful.add(key)
            try:
                await session.apply(self.table.new_insert({"key": key, "value": number, "text": f"row {key}"}))
            except KuduException as error:
                if error.code is ErrorCode.ALREADY_PRESENT:
                    raise AssertionError(f"key {key} was written twice") from error
                if error.verdict is not Verdict.UNKNOWN:
                    self.doubtful.discard(key)
                    self.failed.add(key)
            else:
                self.doubtful.discard(key)
                self.inserted.add(key)
            self.attempted[caller] = number
            try:
                await session.apply(self.table.new_upsert({"key": caller, "value": number}))
            except KuduException:
                pass
            else:
                self.acknowledged[caller] = number
            await asyncio.sleep(self.rng.random() * 2 * self.pause_s)

    async def _read(self) -> None:
        while True:
            before = dict(self.acknowledged)
            try:
                rows = await self._rows()
            except KuduException:
                pass
            else:
                self._check_registers(rows, before)
                self.reads += 1
            await asyncio.sleep(self.rng.random() * 10 * self.pause_s)

    def _check_registers(self, rows: dict[int, int], acknowledged: dict[int, int]) -> None:
        for caller, value in acknowledged.items():
            seen = rows.get(caller, 0)
            assert value <= seen <= self.attempted[caller], (
                f"register {caller} reads {seen}; {value} was acknowledged before, {self.attempted[caller]} written"
            )

    async def _rows(self) -> dict[int, int]:
        found = (await self.table.scanner().to_arrow()).to_pydict()
        keys = found["key"]
        assert len(keys) == len(set(keys)), "a key is there twice"
        return dict(zip(keys, found["value"], strict=True))
