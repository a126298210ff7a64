"""Planner for tablet reports: what of a server's news changes the records.

Only two facts of a report are worth a replicated write: a newer committed config, and that a tablet has a leader for
the first time (together with which members have shown a replica). Who leads at the moment, row counts and errors change
often and are worth nothing after a failover, when every server reports in full again: they stay in `ts_registry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, unique

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import RaftConfig, Role
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import TabletEntry, TabletState
from kudu_py.master.catalog.state import CatalogState


@unique
class ReplicaState(Enum):
    """What is left of a replica on its server, as far as the master cares."""

    RUNNING = "RUNNING"
    STARTING = "STARTING"
    """Not started, or bootstrapping."""
    COPYING = "COPYING"
    """Being fetched from another server."""
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    """On its way down with its server."""
    TOMBSTONE = "TOMBSTONE"
    """Rows and log are gone; it remembers its vote."""


@unique
class PeerHealth(Enum):
    """How a leader finds a member to be."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    UNREACHABLE = "UNREACHABLE"
    """It has not answered for longer than the leader's patience."""
    NEEDS_COPY = "NEEDS_COPY"
    """It answers, but its replica has failed or is missing, or needs entries that the log no longer has."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What a leader knows of another member.

    Attributes:
        match_index: the last entry that is durable there and equal to the leader's.
    """

    uuid: ServerId
    health: PeerHealth
    match_index: int = 0


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a copy to the reporting server is."""

    source: ServerId
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class ReportedReplica:
    """A server's news of one replica.

    Attributes:
        term, leader: of the replica's consensus; leader None if it knows none.
        committed_config: None if it could not be read (a replica that failed to open).
        pending_config: a config that is adopted but not committed.
        peers: of a leader: the other members.
        copy: while it is being copied.
    """

    tablet_id: TabletId
    state: ReplicaState
    role: Role = Role.FOLLOWER
    term: int = 0
    leader: ServerId | None = None
    committed_config: RaftConfig | None = None
    pending_config: RaftConfig | None = None
    last_op_id: OpId = MIN_OP_ID
    schema_version: int = 0
    error: str = ""
    row_count: int = 0
    on_disk_bytes: int = 0
    peers: tuple[PeerStatus, ...] = ()
    copy: CopyProgress | None = None


def changed_by_report(state: CatalogState, server: ServerId, replicas: Iterable[ReportedReplica]) -> list[TabletId]:
    """The tablets whose records a report would change: those to lock before `plan_report`."""
    return [r.tablet_id for r in replicas if _news(state.tablets.get(r.tablet_id), server, r) is not None]


def plan_report(state: CatalogState, server: ServerId, replicas: Iterable[ReportedReplica]) -> CatalogChange:
    """All tablets that the report changes, as one change. A tablet of which no record exists is passed over."""
    entries = (_news(state.tablets.get(replica.tablet_id), server, replica) for replica in replicas)
    return CatalogChange(tuple(entry for entry in entries if entry is not None))


def newer_config(entry: TabletEntry, reported: RaftConfig) -> TabletEntry:
    """The entry with a committed config that somebody reported, if that is newer than the one it has.

    Committed configs of one tablet are totally ordered by their index in its log; two of the same index are the same.
    """
    if reported.config_index > entry.config.config_index and reported.members:
        return replace(entry, config=reported)
    return entry


def unknown_tablets(state: CatalogState, replicas: Iterable[ReportedReplica]) -> list[TabletId]:
    """Reported tablets of which no record exists: to be logged, never to be deleted (seed 004, appendix A)."""
    return [r.tablet_id for r in replicas if r.tablet_id not in state.tablets]


def _news(entry: TabletEntry | None, server: ServerId, replica: ReportedReplica) -> TabletEntry | None:
    """The entry after the report, or None if the report changes nothing in it."""
    if entry is None or not entry.is_live:
        return None
    after = entry if replica.committed_config is None else newer_config(entry, replica.committed_config)
    if server not in after.seen and after.config.member(server) is not None:
        after = replace(after, seen=tuple(sorted((*after.seen, server))))
    if entry.state is TabletState.CREATING and _has_leader(after, replica):
        after = after.moved_to(TabletState.RUNNING, "")
    return None if after == entry else after


def _has_leader(entry: TabletEntry, replica: ReportedReplica) -> bool:
    return (
        replica.state is ReplicaState.RUNNING
        and replica.leader is not None
        and entry.config.member(replica.leader) is not None
    )
