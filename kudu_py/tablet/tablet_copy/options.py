"""Bounds and times of tablet copies."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError


@dataclass(frozen=True, slots=True)
class TabletCopyOptions:
    """How a server copies, as a target and as a source.

    Attributes:
        copies_max: copies to this server at once; others are QUEUED.
        queued_max: of those that wait; who orders more is told to try later. More than a server has replicas, so that
            one that lost them all can be told of all at once.
        files_max: files of one copy fetched at once.
        bytes_per_s: of all copies to this server together; 0: as fast as they come. The default leaves most of a
            machine to those who read and write: an unbounded copy takes a core at each end.
        burst_bytes: what may come at once after a pause.
        chunk_bytes: of a file in one message.
        piece_bytes: of a file read or written by one job of the disk.
        sync_bytes: a file is synced whenever so much of it was written; an interrupted copy goes on from there. Small,
            so that no sync of the log has to wait for much.
        begin_timeout_s: a source has so long to open a session.
        stall_timeout_s: a source that sends nothing for so long is given up.
        idle_timeout_s: a session at a source that nobody asks for so long is closed.
        sessions_max: open at once at a source; others are told to try later.
        handover_timeout_s: for so long the log stays anchored after a copy, until the leader finds that the new
            replica answers.
        remembered_max: copies that have ended and are still shown, and errors of copies that left nothing here.
    """

    copies_max: int = 10
    queued_max: int = 4_000
    files_max: int = 4
    bytes_per_s: int = 32 << 20
    burst_bytes: int = 8 << 20
    chunk_bytes: int = 1 << 20
    piece_bytes: int = 4 << 20
    sync_bytes: int = 8 << 20
    begin_timeout_s: float = 30.0
    stall_timeout_s: float = 30.0
    idle_timeout_s: float = 120.0
    sessions_max: int = 64
    handover_timeout_s: float = 120.0
    remembered_max: int = 100

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0 or (getattr(self, name) == 0 and name != "bytes_per_s"):
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must be positive, not {getattr(self, name)}")
        if self.sync_bytes % self.piece_bytes or self.piece_bytes % self.chunk_bytes:
            raise KuduError(
                ErrorCode.CONFIGURATION_ERROR,
                f"sync_bytes ({self.sync_bytes}) must hold whole pieces ({self.piece_bytes}) of whole chunks "
                f"({self.chunk_bytes})",
            )
