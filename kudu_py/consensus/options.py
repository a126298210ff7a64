"""`ConsensusOptions`: the bounds of one replica's consensus."""

from __future__ import annotations

from dataclasses import dataclass, field

from kudu_py.consensus.core.model import RaftOptions


@dataclass(frozen=True, slots=True)
class ConsensusOptions:
    """Bounds of one replica; sizes in bytes, times in seconds.

    Attributes:
        raft: of the machine.
        append_bytes_max: an UpdateConsensus holds records up to this size, and at least one.
        rounds_in_flight_max, bytes_in_flight_max: proposals that are not applied yet; more are refused with
            SERVER_TOO_BUSY.
        kept_bytes_max: records kept in memory between append and apply; others are read again.
        apply_slice_s: the loop gets its turn after applying for so long.
        apply_lazy_s, apply_lazy_bytes_max: entries of a follower that nobody waits for are applied this much later,
            together, unless they take more than this.
        vote_timeout_s: a RequestVote without an answer for this long is given up.
        clock_skew_max_s: timestamps further ahead than this are refused.
        log_stall_max_s: a replica whose log has not taken what it was given for this long (a disk that hangs, or is
            full) gives up leading and does not campaign. Several election timeouts, so that a sync which is merely slow
            moves no leadership.
        follower_unavailable_considered_failed_s: a leader reports a member that has not answered for this long as
            unreachable. Minutes, so that neither a restart nor a pause makes anybody replace a replica.
        copy_request_timeout_s: a StartTabletCopy without an answer for this long is given up.
        copy_retry_min_s, copy_retry_max_s: the pause after one that was refused, doubled with each in a row.
        facts_kept: the last facts told to the machine, logged when an assertion fails.
    """

    raft: RaftOptions = field(default_factory=RaftOptions)
    append_bytes_max: int = 2 << 20
    rounds_in_flight_max: int = 8192
    bytes_in_flight_max: int = 64 << 20
    kept_bytes_max: int = 96 << 20
    apply_slice_s: float = 0.005
    apply_lazy_s: float = 0.1
    apply_lazy_bytes_max: int = 64 << 10
    vote_timeout_s: float = 1.0
    clock_skew_max_s: float = 10.0
    log_stall_max_s: float = 4.0
    follower_unavailable_considered_failed_s: float = 300.0
    copy_request_timeout_s: float = 15.0
    copy_retry_min_s: float = 0.5
    copy_retry_max_s: float = 30.0
    facts_kept: int = 32
