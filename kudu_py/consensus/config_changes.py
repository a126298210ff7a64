"""`ConfigChanges`: what becomes of a change of members that somebody waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import Event, Token
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.core.output import UndoMark
from kudu_py.consensus.core.raft import Raft
from kudu_py.consensus.rounds import Round
from kudu_py.wal.log import Log

EventOf = Callable[[Token], Event]


class ConfigChanges:
    """The changes of one replica's group that callers here wait for."""

    def __init__(
        self,
        *,
        tablet_id: TabletId,
        raft: Raft,
        log: Log,
        propose: Callable[[EventOf], Round | None],
        wait_applied: Callable[[int], Awaitable[None]],
        read_index: Callable[[], Awaitable[int]],
        logger: structlog.stdlib.BoundLogger,
    ) -> None:
        """Args: propose: the round that an event became; None if what it asks for is so already."""
        self._tablet_id, self._raft, self._log, self._logger = tablet_id, raft, log, logger
        self._propose, self._wait_applied, self._read_index = propose, wait_applied, read_index
        self._awaited: dict[OpId, UndoMark | None] = {}

    def note_undo(self, mark: UndoMark) -> None:
        """This leader undoes a change, if the undo is committed."""
        if mark.change in self._awaited:
            self._awaited[mark.change] = mark
        self._logger.warning(
            "config_change_undone", config_index=mark.change.index, undo_index=mark.undo.index, reason=mark.reason
        )

    async def decide(self, event: EventOf) -> RaftConfig:
        """Asks for a change, or for its undo; the committed config once that is decided.

        Raises:
            KuduError: it was refused; OPERATION_ABORTED: it was undone, or overwritten.
        """
        pending = self._propose(event)
        if pending is not None:
            await self._decided(pending)
        elif self._raft.pending_config is not None:
            await self._wait_applied(self._raft.pending_config.config_index)
        else:
            await self._read_index()  # only who still leads knows that there is no later config
        return self._raft.committed_config

    async def _decided(self, pending: Round) -> None:
        self._awaited[pending.op_id] = None
        try:
            await pending.future
            undone = self._awaited[pending.op_id]
        finally:
            del self._awaited[pending.op_id]
        if undone is None:
            return
        # Another leader may have the change and not its undo, and then the change holds.
        await self._wait_applied(undone.undo.index)
        if self._log.term_at(undone.undo.index) == undone.undo.term:
            raise KuduError(
                ErrorCode.OPERATION_ABORTED,
                f"config {pending.op_id.index} of tablet {self._tablet_id} was undone: {undone.reason}",
                details={"config_index": str(self._raft.committed_config.config_index)},
            )
