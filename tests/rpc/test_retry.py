"""The one retry loop, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.clock import SystemClock
from kudu_py.rpc.retry import Backoff, Deadline, retry
from kudu_py.testing import sim_loop

LATER = KuduError(ErrorCode.UNAVAILABLE, "not now", verdict=Verdict.TRY_LATER, details={"address": "h:1"})
IN_DOUBT = KuduError(ErrorCode.TIMED_OUT, "no answer", verdict=Verdict.UNKNOWN)
FAILED = KuduError(ErrorCode.NOT_FOUND, "no such table")


class Half:
    """An rng that always says one half."""

    def random(self) -> float:
        return 0.5


class Attempts:
    """Raises what it was given, one after another, then answers; notes the (virtual) times."""

    def __init__(self, *errors: KuduError) -> None:
        self.errors = list(errors)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def run(attempts: Callable[[], Awaitable[str]], timeout_s: float = 60.0, **options) -> str:
    async def main() -> str:
        deadline = Deadline.after(SystemClock(), timeout_s)
        return await retry(attempts, what="opening table t", deadline=deadline, rng=Half(), **options)

    return sim_loop.run(main())


def test_try_later_is_tried_again_with_growing_jittered_waits():
    attempts = Attempts(*[LATER] * 5)

    assert run(attempts, backoff=Backoff(initial_s=0.1, max_s=0.5)) == "done"

    waits = [round(b - a, 6) for a, b in zip(attempts.times, attempts.times[1:], strict=False)]
    assert waits == [0.05, 0.1, 0.2, 0.25, 0.25]


@pytest.mark.parametrize("error", [FAILED, IN_DOUBT])
def test_other_verdicts_are_raised_as_they_are(error):
    with pytest.raises(KuduError) as raised:
        run(Attempts(error))

    assert raised.value is error


def test_the_caller_may_say_what_is_worth_a_retry():
    assert run(Attempts(IN_DOUBT), retries=lambda error: error is IN_DOUBT) == "done"


def test_the_deadline_ends_it_with_the_last_error_named_and_chained():
    with pytest.raises(KuduError, match=r"opening table t did not succeed in time.*UNAVAILABLE: not now") as raised:
        run(Attempts(*[LATER] * 1000), timeout_s=3.0)

    assert raised.value.code is ErrorCode.TIMED_OUT
    assert raised.value.verdict is Verdict.TRY_LATER
    assert raised.value.details == {"address": "h:1", "last_reason": "UNAVAILABLE"}
    assert raised.value.__cause__ is LATER


def test_one_attempt_in_doubt_leaves_the_whole_in_doubt():
    with pytest.raises(KuduError) as raised:
        run(Attempts(IN_DOUBT, *[LATER] * 1000), timeout_s=3.0, retries=lambda error: True)

    assert raised.value.verdict is Verdict.UNKNOWN


def test_it_never_sleeps_beyond_the_deadline():
    attempts = Attempts(*[LATER] * 1000)

    with pytest.raises(KuduError):
        run(attempts, timeout_s=3.0)

    assert attempts.times[-1] - attempts.times[0] < 3.0


def test_full_jitter_spreads_over_the_whole_interval():
    rng, backoff = random.Random(7), Backoff(initial_s=0.01, max_s=1.0)

    delays = [backoff.delay_s(50, rng) for _ in range(1000)]

    assert 0.0 <= min(delays) < 0.05
    assert 0.95 < max(delays) <= 1.0


@pytest.mark.parametrize("wrong", [{"initial_s": 0}, {"initial_s": 2.0}, {"multiplier": 0.5}])
def test_a_senseless_backoff_is_refused(wrong):
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(**wrong)


def test_a_deadline_bounds_the_timeout_of_an_attempt():
    async def main() -> None:
        deadline = Deadline.after(SystemClock(), 10.0)
        assert deadline.timeout_s(3.0) == 3.0
        await asyncio.sleep(8.0)
        assert deadline.timeout_s(3.0) == pytest.approx(2.0)
        await asyncio.sleep(8.0)
        assert deadline.timeout_s(3.0) == 0.0
        assert deadline.expired

    sim_loop.run(main())
