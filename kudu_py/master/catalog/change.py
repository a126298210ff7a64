"""`CatalogChange`: one batch of new records, replicated and published as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.master.catalog.entries import (
    ClusterEntry,
    OperationEntry,
    OperationId,
    TableEntry,
    TabletEntry,
    TabletServerEntry,
)


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """Records that are new or take the place of those with the same id.

    The calls to tablet servers that follow from a change are not listed in it: the reconciler derives them from the
    published state and what servers report, so that they are also made after a crash in between and by the next leader.

    Attributes:
        forgotten: operations that ended long ago and are to be removed. Nothing else is ever removed.
    """

    tablets: tuple[TabletEntry, ...] = ()
    tables: tuple[TableEntry, ...] = ()
    cluster: ClusterEntry | None = None
    servers: tuple[TabletServerEntry, ...] = ()
    operations: tuple[OperationEntry, ...] = ()
    forgotten: tuple[OperationId, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to replicate."""
        return self == NO_CHANGE


NO_CHANGE = CatalogChange()
