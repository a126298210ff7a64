"""`SparingDisk`: a disk whose new files leave some space free, for those who must be able to write when it is full."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kudu_py.env.disk import Buffer, Disk, File


def require_free(disk: Disk, path: str, needed_bytes: int, kept_free_bytes: int) -> None:
    """Refuses what would not leave `kept_free_bytes` on the file system of `path`. Blocks.

    Raises:
        OSError: ENOSPC.
    """
    free_bytes = disk.free_bytes(path)
    if free_bytes < needed_bytes + kept_free_bytes:
        raise OSError(
            errno.ENOSPC,
            f"no room for {needed_bytes} bytes: {free_bytes} are free, of which {kept_free_bytes} are kept so",
            path,
        )


class SparingDisk:
    """Another disk, with files of its own that end with ENOSPC before they reach into the space kept free.

    Others write at the same time, so the bound is kept but for what they write between a look and a write.
    """

    def __init__(self, disk: Disk, directory: str, kept_free_bytes: int) -> None:
        """Args: directory: whose file system is looked at."""
        self._disk = disk
        self._directory = directory
        self._kept_free_bytes = kept_free_bytes

    def require_free(self, needed_bytes: int) -> None:
        """Raises OSError, ENOSPC, if so much more cannot be written."""
        require_free(self._disk, self._directory, needed_bytes, self._kept_free_bytes)

    def create(self, path: str) -> File:
        return _SparingFile(self._disk.create(path), self)

    def open(self, path: str, *, writable: bool = False) -> File:
        return self._disk.open(path, writable=writable)

    def map(self, path: str) -> memoryview:
        return self._disk.map(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def list_dir(self, path: str) -> list[str]:
        return self._disk.list_dir(path)

    def make_dir(self, path: str) -> None:
        self._disk.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)

    def remove_dir(self, path: str) -> None:
        self._disk.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        self._disk.sync_dir(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def lock(self, path: str) -> File:
        return self._disk.lock(path)


class _SparingFile:
    """A file that looks at the free space before each write."""

    def __init__(self, file: File, disk: SparingDisk) -> None:
        self._file = file
        self._disk = disk

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._disk.require_free(sum(memoryview(buffer).nbytes for buffer in buffers))
        self._file.write(offset, buffers)

    def sync(self) -> None:
        self._file.sync()

    def truncate(self, length: int) -> None:
        self._file.truncate(length)

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def close(self) -> None:
        self._file.close()
