"""`TimeManager`: timestamps for new rounds, the wait of a new leader, safe time.

*Safe time* T of a replica: it has applied every entry with a timestamp up to T, and no leader, present or future, will
ever write at or below T. A snapshot at T is therefore complete and stays as it is. Two things move it:

1. An applied entry: timestamps rise with the index, and whoever leads later has this entry and so writes above it.
2. An idle leader's clock. That alone would not do, for the leader may be deposed without knowing it, by one whose clock
   is behind. So each message carries the leader's clock, the follower moves its own clock there *before* it answers,
   and only what a majority has answered is announced as safe. A later leader is elected by a majority, at least one of
   which gave such an answer before it voted (afterwards it would have refused the message), and votes carry the voter's
   clock to the candidate. (A voter that restarted in between may have forgotten; then its wall clock speaks, which is
   why clocks must be within `clock_skew_max_s` of each other.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime, physical_micros
from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.quorum import majority_value
from kudu_py.env.clock import Clock, HybridClock

NO_TIME: Final = HybridTime(0)


class TimeManager:
    """The timestamps of one replica.

    Attributes:
        last_timestamp: the highest one that an entry of the log has or had.
        safe_time: see the head of this module; never falls.
    """

    def __init__(
        self, clock: Clock, hybrid_clock: HybridClock, *, last_timestamp: HybridTime, clock_skew_max_s: float
    ) -> None:
        self._clock = clock
        self._hybrid_clock = hybrid_clock
        self._clock_skew_max_micros = int(clock_skew_max_s * 1_000_000)
        self.last_timestamp = last_timestamp
        self.safe_time: HybridTime = NO_TIME
        # An announcement that holds once `_announced_index` is applied.
        self._announced: HybridTime = NO_TIME
        self._announced_index = 0
        # Of a leader: the timestamps that followers have answered to, and what the last leader's clock may have shown.
        self._answered: dict[ServerId, HybridTime] = {}
        self._writes_above: HybridTime = NO_TIME
        hybrid_clock.update(last_timestamp)

    def now(self) -> HybridTime:
        """The server's hybrid clock, above every timestamp this replica has seen."""
        return self._hybrid_clock.now()

    def assign(self) -> HybridTime:
        """The timestamp of the next entry."""
        timestamp = self._hybrid_clock.now()
        assert timestamp > self.last_timestamp, f"{timestamp} does not follow {self.last_timestamp}"
        self.last_timestamp = timestamp
        return timestamp

    def note_appended(self, timestamp: HybridTime) -> None:
        """An entry of another leader went into the log."""
        self.last_timestamp = max(self.last_timestamp, timestamp)

    def check(self, received: HybridTime, sender: str) -> None:
        """Refuses a timestamp that is further ahead of the wall clock than clocks may be apart.

        Raises:
            KuduError: ILLEGAL_STATE that names the sender: following it would drag every clock of the group along, for
            good.
        """
        ahead = physical_micros(received) - self._clock.wall_micros()
        if ahead > self._clock_skew_max_micros:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"the clock of {sender} is {ahead / 1e6:.1f} s ahead of this server's, "
                f"{self._clock_skew_max_micros / 1e6:g} s are allowed; synchronise the clocks",
                verdict=Verdict.TRY_LATER,
            )

    def observe(self, received: HybridTime, sender: str) -> None:
        """Moves the server's clock to a timestamp that came with a message; `check` applies."""
        self.check(received, sender)
        self._hybrid_clock.update(received)

    # Of a leader.

    def begin_leadership(self) -> None:
        """Won an election: forget answers of another leadership, and note up to where earlier leaders may have
        written."""
        self._answered.clear()
        self._writes_above = self.last_timestamp

    def wait_before_writes_s(self) -> float:
        """How long until the own wall clock has passed all timestamps of earlier leaders; 0 if it has (seed 001).

        The hybrid clock is above them in any case. The wait is what ties timestamps to real time: a client that saw an
        earlier leader's timestamp and then looks at a clock finds it in the past.
        """
        if self._writes_above == NO_TIME:
            return 0.0
        behind = physical_micros(self._writes_above) - self._clock.wall_micros()
        if behind <= 0:
            self._writes_above = NO_TIME  # waited for once, even if the clock is set back later
            return 0.0
        return behind / 1e6

    def note_answered(self, follower: ServerId, timestamp: HybridTime) -> None:
        """The follower answered, in the leader's term, a message that carried `timestamp`."""
        if timestamp > self._answered.get(follower, NO_TIME):
            self._answered[follower] = timestamp

    def announce(self, own: ServerId, voters: Sequence[ServerId], first_above_commit: HybridTime | None) -> HybridTime:
        """What a leader may call safe, for whoever has applied everything up to its commit index.

        Args:
            own: this replica.
            voters: of the active config.
            first_above_commit: the timestamp of the first entry above the commit index, None if there is none.
        """
        now = self._hybrid_clock.now()
        answered = [now if uuid == own else self._answered.get(uuid, NO_TIME) for uuid in voters]
        safe = majority_value(answered) if answered else NO_TIME
        if first_above_commit is not None and first_above_commit <= safe:
            safe = first_above_commit - 1
        return HybridTime(safe)

    # Of everyone.

    def note_announced(self, safe: HybridTime, commit_index: int, applied_index: int) -> None:
        """The leader announced `safe` for whoever has applied everything up to `commit_index`."""
        if applied_index >= commit_index:
            self.safe_time = max(self.safe_time, safe)
        else:
            self._announced, self._announced_index = safe, commit_index

    def note_applied(self, index: int, timestamp: HybridTime) -> None:
        """The entry at `index` was applied."""
        self.safe_time = max(self.safe_time, timestamp)
        if index >= self._announced_index:
            self.safe_time = max(self.safe_time, self._announced)
