"""`ClientOptions`: the bounds and patience of one client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Fixed for the life of a client.

    Attributes:
        admin_timeout_s: for a call that asks or changes the catalog, retries included.
        operation_timeout_s: for a write or a scan's step, retries included; sessions and scanners can set their own.
        connect_timeout_s: for finding a master when the client is made.
        attempt_timeout_s: for one try of a short call to one server.
        silence_s: a write without an answer for so long makes the client ask the other replicas who leads.
        buffered_bytes_max: rows handed over and not yet answered, over all sessions; more wait for room.
        group_rows_max, group_bytes_max: rows of one Write; one piece of a batch always fits.
        scan_batch_bytes: wanted size of one answer of a scan; 0: the server decides.
        scan_tablets_max: tablets of one scan read at the same time.
        scan_queue_batches: batches of one tablet read ahead.
        errors_kept_max: row errors that a session keeps until they are asked for.
        stream_writes: Writes go over one stream per server; False: each on its own.
        stream_window: Writes on one stream without an answer.
    """

    admin_timeout_s: float = 30.0
    operation_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    attempt_timeout_s: float = 2.0
    silence_s: float = 1.0
    buffered_bytes_max: int = 64 << 20
    group_rows_max: int = 16_384
    group_bytes_max: int = 1 << 20
    scan_batch_bytes: int = 0
    scan_tablets_max: int = 4
    scan_queue_batches: int = 4
    errors_kept_max: int = 1000
    stream_writes: bool = True
    stream_window: int = 256

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in ("scan_batch_bytes", "stream_writes") and value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
