"""`SimDisk`: a disk in memory that forgets what was not synced, tears, fails, fills and crashes, all from one rng.

It keeps two images. Reads see the *cache*. The *durable* image is what a power cut leaves; only `sync` and `sync_dir`
move things there. At a power cut each change since the last sync survives or not as the rng says:
 - of a write, every 512-byte sector by itself, the size of the file with or without the bytes;
 - of the changes to a directory, either the first few or any subset; a file's bytes and its name are independent.
A sector is old or new, never garbage, and bytes around a write keep their value: that much disks and drivers promise.

A failed sync does what was measured on ext4 and XFS: some of the bytes reached the disk, the rest never will, reads go
on showing all of them until the cache is dropped, and the next sync succeeds.

Steps are numbered: each operation that changes something counts, and `crash_at_step` ends the process in the midst of
one.
"""

from __future__ import annotations

import asyncio
import errno as errnos
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TypeVar

from kudu_py.common.futures import settle
from kudu_py.env.disk import Buffer, Disk, File, write_then_sync

T = TypeVar("T")

SECTOR_BYTES = 512
_ENDLESS_BYTES = 1 << 50


@unique
class Operation(Enum):
    """What a fault can be injected into."""

    CREATE = "create"
    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    MAKE_DIR = "make_dir"
    REMOVE_DIR = "remove_dir"
    RENAME = "rename"
    UNLINK = "unlink"
    SYNC_DIR = "sync_dir"


class DiskCrashed(BaseException):
    """The process that worked on the disk is no more. Not an `Exception`: no code of the house may live on after it."""


@dataclass(slots=True)
class Fault:
    """An error to be raised by operations that match.

    Attributes:
        operation: the kind of operation.
        errno: such as `errno.EIO`.
        path_contains: matches any path that contains it.
        skip: matching operations that are left alone first.
        times: how often it strikes; None for ever.
    """

    operation: Operation
    errno: int = errnos.EIO
    path_contains: str = ""
    skip: int = 0
    times: int | None = 1

    def strikes(self, operation: Operation, path: str) -> bool:
        """Whether this operation fails; counts it."""
        if operation is not self.operation or self.path_contains not in path or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        end = self.offset + len(self.data)
        if len(image) < end:
            image.extend(bytes(end - len(image)))
        image[self.offset : end] = self.data

    def sectors(self) -> Iterable[_Write]:
        """The write cut at the borders of sectors."""
        start, end = self.offset, self.offset + len(self.data)
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            yield _Write(start, self.data[start - self.offset : stop - self.offset])
            start = stop


@dataclass(frozen=True, slots=True)
class _Truncate:
    length: int

    def apply(self, image: bytearray) -> None:
        if len(image) > self.length:
            del image[self.length :]
        else:
            image.extend(bytes(self.length - len(image)))


@dataclass(eq=False, slots=True)
class _Inode:
    """A file. `pending` is what was done since the last sync; `cache` is `durable` with it, unless a sync failed."""

    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)
    is_locked: bool = False

    def apply(self, change: _Write | _Truncate) -> None:
        change.apply(self.cache)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def lose_some(self, rng: random.Random, survival: float) -> None:
        """Lets a part of what is pending reach the disk; the rest never will."""
        for change in self.pending:
            if isinstance(change, _Truncate):
                if rng.random() < survival:
                    change.apply(self.durable)
                continue
            end = change.offset + len(change.data)
            if survival >= 1 or rng.random() < survival / 4:
                change.apply(self.durable)
                continue
            if end > len(self.durable) and rng.random() < survival:
                self.durable.extend(bytes(end - len(self.durable)))  # the size without the bytes
            if survival > 0:
                for sector in change.sectors():
                    if rng.random() < survival:
                        sector.apply(self.durable)
        self.pending.clear()

    def drop_cache(self) -> None:
        self.cache = bytearray(self.durable)
        for change in self.pending:
            change.apply(self.cache)


@dataclass(eq=False, slots=True)
class _Directory:
    """`pending` holds changes of names, each of which is atomic: name to what it stands for now, None for nothing."""

    cache: dict[str, _Inode | _Directory] = field(default_factory=dict)
    durable: dict[str, _Inode | _Directory] = field(default_factory=dict)
    pending: list[dict[str, _Inode | _Directory | None]] = field(default_factory=list)

    def apply(self, change: dict[str, _Inode | _Directory | None]) -> None:
        _apply_names(self.cache, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _apply_names(self.durable, change)
        self.pending.clear()

    def lose_some(self, rng: random.Random, survival: float) -> None:
        if survival < 1 and rng.random() < 0.5:  # a journal keeps the order of changes
            del self.pending[rng.randint(0, len(self.pending)) if survival else 0 :]
        for change in self.pending:
            if rng.random() < survival:
                _apply_names(self.durable, change)
        self.pending.clear()


def _apply_names(names: dict[str, _Inode | _Directory], change: dict[str, _Inode | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    """An open file of a `SimDisk`; of no use after a crash."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._boot = disk.boots
        self._closed = False
        self._holds_lock = False

    @property
    def path(self) -> str:
        return self._path

    def _check(self, *, writes: bool = False) -> None:
        if self._boot != self._disk.boots:
            raise DiskCrashed
        if self._closed or (writes and not self._writable):
            raise OSError(errnos.EBADF, os.strerror(errnos.EBADF), self._path)

    def size(self) -> int:
        self._check()
        return len(self._inode.cache)

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        self._disk._begin(Operation.READ, self._path)
        return bytes(self._inode.cache[offset : offset + length])

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check(writes=True)
        data = b"".join(buffers)
        room = self._disk._room_for(self._inode, offset + len(data))
        written = data[: max(0, min(len(data), room - offset))]
        change = _Write(offset, written)
        self._disk._begin(
            Operation.WRITE,
            self._path,
            midst=lambda: self._inode.apply(change),
            failed=lambda rng: self._inode.apply(_Write(offset, data[: rng.randint(0, len(written))])),
        )
        self._inode.apply(change)
        if len(written) < len(data):
            raise OSError(errnos.ENOSPC, os.strerror(errnos.ENOSPC), self._path)

    def sync(self) -> None:
        self._check()
        self._disk._begin(
            Operation.SYNC, self._path, failed=lambda rng: self._inode.lose_some(rng, rng.choice((0.0, 0.5)))
        )
        if not self._disk.drops_sync(self._path):
            self._inode.sync()

    def truncate(self, length: int) -> None:
        self._check(writes=True)
        change = _Truncate(length)
        self._disk._begin(Operation.TRUNCATE, self._path, midst=lambda: self._inode.apply(change))
        self._inode.apply(change)

    def drop_cache(self) -> None:
        self._check()
        self._inode.drop_cache()

    def close(self) -> None:
        self._closed = True
        if self._holds_lock and self._boot == self._disk.boots:
            self._inode.is_locked = False
            self._holds_lock = False


class SimDisk:
    """See the module. The root directory exists; like a real disk it outlives the processes that use it.

    Attributes:
        steps: changing operations begun so far.
        crash_at_step: the operation of this number (1 is the first) is the last of the process: it was begun, and
            nobody learns how it ended.
        survival: chance of what was not synced to survive a power cut; None draws one for each.
        capacity_bytes: of all files together; None for endless.
        boots: processes ended so far; what a file or a job of an earlier one does is refused.
        on_crash: called after each crash, however it came about.
    """

    def __init__(self, rng: random.Random, *, survival: float | None = None, capacity_bytes: int | None = None) -> None:
        self._rng = rng
        self._root = _Directory()
        self._faults: list[Fault] = []
        self.survival = survival
        self.capacity_bytes = capacity_bytes
        self.steps = 0
        self.crash_at_step: int | None = None
        self.is_crashed = False
        self.boots = 0
        self.on_crash: list[Callable[[], None]] = []

    # What a test does to it.

    def inject(self, fault: Fault) -> Fault:
        """Adds an error to come; set its `times` to 0 to end it."""
        self._faults.append(fault)
        return fault

    def power_cut(self) -> None:
        """Ends the process and loses what was not synced, or a part of it. `restart` before the next use."""
        survival = self.survival
        if survival is None:
            survival = self._rng.choice((0.0, 1.0, 0.5, self._rng.random()))
        _lose_some(self._root, self._rng, survival)
        self._end_process()

    def kill(self) -> None:
        """Ends the process (kill -9); the cache outlives it. `restart` before the next use."""
        _unlock(self._root)
        self._end_process()

    def restart(self) -> None:
        """A new process may use the disk. Faults and steps to crash at are forgotten."""
        assert self.is_crashed, "restart comes after a crash"
        self.is_crashed = False
        self.crash_at_step = None
        self._faults.clear()

    def corrupt(self, path: str, offset: int, data: bytes) -> None:
        """Changes bytes at rest, on the disk and in the cache."""
        inode = self._file(path)
        for image in (inode.cache, inode.durable):
            assert offset + len(data) <= len(image), f"{path} has no byte {offset + len(data) - 1}"
            image[offset : offset + len(data)] = data

    def durable_content(self, path: str) -> bytes | None:
        """What a power cut that loses all it can would leave of the file; None if not even its name."""
        node: _Inode | _Directory | None = self._root
        for name in _names(path):
            node = node.durable.get(name) if isinstance(node, _Directory) else None
        return bytes(node.durable) if isinstance(node, _Inode) else None

    def drops_sync(self, path: str) -> bool:
        """Whether a sync of this path is silently left out; overridden to show what a missing sync does."""
        return False

    # `Disk`.

    def create(self, path: str) -> SimFile:
        parent, name = self._parent(path)
        if name in parent.cache:
            raise FileExistsError(errnos.EEXIST, os.strerror(errnos.EEXIST), path)
        inode = _Inode()
        self._change_names(Operation.CREATE, path, parent, {name: inode})
        return SimFile(self, path, inode, writable=True)

    def open(self, path: str, *, writable: bool = False) -> SimFile:
        self._begin(Operation.OPEN, path)
        return SimFile(self, path, self._file(path), writable=writable)

    def map(self, path: str) -> memoryview:
        self._begin(Operation.READ, path)
        return memoryview(bytes(self._file(path).cache))

    def exists(self, path: str) -> bool:
        self._check()
        return self._find(path) is not None

    def size(self, path: str) -> int:
        self._check()
        return len(self._file(path).cache)

    def list_dir(self, path: str) -> list[str]:
        self._check()
        return sorted(self._directory(path).cache)

    def make_dir(self, path: str) -> None:
        parent, name = self._parent(path)
        node = parent.cache.get(name)
        if isinstance(node, _Inode):
            raise FileExistsError(errnos.EEXIST, os.strerror(errnos.EEXIST), path)
        if node is None:
            self._change_names(Operation.MAKE_DIR, path, parent, {name: _Directory()})

    def rename(self, old: str, new: str) -> None:
        old_parent, old_name = self._parent(old)
        new_parent, new_name = self._parent(new)
        node = old_parent.cache.get(old_name)
        if node is None:
            raise FileNotFoundError(errnos.ENOENT, os.strerror(errnos.ENOENT), old)
        if old_parent is new_parent:
            self._change_names(Operation.RENAME, new, old_parent, {old_name: None, new_name: node})
        else:
            self._change_names(Operation.RENAME, new, new_parent, {new_name: node})
            old_parent.apply({old_name: None})

    def unlink(self, path: str) -> None:
        self._file(path)
        parent, name = self._parent(path)
        self._change_names(Operation.UNLINK, path, parent, {name: None})

    def remove_dir(self, path: str) -> None:
        parent, name = self._parent(path)
        if self._directory(path).cache:
            raise OSError(errnos.ENOTEMPTY, os.strerror(errnos.ENOTEMPTY), path)
        self._change_names(Operation.REMOVE_DIR, path, parent, {name: None})

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._begin(Operation.SYNC_DIR, path, failed=lambda rng: directory.lose_some(rng, 0.5))
        if not self.drops_sync(path):
            directory.sync()

    def free_bytes(self, path: str) -> int:
        self._check()
        self._directory(path)
        return _ENDLESS_BYTES if self.capacity_bytes is None else max(0, self.capacity_bytes - _used(self._root))

    def lock(self, path: str) -> SimFile:
        file = self.open(path, writable=True) if self.exists(path) else self.create(path)
        if file._inode.is_locked:
            raise BlockingIOError(errnos.EAGAIN, os.strerror(errnos.EAGAIN), path)
        file._inode.is_locked = file._holds_lock = True
        return file

    # Inside.

    def _check(self) -> None:
        if self.is_crashed:
            raise DiskCrashed

    def _begin(
        self,
        operation: Operation,
        path: str,
        *,
        midst: Callable[[], None] | None = None,
        failed: Callable[[random.Random], None] | None = None,
    ) -> None:
        """Counts the operation and raises what was ordered: a crash in its midst, or an error that left it half done.

        Args:
            midst: what the operation may have done by the time of the crash; survives or not like all that is unsynced.
            failed: what it may have done before the error.
        """
        self._check()
        if operation not in (Operation.READ, Operation.OPEN):
            self.steps += 1
            if self.steps == self.crash_at_step:
                if midst is not None:
                    midst()
                self.power_cut()
                raise DiskCrashed
        for fault in self._faults:
            if fault.strikes(operation, path):
                if failed is not None:
                    failed(self._rng)
                raise OSError(fault.errno, os.strerror(fault.errno), path)

    def _change_names(
        self, operation: Operation, path: str, parent: _Directory, change: dict[str, _Inode | _Directory | None]
    ) -> None:
        self._begin(operation, path, midst=lambda: parent.apply(change))
        parent.apply(change)

    def _end_process(self) -> None:
        self.boots += 1
        self.is_crashed = True
        for tell in list(self.on_crash):
            tell()

    def _room_for(self, inode: _Inode, size: int) -> int:
        """The size up to which the file may grow."""
        if self.capacity_bytes is None or size <= len(inode.cache):
            return size
        return len(inode.cache) + max(0, self.capacity_bytes - _used(self._root))

    def _find(self, path: str) -> _Inode | _Directory | None:
        node: _Inode | _Directory | None = self._root
        for name in _names(path):
            node = node.cache.get(name) if isinstance(node, _Directory) else None
        return node

    def _file(self, path: str) -> _Inode:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errnos.EISDIR, os.strerror(errnos.EISDIR), path)
        if node is None:
            raise FileNotFoundError(errnos.ENOENT, os.strerror(errnos.ENOENT), path)
        return node

    def _directory(self, path: str) -> _Directory:
        self._check()
        node = self._find(path)
        if isinstance(node, _Inode):
            raise NotADirectoryError(errnos.ENOTDIR, os.strerror(errnos.ENOTDIR), path)
        if node is None:
            raise FileNotFoundError(errnos.ENOENT, os.strerror(errnos.ENOENT), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, _, name = path.rpartition("/")
        assert name, f"{path!r} names no file"
        return self._directory(directory or "/"), name


def _names(path: str) -> list[str]:
    assert path.startswith("/"), f"{path!r} is not absolute"
    return [name for name in path.split("/") if name]


def _lose_some(directory: _Directory, rng: random.Random, survival: float) -> None:
    """Turns the tree into what a power cut leaves of it."""
    directory.lose_some(rng, survival)
    directory.cache = dict(directory.durable)
    for node in directory.durable.values():
        if isinstance(node, _Directory):
            _lose_some(node, rng, survival)
        else:
            node.lose_some(rng, survival)
            node.drop_cache()
            node.is_locked = False


def _unlock(directory: _Directory) -> None:
    for node in directory.cache.values():
        if isinstance(node, _Directory):
            _unlock(node)
        else:
            node.is_locked = False


def _used(directory: _Directory) -> int:
    return sum(_used(node) if isinstance(node, _Directory) else len(node.cache) for node in directory.cache.values())


class SimDiskThreads:
    """Runs each job on the loop, in one piece, after a drawn delay, and tells its end after another.

    One of these belongs to one process: after a crash of the disk its jobs are never run and nobody is told anything.
    """

    def __init__(
        self,
        disk: SimDisk,
        rng: random.Random,
        *,
        delay_s: tuple[float, float] = (0.000_05, 0.002),
        background_delay_s: tuple[float, float] = (0.000_5, 0.02),
    ) -> None:
        self._disk = disk
        self._rng = rng
        self._delay_s = delay_s
        self._background_delay_s = background_delay_s
        self._boot = disk.boots
        self._is_hung = False
        self._held: list[Callable[[], None]] = []

    @property
    def disk(self) -> Disk:
        return self._disk

    def hang(self) -> None:
        """From now on jobs do not end and new ones do not begin, as on a disk that stopped answering."""
        self._is_hung = True

    def release(self) -> None:
        """Ends `hang`; what was held up goes on in order."""
        self._is_hung = False
        held, self._held = self._held, []
        for step in held:
            step()

    async def run(self, job: Callable[[], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit_background(job, lambda result: settle(future, result))
        return await future

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._schedule(self._delay_s, job, done)

    def write_and_sync(
        self, file: File, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        self._schedule(self._delay_s, lambda: write_then_sync(file, offset, buffers), done)

    def submit_background(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._schedule(self._background_delay_s, job, done)

    def _schedule(
        self, delay_s: tuple[float, float], job: Callable[[], T], done: Callable[[T | BaseException], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            result: T | BaseException
            try:
                result = job()
            except DiskCrashed:
                return
            except BaseException as error:
                result = error
            outcome = result  # the name for the closure: an except clause may not leave it unbound
            loop.call_later(self._rng.uniform(*delay_s) / 2, self._step, lambda: done(outcome))

        loop.call_later(self._rng.uniform(*delay_s) / 2, self._step, work)

    def _step(self, step: Callable[[], None]) -> None:
        if self._boot != self._disk.boots:
            return
        if self._is_hung:
            self._held.append(step)
        else:
            step()
