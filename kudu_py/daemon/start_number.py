"""The number of a start: it names a process among all that ever owned the same data directory, and rises.

Masters take the process of a server with the highest number for the one that lives. A wall clock alone does not give
it: set back between two starts, it would make the later process look like the older one. So the last number is kept in
the data directory, and the next one is above it; it begins from the wall clock, above what earlier software gave.
"""

from __future__ import annotations

from typing import Final

import structlog

from kudu_py.common.errors import KuduError
from kudu_py.env import atomic_file
from kudu_py.env.disk import Disk

START_NAME: Final = "start"

_log = structlog.get_logger(__name__)


def take_start_number(disk: Disk, root: str, wall_micros: int) -> int:
    """The number of this start, above those of all starts before; durable on return. Blocks: for start-up.

    A server must come up on a full or failing disk, too, to be read and repaired: there its number is not recorded, and
    rises as long as the wall clock does.

    Args:
        root: a data directory that this process owns.
        wall_micros: since the epoch.
    """
    path = f"{root}/{START_NAME}"
    try:
        last = int.from_bytes(atomic_file.read(disk, path), "little")
    except FileNotFoundError:
        last = 0
    except (KuduError, OSError) as error:
        _log.warning("start_number_lost", path=path, error=str(error))
        last = 0
    number = max(last + 1, wall_micros)
    try:
        atomic_file.replace(disk, path, number.to_bytes(8, "little"))
    except OSError as error:
        _log.warning("start_number_not_recorded", path=path, error=str(error))
    return number
