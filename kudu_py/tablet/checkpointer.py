"""`Checkpointer`: makes memory durable as files, exchanges files for better ones, and lets go of the log.

A checkpoint is everything a replica holds in memory as of one applied OpId F: rows, deltas, key index, retained
results, schema. A flush makes one, in this order:
 1. Freeze, on the loop and in one go, so that all parts are of the same F. Writes go on meanwhile.
 2. Write and sync the new files, then their directory, off the loop. Nothing names them yet: after a crash they are
    removed.
 3. Wait until the own log is durable through F. A majority without this replica can commit before its own sync is
    done; a superblock ahead of the log would make a restart believe in a log that ends before its checkpoint.
 4. Wait until consensus metadata durably holds the last config at or below F: the log that holds it is about to go.
 5. Replace the superblock. Now the checkpoint is F. An error here leaves open which one holds, and is fatal.
 6. Swap, on the loop: scans from now on read the new files, memory is given back.
 7. Remove files that are no longer named, once no tablet copy hands them out; scans keep what they have mapped.
 8. Collect the log up to F, but for a margin from which followers that were away can catch up, and up to where
    followers are that still do, within a bound. While a member is to become a voter, all replicas keep what the bound
    allows: the source of its copy anchors its own log alone, and may not be the one that leads in the end.
A compaction is the same without 1, 3, 4 and 8: its files hold nothing above the checkpoint that stands.

Neither uses up the space kept free on the disk (`WalOptions.disk_reserved_bytes`): votes, superblocks and the first
entries of new leaders must find room when nothing else does. A compaction leaves all of it, as the log does. A flush
leaves half, since it is what lets the log go. Found short of room, both are put off and nothing is lost.

A flush and a compaction may be under way at once, so that a long compaction does not hold up what keeps memory bounded;
publishing (5 and 6) is one at a time, since each publishes records that follow from the ones before.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.common.schema import Schema
from kudu_py.consensus.core.model import RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata
from kudu_py.env.sparing_disk import SparingDisk
from kudu_py.tablet import metadata
from kudu_py.tablet.compaction import RunMergePlan
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.durable_metadata import metadata_durable
from kudu_py.tablet.file_pins import FilePins
from kudu_py.tablet.flush import FlushPlan
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.records import FileRecord, TabletRecords
from kudu_py.tablet.retained_results import RetainedResults, RetainedSnapshot
from kudu_py.tablet.tablet import Result, Tablet
from kudu_py.wal.log import Log

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_MARK_BYTES = 1 << 20


class CheckpointState(NamedTuple):
    """How far a replica has applied its log."""

    op_id: OpId
    timestamp: HybridTime


class LogReaders(Protocol):
    """What the log's collection asks consensus."""

    @property
    def replicated_index(self) -> int:
        """The log above it is needed by a follower that can still be served from it."""

    @property
    def active_config(self) -> RaftConfig:
        """The members, by the latest config in the log."""


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A flush whose input is frozen; kept until it has succeeded."""

    plan: FlushPlan
    state: CheckpointState
    schema: Schema
    retained: RetainedSnapshot


class LogMarks:
    """Where in the log so many bytes ago is, without asking the log: an index for each megabyte applied."""

    def __init__(self, first: int, keep_bytes: int) -> None:
        """Marks that begin after entry `first`; those more than `keep_bytes` ago are forgotten."""
        self._keep_bytes = keep_bytes
        self._marks: deque[tuple[int, int]] = deque([(first, 0)])
        self._last = (first, 0)

    def note(self, index: int, size_bytes: int) -> None:
        """An entry was applied."""
        self._last = (index, self._last[1] + size_bytes)
        if self._last[1] - self._marks[-1][1] >= _MARK_BYTES:
            self._marks.append(self._last)
            while len(self._marks) > 1 and self._last[1] - self._marks[1][1] >= self._keep_bytes:
                self._marks.popleft()

    def index_before(self, size_bytes: int) -> int:
        """The last known index above which there are at least `size_bytes` of log; 0 if there is less in all."""
        wanted = self._last[1] - size_bytes
        if self._last[1] <= wanted:
            return self._last[0]
        return next((index for index, at_bytes in reversed(self._marks) if at_bytes <= wanted), 0)


class Checkpointer:
    """The flushes and compactions of one replica.

    Attributes:
        superblock: as it is on disk.
        pins: files of the rows that are kept although they may no longer be named.
    """

    def __init__(
        self,
        *,
        context: ServerContext,
        superblock: Superblock,
        tablet: Tablet,
        log: Log,
        consensus: LogReaders,
        consensus_metadata: ConsensusMetadata,
        retained: RetainedResults,
        state: Callable[[], CheckpointState],
        on_memory_changed: Callable[[], None],
    ) -> None:
        self._context = context
        self.superblock = superblock
        self.pins = FilePins()
        self._tablet = tablet
        self._log = log
        self._consensus = consensus
        self._consensus_metadata = consensus_metadata
        self._retained = retained
        self._state = state
        self._on_memory_changed = on_memory_changed
        options = context.options
        self._marks = LogMarks(superblock.checkpoint.index, max(options.log_retain_bytes, options.log_retain_bytes_max))
        self._flushing = asyncio.Lock()
        self._compacting = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._frozen: _Frozen | None = None
        self._log_bytes = 0  # applied since the last freeze
        self._durable_waits: list[tuple[int, asyncio.Future[None]]] = []
        self._is_stopped = False
        self._directory = context.directories.row_directory(superblock.tablet_id)
        self._bound_log = _log.bind(tablet=superblock.tablet_id, server=context.uuid)

    @property
    def is_busy(self) -> bool:
        """Whether a flush or compaction is under way."""
        return self._flushing.locked() or self._compacting.locked()

    @property
    def has_unflushed(self) -> bool:
        """Whether a flush has something to do."""
        return self._frozen is not None or self._tablet.has_unflushed or self.wants_checkpoint

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so much log has come since the last freeze that it should be let go, whatever it did to the rows."""
        return self._log_bytes >= self._context.options.checkpoint_log_bytes

    @property
    def has_frozen(self) -> bool:
        """Whether a flush is under way, or has failed and left its input to be flushed again."""
        return self._frozen is not None

    # What it is told.

    def note_applied(self, index: int, size_bytes: int) -> None:
        """An entry was applied whose record has this size."""
        self._marks.note(index, size_bytes)
        self._log_bytes += size_bytes

    def note_durable(self, op_id: OpId) -> None:
        """The log is durable up to this entry."""
        if not self._durable_waits:
            return
        waits, self._durable_waits = self._durable_waits, []
        for index, durable in waits:
            if index > op_id.index:
                self._durable_waits.append((index, durable))
            elif not durable.done():
                durable.set_result(None)

    async def stop(self) -> None:
        """Begins nothing any more and waits for what is under way; the log must still be open."""
        self._is_stopped = True
        for _, durable in self._durable_waits:
            durable.cancel()
        async with self._flushing, self._compacting:
            pass

    # What it does.

    async def flush(self) -> bool:
        """Makes a checkpoint of what is in memory; False if there is nothing to flush.

        Raises:
            KuduError: DISK_FULL, try later: what was frozen stays in memory and is flushed by a later call.
        """
        async with self._flushing:
            if self._is_stopped or not self.has_unflushed:
                return False
            frozen = self._frozen = self._frozen or self._freeze()
            result = await self._run("flush", frozen.plan.run, frozen.plan.block_ids, kept_free=self._kept_free // 2)
            if not await self.log_is_durable(frozen.state.op_id.index):
                return False
            await metadata_durable(self._consensus_metadata)
            await self._publish(
                result,
                lambda rows: replace(
                    self.superblock,
                    schema=frozen.schema,
                    checkpoint=frozen.state.op_id,
                    checkpoint_timestamp=frozen.state.timestamp,
                    rows=rows,
                    retained=frozen.retained,
                ),
            )
            self._frozen = None
            self._on_memory_changed()
            self._bound_log.info(
                "tablet_flushed", op_id=str(frozen.state.op_id), rowsets=len(self.superblock.rows.rowsets)
            )
        await self.collect_log()
        return True

    async def compact(self) -> bool:
        """Exchanges some files for better ones; False if nothing is worth it.

        Raises:
            KuduError: DISK_FULL, try later.
        """
        async with self._compacting:
            plan = None if self._is_stopped else self._tablet.begin_compaction(self._context.history_begin())
            if plan is None:
                return False
            block_ids = range(plan.run_id, plan.run_id + 1) if isinstance(plan, RunMergePlan) else plan.block_ids

            def run(disk: SparingDisk) -> Result:
                disk.require_free(plan.input_bytes)  # before much is written for nothing, again and again
                return plan.run(disk)

            try:
                result = await self._run("compaction", run, block_ids, kept_free=self._kept_free)
            except BaseException:
                self._tablet.abandon_compaction()
                raise
            removed = await self._publish(result, lambda rows: replace(self.superblock, rows=rows))
            self._on_memory_changed()
            self._bound_log.info(
                "tablet_compacted", rowsets=len(self.superblock.rows.rowsets), files_removed=len(removed)
            )
        return True

    async def collect_log(self) -> int:
        """Removes log segments that neither a restart nor a follower within the bounds needs; how many."""
        options = self._context.options
        floor = min(self.superblock.checkpoint.index, self._marks.index_before(options.log_retain_bytes))
        # Whoever is to become a voter may be copying at this moment, from this replica or another; whichever leads when
        # it has done so serves it from its log.
        is_awaited = any(member.promote for member in self._consensus.active_config.members)
        slow = 0 if is_awaited else min(floor, self._consensus.replicated_index)
        up_to = max(slow, min(floor, self._marks.index_before(options.log_retain_bytes_max)))
        if up_to <= self._log.first_index or self._is_stopped:
            return 0
        removed = await self._log.collect(up_to)
        if removed:
            self._bound_log.info("log_collected", segments=removed, first_index=self._log.first_index)
        return removed

    async def log_is_durable(self, index: int) -> bool:
        """Waits until the own log is durable through an entry; False if the replica was stopped before."""
        if self._log.durable_op_id.index >= index:
            return True
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable_waits.append((index, durable))
        await asyncio.wait((durable,))
        return not durable.cancelled()

    async def unpin(self, names: Sequence[str]) -> None:
        """Ends a pin; files that are no longer named, and that no other pin holds, are removed."""
        removable = self.pins.release(names)
        if not self._is_stopped:  # else the next start removes them, or they went with the replica
            await self._unlink(removable)

    # The steps.

    def _freeze(self) -> _Frozen:
        state = self._state()
        self._log_bytes = 0
        return _Frozen(self._tablet.begin_flush(state.op_id), state, self._tablet.schema, self._retained.snapshot())

    @property
    def _kept_free(self) -> int:
        return self._context.options.wal.disk_reserved_bytes

    async def _run(self, what: str, job: Callable[[SparingDisk], T], block_ids: range, *, kept_free: int) -> T:
        disk = SparingDisk(self._context.threads.disk, self._directory, kept_free)
        try:
            return await self._context.threads.run(lambda: job(disk))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._context.on_fatal(error)
                raise
            await self._context.threads.run(lambda: self._remove_files_of(block_ids))
            raise KuduError(
                ErrorCode.DISK_FULL,
                f"the {what} of tablet {self.superblock.tablet_id} waits for room on the disk: {error}",
                verdict=Verdict.TRY_LATER,
            ) from error

    def _remove_files_of(self, block_ids: range) -> None:
        """Of an attempt that found the disk full; the next one uses the same names. Blocks."""
        disk = self._context.threads.disk
        for name in disk.list_dir(self._directory):
            block_id = name.partition(".")[0]
            if block_id.isdecimal() and int(block_id) in block_ids:
                disk.unlink(f"{self._directory}/{name}")

    async def _publish(
        self, result: Result, superblock_of: Callable[[TabletRecords], Superblock]
    ) -> tuple[FileRecord, ...]:
        async with self._publishing:
            await self._replace_superblock(superblock_of(self._tablet.records_after(result)))
            removed = self._tablet.finish(result)
        await self._unlink(self.pins.removable([file.name for file in removed]))
        return removed

    async def _replace_superblock(self, superblock: Superblock) -> None:
        path = self._context.directories.superblock_path(superblock.tablet_id)
        disk = self._context.threads.disk
        try:
            await self._context.threads.run(lambda: metadata.write(disk, path, superblock))
        except OSError as error:
            self._context.on_fatal(error)
            raise
        self.superblock = superblock

    async def _unlink(self, names: Sequence[str]) -> None:
        disk, paths = self._context.threads.disk, [f"{self._directory}/{name}" for name in names]
        if not paths:
            return

        def unlink() -> None:
            for path in paths:
                disk.unlink(path)
            disk.sync_dir(self._directory)

        try:
            await self._context.threads.run(unlink)
        except OSError as error:
            # They take space until the next start, which removes them; nothing depends on them.
            self._bound_log.warning("files_not_removed", error=str(error))
