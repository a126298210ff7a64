"""`Operations`: long operations as their callers see them: begun, listed, watched, cancelled.

Each is an entry of the catalog; see `catalog/operation_ops.py` for what it means and `reconciler.py` for who carries it
out. Ids are minted by the master, so a caller whose answer was lost finds its operation in the list, or in the refusal
of a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, TableId, TabletId, mint_id
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind
from kudu_py.master.catalog.entries import OperationEntry, OperationId, OperationKind, TabletServerMode
from kudu_py.master.catalog.operation_ops import (
    Progress,
    covered,
    plan_cancel,
    plan_change_mode,
    plan_change_voting_replica_count,
    plan_move_replica,
    plan_retire_tablet_server,
    progress_of,
    unknown_operation,
)
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers
from kudu_py.master.ts_registry import TsRegistry

_log = structlog.get_logger(__name__)

_ENOUGH_SERVERS = LockKey(LockKind.SERVER, "")
"""Of whoever counts the servers that can take replicas, or makes them fewer: two that retire different servers at once
would both find the other's there. No server's uuid is empty."""


class Operations:
    """Begins and ends long operations. Whether this master leads is the caller's to ask.

    Args:
        servers: the tablet servers of this moment.
        blocked: why a tablet does not get or lose a replica, for now; empty: nothing is in the way.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        registry: TsRegistry,
        servers: Callable[[], Servers],
        blocked: Callable[[TabletId], str],
        clock: Clock,
        rng: RandomBits,
        options: CatalogOptions,
    ) -> None:
        self._committer = committer
        self._registry = registry
        self._servers = servers
        self._blocked = blocked
        self._clock = clock
        self._rng = rng
        self._options = options

    async def move_replica(self, tablet_id: TabletId, from_: ServerId, to: ServerId, *, by_admin: bool) -> OperationId:
        """A replica goes from one server to another. Durable on return, and goes on after.

        Raises:
            KuduError: see `plan_move_replica`.
        """
        operation_id = self._mint()
        await self._committer.commit(
            [LockKey(LockKind.TABLET, tablet_id), LockKey(LockKind.SERVER, to)],
            lambda state: plan_move_replica(
                state,
                operation_id,
                tablet_id=tablet_id,
                from_=from_,
                to=to,
                servers=self._servers(),
                by_admin=by_admin,
                now_micros=self._clock.wall_micros(),
            ),
        )
        _log.info(
            "operation_begun",
            operation=operation_id,
            kind=OperationKind.MOVE_REPLICA.value,
            tablet=tablet_id,
            source=from_,
            target=to,
            by_admin=by_admin,
        )
        return operation_id

    async def change_voting_replica_count(
        self, count: int, *, tablet_id: TabletId | None = None, table_id: TableId | None = None
    ) -> OperationId:
        """A tablet, or all of a table's, gets another number of voters. Durable on return, and goes on after.

        Raises:
            KuduError: see `plan_change_voting_replica_count`.
        """
        operation_id = self._mint()

        def plan(state: CatalogState) -> CatalogChange:
            return plan_change_voting_replica_count(
                state,
                operation_id,
                tablet_id=tablet_id,
                table_id=table_id,
                count=count,
                servers=self._servers(),
                options=self._options,
                now_micros=self._clock.wall_micros(),
            )

        if tablet_id is not None:
            await self._committer.commit([LockKey(LockKind.TABLET, tablet_id), _ENOUGH_SERVERS], plan)
        else:
            assert table_id is not None
            await self._committer.commit(
                [LockKey(LockKind.TABLE, table_id)],
                plan,
                tablet_locks=lambda state: [
                    *(LockKey(LockKind.TABLET, tablet.tablet_id) for tablet in state.tablets_of(table_id)),
                    _ENOUGH_SERVERS,
                ],
            )
        _log.info(
            "operation_begun",
            operation=operation_id,
            kind=OperationKind.CHANGE_VOTING_REPLICA_COUNT.value,
            tablet=tablet_id,
            table=table_id,
            count=count,
        )
        return operation_id

    async def retire_tablet_server(self, server: ServerId) -> OperationId:
        """All replicas move away from a server, and it gets no new ones. Durable on return, and goes on after.

        Raises:
            KuduError: see `plan_retire_tablet_server`.
        """
        operation_id = self._mint()
        await self._committer.commit(
            [_ENOUGH_SERVERS, LockKey(LockKind.SERVER, server)],
            lambda state: plan_retire_tablet_server(
                state,
                operation_id,
                server=server,
                servers=self._servers(),
                now_micros=self._clock.wall_micros(),
            ),
        )
        _log.info(
            "operation_begun", operation=operation_id, kind=OperationKind.RETIRE_TABLET_SERVER.value, server=server
        )
        return operation_id

    async def change_mode(self, server: ServerId, mode: TabletServerMode) -> None:
        """Maintenance begins or ends, or a retired server is taken back. Durable on return.

        Raises:
            KuduError: see `plan_change_mode`.
        """
        change = await self._committer.commit(
            [LockKey(LockKind.SERVER, server)],
            lambda state: plan_change_mode(
                state, server, mode, servers=self._servers(), now_micros=self._clock.wall_micros()
            ),
        )
        if not change.is_empty:
            _log.info("tablet_server_mode_changed", server=server, mode=mode.value)

    async def cancel(self, operation_id: OperationId) -> OperationEntry:
        """Ends an operation; what it began is put back. Durable on return. One that has ended stays as it is.

        Raises:
            KuduError: NOT_FOUND.
        """
        operation = self.get(operation_id)
        # Which tablets a table has can only be told while the table is locked.
        change = await self._committer.commit(
            [LockKey(LockKind.TABLE, operation.table_id)] if operation.table_id is not None else [],
            lambda state: plan_cancel(state, operation_id, now_micros=self._clock.wall_micros()),
            tablet_locks=lambda state: _locks_of(state, operation),
        )
        if not change.is_empty:
            _log.info("operation_ended", operation=operation_id, state="CANCELLED")
        return self.get(operation_id)

    def get(self, operation_id: str) -> OperationEntry:
        """One operation.

        Raises:
            KuduError: NOT_FOUND.
        """
        found = self._committer.require_reign().state.operations.get(OperationId(operation_id))
        if found is None:
            raise unknown_operation(operation_id)
        return found

    def all(self, *, include_ended: bool) -> list[OperationEntry]:
        """Operations, newest first."""
        operations = self._committer.require_reign().state.operations.values()
        return sorted(
            (operation for operation in operations if include_ended or operation.is_open),
            key=lambda operation: (operation.created_micros, operation.operation_id),
            reverse=True,
        )

    def progress(self, operation: OperationEntry) -> Progress:
        """How far one is, by what was reported, and what is in its way."""
        state = self._committer.require_reign().state
        progress = progress_of(state, operation, self._registry.hosts)
        if not operation.is_open:
            return progress
        reasons = ((tablet.tablet_id, self._blocked(tablet.tablet_id)) for tablet in covered(state, operation))
        waiting = next((f"tablet {tablet_id} waits: {reason}" for tablet_id, reason in reasons if reason), None)
        return progress if waiting is None else replace(progress, text=f"{progress.text}; {waiting}")

    def _mint(self) -> OperationId:
        return OperationId(mint_id(self._rng))


def _locks_of(state: CatalogState, operation: OperationEntry) -> list[LockKey]:
    """Of the operation and of all that it has changed, but for its table."""
    locks = [LockKey(LockKind.OPERATION, operation.operation_id)]
    if operation.table_id is not None:
        tablet_ids = state.tablets_by_table.get(operation.table_id, ())
        locks += [LockKey(LockKind.TABLET, tablet_id) for tablet_id in tablet_ids]
    if operation.tablet_id is not None:
        locks.append(LockKey(LockKind.TABLET, operation.tablet_id))
    if operation.server is not None:
        locks.append(LockKey(LockKind.SERVER, operation.server))
    return locks


def require_count_target(tablet_id: str, table_name: str) -> None:
    """Refuses a request that names neither a tablet nor a table, or both.

    Raises:
        KuduError: INVALID_ARGUMENT.
    """
    if bool(tablet_id) == bool(table_name):
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, "the request must name either a tablet (tablet_id) or a table (table_name)"
        )
