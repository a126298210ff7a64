"""`Entry`: one operation of the replicated log, with its payload, as the drivers and the state machine see it."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.opid import OpId
from kudu_py.consensus.core.model import EntryKind


@dataclass(slots=True)
class Entry:
    """An operation on its way to the state machine.

    Not frozen, since one is made for each write; nobody changes it all the same.

    Attributes:
        op_id: its place in the log.
        timestamp: its hybrid time; rises strictly with the index.
        kind: what `payload` is.
        payload: the serialised operation: a WriteRequest, a Schema, a RaftConfig; empty for a NO_OP.
        record: the bytes that the log stores and the followers receive.
        prepared: what the proposer of a leader wants to find again at apply, such as the decoded rows; None on
            followers and after a restart.
    """

    op_id: OpId
    timestamp: HybridTime
    kind: EntryKind
    payload: bytes
    record: bytes
    prepared: object = None
