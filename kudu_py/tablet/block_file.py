"""`BlockFileWriter`: appends to a new immutable file and keeps its checksum; and how damage of one is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.key_encoding import U64
from kudu_py.env.disk import Buffer, Disk
from kudu_py.tablet.records import FileRecord

WRITE_BYTES = 1 << 20
CHECKED_BLOCK_BYTES = 1 << 16


class BlockFileWriter:
    """Used inside one disk job. The file is durable after `finish` and a sync of its directory."""

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        path = f"{directory}/{name}"
        if disk.exists(path):
            # Left by a run that ended before it was named anywhere.
            disk.unlink(path)
        self._name = name
        self._file = disk.create(path)
        self._hash = xxhash.xxh3_64()
        self._pending: list[memoryview] = []
        self._pending_bytes = 0
        self._written = 0

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return self._written + self._pending_bytes

    def append(self, content: Buffer) -> None:
        """Adds bytes; may keep a reference to them until the next call."""
        view = memoryview(content)
        view = view.cast("B") if view.nbytes else view
        if not view.nbytes:
            return
        self._hash.update(view)
        self._pending.append(view)
        self._pending_bytes += view.nbytes
        if self._pending_bytes >= WRITE_BYTES:
            self._flush()

    def finish(self) -> FileRecord:
        """Writes what is left, syncs and closes."""
        self._flush()
        self._file.sync()
        self._file.close()
        return FileRecord(self._name, self._written, self._hash.intdigest())

    def abandon(self) -> None:
        """Closes after a failure; the file is not named anywhere and a later start removes it."""
        self._file.close()

    def _flush(self) -> None:
        if self._pending:
            self._file.write(self._written, self._pending)
            self._written += self._pending_bytes
            self._pending = []
            self._pending_bytes = 0


class CheckedBlocks:
    """Bytes at the start of a mapped file that are verified by blocks of 64 KiB when they are first met.

    Random readers touch a few lines of a file of gigabytes; verifying it whole at open would read all of it.
    """

    def __init__(self, path: str, content: memoryview, size_bytes: int, checksums: U64) -> None:
        self._path = path
        self._content = content
        self._size = size_bytes
        self._checksums = checksums
        self._verified: npt.NDArray[np.bool_] = np.zeros(len(checksums), np.bool_)

    def require(self, blocks: npt.NDArray[np.int64]) -> None:
        """Verifies these blocks; raises KuduError CORRUPTION that names the file."""
        if self._verified.take(blocks).all():
            return
        for block in np.unique(blocks).tolist():
            self.require_one(block)

    def require_one(self, block: int) -> None:
        """As `require` for one block."""
        if not self._verified[block]:
            end = min((block + 1) * CHECKED_BLOCK_BYTES, self._size)
            content = self._content[block * CHECKED_BLOCK_BYTES : end]
            if xxhash.xxh3_64_intdigest(content) != int(self._checksums[block]):
                raise damaged(self._path, f"the checksum of bytes {block * CHECKED_BLOCK_BYTES} to {end} is wrong")
            self._verified[block] = True


def block_checksums(content: memoryview) -> list[int]:
    """The checksums that `CheckedBlocks` verifies."""
    return [
        xxhash.xxh3_64_intdigest(content[first : first + CHECKED_BLOCK_BYTES])
        for first in range(0, len(content), CHECKED_BLOCK_BYTES)
    ]


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")


def damaged(path: str, what: str) -> KuduError:
    """The error of a file whose bytes are not what was written."""
    return KuduError(
        ErrorCode.CORRUPTION,
        f"file {path} is damaged: {what}; this replica must be replaced by a copy of another one",
        details={"path": path},
    )
