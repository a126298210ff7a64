"""Scans are bounded in number and in idle time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.testing.sim_clock import HandClock
from kudu_py.tserver.scanners import FINISHED_KEPT, Scanner, Scanners


def make(running_max: int = 2) -> tuple[Scanners, HandClock]:
    clock = HandClock()
    return Scanners(clock=clock, ttl_s=60.0, running_max=running_max), clock


def batches(closed: list[bool]) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            yield pa.record_batch([pa.array([1])], names=["key"])
    finally:
        closed.append(True)


def test_more_scans_than_the_bound_are_told_to_come_back():
    scanners, _ = make(running_max=1)
    with scanners.admit("t", "q"):
        with pytest.raises(KuduError) as raised, scanners.admit("t", "q"):
            pass
        assert (raised.value.code, raised.value.verdict) == (ErrorCode.SERVER_TOO_BUSY, Verdict.TRY_LATER)
    with scanners.admit("t", "q"):
        assert len(scanners) == 1
    assert len(scanners) == 0


def begun(scanners: Scanners, scanner: Scanner, closed: list[bool]) -> None:
    scanner.begin(HybridTime(1), batches(closed))
    with scanners.advancing(scanner):
        assert scanner.next_batch() is not None


def test_a_scan_whose_client_takes_nothing_expires_and_lets_go_of_its_snapshot():
    scanners, clock = make()
    closed: list[bool] = []
    with scanners.admit("t", "q") as scanner:
        begun(scanners, scanner, closed)
        clock.advance(61)
        assert scanners.expire() == 1
        assert closed == [True]
        assert len(scanners) == 0
        with pytest.raises(KuduError) as raised:
            scanner.require_alive()
    assert (raised.value.code, raised.value.verdict) == (ErrorCode.SCANNER_EXPIRED, Verdict.TRY_LATER)
    assert scanners.finished()[0].outcome == "expired"


def test_a_scan_that_goes_on_does_not_expire():
    scanners, clock = make()
    with scanners.admit("t", "q") as scanner:
        begun(scanners, scanner, [])
        for _ in range(5):
            clock.advance(50)
            assert scanners.expire() == 0
            with scanners.advancing(scanner):
                scanner.next_batch()


def test_a_batch_that_takes_long_to_make_does_not_expire_its_scan():
    scanners, clock = make()
    with scanners.admit("t", "q") as scanner:
        begun(scanners, scanner, [])
        with scanners.advancing(scanner):
            clock.advance(600)
            assert scanners.expire() == 0
        assert scanners.expire() == 0


def test_a_scan_that_ends_lets_go_of_its_snapshot_however_it_ends():
    scanners, _ = make()
    for error, outcome in ((None, "finished"), (KuduError(ErrorCode.CORRUPTION, "bad"), "CORRUPTION")):
        closed: list[bool] = []
        try:
            with scanners.admit("t", "q") as scanner:
                begun(scanners, scanner, closed)
                if error is not None:
                    raise error
        except KuduError:
            pass
        assert closed == [True]
        assert scanners.finished()[0].outcome == outcome


def test_the_last_scans_stay_on_the_page():
    scanners, _ = make()
    for number in range(FINISHED_KEPT + 5):
        with scanners.admit("t", f"query {number}"):
            pass
    assert len(scanners.finished()) == FINISHED_KEPT
    assert scanners.finished()[0].query_id == f"query {FINISHED_KEPT + 4}"
