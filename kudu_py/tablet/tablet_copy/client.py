"""`fetch`: all files of a replica from another server, into a directory of this one.

 1. A session at the source: from now on it keeps what it names. It refuses if it lacks what this server acknowledged.
 2. What is named is looked through before a byte is fetched: names become paths here, and there must be room for all.
 3. The files, some at a time, each in chunks that are checked, written and synced, then given its name (`landing.py`).
 4. The session is ended: the source lets go of its files, and keeps its log until the new replica is served from it.
Nothing here touches the replica that this server has or had: what is fetched lies apart, and putting it in place is the
business of whoever called. However it ends, what was fetched stays for the next attempt, but for two cases: a file that
this disk failed to write, and everything if this disk is full.

An error says whose it is: `side` in its details is "source" or "target".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc.aio
import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import OpId
from kudu_py.common.wire import op_id_to_pb
from kudu_py.consensus.metadata import ConsensusRecord
from kudu_py.env.disk import DiskThreads
from kudu_py.pb import tablet_copy_pb2, tserver_pb2
from kudu_py.pb.tablet_copy_pb2_grpc import TabletCopyServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.status import from_rpc_error
from kudu_py.tablet import metadata
from kudu_py.tablet.directories import remove_tree
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.tablet_copy.board import CopyProgress, CopyProgressBoard
from kudu_py.tablet.tablet_copy.landing import Chunk, Landing, LandingDirectory, require_sound
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions

if TYPE_CHECKING:
    from kudu_py.tablet.context import ReplicaOptions

    Chunks = grpc.aio.UnaryStreamCall[tablet_copy_pb2.FetchDataRequest, tablet_copy_pb2.FetchDataResponse]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_END_TIMEOUT_S = 5.0
_LEAVE_TIMEOUT_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class CopyTarget(Protocol):
    """What a copy needs of the server it goes to; a `ServerContext` has it."""

    @property
    def uuid(self) -> ServerId: ...

    @property
    def threads(self) -> DiskThreads: ...

    @property
    def options(self) -> ReplicaOptions: ...

    @property
    def copies(self) -> CopyProgressBoard: ...


@dataclass(frozen=True, slots=True)
class FetchedReplica:
    """All of a replica, durable on this disk and not yet in place.

    Attributes:
        superblock: READY, as the source has it.
        consensus: the source's term, without a vote, and committed config; to be merged with what is known here.
        rows_directory, log_directory: where the files are; on the file system of the directory that was given.
        session_id: of the source, for the log.
    """

    superblock: Superblock
    consensus: ConsensusRecord
    rows_directory: str
    log_directory: str
    session_id: str


async def fetch(
    *,
    context: CopyTarget,
    dialer: Dialer,
    tablet_id: TabletId,
    source_uuid: ServerId,
    source_address: str,
    committed_op_id: OpId,
    directory: str,
    on_progress: Callable[[CopyProgress], None],
) -> FetchedReplica:
    """Fetches a replica; everything it returns is durable. Cancelling ends it soon, and keeps what was fetched.

    Args:
        committed_op_id: what the source must hold.
        directory: for copies of this tablet alone; made if it is missing, its parent exists. What an earlier attempt
            left in it is used again if it came from the same source.
        on_progress: told on the loop, from the moment the size is known.

    Raises:
        KuduError: of the source: as `CopySessions.begin` and `read` say, UNAVAILABLE if it is gone. CORRUPTION of a
            file that came damaged. Of this server: DISK_FULL (everything fetched is removed) or IO_ERROR.
    """
    require_id(tablet_id, "tablet_id")
    require_id(source_uuid, "source_uuid")
    fetching = _Fetch(context, dialer, tablet_id, source_uuid, source_address, directory, on_progress)
    begun = await fetching.begin(committed_op_id)
    try:
        fetched = await fetching.run(begun)
    except BaseException as error:
        await fetching.end(succeeded=False, error=str(error) or type(error).__name__)
        if isinstance(error, KuduError) and error.code is ErrorCode.DISK_FULL and error.details.get("side") == "target":
            await fetching.give_room_back()
        raise
    await fetching.end(succeeded=True)
    return fetched


async def require_source(
    *,
    context: CopyTarget,
    dialer: Dialer,
    tablet_id: TabletId,
    source_uuid: ServerId,
    source_address: str,
    committed_op_id: OpId,
) -> None:
    """Asks whether `fetch` would be given a session at this moment, before anything is given up for it.

    Raises:
        KuduError: as `fetch` of the source.
    """
    await _Fetch(context, dialer, tablet_id, source_uuid, source_address, "", lambda _: None).check(committed_op_id)


async def _to_its_end(work: asyncio.Future[T]) -> T:
    """Awaits a job of the disk: cancelled, the caller leaves only when it has ended, for whoever comes next will touch
    the same files. Of a disk that does not answer that is not waited for long.
    """
    try:
        await asyncio.wait((work,))
    except asyncio.CancelledError:
        await asyncio.wait((work,), timeout=_LEAVE_TIMEOUT_S)
        raise
    return work.result()


class _Fetch:
    """One call of `fetch`."""

    def __init__(
        self,
        context: CopyTarget,
        dialer: Dialer,
        tablet_id: TabletId,
        source_uuid: ServerId,
        source_address: str,
        directory: str,
        on_progress: Callable[[CopyProgress], None],
    ) -> None:
        self._context = context
        self._options: TabletCopyOptions = context.options.copy
        self._tablet_id = tablet_id
        self._source_uuid = source_uuid
        self._address = source_address
        self._stub = TabletCopyServiceStub(dialer.channel(source_address))
        self._landing = LandingDirectory(directory, source_uuid)
        self._on_progress = on_progress
        self._session_id = ""
        self._total = self._done = self._resumed = 0
        self._damaged: list[str] = []
        self._jobs: dict[Landing, asyncio.Task[Any]] = {}
        self._bound_log = _log.bind(tablet=tablet_id, source=source_uuid)

    # The session.

    async def check(self, committed: OpId) -> None:
        await self._call_begin(committed, check_only=True)

    async def begin(self, committed: OpId) -> tablet_copy_pb2.BeginCopySessionResponse:
        begun = await self._call_begin(committed)
        self._session_id = begun.session_id
        shown = self._context.copies.copy_to_here(self._tablet_id)
        if shown is not None:
            shown.session_id = begun.session_id
            shown.table_name = shown.table_name or begun.superblock.table_name
        return begun

    async def _call_begin(
        self, committed: OpId, *, check_only: bool = False
    ) -> tablet_copy_pb2.BeginCopySessionResponse:
        request = tablet_copy_pb2.BeginCopySessionRequest(
            dest_uuid=self._source_uuid,
            tablet_id=self._tablet_id,
            requestor_uuid=self._context.uuid,
            committed_op_id=op_id_to_pb(committed),
            check_only=check_only,
        )
        try:
            return await call(
                self._stub.BeginCopySession(request, timeout=self._options.begin_timeout_s), address=self._address
            )
        except KuduError as error:
            raise self._of_source(error) from error

    async def end(self, *, succeeded: bool, error: str = "") -> None:
        """Tells the source; if that does not work, the session expires there."""
        request = tablet_copy_pb2.EndCopySessionRequest(
            dest_uuid=self._source_uuid,
            session_id=self._session_id,
            succeeded=succeeded,
            error=error[:500],
            damaged_files=self._damaged,
        )
        try:
            await call(self._stub.EndCopySession(request, timeout=_END_TIMEOUT_S), address=self._address)
        except KuduError as failed:
            self._bound_log.info("copy_session_not_ended", session=self._session_id, error=str(failed))

    # The files.

    async def run(self, begun: tablet_copy_pb2.BeginCopySessionResponse) -> FetchedReplica:
        superblock, consensus = self._read(begun)
        kept_free = self._context.options.wal.disk_reserved_bytes
        disk = self._context.threads.disk
        await self._on_disk(lambda: self._landing.prepare(disk, begun.files, kept_free_bytes=kept_free))
        self._total = sum(file.size_bytes for file in begun.files)
        self._bound_log.info("copy_begun", session=self._session_id, files=len(begun.files), size_bytes=self._total)
        self._tell()
        landings = deque(
            Landing(
                disk,
                self._landing.of(file),
                file,
                tablet_id=self._tablet_id,
                sync_bytes=self._options.sync_bytes,
                kept_free_bytes=kept_free,
            )
            for file in sorted(begun.files, key=lambda file: file.size_bytes, reverse=True)
        )
        await self._in_parallel(landings)
        self._bound_log.info(
            "copy_fetched", session=self._session_id, size_bytes=self._total, resumed_bytes=self._resumed
        )
        return FetchedReplica(superblock, consensus, self._landing.rows, self._landing.log, self._session_id)

    def _read(self, begun: tablet_copy_pb2.BeginCopySessionResponse) -> tuple[Superblock, ConsensusRecord]:
        """What the source said, checked: it is another server's word."""
        try:
            require_sound(begun.files)
            if begun.superblock.data_state != tserver_pb2.READY or begun.superblock.tablet_id != self._tablet_id:
                raise KuduError(ErrorCode.INVALID_ARGUMENT, "what it offers is no READY replica of this tablet")
            superblock = metadata.from_pb(begun.superblock)
            consensus = ConsensusRecord.decode(begun.consensus_metadata.SerializeToString())
            if consensus.tablet_id != self._tablet_id:
                raise KuduError(ErrorCode.INVALID_ARGUMENT, "its consensus metadata is another tablet's")
            offered = {
                (file.name, file.size_bytes, file.checksum)
                for file in begun.files
                if file.kind == tablet_copy_pb2.CopyFile.ROWS
            }
            named = {(file.name, file.size_bytes, file.checksum) for file in superblock.rows.files}
            if offered != named:
                raise KuduError(ErrorCode.INVALID_ARGUMENT, "the files that it offers are not those that it names")
        except (KuduError, ValueError) as error:
            said = error.message if isinstance(error, KuduError) else str(error)
            raise self._of_source(KuduError(ErrorCode.CORRUPTION, said)) from error
        return superblock, consensus

    async def _in_parallel(self, landings: deque[Landing]) -> None:
        """Fetches all, some at a time; the first error ends the others."""

        async def work() -> None:
            while landings:
                await self._fetch_file(landings.popleft())

        workers = [asyncio.create_task(work(), name=f"copy {self._tablet_id}") for _ in range(self._options.files_max)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _fetch_file(self, landing: Landing) -> None:
        try:
            await self._on_disk(landing.resume, landing)
            self._resumed += landing.resumed_bytes
            self._context.copies.bytes_resumed += landing.resumed_bytes
            self._count(landing.resumed_bytes)
            if landing.is_complete:
                return
            await self._transfer(landing)
            if await self._on_disk(landing.complete, landing):
                self._note_fetched(landing)
                return
            if landing.resumed_bytes:
                # What was there before is not what the source has: then all of it anew.
                self._bound_log.warning("copied_file_damaged", file=landing.file.name, size_bytes=landing.offset)
                self._resumed -= landing.resumed_bytes
                self._count(-landing.offset)
                await self._on_disk(landing.restart, landing)
                await self._transfer(landing)
                if await self._on_disk(landing.complete, landing):
                    self._note_fetched(landing)
                    return
            await self._on_disk(landing.discard)
            if landing.file.kind == tablet_copy_pb2.CopyFile.ROWS:
                self._damaged.append(landing.file.name)
            raise self._of_source(
                KuduError(
                    ErrorCode.CORRUPTION,
                    f"{landing.file.name} does not have the checksum that the superblock names; it is damaged there",
                    details={"file": landing.file.name},
                )
            )
        finally:
            job = self._jobs.pop(landing, None)
            if job is None or job.done():
                landing.close()
            else:  # on a disk that does not answer
                job.add_done_callback(lambda _: landing.close())

    def _note_fetched(self, landing: Landing) -> None:
        self._bound_log.debug(
            "copy_file_fetched", file=landing.file.name, size_bytes=landing.offset, resumed_bytes=landing.resumed_bytes
        )

    async def _transfer(self, landing: Landing) -> None:
        """Fetches what is missing of a file: while one piece is written, the next one comes."""
        if landing.offset == landing.file.size_bytes:
            return
        request = tablet_copy_pb2.FetchDataRequest(
            dest_uuid=self._source_uuid,
            session_id=self._session_id,
            kind=landing.file.kind,
            name=landing.file.name,
            offset=landing.offset,
        )
        chunks: Chunks = self._stub.FetchData(request)
        writing: asyncio.Future[None] | None = None
        try:
            while piece := await self._receive(chunks):
                if writing is not None:
                    await _to_its_end(writing)
                writing = self._start_write(landing, piece)
            if writing is not None:
                await _to_its_end(writing)
        finally:
            chunks.cancel()
            if writing is not None and not writing.done():
                # The file is closed after this: no job may still be at work on it.
                await asyncio.wait((writing,), timeout=_LEAVE_TIMEOUT_S)
            if writing is not None and writing.done() and not writing.cancelled():
                writing.exception()  # whatever it was, what ended this came first

    def _start_write(self, landing: Landing, piece: list[Chunk]) -> asyncio.Future[None]:
        size_bytes = sum(len(chunk.data) for chunk in piece)

        async def write() -> None:
            await self._on_disk(lambda: landing.write(piece), landing)
            self._context.copies.bytes_fetched += size_bytes
            self._count(size_bytes)

        return asyncio.ensure_future(write())

    async def _receive(self, chunks: Chunks) -> list[Chunk]:
        """The next piece: some chunks; none at the end."""
        piece: list[Chunk] = []
        size_bytes = 0
        while size_bytes < self._options.piece_bytes:
            try:
                async with asyncio.timeout(self._options.stall_timeout_s):
                    chunk = await chunks.read()
            except TimeoutError:
                raise self._of_source(
                    KuduError(
                        ErrorCode.UNAVAILABLE,
                        f"it sent nothing for {self._options.stall_timeout_s:g} s",
                        verdict=Verdict.TRY_LATER,
                    )
                ) from None
            except grpc.aio.AioRpcError as error:
                raise self._of_source(from_rpc_error(error, address=self._address)) from error
            if not isinstance(chunk, tablet_copy_pb2.FetchDataResponse):
                break  # the end
            data = chunk.data
            await self._context.copies.throttle.take(len(data))
            size_bytes += len(data)
            piece.append(Chunk(chunk.offset, data, chunk.crc32c))
        return piece

    async def _on_disk(self, job: Callable[[], T], landing: Landing | None = None) -> T:
        try:
            work: asyncio.Task[T] = asyncio.create_task(self._context.threads.run(job))
            if landing is not None:
                self._jobs[landing] = work
            return await _to_its_end(work)
        except KuduError as error:
            raise self._of_source(error) from error
        except OSError as error:
            if error.errno in _FULL:
                raise self._of_target(
                    ErrorCode.DISK_FULL, f"there is no room on this server, what was fetched is removed: {error}", error
                ) from error
            if landing is not None:
                await self._context.threads.run(landing.discard)
            raise self._of_target(ErrorCode.IO_ERROR, str(error), error) from error

    async def give_room_back(self) -> None:
        """Removes what was fetched. Others need it more than a copy that cannot go on."""
        disk, root = self._context.threads.disk, self._landing.root
        with contextlib.suppress(OSError):
            await self._context.threads.run(lambda: remove_tree(disk, root))

    # What is told.

    def _count(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._tell()

    def _tell(self) -> None:
        self._on_progress(CopyProgress(self._total, self._done, self._resumed))

    def _of_source(self, error: KuduError) -> KuduError:
        return KuduError(
            error.code,
            f"tablet {self._tablet_id} cannot be copied from server {self._source_uuid} at {self._address}: "
            f"{error.message}",
            verdict=Verdict.TRY_LATER if error.verdict is Verdict.TRY_LATER else Verdict.FAILED,
            details={**error.details, "side": "source", "source_uuid": self._source_uuid},
        )

    def _of_target(self, code: ErrorCode, why: str, error: OSError) -> KuduError:
        details = {"side": "target", "source_uuid": self._source_uuid}
        if error.filename:
            details["path"] = str(error.filename)
        return KuduError(
            code,
            f"tablet {self._tablet_id} cannot be copied to server {self._context.uuid}: {why}",
            verdict=Verdict.TRY_LATER if code is ErrorCode.DISK_FULL else Verdict.FAILED,
            details=details,
        )
