"""Figures of the log on this machine's disk: `python tests/bench/wal.py [directory]`. Prints, asserts nothing."""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

import uvloop

from kudu_py.common.opid import OpId
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.wal import Log, Record, WalOptions


class Bench:
    """One log, and waiting until an index is durable."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.threads = PosixDiskThreads()
        self.wanted = 0
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_durable(self, op_id: OpId) -> None:
        if op_id.index >= self.wanted and not self.reached.done():
            self.reached.set_result(None)

    def on_failure(self, error: BaseException) -> None:
        self.reached.set_exception(error)

    async def open(self, name: str, on_durable: Callable[[OpId], None] | None = None) -> Log:
        return await Log.open(
            directory=f"{self.root}/{name}",
            tablet_id="b" * 32,
            threads=self.threads,
            options=WalOptions(),
            on_durable=on_durable or self.on_durable,
            on_failure=self.on_failure,
        )

    def until(self, index: int) -> asyncio.Future[None]:
        self.wanted, self.reached = index, asyncio.get_running_loop().create_future()
        return self.reached


async def latency(bench: Bench, log: Log, count: int = 1_500) -> None:
    times = []
    payload = bytes(1_000)
    for index in range(log.last_op_id.index + 1, log.last_op_id.index + 1 + count):
        durable = bench.until(index)
        start = time.perf_counter()
        log.append([Record(OpId(1, index), payload)])
        await durable
        times.append(time.perf_counter() - start)
    times.sort()
    p50, p90, p99 = (1_000 * times[int(count * q)] for q in (0.5, 0.9, 0.99))
    print(f"  append 1 KB to durable: p50 {p50:.3f} p90 {p90:.3f} p99 {p99:.3f} ms")


async def throughput(bench: Bench, log: Log, size: int, count: int) -> None:
    payload = bytes(size)
    first, batches = log.last_op_id.index + 1, log.batches_written
    durable = bench.until(first + count - 1)
    start = time.perf_counter()
    for index in range(first, first + count):
        while not log.has_room(size):  # noqa: ASYNC110  # a full queue has no event; clients are told to try later
            await asyncio.sleep(0.001)
        log.append([Record(OpId(1, index), payload)])
    await durable
    took = time.perf_counter() - start
    print(
        f"  {size:>9} bytes: {size * count / took / 1e6:7.1f} MB/s {count / took:9.0f} records/s"
        f" in {log.batches_written - batches} batches"
    )


async def many(bench: Bench, count: int = 200) -> None:
    start = time.perf_counter()
    left = count
    durable = bench.until(1 << 60)

    def on_durable(_: OpId) -> None:
        nonlocal left
        left -= 1
        if not left:
            durable.set_result(None)

    logs = [await bench.open(f"many-{i}", on_durable) for i in range(count)]
    opened = time.perf_counter()
    for log in logs:
        log.append([Record(OpId(1, 1), b"")])
    await durable
    done = time.perf_counter()
    print(f"  {count} new logs: open {1e3 * (opened - start):.0f} ms, first entries {1e3 * (done - opened):.0f} ms")
    await asyncio.gather(*[log.close() for log in logs])


async def main(root: str) -> None:
    bench = Bench(root)
    log = await bench.open("one")
    await latency(bench, log)
    for size, count in ((1 << 20, 150), (100_000, 600), (600, 20_000)):
        await throughput(bench, log, size, count)
    await log.close()
    start = time.perf_counter()
    log = await bench.open("one")
    opened = time.perf_counter()
    replayed = 0
    async for record in log.replay():
        replayed += len(record.payload)
    done = time.perf_counter()
    print(f"  open {1e3 * (opened - start):.1f} ms, replay {replayed / (done - opened) / 1e6:.0f} MB/s")
    await log.close()
    await many(bench)
    bench.threads.close()


if __name__ == "__main__":
    for name, factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
        print(name)
        root = tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None)
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(main(root))
        finally:
            shutil.rmtree(root)
