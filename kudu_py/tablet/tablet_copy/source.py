"""`CopySessions`: what this server hands out to servers that copy a replica from it.

Opening a session, in this order, and why:
 1. The replica runs, and holds everything that the target may have acknowledged: it leads and its log has the entry
    that the caller knows to be committed, or it has applied that entry. Else the target could forget a promise.
 2. Its own log is durable up to what it holds at this moment: only durable batches are handed out, and a majority may
    have committed an entry with the target's word before the own sync is done.
 3. In one step on the loop: the superblock's files are pinned, so that flush and compaction keep them; the log is
    anchored at the checkpoint; the log's files are listed as far as they are durable.
From then on what the session names does not change. A target that asks for the same replica again (it was restarted, or
did not get the answer) gets the same session, so that it goes on where it was.

A target that finds a file other than its superblock says tells so at the end. The source then reads the file itself,
and if it is damaged, or was missing or too short when it was asked for, the replica fails, as it does when a compaction
finds that: its leader will not offer the same again and again, and the replica is replaced. But for one that is all
there is.

When a session ends well the pins go at once, the anchor only when the leader finds that the new replica answers:
between those the log may not let go of what the new replica lacks (seed 000, "Process for adding a new node", step 4).
A bound in time ends that for a replica that never answers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog
import xxhash

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import OpId
from kudu_py.consensus.codec import config_to_pb
from kudu_py.env.deadline import DeadlineTimer
from kudu_py.env.disk import Disk
from kudu_py.pb import consensus_pb2, storage_pb2, tablet_copy_pb2
from kudu_py.tablet import metadata
from kudu_py.tablet.checkpointer import Checkpointer
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.tablet_copy.board import Copy, CopyProgress, CopyState
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.wal.anchors import Anchor
from kudu_py.wal.format import crc32c

_log = structlog.get_logger(__name__)

_DURABLE_TIMEOUT_S = 10.0
_HANDOVER_POLL_S = 0.5
_READ_BYTES = 4 << 20


class HostedReplicas(Protocol):
    """What sessions ask of the manager."""

    def replica(self, tablet_id: str) -> TabletReplica:
        """The replica of a tablet, whatever its state; KuduError if there is none."""


class FileKey(NamedTuple):
    """A file of a session."""

    kind: tablet_copy_pb2.CopyFile.Kind.ValueType
    name: str


@dataclass(eq=False, slots=True)
class CopySession:
    """What one target may fetch; opened and closed by `CopySessions`.

    Attributes:
        replica, checkpointer: what is copied, and who keeps its files.
        target_uuid: who copies.
        superblock: what it copies; its files are pinned.
        consensus_metadata: term and committed config when the session was opened.
        files: all there are, by key.
        paths: where they are.
        last_index: of the log's part.
        anchor: keeps the log from the checkpoint on.
        shown: on the board.
        idle: closes the session.
    """

    session_id: str
    replica: TabletReplica
    checkpointer: Checkpointer
    target_uuid: ServerId
    superblock: metadata.Superblock
    consensus_metadata: storage_pb2.ConsensusMetadata
    files: dict[FileKey, tablet_copy_pb2.CopyFile]
    paths: dict[FileKey, str]
    last_index: int
    anchor: Anchor
    shown: Copy
    idle: DeadlineTimer

    @property
    def pinned(self) -> list[str]:
        """Names of the files of the rows."""
        return [key.name for key in self.files if key.kind == tablet_copy_pb2.CopyFile.ROWS]


class _Handover(NamedTuple):
    """A log that is kept for a replica that was copied and has not been heard of yet, until the next look."""

    anchor: Anchor
    next_look: asyncio.TimerHandle


class CopySessions:
    """The sessions at one server."""

    def __init__(self, context: ServerContext, hosted: HostedReplicas) -> None:
        self._context = context
        self._hosted = hosted
        self._options = context.options.copy
        self._sessions: dict[str, CopySession] = {}
        self._handovers: dict[tuple[TabletId, ServerId], _Handover] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def handovers(self) -> int:
        """Logs that are kept for replicas that were copied and have not been heard of yet."""
        return len(self._handovers)

    # Opening.

    async def begin(
        self, tablet_id: str, *, target_uuid: str, committed: OpId, check_only: bool = False
    ) -> tablet_copy_pb2.BeginCopySessionResponse:
        """Opens a session, or gives the one that this target has.

        Args:
            committed: what the source must hold.
            check_only: opens none, and says only whether it would.

        Raises:
            KuduError: INVALID_ARGUMENT, TABLET_NOT_FOUND, TABLET_NOT_RUNNING, TABLET_FAILED; ILLEGAL_STATE if it lags;
                SERVER_TOO_BUSY, SHUTTING_DOWN.
        """
        self._require_open()
        target = ServerId(require_id(target_uuid, "requestor_uuid"))
        if target == self._context.uuid:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"server {target} cannot copy a replica from itself")
        replica = self._hosted.replica(require_id(tablet_id, "tablet_id"))
        self._require_holds(replica, committed)
        if check_only:
            return tablet_copy_pb2.BeginCopySessionResponse()
        session = self._known(replica, target, committed)
        if session is None:
            await self._log_durable(replica)
            # Meanwhile the replica may have been stopped, and the same target may have asked once more.
            self._require_open()
            if self._hosted.replica(tablet_id) is not replica:
                raise _gone(replica)
            session = self._known(replica, target, committed) or self._open(replica, target)
        self._touch(session)
        return tablet_copy_pb2.BeginCopySessionResponse(
            session_id=session.session_id,
            idle_timeout_millis=int(self._options.idle_timeout_s * 1000),
            superblock=metadata.to_pb(session.superblock),
            consensus_metadata=session.consensus_metadata,
            files=session.files.values(),
        )

    def _require_holds(self, replica: TabletReplica, committed: OpId) -> None:
        parts = replica.running()
        if replica.applied.index >= committed.index:
            return
        if replica.is_leader and parts.log.term_at(committed.index) == committed.term:
            return
        raise KuduError(
            ErrorCode.ILLEGAL_STATE,
            f"the replica of tablet {replica.tablet_id} on server {self._context.uuid} has applied {replica.applied} "
            f"and not yet {committed}; copied from it, a replica could forget what it has acknowledged",
            verdict=Verdict.TRY_LATER,
            details={"applied": str(replica.applied)},
        )

    def _known(self, replica: TabletReplica, target: ServerId, committed: OpId) -> CopySession | None:
        """The session of this target, if it is still good; one that is not is closed."""
        for session in self._sessions.values():
            if session.target_uuid == target and session.replica.tablet_id == replica.tablet_id:
                if session.replica is replica and session.last_index >= committed.index:
                    return session
                self._close(session, CopyState.FAILED, "the target asked anew")
                return None
        return None

    async def _log_durable(self, replica: TabletReplica) -> None:
        parts = replica.running()
        try:
            async with asyncio.timeout(_DURABLE_TIMEOUT_S):
                is_durable = await parts.checkpointer.log_is_durable(parts.log.last_op_id.index)
        except TimeoutError:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"the log of tablet {replica.tablet_id} on server {self._context.uuid} did not become durable in time",
                verdict=Verdict.TRY_LATER,
            ) from None
        if not is_durable:
            raise _gone(replica)

    def _open(self, replica: TabletReplica, target: ServerId) -> CopySession:
        if len(self._sessions) >= self._options.sessions_max:
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"{len(self._sessions)} replicas are being copied from server {self._context.uuid}, as many as it "
                "allows",
                verdict=Verdict.TRY_LATER,
            )
        parts = replica.running()
        superblock, log, consensus = replica.superblock, parts.log, parts.consensus
        directories, tablet_id = self._context.directories, replica.tablet_id
        files: dict[FileKey, tablet_copy_pb2.CopyFile] = {}
        paths: dict[FileKey, str] = {}
        for kind, directory, found in (
            (
                tablet_copy_pb2.CopyFile.ROWS,
                directories.row_directory(tablet_id),
                [(file.name, file.size_bytes, file.checksum) for file in superblock.rows.files],
            ),
            (
                tablet_copy_pb2.CopyFile.LOG_SEGMENT,
                directories.log_directory(tablet_id),
                [(file.name, file.size_bytes, file.last_crc) for file in log.copied_files(superblock.checkpoint.index)],
            ),
        ):
            for name, size_bytes, checksum in found:
                key = FileKey(kind, name)
                files[key] = tablet_copy_pb2.CopyFile(kind=kind, name=name, size_bytes=size_bytes, checksum=checksum)
                paths[key] = f"{directory}/{name}"
        session_id = f"{tablet_id}-{target}-{next(self._numbers)}"
        session = CopySession(
            session_id=session_id,
            replica=replica,
            checkpointer=parts.checkpointer,
            target_uuid=target,
            superblock=superblock,
            consensus_metadata=storage_pb2.ConsensusMetadata(
                tablet_id=tablet_id,
                current_term=consensus.term,
                committed_config=config_to_pb(consensus.committed_config),
            ),
            files=files,
            paths=paths,
            last_index=max(log.durable_op_id.index, superblock.checkpoint.index),
            anchor=log.anchors.register(superblock.checkpoint.index, f"copy to {target}"),
            shown=self._context.copies.sending(tablet_id, target, superblock.table_name, session_id),
            idle=DeadlineTimer(self._context.clock, lambda: self._expire(session_id)),
        )
        session.checkpointer.pins.hold(session.pinned)
        session.shown.note_progress(CopyProgress(sum(file.size_bytes for file in files.values())))
        self._sessions[session_id] = session
        _log.info(
            "copy_session_opened",
            tablet=tablet_id,
            target=target,
            session=session_id,
            files=len(files),
            size_bytes=session.shown.progress.bytes_total,
            checkpoint=str(superblock.checkpoint),
            last_index=session.last_index,
        )
        return session

    # Handing out.

    async def read(
        self, session_id: str, kind: tablet_copy_pb2.CopyFile.Kind.ValueType, name: str, offset: int
    ) -> AsyncIterator[tablet_copy_pb2.FetchDataResponse]:
        """One file of a session from an offset on, in chunks.

        Raises:
            KuduError: NOT_FOUND: no such session, or no such file in it, or the file is missing; CORRUPTION: it is
                shorter than it should be; IO_ERROR; what `TabletReplica.running` says.
        """
        session, key = self._session(session_id), FileKey(kind, name)
        file = session.files.get(key)
        if file is None:
            raise KuduError(ErrorCode.NOT_FOUND, f"the copy session {session_id} has no file {name[:100]!r}")
        if offset > file.size_bytes:
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT, f"offset {offset} is behind the end of {name}, which has {file.size_bytes}"
            )
        disk, path, options = self._context.threads.disk, session.paths[key], self._options

        def begin_read(start: int) -> asyncio.Future[list[_ReadChunk]]:
            end = min(start + options.piece_bytes, file.size_bytes)
            return asyncio.ensure_future(
                self._context.threads.run(lambda: _read_piece(disk, path, start, end, options.chunk_bytes))
            )

        ahead = begin_read(offset) if offset < file.size_bytes else None
        try:
            while ahead is not None:
                try:
                    piece = await ahead
                except FileNotFoundError as error:
                    missing = KuduError(ErrorCode.NOT_FOUND, f"{path} is missing at the source", details={"path": path})
                    self._session(session_id)  # unless the replica was deleted meanwhile
                    self._fail(session, path, "it is missing")
                    raise missing from error
                except KuduError:
                    self._session(session_id)
                    if kind == tablet_copy_pb2.CopyFile.ROWS:  # a follower may cut its log meanwhile
                        self._fail(session, path, "it ends early")
                    raise
                except OSError as error:
                    raise KuduError(
                        ErrorCode.IO_ERROR, f"{path} cannot be read at the source: {error}", details={"path": path}
                    ) from error
                offset += sum(chunk.size_bytes for chunk in piece)
                ahead = begin_read(offset) if offset < file.size_bytes else None
                for chunk in piece:
                    self._session(session_id)  # it may have been closed, or its replica stopped, meanwhile
                    self._note_sent(session, chunk.size_bytes)
                    yield chunk.response
                    self._touch(session)
        finally:
            if ahead is not None:
                ahead.cancel()

    def _note_sent(self, session: CopySession, size_bytes: int) -> None:
        shown, copies = session.shown, self._context.copies
        copies.bytes_sent += size_bytes
        done = min(shown.progress.bytes_total, shown.progress.bytes_done + size_bytes)
        shown.note_progress(CopyProgress(shown.progress.bytes_total, done))

    def _session(self, session_id: str) -> CopySession:
        self._require_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise KuduError(
                ErrorCode.NOT_FOUND,
                f"server {self._context.uuid} has no copy session {session_id[:200]!r}: it ended, or nobody asked it "
                f"for anything for {self._options.idle_timeout_s:g} s, or the server was restarted; begin it again",
                verdict=Verdict.TRY_LATER,
                details={"session_id": session_id[:200]},
            )
        try:
            session.replica.running()
        except KuduError as error:
            self._close(session, CopyState.FAILED, error.message)
            raise
        return session

    def _require_open(self) -> None:
        if self._is_closed:
            raise KuduError(
                ErrorCode.SHUTTING_DOWN, f"server {self._context.uuid} is stopping", verdict=Verdict.TRY_LATER
            )

    def _touch(self, session: CopySession) -> None:
        if session.session_id in self._sessions:
            session.idle.set(self._context.clock.monotonic() + self._options.idle_timeout_s)

    # Ending.

    def end(self, session_id: str, *, succeeded: bool, error: str = "", damaged_files: Sequence[str] = ()) -> None:
        """Lets go of what the session holds; the log's anchor stays until the leader is answered by the new replica.

        Of an unknown session: nothing to do, so that a repeated call is answered alike.

        Args:
            damaged_files: what the target says it got other than it should be; looked at here.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return
        named = [
            key for key in session.files if key.kind == tablet_copy_pb2.CopyFile.ROWS and key.name in damaged_files
        ]
        self._close(session, CopyState.SUCCEEDED if succeeded else CopyState.FAILED, error[:500], doubted=named)

    def _expire(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            idle_s = self._options.idle_timeout_s
            self._close(session, CopyState.FAILED, f"nobody asked for anything for {idle_s:g} s")

    def _close(
        self, session: CopySession, state: CopyState, error: str = "", *, doubted: Sequence[FileKey] = ()
    ) -> None:
        del self._sessions[session.session_id]
        session.idle.cancel()
        self._context.copies.sent(session.shown, state, error)
        _log.info(
            "copy_session_closed",
            tablet=session.replica.tablet_id,
            target=session.target_uuid,
            session=session.session_id,
            state=state.value,
            error=error,
        )
        if state is CopyState.SUCCEEDED:
            self._hand_over(session)
        else:
            session.anchor.release()
        task = asyncio.create_task(self._let_go(session, doubted), name=f"end {session.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, session: CopySession, doubted: Sequence[FileKey]) -> None:
        for key in doubted:
            await self._look_at(session, session.paths[key], session.files[key])
        await session.checkpointer.unpin(session.pinned)

    async def _look_at(self, session: CopySession, path: str, file: tablet_copy_pb2.CopyFile) -> None:
        disk = self._context.threads.disk
        try:
            found = await self._context.threads.run(lambda: _checksum_of(disk, path))
        except OSError as error:
            _log.warning("copied_file_unreadable", tablet=session.replica.tablet_id, path=path, error=str(error))
            return
        if found != file.checksum:
            self._fail(session, path, f"its checksum is {found:016x}, and {file.checksum:016x} in the superblock")

    def _fail(self, session: CopySession, path: str, why: str) -> None:
        """A file of the replica is damaged, as this server itself has found."""
        replica = session.replica
        if replica.state is not ReplicaState.RUNNING:
            return
        if len(replica.consensus.active_config.voters) < 2:
            _log.error("only_replica_damaged", tablet=replica.tablet_id, path=path, why=why)
            return
        replica.fail(KuduError(ErrorCode.CORRUPTION, f"{path}: {why}", details={"path": path}))

    def _hand_over(self, session: CopySession) -> None:
        """Keeps the anchor, moved up to what the target has got, until the leader serves the target from its log.

        What a target copied last is what it has: the anchor of a copy before goes.
        """
        session.anchor.update(max(session.anchor.index, session.last_index))
        until = self._context.clock.monotonic() + self._options.handover_timeout_s
        loop, key = asyncio.get_running_loop(), (session.replica.tablet_id, session.target_uuid)
        self._end_handover(key)

        def look() -> None:
            self._handovers.pop(key, None)
            is_over = self._context.clock.monotonic() >= until or not _is_waited_for(session)
            if is_over or self._is_closed:
                session.anchor.release()
                return
            self._handovers[key] = _Handover(session.anchor, loop.call_later(_HANDOVER_POLL_S, look))

        look()

    def _end_handover(self, key: tuple[TabletId, ServerId]) -> None:
        handover = self._handovers.pop(key, None)
        if handover is not None:
            handover.next_look.cancel()
            handover.anchor.release()

    async def close(self) -> None:
        """Closes all sessions, for a server that stops; its replicas still run. Streams end at their next chunk, and no
        new session is opened. Idempotent.
        """
        self._is_closed = True
        for session in list(self._sessions.values()):
            self._close(session, CopyState.FAILED, "the server stopped")
        for key in list(self._handovers):
            self._end_handover(key)
        await asyncio.gather(*self._tasks)


def _is_waited_for(session: CopySession) -> bool:
    """Whether the replica leads a group with the target, and has not heard yet that it has what was copied.

    From then on the leader itself keeps the log that the target lacks.
    """
    replica, target = session.replica, session.target_uuid
    if not replica.is_leader or replica.consensus.active_config.member(target) is None:
        return False
    return not any(
        peer.uuid == target and peer.health == consensus_pb2.HEALTHY and peer.match_index >= session.last_index
        for peer in replica.consensus.consensus_state().peers
    )


class _ReadChunk(NamedTuple):
    """An answer and its size, for asking a message for its bytes copies them."""

    size_bytes: int
    response: tablet_copy_pb2.FetchDataResponse


def _read_piece(disk: Disk, path: str, start: int, end: int, chunk_bytes: int) -> list[_ReadChunk]:
    """A part of a file in chunks. Blocks. Opens the file each time, so that nothing has to be closed by whoever is
    cancelled.
    """
    file = disk.open(path)
    try:
        chunks: list[_ReadChunk] = []
        for offset in range(start, end, chunk_bytes):
            wanted = min(chunk_bytes, end - offset)
            data = file.read(offset, wanted)
            if len(data) != wanted:
                raise KuduError(
                    ErrorCode.CORRUPTION,
                    f"{path} ends at {offset + len(data)}, and at least {end} bytes of it are named",
                    details={"path": path},
                )
            response = tablet_copy_pb2.FetchDataResponse(offset=offset, data=data, crc32c=crc32c(data))
            chunks.append(_ReadChunk(wanted, response))
        return chunks
    finally:
        file.close()


def _checksum_of(disk: Disk, path: str) -> int:
    """xxh3-64 of a file. Blocks."""
    file, hashed, offset = disk.open(path), xxhash.xxh3_64(), 0
    try:
        while piece := file.read(offset, _READ_BYTES):
            hashed.update(piece)
            offset += len(piece)
    finally:
        file.close()
    return hashed.intdigest()


def _gone(replica: TabletReplica) -> KuduError:
    return KuduError(
        ErrorCode.TABLET_NOT_RUNNING,
        f"the replica of tablet {replica.tablet_id} was stopped while a copy of it was begun",
        verdict=Verdict.TRY_LATER,
    )
