"""The quarantine: what deleted replicas leave for a while, and what copies gather until it is put in place (seed 002).

Below `quarantine/`, one directory for each deletion and one for each copy:
`<tablet id>-<microseconds since the epoch>-deleted` holds `superblock` and `consensus-metadata` as they were, and the
log (`wals/`) and the rows (`data/`), moved there by renaming; `<tablet id>-<…>-copy` holds what copies fetched, by
source (`tablet_copy/landing.py`). Nothing here is ever read to answer anybody: a deletion's is for an administrator who
has to find out what happened, a copy's is verified again before it is used.

Both are bounded by age and by bytes, the oldest go first, and all of them go when the disk is short of room: a replica
that lives is worth more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.env.disk import Disk
from kudu_py.tablet.directories import ReplicaDirectories, is_directory, remove_tree

SUPERBLOCK_NAME = "superblock"
CONSENSUS_METADATA_NAME = "consensus-metadata"
LOG_NAME = "wals"
ROWS_NAME = "data"


@unique
class QuarantineKind(Enum):
    """What a directory of the quarantine is for; the last part of its name."""

    DELETED = "deleted"
    COPY = "copy"


_NAME = re.compile(r"(?P<tablet_id>[0-9a-f]{32})-(?P<micros>[0-9]{16,20})-(?P<kind>deleted|copy)\Z")


@dataclass(frozen=True, slots=True)
class QuarantineName:
    """What the name of a directory in the quarantine says.

    Attributes:
        created_micros: when, by the wall clock.
    """

    tablet_id: TabletId
    created_micros: int
    kind: QuarantineKind

    def __str__(self) -> str:
        return f"{self.tablet_id}-{self.created_micros:016d}-{self.kind.value}"

    @staticmethod
    def parse(name: str) -> QuarantineName | None:
        """From the name of a directory; None if it is none of the quarantine's."""
        match = _NAME.match(name)
        if match is None:
            return None
        return QuarantineName(TabletId(match["tablet_id"]), int(match["micros"]), QuarantineKind(match["kind"]))


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A directory of the quarantine and how large it is."""

    name: QuarantineName
    size_bytes: int


@dataclass(frozen=True, slots=True)
class QuarantineOptions:
    """Bounds of the quarantine.

    Attributes:
        retention_s: what is older is removed; 0: nothing is kept.
        bytes_max: of all of it together; beyond, the oldest is removed.
    """

    retention_s: float = 24 * 3600.0
    bytes_max: int = 10 << 30

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must not be negative: {getattr(self, name)}")

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self.retention_s > 0 and self.bytes_max > 0


def choose_expired(
    entries: Sequence[QuarantineEntry],
    options: QuarantineOptions,
    *,
    now_micros: int,
    missing_bytes: int = 0,
    in_use: Collection[TabletId] = (),
) -> list[QuarantineEntry]:
    """What to remove now, the oldest first.

    Args:
        missing_bytes: so much room is missing on the disk.
        in_use: tablets that a deletion or a copy is at work on.
    """
    removable = sorted(
        (entry for entry in entries if entry.name.tablet_id not in in_use),
        key=lambda entry: (entry.name.created_micros, entry.name.tablet_id),
    )
    excess_bytes = max(sum(entry.size_bytes for entry in entries) - options.bytes_max, missing_bytes)
    expired: list[QuarantineEntry] = []
    for entry in removable:
        is_old = now_micros - entry.name.created_micros >= options.retention_s * 1e6
        if is_old or excess_bytes > 0:
            expired.append(entry)
            excess_bytes -= entry.size_bytes
    return expired


def entries(disk: Disk, directories: ReplicaDirectories) -> list[QuarantineEntry]:
    """All that is in the quarantine, by name. Blocks: for disk jobs."""
    if not disk.exists(directories.quarantine):
        return []
    parsed = [QuarantineName.parse(name) for name in disk.list_dir(directories.quarantine)]
    return [
        QuarantineEntry(name, size_bytes(disk, path_of(directories, str(name)))) for name in parsed if name is not None
    ]


def path_of(directories: ReplicaDirectories, name: str) -> str:
    """The directory of this name, which superblocks hold; checked, as all that becomes a path."""
    assert QuarantineName.parse(name) is not None, f"{name!r} is no name of the quarantine"
    return f"{directories.quarantine}/{name}"


def open_directory(
    disk: Disk, directories: ReplicaDirectories, tablet_id: TabletId, kind: QuarantineKind, now_micros: int
) -> str:
    """The name of a directory for this tablet, which exists durably on return. Blocks: for disk jobs.

    A deletion's is always new. A copy goes on with what the latest one before it has gathered.
    """
    names = [name for name in map(QuarantineName.parse, disk.list_dir(directories.quarantine)) if name is not None]
    own = [name.created_micros for name in names if name.tablet_id == tablet_id and name.kind is kind]
    if own and kind is QuarantineKind.COPY:
        return str(QuarantineName(tablet_id, max(own), kind))
    name = str(QuarantineName(tablet_id, max([now_micros, *(micros + 1 for micros in own)]), kind))
    disk.make_dir(f"{directories.quarantine}/{name}")
    disk.sync_dir(directories.quarantine)
    return name


def remove(disk: Disk, directories: ReplicaDirectories, name: QuarantineName) -> None:
    """Removes a directory of the quarantine, durably; no error if it is gone. Blocks: for disk jobs."""
    remove_tree(disk, path_of(directories, str(name)))


def size_bytes(disk: Disk, path: str) -> int:
    """Of all files in a directory, or of a file; 0 if there is none. Blocks: for disk jobs.

    Copies give files their names and remove directories meanwhile; what is gone when its turn comes counts nothing.
    """
    try:
        if not is_directory(disk, path):
            return disk.size(path)
        return sum(size_bytes(disk, f"{path}/{name}") for name in disk.list_dir(path))
    except FileNotFoundError:
        return 0
