"""`Leadership`: begins a reign when this master has won an election and read the catalog, and ends it with the role.

The order, and why:

1. Wait until the sys catalog's replica has applied its own no-op: everything committed in earlier terms is applied
then. 2. If the outcome of a write of this term is unknown (a reign ended in doubt), write something behind it first:
what has
   become of it is decided then.
3. Read the whole catalog. It now holds everything any caller may have been told.
4. If the role was lost or won again meanwhile, begin anew.
5. Forget what tablet servers reported to earlier reigns, so that each is asked for a full report.
6. Serve.
7. If the cluster has no id yet, mint one: a change like any other.
"""

from __future__ import annotations

import asyncio

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, mint_id
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.change import NO_CHANGE, CatalogChange
from kudu_py.master.catalog.committer import Committer
from kudu_py.master.catalog.entries import ClusterEntry
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.reconciler import Reconciler
from kudu_py.master.sys_catalog import SysCatalog
from kudu_py.master.ts_registry import TsRegistry

_log = structlog.get_logger(__name__)

READY_POLL_S = 0.02
"""How often a new leader asks whether it is ready: that takes one sync, and nobody tells."""
RETRY_S = 0.2


class Leadership:
    """Watches the role of this master in the sys catalog's group."""

    def __init__(
        self,
        *,
        sys_catalog: SysCatalog,
        committer: Committer,
        registry: TsRegistry,
        reconciler: Reconciler,
        clock: Clock,
        rng: RandomBits,
    ) -> None:
        self._sys_catalog = sys_catalog
        self._committer = committer
        self._registry = registry
        self._reconciler = reconciler
        self._clock = clock
        self._rng = rng
        self._changed = asyncio.Event()
        self._changed.set()
        self._doubtful_term: int | None = None

    def role_changed(self) -> None:
        """Role, term or state of the sys catalog's replica may have changed. Ends a reign that is over at once."""
        reign = self._committer.reign
        if reign is not None and self._sys_catalog.leading_term != reign.term:
            self._end()
        self._changed.set()

    def in_doubt(self, term: int) -> None:
        """The reign of `term` ended because the outcome of a write is unknown."""
        self._doubtful_term = term
        self._reconciler.reign_ended()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._committer.reign is None and self._sys_catalog.leading_term is not None:
                    await self._begin()
        finally:
            self._end()

    async def _begin(self) -> None:
        while (term := self._sys_catalog.leading_term) is not None:
            if not self._sys_catalog.is_leader_ready:
                await asyncio.sleep(READY_POLL_S)
                continue
            try:
                if self._doubtful_term == term:
                    await self._sys_catalog.settle()
                state = await self._sys_catalog.load()
            except KuduError as error:
                if error.code in (ErrorCode.CORRUPTION, ErrorCode.NOT_SUPPORTED):
                    raise  # Only an operator can help, and a master that leads and serves nothing must not look alive.
                _log.warning("catalog_not_read", term=term, error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if self._sys_catalog.leading_term == term:
                await self._serve(term, state)
                return

    async def _serve(self, term: int, state: CatalogState) -> None:
        self._doubtful_term = None
        self._registry.forget_reports()
        self._committer.begin(term, state)
        self._reconciler.reign_began()
        _log.info("catalog_served", term=term, tables=len(state.ids_by_name), tablets=len(state.tablets))
        if state.cluster is None:
            minted = ClusterEntry(mint_id(self._rng), self._clock.wall_micros())
            try:
                await self._committer.commit(
                    [], lambda now: CatalogChange(cluster=minted) if now.cluster is None else NO_CHANGE
                )
            except KuduError as error:
                _log.warning("cluster_id_not_minted", term=term, error=str(error))

    def _end(self) -> None:
        reign = self._committer.reign
        if reign is not None:
            _log.info("catalog_dropped", term=reign.term)
        self._committer.end()
        self._reconciler.reign_ended()
