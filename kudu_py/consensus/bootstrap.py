"""What a replica's machine has to know of a log that was read from disk."""

from __future__ import annotations

from dataclasses import dataclass, field

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.codec import decode_config, decode_record
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import EntryKind, RaftConfig
from kudu_py.consensus.time_manager import NO_TIME
from kudu_py.wal.log import Log


@dataclass(frozen=True, slots=True)
class BootstrapResult:
    """A log as it was found.

    Nothing above the checkpoint is known to be committed, since that is not written down: the group's leader tells, or
    the replica itself once it leads. Entries above are applied then, from the log.

    Attributes:
        applied: the checkpoint; everything up to it is in the state machine.
        applied_timestamp: hybrid time of that entry.
        preceding: OpId before the first entry whose term is known to the machine.
        last_index: of the last entry.
        runs: (first index, term) of each stretch of entries of one term above `preceding`.
        configs: of all CONFIG_CHANGE entries, in log order.
        last_timestamp: the highest hybrid time of checkpoint and entries.
    """

    applied: OpId = MIN_OP_ID
    applied_timestamp: HybridTime = NO_TIME
    preceding: OpId = MIN_OP_ID
    last_index: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    configs: list[RaftConfig] = field(default_factory=list)
    last_timestamp: HybridTime = NO_TIME

    def log_view(self) -> LogView:
        """For the machine, which owns it from then on."""
        return LogView(
            runs=self.runs,
            last_index=self.last_index,
            preceding=self.preceding,
            committed_index=self.applied.index,
            applied_index=self.applied.index,
        )


async def read_bootstrap(
    log: Log, *, applied: OpId = MIN_OP_ID, applied_timestamp: HybridTime = NO_TIME
) -> BootstrapResult:
    """Reads the whole log of a replica whose checkpoint is at `applied`.

    Raises:
        KuduError: CORRUPTION if the log does not reach back to the checkpoint, or does not agree with it.
    """
    base = log.base_op_id
    if base.index > applied.index:
        raise _corruption(f"the log begins after {base}, above the checkpoint {applied}")
    last = base
    runs: list[tuple[int, int]] = []
    configs: list[RaftConfig] = []
    last_timestamp = applied_timestamp
    async for record in log.replay():
        entry = decode_record(record.payload)
        op_id = entry.op_id
        if op_id != record.op_id:
            raise _corruption(f"record {record.op_id} holds entry {op_id}")
        last_timestamp = max(last_timestamp, entry.timestamp)
        if entry.kind is EntryKind.CONFIG_CHANGE:
            configs.append(decode_config(entry))
        if not runs or runs[-1][1] != op_id.term:
            runs.append((op_id.index, op_id.term))
        last = op_id
    if log.term_at(applied.index) != applied.term:
        raise _corruption(f"the log, up to {last}, does not hold the checkpoint {applied}")
    return BootstrapResult(applied, applied_timestamp, base, last.index, runs, configs, last_timestamp)


def _corruption(what: str) -> KuduError:
    return KuduError(ErrorCode.CORRUPTION, what)
