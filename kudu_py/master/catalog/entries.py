"""Table and tablet records, their states and legal transitions.

Entries are never removed: a deleted table stays as REMOVED, its tablets as DELETED. So "no record exists" always means
"not of this cluster", and a replica without a record is left alone instead of deleted (seed 004, appendix A).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, unique

from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig


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
    """

    tablet_id: TabletId
    table_id: TableId
    partition: Partition
    state: TabletState
    config: RaftConfig
    seen: tuple[ServerId, ...] = ()
    note: str = ""

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
