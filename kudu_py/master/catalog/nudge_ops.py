"""Planner for nudges: what servers must be asked to do so that their replicas become what the records say.

Derived afresh from records and reports each time, so that a nudge lost with a leader master is given by the next one.
Each nudge is safe to repeat and safe when late or sent by a master that has been replaced (seed 004, appendix A):

* Creating a replica that exists answers TABLET_ALREADY_EXISTS and changes nothing.
* REPLACED and DELETED are final, so a decision to delete that rests on them cannot become wrong.
* A replica outside the committed config is deleted only if its own committed config is no newer than the one this
  decision rests on (compare-and-set at the tablet server): it may have been added back.
* A replica without a record is never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import Role
from kudu_py.master.catalog.entries import TabletEntry
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """Ask `server` for an empty replica with the tablet's first config."""

    server: ServerId
    tablet_id: TabletId


@dataclass(frozen=True, slots=True)
class DeleteReplica:
    """Ask `server` to delete its replica; with `expected_config_index_max` only if its committed config is no newer."""

    server: ServerId
    tablet_id: TabletId
    expected_config_index_max: int | None
    reason: str


Nudge = CreateReplica | DeleteReplica


def nudges_for(
    entry: TabletEntry | None,
    hosts: Mapping[ServerId, ReportedReplica],
    *,
    doubtful: frozenset[ServerId] = frozenset(),
) -> list[Nudge]:
    """What is to be asked for one tablet.

    Args:
        entry: the record; None: there is none.
        hosts: the last report of each server that has, or had, a replica.
        doubtful: servers outside the config that may be about to join it: left alone.
    """
    if entry is None:
        return []
    if not entry.is_live:
        reason = f"tablet is {entry.state.value}: {entry.note}"
        return [
            DeleteReplica(server, entry.tablet_id, None, reason)
            for server, replica in sorted(hosts.items())
            if replica.state is not ReplicaState.TOMBSTONE
        ]
    return [*_creations(entry, hosts), *_evictions(entry, hosts, doubtful)]


def _creations(entry: TabletEntry, hosts: Mapping[ServerId, ReportedReplica]) -> list[Nudge]:
    if entry.config.config_index != 0:
        return []  # Later members get their replica by a copy from the leader.
    return [
        CreateReplica(member.uuid, entry.tablet_id)
        for member in entry.config.members
        if member.uuid not in entry.seen and member.uuid not in hosts
    ]


def _evictions(
    entry: TabletEntry, hosts: Mapping[ServerId, ReportedReplica], doubtful: frozenset[ServerId]
) -> list[Nudge]:
    outside = [
        server
        for server, replica in sorted(hosts.items())
        if replica.state is not ReplicaState.TOMBSTONE
        and entry.config.member(server) is None
        and server not in doubtful
    ]
    if not outside:
        return []
    # A member about to be added is in the leader's pending config before it is in any committed one: deleting what was
    # just copied to it would be safe, and a waste.
    newest = max(hosts.values(), key=lambda replica: (replica.term, replica.role is Role.LEADER))
    joining = newest.pending_config
    return [
        DeleteReplica(
            server,
            entry.tablet_id,
            entry.config.config_index,
            f"server is not in the committed config of index {entry.config.config_index}",
        )
        for server in outside
        if _config_index(hosts[server]) <= entry.config.config_index
        and (joining is None or joining.member(server) is None)
    ]


def _config_index(replica: ReportedReplica) -> int:
    return replica.committed_config.config_index if replica.committed_config is not None else 0
