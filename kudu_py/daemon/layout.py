"""A server's data directory: whose it is, and that nobody else uses it.

`instance` names the owner and is written once, when the directory is new; `lock` is held for the life of the process.
Where the replicas' files lie below the root is the replicas' business.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, is_id, mint_id
from kudu_py.env import atomic_file
from kudu_py.env.disk import Disk, File
from kudu_py.pb import storage_pb2

INSTANCE_NAME: Final = "instance"
LOCK_NAME: Final = "lock"
FORMAT_VERSION: Final = 1

_OF_A_NEW_DIRECTORY: Final = frozenset({LOCK_NAME, INSTANCE_NAME + atomic_file.TEMPORARY_SUFFIX, "lost+found"})
"""What a directory may hold that has no owner yet: an unfinished start of ours, and what mkfs leaves in a mount
point.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """An open data directory. Close it last: then another process may take it.

    Attributes:
        root: absolute path.
        uuid: of the server that owns it, for as long as the directory lives.
        role: "master" or "tserver".
        is_new: whether this start made it.
    """

    root: str
    uuid: ServerId
    role: str
    is_new: bool
    _lock: File

    def close(self) -> None:
        """Lets go of the lock. Idempotent."""
        self._lock.close()


def open_or_create(
    disk: Disk, root: str, *, role: str, rng: RandomBits, wall_micros: int, expected_uuid: str = ""
) -> Layout:
    """Opens the data directory of a server, or makes it a new server's. Blocks: for start-up and disk jobs.

     1. Before anything is created in it, a directory with other content is refused: it may be somebody's by mistake.
     2. Then the lock: of two processes that start at once one goes on.
     3. Then the owner is read, or written durably: nothing else is created in a directory without an owner, so one that
        crashed before this step is still seen as new.

    Args:
        root: absolute path; missing directories are created.
        expected_uuid: refuse a directory of another server, and a new one; empty: any.

    Raises:
        KuduError: CONFIGURATION_ERROR that names the directory and what to do, if it is in use, another server's or
            no data directory at all; CORRUPTION if the instance file is damaged.
    """
    assert root.startswith("/"), f"paths are absolute: {root}"
    instance_path = f"{root}/{INSTANCE_NAME}"
    try:
        _make_dirs(disk, root)
        is_new = not disk.exists(instance_path)
        if is_new:
            _require_new(disk, root)
        lock = _lock(disk, root)
        try:
            # Once more: until the lock was ours, another start may have made the directory its own.
            is_new = not disk.exists(instance_path)
            if is_new:
                _require_no_expectation(root, expected_uuid)
                _sync_parents(disk, root)
                instance = storage_pb2.InstanceMetadata(
                    uuid=mint_id(rng), role=role, format_version=FORMAT_VERSION, created_micros=wall_micros
                )
                atomic_file.replace(disk, instance_path, instance.SerializeToString())
            else:
                instance = read_instance(disk, root)
                _require_own(root, instance, role, expected_uuid)
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise _unusable(root, error) from error
    return Layout(root, ServerId(instance.uuid), role, is_new, lock)


def open_existing(disk: Disk, root: str) -> Layout:
    """Takes the data directory of a server that does not run, for a tool that works on its files. Blocks.

    Raises:
        KuduError: CONFIGURATION_ERROR that names the directory: it is none, or its server runs; CORRUPTION.
    """
    try:
        if not disk.exists(f"{root}/{INSTANCE_NAME}"):
            raise _refusal(root, "is no data directory of a server")
        lock = _lock(disk, root)
        try:
            instance = read_instance(disk, root)
            _require_own(root, instance, instance.role, "")
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise _unusable(root, error) from error
    return Layout(root, ServerId(instance.uuid), instance.role, False, lock)


def read_instance(disk: Disk, root: str) -> storage_pb2.InstanceMetadata:
    """Who owns the directory, without taking it. Blocks.

    Raises:
        FileNotFoundError: nobody does.
        KuduError: CORRUPTION that names the file.
    """
    path = f"{root}/{INSTANCE_NAME}"
    try:
        instance = storage_pb2.InstanceMetadata.FromString(atomic_file.read(disk, path))
    except DecodeError as error:
        raise KuduError(ErrorCode.CORRUPTION, f"{path}: {error}", details={"path": path}) from error
    if not is_id(instance.uuid):
        raise KuduError(ErrorCode.CORRUPTION, f"{path}: {instance.uuid[:64]!r} is no uuid", details={"path": path})
    return instance


def _make_dirs(disk: Disk, path: str) -> None:
    """Makes the directory and its parents; durable after `_sync_parents`."""
    if disk.exists(path):
        disk.list_dir(path)  # raises NotADirectoryError if it is something else
        return
    _make_dirs(disk, path.rpartition("/")[0] or "/")
    disk.make_dir(path)


def _sync_parents(disk: Disk, path: str) -> None:
    """Makes the way to `path` durable, whichever start made it: one that crashed may have left parts not synced."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        with contextlib.suppress(PermissionError):  # a directory that we may not read is none that we have made
            disk.sync_dir(path)


def _require_new(disk: Disk, root: str) -> None:
    foreign = [name for name in disk.list_dir(root) if name not in _OF_A_NEW_DIRECTORY]
    # Another start may be making it its own just now; then the lock decides, and its owner is read.
    if foreign and INSTANCE_NAME not in foreign:
        raise _refusal(
            root,
            f"is not empty and no data directory of kudu_py (it holds {', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}); choose an empty or new directory with --fs_wal_dir",
        )


def _lock(disk: Disk, root: str) -> File:
    try:
        return disk.lock(f"{root}/{LOCK_NAME}")
    except BlockingIOError as error:
        raise _refusal(root, "is in use by another process; each server needs a directory of its own") from error


def _require_no_expectation(root: str, expected_uuid: str) -> None:
    if expected_uuid:
        raise _refusal(
            root,
            f"is new, but --expected_server_uuid asks for the data of {expected_uuid}; is the file system mounted?",
        )


def _require_own(root: str, instance: storage_pb2.InstanceMetadata, role: str, expected_uuid: str) -> None:
    if instance.role != role:
        raise _refusal(
            root,
            f"belongs to a {instance.role} ({instance.uuid}) and this is a {role}; choose another with --fs_wal_dir",
        )
    if instance.format_version > FORMAT_VERSION or instance.format_version < 1:
        raise _refusal(
            root,
            f"has format version {instance.format_version}, and this software knows version {FORMAT_VERSION}; "
            "start it with the software that wrote it",
        )
    if expected_uuid and instance.uuid != expected_uuid:
        raise _refusal(root, f"belongs to the server {instance.uuid}, and --expected_server_uuid is {expected_uuid}")


def _unusable(root: str, error: OSError) -> KuduError:
    return KuduError(
        ErrorCode.CONFIGURATION_ERROR,
        f"the data directory {root} cannot be used: {error.strerror or error}"
        + (f" ({error.filename})" if error.filename not in (None, root) else ""),
        details={"path": root},
    )


def _refusal(root: str, why: str) -> KuduError:
    return KuduError(ErrorCode.CONFIGURATION_ERROR, f"the data directory {root} {why}", details={"path": root})
