"""`PosixDisk` and `PosixDiskThreads`: the real disk, and the threads that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kudu_py.common.futures import settle
from kudu_py.env.clock import elapsing_s
from kudu_py.env.disk import Buffer, Disk, File, write_then_sync
from kudu_py.env.kernel_aio import open_kernel_aio

T = TypeVar("T")

LOOP_WRITE_BYTES_MAX = 32 << 10
"""Writes up to this size are copied to the page cache on the loop, in microseconds; larger ones on a thread."""
SLOW_WRITE_S = 0.02
"""A write to the page cache that takes longer was made to wait for the disk (a journal that commits, too many dirty
pages) ..."""
SLOW_WRITE_PAUSE_S = 10.0
"""... and for so long threads wait in the loop's place."""

IOV_MAX = 1024
"""Buffers that one pwritev takes on Linux."""


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Calls on descriptors raise errors without a file name; an operator needs one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


class PosixFile:
    """An open file. Reads and writes at given offsets, so that threads may share it."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        with _naming(self._path):
            return os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        with _naming(self._path):
            first = os.pread(self._fd, length, offset)
            if len(first) == length or not first:
                return first
            # A read may be cut short by a signal or at a page that is not there yet; only an empty one is the end.
            parts = [first]
            while (missing := length - sum(map(len, parts))) > 0:
                part = os.pread(self._fd, missing, offset + length - missing)
                if not part:
                    break
                parts.append(part)
            return b"".join(parts)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        with _naming(self._path):
            for start in range(0, len(buffers), IOV_MAX):
                offset += self._write_some(offset, buffers[start : start + IOV_MAX])

    def _write_some(self, offset: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        if written < total:  # rare (a signal, a limit, a full disk that says so only at the next call)
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(self._fd, rest[written:], offset + written)
        return total

    def fileno(self) -> int:
        """The descriptor, for the kernel."""
        return self._fd

    def sync(self) -> None:
        with _naming(self._path):
            os.fdatasync(self._fd)

    def truncate(self, length: int) -> None:
        with _naming(self._path):
            os.ftruncate(self._fd, length)

    def drop_cache(self) -> None:
        with _naming(self._path):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class PosixDisk:
    """The operating system's files. Stateless; files are 0600 and directories 0700."""

    def create(self, path: str) -> PosixFile:
        return PosixFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: str, *, writable: bool = False) -> PosixFile:
        return PosixFile(path, os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def map(self, path: str) -> memoryview:
        """The mapping lives as long as a view of it does. A disk error while it is read ends the process (SIGBUS)."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _naming(path):
                if os.fstat(fd).st_size == 0:
                    return memoryview(b"")  # an empty file cannot be mapped
                return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _naming(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> PosixFile:
        file = PosixFile(path, fd := os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            with _naming(path):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
        return file


class _Lane:
    """Some threads that take jobs from one queue."""

    def __init__(self, name: str, threads: int) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Daemons: an fdatasync that never returns must not keep the process from exiting.
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # else the thread keeps the last job's buffers alive while it waits

    def close(self, timeout_s: float) -> None:
        for _ in self._threads:
            self.jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s)


class PosixDiskThreads:
    """Runs disk jobs on a few threads and hands results back to the loop.

    The queues are bounded by their users: the log has one write in flight, flushes and compactions are scheduled.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        threads: int = 4,
        background_threads: int = 3,
        disk: Disk | None = None,
        kernel_aio: bool = True,
    ) -> None:
        """Args: how many threads in each lane, and

        kernel_aio: small writes of the log are synced by the kernel without a thread, where that is possible.
        """
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._disk: Disk = disk if disk is not None else PosixDisk()
        self._urgent = _Lane("disk", threads)
        self._background = _Lane("disk-background", background_threads)
        self._aio = open_kernel_aio(self._loop) if kernel_aio else None
        self._on_threads_until = 0.0

    @property
    def disk(self) -> Disk:
        return self._disk

    async def run(self, job: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit_background(job, lambda result: settle(future, result))
        return await future

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._put(self._urgent, job, done)

    def write_and_sync(
        self, file: File, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        if self._aio is not None and isinstance(file, PosixFile) and self._writes_on_loop(buffers):
            self._write_on_loop(file, offset, buffers, done)
            return
        self._put(self._urgent, lambda: write_then_sync(file, offset, buffers), done)

    def _writes_on_loop(self, buffers: Sequence[Buffer]) -> bool:
        return sum(map(len, buffers)) <= LOOP_WRITE_BYTES_MAX and elapsing_s() >= self._on_threads_until

    def _write_on_loop(
        self, file: PosixFile, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        started = elapsing_s()
        try:
            file.write(offset, buffers)
        except OSError as error:
            self._loop.call_soon(done, error)
            return
        if (ended := elapsing_s()) - started > SLOW_WRITE_S:
            self._on_threads_until = ended + SLOW_WRITE_PAUSE_S

        def synced(error_number: int) -> None:
            done(OSError(error_number, os.strerror(error_number), file.path) if error_number else None)

        assert self._aio is not None
        if not self._aio.fdatasync(file.fileno(), synced):
            self._put(self._urgent, file.sync, done)

    def submit_background(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._put(self._background, job, done)

    def _put(self, lane: _Lane, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        call_soon_threadsafe = self._loop.call_soon_threadsafe

        def work() -> None:
            result: T | BaseException
            try:
                result = job()
            except BaseException as error:  # whatever it is, the caller must learn of it
                result = error
            # The loop may be closed by now: then nobody waits for the result.
            with contextlib.suppress(RuntimeError):
                call_soon_threadsafe(done, result)

        lane.jobs.put(work)

    def close(self, timeout_s: float = 10.0) -> None:
        """Lets queued jobs finish, at most for `timeout_s` each thread, and ends the threads. Blocks."""
        self._urgent.close(timeout_s)
        self._background.close(timeout_s)
        if self._aio is not None:
            self._aio.close()
            self._aio = None
