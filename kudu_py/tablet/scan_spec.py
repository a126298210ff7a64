"""`ScanSpec`: what a scan shall give."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.predicate import Predicate

DEFAULT_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """A scan of one tablet.

    Attributes:
        columns: names of the projected columns, in the order wanted; empty: batches without columns that carry row
        counts. timestamp: the snapshot; rows as they were after all writes at or before it.
        predicates: a row must satisfy all of them.
        limit: at most this many rows; None for all.
        batch_bytes: batches are about this large at most; one row is never divided.
        ordered: rows come in primary key order.
        start_key: encoded key, inclusive; rows before it are left out. None: from the start.
        start_after_key: encoded key, exclusive, as a resumed ordered scan gives it. None: from the start.
        end_key: encoded key, exclusive. None: to the end.
    """

    columns: tuple[str, ...]
    timestamp: HybridTime
    predicates: tuple[Predicate, ...] = ()
    limit: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    ordered: bool = False
    start_key: bytes | None = None
    start_after_key: bytes | None = None
    end_key: bytes | None = None
