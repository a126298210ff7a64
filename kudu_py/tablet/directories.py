"""Where a server keeps the files of its replicas (seed 002, "Tablet directory structure").

Under the server's root: `tablet-meta/<id>` the superblock, `consensus-meta/<id>` term, vote and config, `wals/<id>/`
the log, `data/<id>/` the rows. A replica exists if and only if it has a superblock. `quarantine/` holds what deleted
replicas leave for a while and what copies gather (`quarantine.py`). Ids become file names here, so they are checked
here once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.ids import TabletId, is_id, require_id
from kudu_py.env.atomic_file import TEMPORARY_SUFFIX
from kudu_py.env.disk import Disk


@dataclass(frozen=True, slots=True)
class ReplicaDirectories:
    """Paths by tablet id. `root` is absolute."""

    root: str

    @property
    def superblocks(self) -> str:
        """The directory of all superblocks."""
        return f"{self.root}/tablet-meta"

    @property
    def consensus_metadata(self) -> str:
        """The directory of all consensus metadata files."""
        return f"{self.root}/consensus-meta"

    @property
    def logs(self) -> str:
        """The directory of all log directories."""
        return f"{self.root}/wals"

    @property
    def rows(self) -> str:
        """The directory of all row directories."""
        return f"{self.root}/data"

    @property
    def quarantine(self) -> str:
        """The directory of what deleted replicas leave and copies gather."""
        return f"{self.root}/quarantine"

    def superblock_path(self, tablet_id: str) -> str:
        """The superblock of a tablet."""
        return f"{self.superblocks}/{require_id(tablet_id, 'tablet_id')}"

    def consensus_metadata_path(self, tablet_id: str) -> str:
        """Term, vote and committed config of a tablet."""
        return f"{self.consensus_metadata}/{require_id(tablet_id, 'tablet_id')}"

    def log_directory(self, tablet_id: str) -> str:
        """The log segments of a tablet."""
        return f"{self.logs}/{require_id(tablet_id, 'tablet_id')}"

    def row_directory(self, tablet_id: str) -> str:
        """The row files of a tablet."""
        return f"{self.rows}/{require_id(tablet_id, 'tablet_id')}"

    def create(self, disk: Disk) -> None:
        """Makes the directories themselves, durably. Idempotent. Blocks: for disk jobs.

        What is in them is durable on return: a process that was killed may have left a rename that only the cache
        knows, and whoever starts now acts on what it finds (removes files that a superblock does not name, repeats a
        vote).
        """
        paths = (self.superblocks, self.consensus_metadata, self.logs, self.rows, self.quarantine)
        for path in paths:
            disk.make_dir(path)
        for path in (*paths, self.root):
            disk.sync_dir(path)

    def tablet_ids(self, disk: Disk) -> list[TabletId]:
        """Ids of all tablets with a superblock, sorted; what an unfinished replacement left is removed. Blocks."""
        found: list[TabletId] = []
        for name in disk.list_dir(self.superblocks):
            if is_id(name):
                found.append(TabletId(name))
            elif name.endswith(TEMPORARY_SUFFIX) and is_id(name.removesuffix(TEMPORARY_SUFFIX)):
                disk.unlink(f"{self.superblocks}/{name}")
        return found


def remove_tree(disk: Disk, path: str) -> None:
    """Removes a directory and everything in it, durably; no error if there is none. Idempotent. Blocks: for disk jobs.

    The parent is synced last: until then a crash may bring back the directory, but then whoever removed it runs again.
    """
    if not disk.exists(path):
        return
    empty_tree(disk, path)
    disk.remove_dir(path)
    disk.sync_dir(path.rpartition("/")[0])


def empty_tree(disk: Disk, path: str) -> None:
    """Removes everything in a directory but not the directory. Blocks: for disk jobs."""
    for name in disk.list_dir(path):
        child = f"{path}/{name}"
        if is_directory(disk, child):
            empty_tree(disk, child)
            disk.remove_dir(child)
        else:
            disk.unlink(child)


def is_directory(disk: Disk, path: str) -> bool:
    """Whether `path` is a directory."""
    try:
        disk.list_dir(path)
    except NotADirectoryError:
        return False
    return True
