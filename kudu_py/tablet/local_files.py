"""`LocalFiles`: the replicas in the data directory of a server that does not run, for offline tools.

Whoever makes one holds the directory's lock (`daemon/layout.py`, `open_existing`), so that no server works on the same
files. What it does has the same order, and the same roll-forward, as in a running server: a tool that is killed leaves
what the next start of the server, or of the tool, brings to an end. All methods block but `copy_from_remote`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId, require_id
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import Member, RaftConfig
from kudu_py.consensus.metadata import ConsensusMetadata, ConsensusRecord
from kudu_py.env.clock import Clock
from kudu_py.env.disk import Disk, DiskThreads
from kudu_py.rpc.dialer import Dialer
from kudu_py.tablet import bootstrap, copy_install, deletion, metadata, quarantine
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.copy_order import require_nothing_forgotten
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.quarantine import QuarantineEntry, QuarantineName
from kudu_py.tablet.tablet_copy.board import CopyProgress, CopyProgressBoard
from kudu_py.tablet.tablet_copy.client import fetch


@dataclass(frozen=True, slots=True)
class LocalReplicaFiles:
    """A replica as its files say.

    Attributes:
        superblock, consensus: None if they cannot be read; `error` says why.
        log_bytes, row_bytes: of all its files, zeros for later entries included.
        error: what is wrong with it; empty if nothing is.
    """

    tablet_id: TabletId
    superblock: Superblock | None
    consensus: ConsensusRecord | None
    log_bytes: int
    row_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class _OfflineTarget:
    """What `fetch` needs of a server, without one."""

    uuid: ServerId
    threads: DiskThreads
    options: ReplicaOptions
    copies: CopyProgressBoard


class LocalFiles:
    """The replicas of one stopped server. Finishes on construction what a crash interrupted."""

    def __init__(self, disk: Disk, directories: ReplicaDirectories, uuid: ServerId) -> None:
        """Raises KuduError: CONFIGURATION_ERROR if terms and votes, or logs, are gone as a whole."""
        self._disk = disk
        self._directories = directories
        self._uuid = uuid
        bootstrap.require_promises(disk, directories)
        directories.create(disk)
        for tablet_id in directories.tablet_ids(disk):
            try:
                superblock = self._superblock(tablet_id)
            except KuduError:
                continue  # `replicas` says so
            deletion.roll_forward(disk, directories, superblock)

    # Looking.

    def replicas(self) -> list[LocalReplicaFiles]:
        """All replicas and tombstones, by tablet id."""
        return [self._look(tablet_id) for tablet_id in self._directories.tablet_ids(self._disk)]

    def quarantine(self) -> list[QuarantineEntry]:
        """What deleted replicas and unfinished copies left, by name."""
        return quarantine.entries(self._disk, self._directories)

    def consensus(self, tablet_id: str) -> ConsensusRecord:
        """Term, vote and committed config of a replica or tombstone.

        Raises:
            KuduError: TABLET_NOT_FOUND, CORRUPTION.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        try:
            path = self._directories.consensus_metadata_path(key)
            return ConsensusMetadata.load(self._disk, path, key).durable
        except FileNotFoundError as error:
            raise self._not_found(key) from error

    def last_op_id(self, tablet_id: str) -> OpId | None:
        """Where the log of a replica ends, or ended when it was deleted; None if that cannot be told.

        Raises:
            KuduError: TABLET_NOT_FOUND; CORRUPTION of the superblock.
        """
        superblock = self._superblock(TabletId(require_id(tablet_id, "tablet_id")))
        if superblock.data_state is DataState.DELETED:
            return superblock.tombstone_last_op_id
        return copy_install.known_end_of_log(self._disk, self._directories, superblock)

    # Changing.

    def delete(self, tablet_id: str, *, now_micros: int, is_forgotten: bool = False) -> Superblock:
        """Turns a replica into a tombstone, with its files in the quarantine; of a tombstone, nothing to do.

        Args:
            is_forgotten: nothing stays, term and vote neither: only if the replica is no member any more, and never
                will be again under this server's uuid.

        Raises:
            KuduError: TABLET_NOT_FOUND.
            OSError: run it again.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        try:
            superblock = self._superblock(key)
        except KuduError as error:
            if error.code is not ErrorCode.CORRUPTION:
                raise
            superblock = Superblock.unknown(key, DataState.READY)
        if superblock.data_state is DataState.DELETED:
            if is_forgotten:
                deletion.forget(self._disk, self._directories, superblock)
            return superblock
        last = copy_install.known_end_of_log(self._disk, self._directories, superblock)
        return deletion.delete_files(
            self._disk,
            self._directories,
            superblock,
            last,
            quarantined_at_micros=now_micros,
            is_forgotten=is_forgotten,
        )

    def rewrite_raft_config(self, tablet_id: str, members: Sequence[Member]) -> ConsensusRecord:
        """Replaces the committed config of a replica, without asking anybody; what is in force when it starts next.

        For a group that has lost its majority. Two replicas that are given configs without a common majority are two
        groups from then on, and what they acknowledge differs. The new config takes the index of the last entry of the
        log, so that configs in the log that were never known to be committed do not replace it.

        Raises:
            KuduError: TABLET_NOT_FOUND; INVALID_CONFIG; CORRUPTION; ILLEGAL_STATE if its log cannot be read.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        superblock, record = self._superblock(key), self.consensus(key)
        by_uuid = {member.uuid: member for member in members}
        config = RaftConfig(0, tuple(by_uuid[uuid] for uuid in sorted(by_uuid)))
        if len(by_uuid) != len(members) or not config.voters:
            raise KuduError(
                ErrorCode.INVALID_CONFIG, f"the new config of tablet {key} must have a voter, and no server twice"
            )
        last = self.last_op_id(key)
        if last is None or superblock.data_state is not DataState.READY:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"the replica of tablet {key} is {superblock.data_state.value} and its log ends at "
                f"{last or 'an unknown entry'}; only one with a log that can be read can carry on its group",
            )
        rewritten = replace(record, config=replace(config, config_index=max(last.index, record.config.config_index)))
        ConsensusMetadata.create(self._disk, self._directories.consensus_metadata_path(key), rewritten)
        return rewritten

    def purge_quarantine(self, tablet_id: str | None = None) -> list[QuarantineEntry]:
        """Removes what is in the quarantine, of one tablet or of all; what went."""
        chosen = [entry for entry in self.quarantine() if tablet_id in (None, entry.name.tablet_id)]
        for entry in chosen:
            quarantine.remove(self._disk, self._directories, entry.name)
        return chosen

    async def copy_from_remote(
        self,
        tablet_id: str,
        *,
        source_uuid: ServerId,
        source_address: str,
        threads: DiskThreads,
        dialer: Dialer,
        clock: Clock,
        options: ReplicaOptions,
        on_progress: Callable[[CopyProgress], None],
    ) -> Superblock:
        """Makes this server's replica a copy of another server's; it starts with it. The replica must be deleted here,
        or never have been here. What an interrupted copy fetched is used again.

        Raises:
            KuduError: ALREADY_PRESENT if it is not deleted; INVALID_TERM or ILLEGAL_STATE if the source is behind what
                this server promised; INVALID_ARGUMENT if the source is this server; what `fetch` says.
        """
        key = TabletId(require_id(tablet_id, "tablet_id"))
        if source_uuid == self._uuid:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"tablet {key} cannot be copied from this server to itself")
        disk, directories = self._disk, self._directories
        remembered, term = self._remembered(key)
        copying = copy_install.begin_copying(disk, directories, remembered, source_uuid, clock.wall_micros())
        try:
            fetched = await fetch(
                context=_OfflineTarget(
                    self._uuid,
                    threads,
                    options,
                    CopyProgressBoard(uuid=self._uuid, clock=clock, options=options.copy),
                ),
                dialer=dialer,
                tablet_id=key,
                source_uuid=source_uuid,
                source_address=source_address,
                committed_op_id=MIN_OP_ID,
                directory=quarantine.path_of(directories, copying.quarantine),
                on_progress=on_progress,
            )
            if fetched.consensus.hard_state.term < term:
                raise KuduError(
                    ErrorCode.INVALID_TERM,
                    f"{source_uuid} is in term {fetched.consensus.hard_state.term}, and this server knows term {term} "
                    f"of tablet {key}; copy from a later one",
                    details={"term": str(term)},
                )
            last = copy_install.last_op_id_fetched(disk, fetched)
            require_nothing_forgotten(remembered.tombstone_last_op_id, last, source_uuid)
        except BaseException:
            deletion.abandon_copy(disk, directories, copying)
            raise
        ready = copy_install.put_in_place(disk, directories, self.consensus(key), fetched)
        gathered = QuarantineName.parse(copying.quarantine)
        assert gathered is not None, "files were gathered somewhere"
        quarantine.remove(disk, directories, gathered)
        return ready

    # Inside.

    def _remembered(self, tablet_id: TabletId) -> tuple[Superblock, int]:
        """The tombstone that a copy begins with, and its term."""
        try:
            superblock = self._superblock(tablet_id)
        except KuduError as error:
            if error.code is not ErrorCode.TABLET_NOT_FOUND:
                raise
            path = self._directories.consensus_metadata_path(tablet_id)
            bootstrap.require_no_promises(self._disk, path, tablet_id)
            return copy_install.never_hosted(tablet_id), 0
        if superblock.data_state is not DataState.DELETED:
            raise KuduError(
                ErrorCode.ALREADY_PRESENT,
                f"there is a replica of tablet {tablet_id}; delete it first, if it is to be replaced",
                details={"data_state": superblock.data_state.value},
            )
        if superblock.tombstone_last_op_id is None:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"nobody knows where the deleted log of tablet {tablet_id} ended, so only the leader of its group can "
                "have it copied here, while the server runs",
            )
        return superblock, self.consensus(tablet_id).hard_state.term

    def _look(self, tablet_id: TabletId) -> LocalReplicaFiles:
        errors: list[str] = []
        superblock: Superblock | None = None
        consensus: ConsensusRecord | None = None
        try:
            superblock = self._superblock(tablet_id)
        except (KuduError, OSError) as error:
            errors.append(str(error))
        try:
            consensus = self.consensus(tablet_id)
        except (KuduError, OSError) as error:
            errors.append(str(error))
        log, rows = self._directories.log_directory(tablet_id), self._directories.row_directory(tablet_id)
        if superblock is not None and superblock.data_state is DataState.READY:
            errors += [f"{path} is missing" for path in (log, rows) if not self._disk.exists(path)]
        return LocalReplicaFiles(
            tablet_id,
            superblock,
            consensus,
            quarantine.size_bytes(self._disk, log),
            quarantine.size_bytes(self._disk, rows),
            "; ".join(errors),
        )

    def _superblock(self, tablet_id: TabletId) -> Superblock:
        try:
            return metadata.read(self._disk, self._directories.superblock_path(tablet_id), tablet_id)
        except FileNotFoundError as error:
            raise self._not_found(tablet_id) from error

    def _not_found(self, tablet_id: TabletId) -> KuduError:
        return KuduError(
            ErrorCode.TABLET_NOT_FOUND,
            f"{self._directories.root} holds no replica of tablet {tablet_id}",
            details={"data_state": "DOES_NOT_EXIST"},
        )
