"""Records of tables, tablets, tablet servers and long operations, their states and legal transitions.

Entries are never removed: a deleted table stays as REMOVED, its tablets as DELETED. So "no record exists" always means
"not of this cluster", and a replica without a record is left alone instead of deleted (seed 004, appendix A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import NewType

from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig

OperationId = NewType("OperationId", str)


@unique
class TableState(Enum):
    """The life of a table. It is RUNNING from the batch that created it; whether its tablets run is theirs to say."""

    RUNNING = "RUNNING"
    ALTERING = "ALTERING"
    """A newer schema is published that not all tablets have reported yet."""
    REMOVED = "REMOVED"
    """Final. The name is free again."""


@unique
class TabletState(Enum):
    """The life of a tablet in the catalog."""

    CREATING = "CREATING"
    """No replica has reported a leader yet. Clients are not told where it is, so replacing it loses nothing."""
    RUNNING = "RUNNING"
    """It has had a leader."""
    REPLACED = "REPLACED"
    """Final. Another tablet took its place."""
    DELETED = "DELETED"
    """Final."""


@unique
class TabletServerMode(Enum):
    """What an operator decided about a tablet server."""

    NORMAL = "NORMAL"
    MAINTENANCE = "MAINTENANCE"
    """Expected to be away: its replicas are not replaced, and it gets no new ones."""
    RETIRING = "RETIRING"
    """Its replicas are being moved away; it gets no new ones."""
    RETIRED = "RETIRED"
    """No tablet has a replica there, and none will."""


@unique
class OperationKind(Enum):
    """What a long operation does."""

    MOVE_REPLICA = "MOVE_REPLICA"
    CHANGE_VOTING_REPLICA_COUNT = "CHANGE_VOTING_REPLICA_COUNT"
    RETIRE_TABLET_SERVER = "RETIRE_TABLET_SERVER"


@unique
class OperationState(Enum):
    """How far a long operation is. RUNNING is never stored: it is told from PENDING by reports."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self in (OperationState.DONE, OperationState.FAILED, OperationState.CANCELLED)


_TABLE_TRANSITIONS = frozenset(
    {
        (TableState.RUNNING, TableState.ALTERING),
        (TableState.ALTERING, TableState.RUNNING),
        (TableState.RUNNING, TableState.REMOVED),
        (TableState.ALTERING, TableState.REMOVED),
    }
)
_TABLET_TRANSITIONS = frozenset(
    {
        (TabletState.CREATING, TabletState.RUNNING),
        (TabletState.CREATING, TabletState.REPLACED),
        (TabletState.CREATING, TabletState.DELETED),
        (TabletState.RUNNING, TabletState.REPLACED),
        (TabletState.RUNNING, TabletState.DELETED),
    }
)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table.

    Attributes:
        name: 1 to 256 bytes; unique among tables that are not REMOVED.
        schema: every column has its permanent id.
        num_replicas: the replication factor of its tablets; odd.
        next_column_id: above every id a column of this table ever had.
        created_micros: wall time of its creation; for people.
        note: why it is in its state; for people.
    """

    table_id: TableId
    name: str
    state: TableState
    schema: Schema
    partition_schema: PartitionSchema
    num_replicas: int
    next_column_id: int
    owner: str = ""
    comment: str = ""
    created_micros: int = 0
    note: str = ""

    @property
    def is_live(self) -> bool:
        """Whether clients can see it."""
        return self.state is not TableState.REMOVED

    def moved_to(self, state: TableState, note: str) -> TableEntry:
        """The same table in another state, which must be a legal next one."""
        assert (self.state, state) in _TABLE_TRANSITIONS, (self.table_id, self.state, state)
        return replace(self, state=state, note=note)


@dataclass(frozen=True, slots=True)
class TabletEntry:
    """A tablet.

    Attributes:
        partition: the part of the table that it holds; never changes.
        config: the newest committed config that was reported; with config_index 0 the one it was created with.
        seen: members that have reported a replica at least once, ordered. They are never asked to create it again: a
            server that lost a replica in which it voted must not begin anew with an empty log and no memory of its
            vote.
        note: why it is in its state; for people.
        wanted_voters: how many voters it is meant to have; 0: as many as the table says.
        changed_by_admin_micros: wall time of an administrator's last change of its members; the rebalancer leaves it
            alone for a while after.
    """

    tablet_id: TabletId
    table_id: TableId
    partition: Partition
    state: TabletState
    config: RaftConfig
    seen: tuple[ServerId, ...] = ()
    note: str = ""
    wanted_voters: int = 0
    changed_by_admin_micros: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it holds, or will hold, its part of the table."""
        return self.state in (TabletState.CREATING, TabletState.RUNNING)

    def moved_to(self, state: TabletState, note: str) -> TabletEntry:
        """The same tablet in another state, which must be a legal next one."""
        assert (self.state, state) in _TABLET_TRANSITIONS, (self.tablet_id, self.state, state)
        return replace(self, state=state, note=note)


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The cluster itself: an id minted by its first leader master, and when."""

    cluster_id: str
    created_micros: int


@dataclass(frozen=True, slots=True)
class TabletServerEntry:
    """What an operator decided about a tablet server; one without an entry is NORMAL."""

    uuid: ServerId
    mode: TabletServerMode
    since_micros: int = 0


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """A long operation: what is wanted. How far it is, is derived from reports.

    Attributes:
        state: PENDING until it has ended, however far it is.
        tablet_id, from_, to: of MOVE_REPLICA; `tablet_id` or `table_id` of CHANGE_VOTING_REPLICA_COUNT.
        server: of RETIRE_TABLET_SERVER.
        count: of CHANGE_VOTING_REPLICA_COUNT.
        by_admin: asked for by an administrator, not by the rebalancer.
        created_micros, ended_micros: wall time; 0: not ended.
        error: why it failed; for people.
        previous_wanted_voters, previous_num_replicas: what CHANGE_VOTING_REPLICA_COUNT found when it began, put back if
            it is cancelled.
        previous_mode: what RETIRE_TABLET_SERVER found, likewise.
    """

    operation_id: OperationId
    kind: OperationKind
    state: OperationState = OperationState.PENDING
    tablet_id: TabletId | None = None
    table_id: TableId | None = None
    from_: ServerId | None = None
    to: ServerId | None = None
    server: ServerId | None = None
    count: int = 0
    by_admin: bool = True
    created_micros: int = 0
    ended_micros: int = 0
    error: str = ""
    previous_wanted_voters: Mapping[TabletId, int] = field(default_factory=dict)
    previous_num_replicas: int = 0
    previous_mode: TabletServerMode = TabletServerMode.NORMAL

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return not self.state.is_final

    def ended(self, state: OperationState, *, now_micros: int, error: str = "") -> OperationEntry:
        """The same operation at its end."""
        assert self.is_open, (self.operation_id, self.state)
        assert state.is_final, state
        return replace(self, state=state, ended_micros=now_micros, error=error)
