"""`TabletCopyServicer` over sessions and board; no logic beyond decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from kudu_py.common.wire import op_id_from_pb
from kudu_py.pb import tablet_copy_pb2
from kudu_py.pb.tablet_copy_pb2_grpc import TabletCopyServiceServicer
from kudu_py.tablet.tablet_copy.board import Copy, CopyProgressBoard
from kudu_py.tablet.tablet_copy.source import CopySessions


class CopiesToHere(Protocol):
    """Who carries out the copies to this server: the manager."""

    async def cancel_copy(self, tablet_id: str) -> None:
        """Ends the copy of a tablet to this server; see `TabletManager.cancel_copy`."""


class TabletCopyServicer(TabletCopyServiceServicer):
    """The replicas of this server, for those who copy them. `dest_uuid` is checked around it (`rpc/server.py`)."""

    def __init__(self, sessions: CopySessions, board: CopyProgressBoard, copies_to_here: CopiesToHere) -> None:
        self._sessions = sessions
        self._board = board
        self._copies_to_here = copies_to_here

    async def BeginCopySession(
        self, request: tablet_copy_pb2.BeginCopySessionRequest, context: Any
    ) -> tablet_copy_pb2.BeginCopySessionResponse:
        return await self._sessions.begin(
            request.tablet_id,
            target_uuid=request.requestor_uuid,
            committed=op_id_from_pb(request.committed_op_id),  # left out: nothing
            check_only=request.check_only,
        )

    def FetchData(
        self, request: tablet_copy_pb2.FetchDataRequest, context: Any
    ) -> AsyncIterator[tablet_copy_pb2.FetchDataResponse]:
        return self._sessions.read(request.session_id, request.kind, request.name, request.offset)

    async def EndCopySession(
        self, request: tablet_copy_pb2.EndCopySessionRequest, context: Any
    ) -> tablet_copy_pb2.EndCopySessionResponse:
        self._sessions.end(
            request.session_id,
            succeeded=request.succeeded,
            error=request.error,
            damaged_files=request.damaged_files,
        )
        return tablet_copy_pb2.EndCopySessionResponse()

    async def ListCopySessions(
        self, request: tablet_copy_pb2.ListCopySessionsRequest, context: Any
    ) -> tablet_copy_pb2.ListCopySessionsResponse:
        return tablet_copy_pb2.ListCopySessionsResponse(sessions=[copy_to_pb(copy) for copy in self._board.copies()])

    async def CancelCopy(
        self, request: tablet_copy_pb2.CancelCopyRequest, context: Any
    ) -> tablet_copy_pb2.CancelCopyResponse:
        await self._copies_to_here.cancel_copy(request.tablet_id)
        return tablet_copy_pb2.CancelCopyResponse()


def copy_to_pb(copy: Copy) -> tablet_copy_pb2.CopySession:
    """A copy for the wire."""
    return tablet_copy_pb2.CopySession(
        session_id=copy.session_id,
        tablet_id=copy.tablet_id,
        table_name=copy.table_name,
        source_uuid=copy.source_uuid,
        target_uuid=copy.target_uuid,
        is_source=copy.is_source,
        state=tablet_copy_pb2.CopySessionState.Value(copy.state.value),
        bytes_total=copy.progress.bytes_total,
        bytes_done=copy.progress.bytes_done,
        bytes_resumed=copy.progress.bytes_resumed,
        bytes_per_s=copy.bytes_per_s,
        started_micros=copy.started_micros,
        ended_micros=copy.ended_micros,
        error=copy.error,
    )
