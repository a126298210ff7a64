"""`Progress`: what a leader knows of one follower."""

from __future__ import annotations

from dataclasses import dataclass

from kudu_py.common.ids import ServerId


@dataclass(slots=True, eq=False)
class Progress:
    """A follower (or a member that is not counted) as its leader sees it; made anew with each leadership.

    Between any two steps ``match_index < next_index <= last index of the log + 1``.

    Attributes:
        uuid: of the follower.
        is_voter: whether it is counted, by the active config.
        next_index: first entry of the next append.
        match_index: the follower's log is durable and equal to the leader's up to here; what commits are counted from.
        in_flight: number of the append that is being answered, 0 if there is none. Only its answer moves the two marks
            above.
        in_flight_preceding: index before the first entry of that append.
        in_flight_last: index of the last entry of that append; an answer cannot prove more.
        sent_at: when that append left.
        heartbeat_at: when it must hear something again.
        answered_at: when it last answered anything in this term; the start of the leadership at first, so that
            check-quorum gives it time.
        has_answered: whether it answered anything in this leadership at all.
        confirmed_request: highest number of a message that it answered in this term, which confirms that the leader
            still led when that message was sent.
        is_paused: the last append failed; until it answers something, only one message per heartbeat interval.
        needs_copy: the leader's log does not reach back to what it needs, or it has no replica; nothing but probes
            until it answers with a log that can be continued.
    """

    uuid: ServerId
    is_voter: bool
    next_index: int
    answered_at: float
    heartbeat_at: float
    match_index: int = 0
    in_flight: int = 0
    in_flight_preceding: int = 0
    in_flight_last: int = 0
    sent_at: float = 0.0
    confirmed_request: int = 0
    has_answered: bool = False
    is_paused: bool = False
    needs_copy: bool = False
