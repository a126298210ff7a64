"""`CatalogChange`: one batch of new records, replicated and published as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.master.catalog.entries import ClusterEntry, TableEntry, TabletEntry


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """Records that are new or take the place of those with the same id.

    The calls to tablet servers that follow from a change are not listed in it: the reconciler derives them from the
    published state and what servers report, so that they are also made after a crash in between and by the next leader.
    """

    tablets: tuple[TabletEntry, ...] = ()
    tables: tuple[TableEntry, ...] = ()
    cluster: ClusterEntry | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to replicate."""
        return not self.tablets and not self.tables and self.cluster is None


NO_CHANGE = CatalogChange()
