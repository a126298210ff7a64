"""Options of reads and writes, by the names that users of upstream's connector know, and their validation.

Spark hands option keys over case-insensitively. An option that is not known is refused by name: a misspelt one would
otherwise do nothing without a word.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

OPERATIONS = (
    "upsert",
    "insert",
    "insert_ignore",
    "update",
    "update_ignore",
    "delete",
    "delete_ignore",
    "upsert_ignore",
)
DEFAULT_TIMEOUT_MS = 120_000

_KNOWN = {
    name.lower(): name
    for name in (
        "kudu.master",
        "kudu.table",
        "kudu.operation",
        "kudu.columns",
        "kudu.faultTolerantScan",
        "kudu.scanLocality",
        "kudu.batchSize",
        "kudu.snapshotTimestampMs",
        "kudu.scanRequestTimeoutMs",
        "kudu.timeoutMs",
        "kudu.ignoreNull",
        "kudu.ignoreDuplicateRowErrors",
        "kudu.useDriverMetadata",
    )
}
_FROM_SPARK = frozenset({"path", "partitionoverwritemode"})
_UNSUPPORTED = {
    "kudu.splitsizebytes": "tablets are read whole",
    "kudu.repartition": "rows are split by tablet in the task; use `frame.repartitionById` for more",
    "kudu.repartition.sort": "rows are split by tablet in the task",
    "kudu.handleschemadrift": "columns must fit the table",
    "kudu.requireauthentication": "there is no authentication yet",
    "kudu.encryptionpolicy": "there is no encryption yet",
}


@dataclass(frozen=True, slots=True)
class KuduOptions:
    """Validated options of one read or write.

    Attributes:
        masters: comma-separated host:port.
        table: the table's name.
        operation: what a write does with a row; one of `OPERATIONS`.
        columns: columns to read, in that order; empty: all.
        fault_tolerant: rows in key order, so that a scan goes on where its server died.
        allow_followers: any replica may answer a scan.
        batch_size_bytes: wanted size of a scan's batches; 0: the server's default.
        snapshot_timestamp_ms: read the rows as of then (milliseconds since the epoch); None: everything acknowledged
            so far.
        timeout_ms: how long one scan batch or write may take, retries included.
        ignore_null: a null leaves the column of an existing row as it is.
    """

    masters: str
    table: str
    operation: str = "upsert"
    columns: tuple[str, ...] = ()
    fault_tolerant: bool = False
    allow_followers: bool = False
    batch_size_bytes: int = 0
    snapshot_timestamp_ms: int | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    ignore_null: bool = False


def parse(options: Mapping[str, str]) -> KuduOptions:
    """The options of one read or write.

    Raises:
        ValueError: names the option and says what it may be.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name in _UNSUPPORTED:
            raise ValueError(f"option {name} is not supported: {_UNSUPPORTED[name]}")
        if name not in _KNOWN and name not in _FROM_SPARK:
            raise ValueError(f"option {name} is not known; known are {', '.join(sorted(_KNOWN.values()))}")
    masters = given.get("kudu.master") or os.environ.get("KUDU_MASTERS", "")
    if not masters:
        raise ValueError("option kudu.master is missing: give the master addresses, such as 127.0.0.1:7051")
    table = given.get("kudu.table") or given.get("path", "")
    if not table:
        raise ValueError("option kudu.table is missing: give the table's name")
    operation = given.get("kudu.operation", "upsert").lower().replace("-", "_")
    if _boolean(given, "kudu.ignoreduplicaterowerrors") and operation == "insert":
        operation = "insert_ignore"
    if operation not in OPERATIONS:
        raise ValueError(f"option kudu.operation is {operation!r}; it may be {', '.join(OPERATIONS)}")
    locality = given.get("kudu.scanlocality", "leader_only").lower()
    if locality not in ("leader_only", "closest_replica"):
        raise ValueError(f"option kudu.scanLocality is {locality!r}; it may be leader_only or closest_replica")
    snapshot = given.get("kudu.snapshottimestampms")
    return KuduOptions(
        masters=masters,
        table=table,
        operation=operation,
        columns=tuple(name.strip() for name in given.get("kudu.columns", "").split(",") if name.strip()),
        fault_tolerant=_boolean(given, "kudu.faulttolerantscan"),
        allow_followers=locality == "closest_replica",
        batch_size_bytes=_whole(given, "kudu.batchsize", 0),
        snapshot_timestamp_ms=None if snapshot is None else _whole(given, "kudu.snapshottimestampms", 0),
        timeout_ms=_whole(given, "kudu.timeoutms", _whole(given, "kudu.scanrequesttimeoutms", DEFAULT_TIMEOUT_MS)),
        ignore_null=_boolean(given, "kudu.ignorenull"),
    )


def _boolean(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {_KNOWN[name]} is {value!r}; it may be true or false")
    return value == "true"


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise ValueError(f"option {_KNOWN[name]} is {value!r}; it must be a whole number, 0 or more")
    return int(value)
