"""Where fetched files land, and what of them is there already.

Below the copy's directory each source has its own, and in it `rows/` and `log/`: names of files are a replica's own. A
file is fetched as `<name>.part` and gets its name when it is synced whole, so a file with its own name is complete; the
rename is durable before the next file is begun. That makes the directory its own record: no list can disagree with it.

What an interrupted copy left is taken up again, but never believed unread:
 - of a file of the rows with its own name all bytes are read and must have the checksum that the source names now;
 - of a part of such a file the bytes below its last sync are kept. Nothing is written beyond a multiple of `sync_bytes`
   before all bytes up to there are synced, so the size alone tells how much that is. At the end the whole file must
   have its checksum; if not, it is fetched once more from the beginning;
 - of a log segment, whose last one grows from session to session, the undamaged batches are kept: the copy goes on at
   the border of a record, and in the end the whole file must be one chain of batches, up to the link the source names.
What the source does not name any more is removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.env.disk import Disk, File
from kudu_py.env.sparing_disk import require_free
from kudu_py.pb import tablet_copy_pb2
from kudu_py.tablet.directories import remove_tree
from kudu_py.wal.format import crc32c
from kudu_py.wal.prefix import intact_prefix, is_whole

_PART = ".part"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LandingDirectory:
    """Where the files of one copy go.

    Attributes:
        root: of all copies of the tablet, whatever their source.
        source_uuid: whose files these are.
    """

    root: str
    source_uuid: ServerId

    @property
    def path(self) -> str:
        """Of this source."""
        return f"{self.root}/{self.source_uuid}"

    @property
    def rows(self) -> str:
        """Of the files of the rows."""
        return f"{self.path}/rows"

    @property
    def log(self) -> str:
        """Of the segments."""
        return f"{self.path}/log"

    def of(self, file: tablet_copy_pb2.CopyFile) -> str:
        """The directory that a file belongs in."""
        return self.rows if file.kind == tablet_copy_pb2.CopyFile.ROWS else self.log

    def prepare(self, disk: Disk, files: Sequence[tablet_copy_pb2.CopyFile], *, kept_free_bytes: int) -> None:
        """Makes the directories, removes what is not wanted, and sees that there is room for what is missing. Blocks.

        What other sources' copies left is removed if its room is needed.

        Raises:
            OSError: ENOSPC if there is no room; what the disk says.
        """
        for path in (self.root, self.path, self.rows, self.log):
            disk.make_dir(path)
            disk.sync_dir(path.rpartition("/")[0])
        missing_bytes = 0
        for directory in (self.rows, self.log):
            wanted = {file.name: file.size_bytes for file in files if self.of(file) == directory}
            missing_bytes += sum(wanted.values())
            for name in disk.list_dir(directory):
                path = f"{directory}/{name}"
                if name.removesuffix(_PART) in wanted:
                    missing_bytes -= min(disk.size(path), wanted[name.removesuffix(_PART)])
                else:
                    disk.unlink(path)
            disk.sync_dir(directory)
        if disk.free_bytes(self.root) < missing_bytes + kept_free_bytes:
            for name in disk.list_dir(self.root):
                if name != self.source_uuid:
                    remove_tree(disk, f"{self.root}/{name}")
        require_free(disk, self.root, missing_bytes, kept_free_bytes)


def require_sound(files: Iterable[tablet_copy_pb2.CopyFile]) -> None:
    """Refuses names that are no file names of ours: they become paths here.

    Raises:
        KuduError: INVALID_ARGUMENT.
    """
    seen: set[tuple[int, str]] = set()
    for file in files:
        is_known = file.kind in (tablet_copy_pb2.CopyFile.ROWS, tablet_copy_pb2.CopyFile.LOG_SEGMENT)
        if not is_known or not _NAME.match(file.name) or file.name.endswith(_PART) or (file.kind, file.name) in seen:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT, f"the source names a file {file.name[:100]!r}, which is none of a replica's"
            )
        seen.add((file.kind, file.name))


class Chunk(NamedTuple):
    """What came of a file: a message's bytes taken out of it, which copies them, once.

    Attributes:
        offset: where in the file they belong.
        crc32c: what the source says their CRC-32C is.
    """

    offset: int
    data: bytes
    crc32c: int


class Landing:
    """One file on its way to this disk. Its methods block: each is a disk job, one at a time.

    Attributes:
        file: what it is to be.
        offset: how much is there; where to go on.
        resumed_bytes: how much was there before.
        is_complete: whether it has its name.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file: tablet_copy_pb2.CopyFile,
        *,
        tablet_id: str,
        sync_bytes: int,
        kept_free_bytes: int,
    ) -> None:
        self.file = file
        self.offset = 0
        self.resumed_bytes = 0
        self.is_complete = False
        self._disk = disk
        self._directory = directory
        self._tablet_id = tablet_id
        self._sync_bytes = sync_bytes
        self._kept_free_bytes = kept_free_bytes
        self._path = f"{directory}/{file.name}"
        self._part = self._path + _PART
        self._open: File | None = None
        self._hash = xxhash.xxh3_64()
        self._is_name_durable = False

    @property
    def _is_rows(self) -> bool:
        return self.file.kind == tablet_copy_pb2.CopyFile.ROWS

    def resume(self) -> None:
        """Finds out what is there, and opens the file to go on with it."""
        if self._disk.exists(self._path):
            if self._is_whole(self._path):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._part)
                self.offset = self.resumed_bytes = self.file.size_bytes
                self.is_complete = True
                return
            if self._is_rows:
                self._disk.unlink(self._path)  # the same name, other bytes: it was damaged since
            else:
                self._disk.rename(self._path, self._part)
        if not self._disk.exists(self._part):
            self._open = self._disk.create(self._part)
            return
        self._open = self._disk.open(self._part, writable=True)
        if self._is_rows:
            # The bytes up to a border are synced once there is one behind it.
            kept = max(0, min(self._open.size(), self.file.size_bytes) - 1) // self._sync_bytes * self._sync_bytes
            self._add_to_hash(self._open, kept)
        else:
            kept = intact_prefix(self._open, self._tablet_id, self.file.name).end_offset
            kept = kept if kept <= self.file.size_bytes else 0
        self._open.truncate(kept)
        self.offset = self.resumed_bytes = kept

    def restart(self) -> None:
        """Forgets what was there: it was not what it should be."""
        assert self._open is not None, f"{self._part} is not open"
        self._open.truncate(0)
        self._open.sync()  # else the old length could outlive a power cut, and speak for bytes that were never synced
        self._hash = xxhash.xxh3_64()
        self.offset = self.resumed_bytes = 0

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Adds what came next.

        Raises:
            KuduError: CORRUPTION: it is damaged, or not what comes next. OSError: of this disk.
        """
        assert self._open is not None, f"{self._part} is not open"
        begin, pieces = self.offset, []
        for chunk in chunks:
            if chunk.offset != self.offset or crc32c(chunk.data) != chunk.crc32c:
                raise self._damaged(f"what came for offset {self.offset} was damaged on its way")
            self.offset += len(chunk.data)
            pieces.append(chunk.data)
        if self.offset > self.file.size_bytes:
            raise self._damaged(f"more came than its {self.file.size_bytes} bytes")
        require_free(self._disk, self._directory, self.offset - begin, self._kept_free_bytes)
        self._open.write(begin, pieces)
        if self._is_rows:
            for piece in pieces:
                self._hash.update(piece)
        if self.offset // self._sync_bytes > begin // self._sync_bytes:
            self._open.sync()
            if not self._is_name_durable:
                self._disk.sync_dir(self._directory)
                self._is_name_durable = True

    def complete(self) -> bool:
        """Syncs the file and gives it its name, durably; False if it is not what it should be."""
        assert self._open is not None, f"{self._part} is not open"
        if self.offset != self.file.size_bytes:
            raise self._damaged(f"it ended at {self.offset}, and has {self.file.size_bytes} bytes")
        self._open.sync()
        if self._is_rows:
            is_right = self._hash.intdigest() == self.file.checksum
        else:
            is_right = not self.resumed_bytes or self._is_whole(self._part)
        if not is_right:
            return False
        self.close()
        self._disk.rename(self._part, self._path)
        self._disk.sync_dir(self._directory)
        self.is_complete = True
        return True

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def discard(self) -> None:
        """Removes what is there: after an error of the disk nothing of it can be believed."""
        self.close()
        for path in (self._part, self._path):
            with contextlib.suppress(OSError):
                self._disk.unlink(path)

    def _is_whole(self, path: str) -> bool:
        file = self._disk.open(path)
        try:
            if not self._is_rows:
                return is_whole(
                    file,
                    self._tablet_id,
                    self.file.name,
                    size_bytes=self.file.size_bytes,
                    last_crc=self.file.checksum,
                )
            if file.size() != self.file.size_bytes:
                return False
            self._add_to_hash(file, self.file.size_bytes)
            found, self._hash = self._hash.intdigest(), xxhash.xxh3_64()
            return found == self.file.checksum
        finally:
            file.close()

    def _add_to_hash(self, file: File, end: int) -> None:
        for start in range(0, end, _READ_BYTES):
            self._hash.update(file.read(start, min(_READ_BYTES, end - start)))

    def _damaged(self, why: str) -> KuduError:
        return KuduError(ErrorCode.CORRUPTION, f"{self.file.name}: {why}", details={"path": self._path})
