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
        is_to_be_promoted: whether it is a PRE_VOTER that becomes a voter once it has caught up.
        is_held_back: whether it loses its vote or its place by a change that is not committed yet. It hears heartbeats,
            so that the leader knows whether the previous members could undo the change. It gets no entries: if the
            change never commits its vote is still needed, and with that entry in its log it would neither campaign nor
            vote for anybody without it (dissertation section 4.2.2, figure 4.6).
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
        contacted_at: when it last said anything, if only that it has no replica or is starting.
        round_end, round_began_at: the round of catching up that is under way: the last entry of the log when it began,
            and when that was; 0 if none is (dissertation section 4.2.1).
        is_caught_up: whether the last round took less than an election timeout, or left nothing to send.
        not_promoted_before: its promotion was undone; it is not tried again until then.
    """

    uuid: ServerId
    is_voter: bool
    next_index: int
    answered_at: float
    heartbeat_at: float
    contacted_at: float
    is_to_be_promoted: bool = False
    is_held_back: bool = False
    match_index: int = 0
    in_flight: int = 0
    in_flight_preceding: int = 0
    in_flight_last: int = 0
    sent_at: float = 0.0
    confirmed_request: int = 0
    has_answered: bool = False
    is_paused: bool = False
    needs_copy: bool = False
    round_end: int = 0
    round_began_at: float = 0.0
    is_caught_up: bool = False
    not_promoted_before: float = 0.0

    def note_round(self, now: float, last_index: int, round_max_s: float) -> None:
        """It acknowledged entries: measures how long it takes to get what is there when a round begins.

        That, and not how many entries it lacks, says whether it would hold up commits as a voter (KUDU-2342).
        """
        if self.round_end:
            if self.match_index >= self.round_end:
                self.is_caught_up = now - self.round_began_at < round_max_s
                self.round_end = 0
            elif now - self.round_began_at >= round_max_s:
                self.is_caught_up = False
        if not self.round_end:
            if self.match_index == last_index:
                self.is_caught_up = True
            else:
                self.round_end, self.round_began_at = last_index, now

    def forget_rounds(self) -> None:
        """It cannot be served from the log: whatever it had caught up, it has to again."""
        self.round_end, self.is_caught_up = 0, False
