"""`ConsensusMetadata`: term, vote and committed config on disk; the merge rules for tablet copy.

Term and vote are one record in one file, so that no crash can leave the term of one with the vote of another. Flushes
are coalesced: one is in flight, and whatever changes meanwhile goes into the next. What is reported durable is exactly
what was written, which may be older than what is wanted by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.codec import config_from_pb, config_to_pb
from kudu_py.consensus.core.model import HardState, RaftConfig
from kudu_py.env import atomic_file
from kudu_py.env.disk import Disk, DiskThreads
from kudu_py.pb import storage_pb2


@dataclass(frozen=True, slots=True)
class ConsensusRecord:
    """The content of the file.

    Attributes:
        tablet_id: whose it is; checked at load, lest a file in the wrong place be believed.
        hard_state: term and vote. The term never falls, and a vote never changes within a term.
        config: the last committed config. Its index never falls, but for a copied replica, which takes its source's.
    """

    tablet_id: TabletId
    hard_state: HardState
    config: RaftConfig

    def encode(self) -> bytes:
        """For the file."""
        return storage_pb2.ConsensusMetadata(
            tablet_id=self.tablet_id,
            current_term=self.hard_state.term,
            voted_for=self.hard_state.voted_for or "",
            committed_config=config_to_pb(self.config),
        ).SerializeToString()

    @staticmethod
    def decode(content: bytes) -> ConsensusRecord:
        """From the file."""
        message = storage_pb2.ConsensusMetadata.FromString(content)
        return ConsensusRecord(
            TabletId(message.tablet_id),
            HardState(message.current_term, ServerId(message.voted_for) or None),
            config_from_pb(message.committed_config),
        )


def merge(local: ConsensusRecord | None, remote: ConsensusRecord) -> ConsensusRecord:
    """What a replica that is copied from another starts with (seed 002, "Consensus metadata merge").

    The highest term; the own vote if the remote term is not above the own (a vote of the remote's is never taken over:
    it was not this server that gave it); the remote's config.
    """
    if local is None:
        return replace(remote, hard_state=HardState(remote.hard_state.term, None))
    assert local.tablet_id == remote.tablet_id, f"{local.tablet_id} is merged with {remote.tablet_id}"
    if remote.hard_state.term <= local.hard_state.term:
        return replace(remote, hard_state=local.hard_state)
    return replace(remote, hard_state=HardState(remote.hard_state.term, None))


class ConsensusMetadata:
    """The file of one replica, and the only one that writes it.

    Attributes:
        wanted: what is to be on disk.
        durable: what is on disk.
        hard_states_wanted, hard_states_durable: how many hard states were set, and how many of those are on disk or
            were superseded by one that is.
    """

    def __init__(self, path: str, record: ConsensusRecord) -> None:
        """A file that holds `record` already; see `load` and `create`."""
        self._path = path
        self.wanted = record
        self.durable = record
        self.hard_states_wanted = 0
        self.hard_states_durable = 0
        self._threads: DiskThreads | None = None
        self._on_durable: Callable[[HardState], None] = _ignore
        self._on_failure: Callable[[BaseException], None] = _ignore
        self._is_flushing = False
        self._is_failed = False
        self._waiters: list[Callable[[], None]] = []

    @staticmethod
    def load(disk: Disk, path: str, tablet_id: TabletId) -> ConsensusMetadata:
        """The metadata of a replica that exists. Blocks: for disk jobs.

        Raises:
            FileNotFoundError: there is none.
            KuduError: CORRUPTION if it is damaged or another tablet's.
        """
        content = atomic_file.read(disk, path)
        try:
            record = ConsensusRecord.decode(content)
        except Exception as error:
            raise KuduError(ErrorCode.CORRUPTION, f"{path}: {error}", details={"path": path}) from error
        if record.tablet_id != tablet_id:
            raise KuduError(
                ErrorCode.CORRUPTION,
                f"{path} belongs to tablet {record.tablet_id}, not to {tablet_id}",
                details={"path": path},
            )
        return ConsensusMetadata(path, record)

    @staticmethod
    def create(disk: Disk, path: str, record: ConsensusRecord) -> ConsensusMetadata:
        """Writes the metadata of a new or copied replica; durable on return. Blocks: for disk jobs."""
        atomic_file.replace(disk, path, record.encode())
        return ConsensusMetadata(path, record)

    @staticmethod
    def delete(disk: Disk, path: str) -> None:
        """Forgets term and vote: only for a replica that never was a member. Blocks: for disk jobs."""
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
            disk.sync_dir(path.rpartition("/")[0] or "/")

    @property
    def hard_state(self) -> HardState:
        """Term and vote, maybe on their way to the disk."""
        return self.wanted.hard_state

    @property
    def committed_config(self) -> RaftConfig:
        """The committed config, maybe on its way to the disk."""
        return self.wanted.config

    @property
    def is_durable(self) -> bool:
        """Whether all that is wanted is on disk."""
        return self.wanted is self.durable

    def attach(
        self,
        threads: DiskThreads,
        *,
        on_durable: Callable[[HardState], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """From now on changes are flushed by `threads`; the callbacks come on the loop.

        After `on_failure`, called once, nothing is written any more: what is on disk is in doubt, and the process has
        to end.
        """
        self._threads, self._on_durable, self._on_failure = threads, on_durable, on_failure

    def set_hard_state(self, state: HardState) -> None:
        """Term and vote are to become durable; `on_durable` says when."""
        known = self.wanted.hard_state
        assert state.term > known.term or (state.term == known.term and known.voted_for in (None, state.voted_for)), (
            f"{state} would forget {known}"
        )
        self.wanted = replace(self.wanted, hard_state=state)
        self.hard_states_wanted += 1
        self._flush()

    def set_config(self, config: RaftConfig) -> None:
        """A config was committed and is to become durable."""
        if config == self.wanted.config:
            return
        assert config.config_index > self.wanted.config.config_index, f"{config} would replace {self.wanted.config}"
        self.wanted = replace(self.wanted, config=config)
        self._flush()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once all that is wanted now is on disk, at once if it is. Never after a failure."""
        if self.is_durable:
            callback()
        else:
            self._waiters.append(callback)

    def _flush(self) -> None:
        if self._is_flushing or self._is_failed or self.is_durable:
            return
        threads, record, path = self._threads, self.wanted, self._path
        assert threads is not None, "changed before attach"
        self._is_flushing = True
        disk, content, hard_states = threads.disk, record.encode(), self.hard_states_wanted

        def done(result: BaseException | None) -> None:
            self._is_flushing = False
            if isinstance(result, BaseException):
                self._is_failed = True
                self._on_failure(result)
                return
            hard_state_is_news = hard_states > self.hard_states_durable
            self.durable, self.hard_states_durable = record, hard_states
            if self.is_durable:
                waiters, self._waiters = self._waiters, []
                for callback in waiters:
                    callback()
            else:
                self._flush()
            if hard_state_is_news:
                self._on_durable(record.hard_state)

        threads.submit(lambda: atomic_file.replace(disk, path, content), done)


def _ignore(_: object) -> None:
    return None
