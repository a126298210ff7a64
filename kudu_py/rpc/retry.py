"""Deadlines and backoff as values, plus the one retry loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.clock import Clock

T = TypeVar("T")


class RandomFraction(Protocol):
    """The one method of `random.Random` that jitter needs; the seam for chance."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock by which something must be done.

    Attributes:
        clock: whose `monotonic` it is measured on.
        at: seconds of that clock.
    """

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, timeout_s: float) -> Deadline:
        """So many seconds from now."""
        return cls(clock, clock.monotonic() + timeout_s)

    @property
    def remaining_s(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def expired(self) -> bool:
        return self.at <= self.clock.monotonic()

    def timeout_s(self, at_most_s: float) -> float:
        """The timeout of one attempt: at most so long, and never beyond the deadline."""
        return min(at_most_s, self.remaining_s)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: "full jitter", a random part of a bound that doubles up to a maximum.

    Spreading over the whole interval is what keeps callers that failed together from coming back together.

    Attributes:
        initial_s: the bound of the first wait.
        max_s: the bound never grows beyond this.
        multiplier: growth of the bound with each attempt.
    """

    initial_s: float = 0.01
    max_s: float = 1.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.initial_s <= self.max_s or self.multiplier < 1:
            raise ValueError(f"backoff needs 0 < initial_s <= max_s and multiplier >= 1, not {self}")

    def delay_s(self, attempt: int, rng: RandomFraction) -> float:
        """The wait after failed attempt number `attempt`, counted from 0."""
        bound = self.initial_s
        for _ in range(attempt):
            bound *= self.multiplier
            if bound >= self.max_s:
                bound = self.max_s
                break
        return bound * rng.random()


def is_try_later(error: KuduError) -> bool:
    """The usual reason to retry: nothing was changed, and the same may succeed later."""
    return error.verdict is Verdict.TRY_LATER


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    deadline: Deadline,
    rng: RandomFraction,
    backoff: Backoff = Backoff(),
    retries: Callable[[KuduError], bool] = is_try_later,
) -> T:
    """Calls `attempt` until it succeeds, fails for good, or the deadline comes.

    The attempt bounds itself by the deadline (`deadline.timeout_s`), and decides for itself whom to ask: following a
    hint to a leader is the caller's business. Cancelling ends the loop and the attempt under way.

    Args:
        what: names the work in the error, such as "listing tables".
        retries: which errors are worth another attempt.

    Raises:
        KuduError: the attempt's own, if it is not worth a retry; TIMED_OUT that names the last error, with verdict
            UNKNOWN if any attempt's outcome is unknown.
    """
    number = 0
    in_doubt = False
    while True:
        try:
            return await attempt()
        except KuduError as error:
            if not retries(error):
                raise
            in_doubt |= error.verdict is Verdict.UNKNOWN
            delay_s = backoff.delay_s(number, rng)
            number += 1
            if delay_s >= deadline.remaining_s:
                raise KuduError(
                    ErrorCode.TIMED_OUT,
                    f"{what} did not succeed in time, after {number} attempts; the last error was {error}",
                    verdict=Verdict.UNKNOWN if in_doubt else Verdict.TRY_LATER,
                    details={**error.details, "last_reason": error.code.value},
                ) from error
        await asyncio.sleep(delay_s)
