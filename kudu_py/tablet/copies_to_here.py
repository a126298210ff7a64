"""`CopiesToHere`: the tablet copies whose target is this server (seed 002).

A copy, of which `start` returns once it has begun:
 1. Every check, before the first change; and again once it is the copy's turn, which may be long after. The last one
    is whether the source would hand it out: an order that is mistaken in that costs nobody a replica.
 2. A replica that lives is deleted to a tombstone: its data is worth nothing any more, its promises are.
 3. The superblock, COPYING, with what the tombstone remembers. From here to 5 it votes as a tombstone.
 4. All is fetched, into the quarantine.
 5. It is put in place (`copy_install.py`), opened, and joins its group.
Whatever fails before the superblock says READY leads back to the tombstone, and what was fetched waits for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import HardState
from kudu_py.rpc.dialer import Dialer
from kudu_py.tablet import bootstrap, copy_install, deletion, quarantine
from kudu_py.tablet.context import ServerContext
from kudu_py.tablet.copy_order import (
    CopyOrder,
    LocalReplica,
    already_in_progress,
    require_foreign_source,
    require_nothing_forgotten,
    require_obedience,
)
from kudu_py.tablet.copy_target import CopyTarget, to_its_end
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineName
from kudu_py.tablet.replica_map import ReplicaMap
from kudu_py.tablet.replica_remover import ReplicaRemover, change_files
from kudu_py.tablet.room_keeper import lacks_room
from kudu_py.tablet.tablet_copy.board import Copy
from kudu_py.tablet.tablet_copy.client import FetchedReplica, fetch, require_source
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.tablet.tombstone import TombstoneVoters

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class CopiesToHere:
    """Carries out copies to this server, one of a tablet at a time."""

    def __init__(
        self,
        *,
        context: ServerContext,
        dialer: Dialer,
        hosted: ReplicaMap,
        voters: TombstoneVoters,
        remover: ReplicaRemover,
        open_replica: Callable[[TabletReplica], Awaitable[None]],
    ) -> None:
        """Args: open_replica: starts a replica, when it is its turn."""
        self._context = context
        self._dialer = dialer
        self._hosted = hosted
        self._voters = voters
        self._remover = remover
        self._open = open_replica
        self._targets: dict[TabletId, CopyTarget] = {}
        self._errors: dict[TabletId, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def target(self, tablet_id: TabletId) -> CopyTarget | None:
        """The copy of this tablet that is under way."""
        return self._targets.get(tablet_id)

    def error(self, tablet_id: TabletId) -> str:
        """Why the last copy of this tablet failed; empty if it did not, or there was none."""
        return self._errors.get(tablet_id, "")

    def forget_error(self, tablet_id: TabletId) -> None:
        """The replica was deleted: nobody asks any more."""
        self._errors.pop(tablet_id, None)

    async def start(self, order: CopyOrder) -> None:
        """Begins a copy; see `TabletManager.start_tablet_copy`."""
        require_foreign_source(order, self._context.uuid)
        if order.tablet_id in self._targets:
            raise already_in_progress(order.tablet_id)
        options = self._context.options.copy
        if len(self._tasks) >= options.copies_max + options.queued_max:
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"{len(self._tasks)} replicas are being copied to server {self._context.uuid} or wait for their turn, "
                f"as many as it takes; ask again for tablet {order.tablet_id} when some are done",
                verdict=Verdict.TRY_LATER,
            )
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._copy(order, begun), name=f"copy {order.tablet_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(begun)

    async def cancel(self, tablet_id: TabletId) -> None:
        """Ends a copy, and waits for a state of rest; see `TabletManager.cancel_copy`."""
        target = self._targets.get(tablet_id)
        if target is None:
            raise KuduError(ErrorCode.NOT_FOUND, f"tablet {tablet_id} is not being copied to this server")
        target.cancel()
        await asyncio.shield(target.ended)

    async def stop(self) -> None:
        """Ends all copies, but for those that are about to run; nothing is begun any more."""
        for target in self._targets.values():
            with contextlib.suppress(KuduError):
                target.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _copy(self, order: CopyOrder, begun: asyncio.Future[None]) -> None:
        tablet_id, target = order.tablet_id, None
        try:
            with self._hosted.transition(tablet_id, "being copied"):
                require_obedience(order, await self._local(tablet_id))
                if self._hosted.is_stopping:  # since then; whoever ends all copies would not find this one
                    raise KuduError(
                        ErrorCode.SHUTTING_DOWN,
                        f"server {self._context.uuid} is stopping",
                        verdict=Verdict.TRY_LATER,
                    )
                target = self._targets[tablet_id] = CopyTarget(order, self._hosted.tombstones.get(tablet_id))
                self._errors.pop(tablet_id, None)
                begun.set_result(None)
                try:
                    await self._carry_out(target)
                finally:
                    del self._targets[tablet_id]
        except Exception as error:
            if begun.done():
                self._context.on_fatal(error)
            else:
                begun.set_exception(error)
        finally:
            begun.cancel()  # if it came to neither
            if target is not None:
                target.ended.set_result(None)
        self._context.on_report(tablet_id)

    async def _carry_out(self, target: CopyTarget) -> None:
        order, context = target.order, self._context
        tablet_id = order.tablet_id
        bound_log = _log.bind(tablet=tablet_id, source=order.source)
        try:
            async with context.copies.copying(tablet_id, order.source, self._table_name(tablet_id)) as shown:
                local = await self._local(tablet_id)  # its turn may have come late
                require_obedience(order, local)
                await require_source(
                    context=context,
                    dialer=self._dialer,
                    tablet_id=tablet_id,
                    source_uuid=order.source,
                    source_address=order.source_address,
                    committed_op_id=_committed(order, local),
                )
                local = await self._local(tablet_id)
                require_obedience(order, local)
                await to_its_end(self._become_copying(target))
                bound_log.info("copy_accepted", caller=order.caller, term=order.caller_term)
                fetched = await self._fetch(target, local, shown)
                await target.begin_install()
                shown.note_installing()
                ready = await self._install(target, fetched)
        except (KuduError, OSError, asyncio.CancelledError) as error:
            why = target.failed(error)
            bound_log.warning("copy_failed", error=str(why))
            self._note_error(tablet_id, str(why))
            await self._abandon(target)
            return
        bound_log.info("copy_installed", checkpoint=str(ready.checkpoint))
        await self._clear(target)
        replica = self._hosted.become_replica(TabletReplica(context, ready))
        context.on_report(tablet_id)
        await self._open(replica)

    def _note_error(self, tablet_id: TabletId, why: str) -> None:
        """Keeps it, and lets go of the oldest of tablets of which nothing is here: anybody may name any."""
        self._errors.pop(tablet_id, None)
        self._errors[tablet_id] = why
        hosted = self._hosted
        strange = [key for key in self._errors if key not in hosted.replicas and key not in hosted.tombstones]
        if len(strange) > self._context.options.copy.remembered_max:
            del self._errors[strange[0]]

    def _table_name(self, tablet_id: TabletId) -> str:
        if tablet_id in self._hosted.replicas:
            return self._hosted.replicas[tablet_id].superblock.table_name
        return self._hosted.tombstones[tablet_id].table_name if tablet_id in self._hosted.tombstones else ""

    async def _local(self, tablet_id: TabletId) -> LocalReplica:
        """What is here of a tablet whose transition is held.

        Raises:
            KuduError: CORRUPTION: term and vote of what is here are lost, so that a copy of it might vote twice;
                DISK_FULL: nothing is wrong with it but that.
        """
        replica_here, tombstone = self._hosted.replicas.get(tablet_id), self._hosted.tombstones.get(tablet_id)
        if replica_here is not None and replica_here.state is ReplicaState.RUNNING:
            consensus = replica_here.consensus
            return LocalReplica(
                data_state=DataState.READY,
                term=consensus.term,
                last_op_id=consensus.last_op_id,
                committed_op_id=consensus.last_committed_op_id,
                is_running=True,
                is_leader=replica_here.is_leader,
            )
        if replica_here is not None and lacks_room(replica_here):
            raise KuduError(
                ErrorCode.DISK_FULL,
                f"the replica of tablet {tablet_id} is whole and waits for room on the disk; a copy would need more",
                verdict=Verdict.TRY_LATER,
            )
        if replica_here is not None:
            return LocalReplica(
                data_state=DataState.READY,
                term=(await self._promises(tablet_id)).term,
                last_op_id=await self._remover.last_op_id(replica_here),
            )
        if tombstone is not None:
            return LocalReplica(
                data_state=DataState.DELETED,
                term=(await self._promises(tablet_id)).term,
                last_op_id=tombstone.tombstone_last_op_id,
            )
        context = self._context
        path = context.directories.consensus_metadata_path(tablet_id)
        await context.threads.run(lambda: bootstrap.require_no_promises(context.threads.disk, path, tablet_id))
        return LocalReplica()

    async def _promises(self, tablet_id: TabletId) -> HardState:
        try:
            return await self._voters.promised(tablet_id)
        except (KuduError, OSError) as error:
            raise KuduError(
                ErrorCode.CORRUPTION,
                f"term and vote of the replica of tablet {tablet_id} cannot be read here ({error}): it must not come "
                "back under the uuid of this server, which might vote twice. Remove it from its group's config; "
                "another server can take its place",
            ) from error

    async def _become_copying(self, target: CopyTarget) -> None:
        """Deletes what lives, and writes the superblock COPYING."""
        tablet_id, context = target.order.tablet_id, self._context
        if tablet_id in self._hosted.replicas:
            target.remembered = await self._remover.tombstone(tablet_id)
        remembered = target.remembered or copy_install.never_hosted(tablet_id)
        target.copying = await self._change(
            target,
            lambda: copy_install.begin_copying(
                context.threads.disk,
                context.directories,
                remembered,
                target.order.source,
                context.clock.wall_micros(),
            ),
        )
        target.remembered = remembered
        self._hosted.become_replica(TabletReplica.copying(context, target.copying))
        context.on_report(tablet_id)

    async def _fetch(self, target: CopyTarget, local: LocalReplica, shown: Copy) -> FetchedReplica:
        order, context, copying = target.order, self._context, target.copying
        assert copying is not None, "the superblock says COPYING before anything is fetched"
        return await fetch(
            context=context,
            dialer=self._dialer,
            tablet_id=order.tablet_id,
            source_uuid=order.source,
            source_address=order.source_address,
            committed_op_id=_committed(order, local),
            directory=quarantine.path_of(context.directories, copying.quarantine),
            on_progress=shown.note_progress,
        )

    async def _install(self, target: CopyTarget, fetched: FetchedReplica) -> Superblock:
        """Puts what was fetched in place; nobody votes meanwhile."""
        context, tablet_id, copying = self._context, target.order.tablet_id, target.copying
        assert copying is not None, "the superblock says COPYING before anything is put in place"
        disk, directories = context.threads.disk, context.directories
        last = await context.threads.run(lambda: copy_install.last_op_id_fetched(disk, fetched))
        # What lived may have taken entries until it was deleted, so not what was looked at before that.
        require_nothing_forgotten(copying.tombstone_last_op_id, last, target.order.source)
        await self._voters.dismiss(tablet_id)
        promised = (await self._voters.load(tablet_id)).durable
        return await self._change(target, lambda: copy_install.put_in_place(disk, directories, promised, fetched))

    async def _clear(self, target: CopyTarget) -> None:
        """Removes what is left of where the files were gathered; what a crash leaves is purged in time."""
        name, context = (
            QuarantineName.parse(target.copying.quarantine if target.copying is not None else ""),
            self._context,
        )
        assert name is not None, "files were gathered somewhere"
        try:
            await context.threads.run(lambda: quarantine.remove(context.threads.disk, context.directories, name))
        except OSError as error:
            _log.warning("quarantine_not_purged", name=str(name), error=str(error))

    async def _abandon(self, target: CopyTarget) -> None:
        """Back to the tombstone, if the superblock says COPYING; the next start does it for a server that stops."""
        tablet_id, copying, context = target.order.tablet_id, target.copying, self._context
        if copying is None or target.is_in_doubt or self._hosted.is_stopping:
            return
        target.remembered = None
        await self._voters.dismiss(tablet_id)
        tombstone = await change_files(
            context, lambda: deletion.abandon_copy(context.threads.disk, context.directories, copying)
        )
        self._hosted.become_tombstone(tombstone)

    async def _change(self, target: CopyTarget, job: Callable[[], T]) -> T:
        target.is_in_doubt = True
        result = await change_files(self._context, job)
        target.is_in_doubt = False
        return result


def _committed(order: CopyOrder, local: LocalReplica) -> OpId:
    """What the source must hold."""
    return max(order.committed_op_id or MIN_OP_ID, local.committed_op_id, key=lambda op_id: op_id.index)
