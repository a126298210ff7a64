"""Replace a small file durably, so that after any crash it holds either the old content or the new, whole.

The order, and what each step is there for:
 1. Write the new content under a temporary name: a crash leaves the old file untouched.
 2. Sync the temporary file: a rename may become durable before the bytes of the file it names.
 3. Rename it over the old one: the change of name is atomic.
 4. Sync the directory: the caller may now act on the new content; without this the rename itself may be forgotten.
An error at any step leaves the outcome open until the file is read after a restart (a failed directory sync may or may
not have kept the rename), so the caller of `replace` treats it as fatal for what the file promises.

The content is framed with a length and a checksum, because nothing below promises that bytes come back unchanged.
"""

from __future__ import annotations

import contextlib
import struct

import google_crc32c

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.env.disk import Disk

TEMPORARY_SUFFIX = ".tmp"
"""A file of this name is left over from an unfinished replacement and may be removed at any start."""

_MAGIC = b"KUDUPYAF"
_FRAME = struct.Struct("<8sQI")  # magic, content length, CRC-32C of the length and content


def _checksum(content: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(len(content).to_bytes(8, "little")), content))


def replace(disk: Disk, path: str, content: bytes) -> None:
    """Durably replaces the file at `path`, or creates it. Blocks: for disk jobs.

    Two replacements of the same path must not overlap.

    Raises:
        OSError: the outcome is unknown until the next `read` after a restart.
    """
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    file = disk.create(temporary)
    try:
        file.write(0, [_FRAME.pack(_MAGIC, len(content), _checksum(content)), content])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0] or "/")


def read(disk: Disk, path: str) -> bytes:
    """The content of the last replacement. Blocks: for disk jobs.

    Raises:
        FileNotFoundError: there never was one.
        KuduError: CORRUPTION, with the file's name, if it is not what `replace` wrote.
        OSError: the disk could not be read.
    """
    file = disk.open(path)
    try:
        raw = file.read(0, file.size())
    finally:
        file.close()
    if len(raw) < _FRAME.size:
        raise _corruption(path, f"{len(raw)} bytes are too few for a header")
    magic, length, checksum = _FRAME.unpack_from(raw)
    content = raw[_FRAME.size :]
    if magic != _MAGIC:
        raise _corruption(path, "the magic number is wrong")
    if length != len(content):
        raise _corruption(path, f"{length} bytes of content announced, {len(content)} there")
    if _checksum(content) != checksum:
        raise _corruption(path, "the checksum does not match")
    return content


def _corruption(path: str, why: str) -> KuduError:
    return KuduError(ErrorCode.CORRUPTION, f"{path}: {why}", details={"path": path})
