"""`Disk`, `File` and `DiskThreads`: every file operation of the house goes through these seams.

The real ones are `PosixDisk` and `PosixDiskThreads` (env/posix_disk.py), the simulated ones are in testing/sim_disk.py;
one conformance suite runs on both.

The operations block; they are called inside a *disk job*, a plain function that `DiskThreads.run` carries out off the
loop (`DiskThreads` is the other half of the seam: the simulated one runs a job at once, after virtual time, and can
crash it between any two operations). A job is therefore written as straight synchronous code, which is what makes "a
crash at every step" a loop over step numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. One long-lived descriptor per log segment: a sync error is reported to one descriptor only."""

    @property
    def path(self) -> str:
        """The path it was opened with."""

    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; shorter only at the end of the file. An error is never an end of file."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes all buffers one after another from `offset` (pwritev); returns when the kernel has all bytes.

        Nothing is durable before `sync`; after an error any part may have been written.
        """

    def sync(self) -> None:
        """fdatasync: bytes and size are durable on return. After an error nothing about the file can be believed."""

    def truncate(self, length: int) -> None:
        """Sets the length; durable after `sync`."""

    def drop_cache(self) -> None:
        """Asks the system to forget what it cached of this file, so that reads tell what the disk holds.

        After a failed sync the cache may hold bytes that never reached the disk, even for the next process. A hint:
        bytes not yet written out stay; whoever must be certain copies what was read to a new file and syncs that.
        """

    def close(self) -> None:
        """Closes without syncing. Idempotent."""


class Disk(Protocol):
    """The operations on paths. All paths are absolute. Errors are OSError with errno and file name."""

    def create(self, path: str) -> File:
        """Creates a new file for reading and writing; FileExistsError if there is one."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Opens an existing file."""

    def map(self, path: str) -> memoryview:
        """The content of an immutable file as read-only memory, mapped where the system can; valid after `unlink`."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def make_dir(self, path: str) -> None:
        """Creates one directory (mode 0700); no error if it exists. Durable after `sync_dir` of its parent."""

    def rename(self, old: str, new: str) -> None:
        """Atomically replaces `new`. Durable after `sync_dir` of the directory (of both, if they differ)."""

    def unlink(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Removes an empty directory."""

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and removals in the directory durable."""

    def free_bytes(self, path: str) -> int:
        """Space that an unprivileged process may still use on the file system of `path`."""

    def lock(self, path: str) -> File:
        """Creates or opens a file and locks it for its opener until it is closed; BlockingIOError if it is locked."""


def write_then_sync(file: File, offset: int, buffers: Sequence[Buffer]) -> None:
    """Inside a disk job: on return what was written is durable."""
    file.write(offset, buffers)
    file.sync()


class DiskThreads(Protocol):
    """Runs disk jobs off the loop, in two lanes, so that a flush of seconds never stands before a sync of the log.

    All methods are called on the loop. A job is never stopped; it runs to its end even if nobody waits any more.
    """

    @property
    def disk(self) -> Disk:
        """The disk that jobs work on; for jobs and for start-up code that may block."""

    async def run(self, job: Callable[[], T]) -> T:
        """Runs `job` in the background lane. Cancelling the caller does not stop the job."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Runs a *short* job that an acknowledgement waits for (a log write, a vote) and calls `done` on the loop.

        `done` gets the job's result, or its exception. One hand-off each way, no task.
        """

    def write_and_sync(
        self, file: File, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        """Writes to a file and syncs it, as a job of `submit` would, by the cheapest way there is.

        `done` is called on the loop, never from within, once the data is durable, or with the exception. Nothing else
        is written to the file meanwhile.
        """

    def submit_background(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """As `submit`, in the lane of `run`."""
