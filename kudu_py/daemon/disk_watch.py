"""`DiskWatch`: how much room a server's disk has, looked at now and then, and what to tell an operator of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from kudu_py.common.counted import counted
from kudu_py.env.disk import DiskThreads

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_EVERY_S = 2.0


class DiskWatch:
    """Of the data directory of one server.

    A full disk is a state to be shown and not an error: the server goes on to serve reads, and takes writes again by
    itself once there is room.

    Attributes:
        free_bytes: as of the last look, at most some seconds ago; None before the first.
    """

    def __init__(
        self, *, threads: DiskThreads, directory: str, reserved_bytes: int, logs_without_room: Callable[[], int]
    ) -> None:
        """Args:
        reserved_bytes: what logs leave free.
        logs_without_room: how many logs of the server wait for room now. They do so a little earlier than all of it is
            gone: what they take next is not the same for all.
        """
        self._threads = threads
        self._directory = directory
        self._reserved_bytes = reserved_bytes
        self._logs_without_room = logs_without_room
        self._is_full = False
        self.free_bytes: int | None = None

    def problems(self) -> list[str]:
        """What is wrong, for people; empty if nothing is."""
        waiting = self._logs_without_room()
        if not waiting and (self.free_bytes is None or self.free_bytes >= self._reserved_bytes):
            return []
        free = "an unknown number of" if self.free_bytes is None else str(self.free_bytes)
        return [
            f"the disk of {self._directory} is full: {free} bytes are free, and {self._reserved_bytes} are kept free; "
            f"the logs of {counted(waiting, 'tablet')} wait for room, "
            "and writes are told to try later until there is some"
        ]

    async def run(self) -> None:
        """Looks until cancelled. Says so in the log when the disk has filled and when there is room again."""
        disk, directory = self._threads.disk, self._directory
        while True:
            self.free_bytes = await self._threads.run(lambda: disk.free_bytes(directory))
            problems = self.problems()
            if problems and not self._is_full:
                _log.warning("disk_full", problem=problems[0])
            elif self._is_full and not problems:
                _log.info("disk_has_room", directory=directory, free_bytes=self.free_bytes)
            self._is_full = bool(problems)
            await asyncio.sleep(LOOK_EVERY_S)
