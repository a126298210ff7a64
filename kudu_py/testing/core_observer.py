"""`CoreObserver`: sees all replicas of one group and the disks under them, and asserts what no replica can see alone.

Each property is that of the Raft paper's figure 3, or of the dissertation's chapter 4 and section 6.4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from kudu_py.common.ids import ServerId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import HardState, LogEntry, RaftConfig
from kudu_py.consensus.core.quorum import majority


class CoreObserver:
    """Facts that were ever true of a group; none of them is forgotten, whatever crashes.

    Attributes:
        committed: OpId of each committed index, from index 1.
        leaders: who led each term.
        undone: how many config changes were undone.
    """

    def __init__(self, initial: RaftConfig) -> None:
        self.committed: list[OpId] = []
        self.leaders: dict[int, ServerId] = {}
        self.undone = 0
        self._commit_terms: list[int] = []
        self._entries: dict[OpId, tuple[OpId, LogEntry]] = {}
        self._configs: dict[OpId, RaftConfig] = {MIN_OP_ID: initial}
        # By entry: the entry of the config in force at it; by such an entry: the one of the config before.
        self._config_entries: dict[OpId, OpId] = {MIN_OP_ID: MIN_OP_ID}
        self._config_entries_before: dict[OpId, OpId] = {}
        self._votes: dict[tuple[ServerId, int], ServerId | None] = {}
        self._hard_states: dict[ServerId, HardState] = {}
        self._commit_indexes: dict[ServerId, int] = {}

    def saw_append(self, uuid: ServerId, preceding: OpId, entry: LogEntry) -> None:
        """Log matching: an OpId stands for the same entry after the same predecessor, hence for the same prefix."""
        is_news = entry.op_id not in self._entries
        known = self._entries.setdefault(entry.op_id, (preceding, entry))
        assert known == (preceding, entry), f"{uuid} has {entry} after {preceding}; elsewhere it is {known}"
        if not is_news:
            return
        if entry.config is None:
            self._configs[entry.op_id] = self._configs[preceding]
            self._config_entries[entry.op_id] = self._config_entries[preceding]
            return
        self._check_config_entry(uuid, preceding, entry, entry.config)
        self._configs[entry.op_id] = entry.config
        self._config_entries[entry.op_id] = entry.op_id
        self._config_entries_before[entry.op_id] = self._config_entries[preceding]

    def _check_config_entry(self, uuid: ServerId, preceding: OpId, entry: LogEntry, new: RaftConfig) -> None:
        """One voter at a time, and one config after the other: a config follows one that is committed, or undoes, in
        the same term, one that is not committed but follows one that is."""
        changed = set(self._configs[preceding].voters) ^ set(new.voters)
        assert len(changed) <= 1, f"{uuid} changes voters {sorted(changed)} at once by {entry}"
        last = self._config_entries[preceding]
        if self._is_committed(last):
            return
        before = self._config_entries_before[last]
        assert self._is_committed(before), f"{uuid} appends {entry} after {before} and {last}, none of them committed"
        assert entry.op_id.term == last.term, f"{uuid} undoes {last}, of another leader, by {entry}"
        assert new.members == self._configs[before].members, f"{uuid} appends {entry} while {last} is not committed"
        self.undone += 1

    def _is_committed(self, op_id: OpId) -> bool:
        return op_id == MIN_OP_ID or self.committed[op_id.index - 1 : op_id.index] == [op_id]

    def saw_leader(self, uuid: ServerId, term: int, log: Sequence[LogEntry]) -> None:
        """Election safety: one leader a term. Leader completeness: it has all that was committed in earlier terms.

        A leader may win late, when others have moved on already; what was committed after its term it need not have.
        """
        assert self.leaders.setdefault(term, uuid) == uuid, f"term {term} is led by {self.leaders[term]} and by {uuid}"
        due = self.committed[: bisect_left(self._commit_terms, term)]
        held = [entry.op_id for entry in log[: len(due)]]
        assert held == due, f"{uuid} leads term {term} without a committed entry: {held} is not {due}"

    def saw_commit(
        self,
        uuid: ServerId,
        term: int,
        index: int,
        log: Sequence[LogEntry],
        disks: Iterable[tuple[ServerId, Sequence[LogEntry]]],
    ) -> None:
        """State machine safety: one OpId per committed index. Durability: a majority's disks hold it by then."""
        assert index > self._commit_indexes.get(uuid, 0), f"{uuid} commits {index} again"
        self._commit_indexes[uuid] = index
        for known, entry in zip(self.committed[:index], log[:index], strict=False):
            assert entry.op_id == known, f"{uuid} commits {entry.op_id}, committed is {known}"
        if index <= len(self.committed):
            return
        newest = log[index - 1].op_id
        voters = self._configs[log[-1].op_id].voters
        holders = [
            server
            for server, disk in disks
            if server in voters and len(disk) >= index and disk[index - 1].op_id == newest
        ]
        assert len(holders) >= majority(len(voters)), f"{uuid} commits {newest}, durable only on {holders} of {voters}"
        self._commit_terms.extend([term] * (index - len(self.committed)))
        self.committed.extend(entry.op_id for entry in log[len(self.committed) : index])

    def saw_restart(self, uuid: ServerId, committed_index: int) -> None:
        """A restarted replica may know less of what is committed."""
        self._commit_indexes[uuid] = committed_index

    def saw_hard_state(self, uuid: ServerId, state: HardState) -> None:
        """Terms never fall on a disk, and a vote never changes within its term."""
        known = self._hard_states.get(uuid, HardState(0, None))
        assert state.term >= known.term, f"{uuid} goes from {known} back to {state}"
        if state.term == known.term and known.voted_for is not None:
            assert state.voted_for == known.voted_for, f"{uuid} changes its vote from {known} to {state}"
        self._hard_states[uuid] = state

    def saw_vote(self, voter: ServerId, term: int, candidate: ServerId) -> None:
        """A vote leaves only once it is durable, and only one a term."""
        known = self._votes.setdefault((voter, term), candidate)
        assert known == candidate, f"{voter} votes for {known} and for {candidate} in term {term}"
        durable = self._hard_states.get(voter, HardState(0, None))
        assert durable.term > term or durable == HardState(term, candidate), (
            f"{voter} votes for {candidate} in term {term}, its disk has {durable}"
        )

    def saw_acknowledgement(self, uuid: ServerId, last_received: OpId, durable_index: int) -> None:
        """Entries are acknowledged only once they are on the disk."""
        assert durable_index >= last_received.index, (
            f"{uuid} acknowledges {last_received}, durable up to {durable_index}"
        )

    def read_floor(self) -> int:
        """The lowest index that a read which arrives now may be served from."""
        return len(self.committed)

    def saw_read(self, uuid: ServerId, index: int, floor: int) -> None:
        """Linearizable reads: a read sees all that was committed when it arrived."""
        assert index >= floor, f"{uuid} serves a read at {index} that arrived when {floor} was committed"
