"""`CatalogOptions`: the bounds and patience of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.errors import ErrorCode, KuduError


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Bounds of requests, and times in seconds.

    Attributes:
        default_num_replicas: the replication factor of a table that asks for none; odd.
        max_num_replicas: the largest replication factor; odd.
        max_create_tablets_per_ts: a new table may bring at most this many replicas per live server; 0: no bound.
        tserver_unresponsive_timeout_s: a server silent for longer gets no new replicas and is shown as dead.
        tablet_creation_timeout_s: a tablet that does not run after this long is replaced by a new one on servers chosen
            anew.
        heartbeat_interval_s: how often tablet servers are expected to heartbeat; a master that started less than two of
            these ago does not know its servers yet.
        nudge_interval_s: how often unfinished work is looked at again.
        nudge_timeout_s: deadline of one CreateTablet or DeleteTablet call.
        nudges_in_flight_max: calls to tablet servers outstanding at once.
        change_bytes_max: the largest change, encoded; below the largest Write.
        table_locations_ttl_s: how long clients may remember locations.
        replica_change_timeout_s: how long an administrator's change of one replica may take if the caller sets no
            deadline.
        follower_unavailable_considered_failed_s: a replica whose server has been silent for so long, or that has needed
            a copy for so long without getting anywhere, is replaced.
        copies_per_server_max: replicas that may be on their way to, or from, one tablet server at once because of what
            the masters decided.
    """

    default_num_replicas: int = 3
    max_num_replicas: int = 7
    max_create_tablets_per_ts: int = 60
    tserver_unresponsive_timeout_s: float = 60.0
    tablet_creation_timeout_s: float = 30.0
    heartbeat_interval_s: float = 1.0
    nudge_interval_s: float = 1.0
    nudge_timeout_s: float = 10.0
    nudges_in_flight_max: int = 64
    change_bytes_max: int = 6 << 20
    table_locations_ttl_s: float = 300.0
    replica_change_timeout_s: float = 30.0
    follower_unavailable_considered_failed_s: float = 300.0
    copies_per_server_max: int = 10

    def __post_init__(self) -> None:
        for name in ("default_num_replicas", "max_num_replicas"):
            value = getattr(self, name)
            if value < 1 or value % 2 == 0:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must be odd and positive, not {value}")
        if self.default_num_replicas > self.max_num_replicas:
            raise KuduError(
                ErrorCode.CONFIGURATION_ERROR,
                f"default_num_replicas ({self.default_num_replicas}) is above"
                f" max_num_replicas ({self.max_num_replicas})",
            )
        for name in (
            "tserver_unresponsive_timeout_s", "tablet_creation_timeout_s", "heartbeat_interval_s", "nudge_interval_s",
            "nudge_timeout_s", "nudges_in_flight_max", "change_bytes_max", "table_locations_ttl_s",
            "replica_change_timeout_s", "follower_unavailable_considered_failed_s", "copies_per_server_max",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must be positive, not {getattr(self, name)}")
        if self.max_create_tablets_per_ts < 0:
            raise KuduError(ErrorCode.CONFIGURATION_ERROR, "max_create_tablets_per_ts must not be negative")
