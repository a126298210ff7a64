"""Timestamps and safe time."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.common.hybrid_time import HybridTime, from_micros
from kudu_py.common.ids import ServerId
from kudu_py.consensus.time_manager import TimeManager
from kudu_py.env.clock import HybridClock
from kudu_py.testing.sim_clock import HandClock

A, B, C = (ServerId(letter * 32) for letter in "abc")
SECOND = 1_000_000


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def time(clock):
    return TimeManager(clock, HybridClock(clock), last_timestamp=HybridTime(0), clock_skew_max_s=10.0)


def test_assigned_timestamps_rise_above_all_seen_even_if_the_clock_falls_back(time, clock):
    first = time.assign()
    time.observe(from_micros(103 * SECOND), "a leader")
    second = time.assign()
    clock.advance(-50)
    assert first < from_micros(103 * SECOND) < second < time.assign()


def test_a_timestamp_too_far_ahead_is_refused_and_moves_nothing(time):
    with pytest.raises(KuduError, match="synchronise the clocks"):
        time.observe(from_micros(111 * SECOND), "a leader")
    assert time.assign() < from_micros(101 * SECOND)


def test_a_leader_announces_only_what_a_majority_has_answered(time):
    time.begin_leadership()
    assert time.announce(A, (A, B, C), None) == 0
    time.note_answered(B, HybridTime(50))
    time.note_answered(B, HybridTime(40))
    assert time.announce(A, (A, B, C), None) == 50
    time.note_answered(C, HybridTime(70))
    assert time.announce(A, (A, B, C), None) == 70
    time.begin_leadership()
    assert time.announce(A, (A, B, C), None) == 0, "answers of an earlier leadership promise nothing now"


def test_a_leader_announces_nothing_at_or_above_an_entry_in_flight(time):
    time.note_answered(B, HybridTime(50))
    assert time.announce(A, (A, B, C), HybridTime(30)) == 29
    assert time.announce(A, (A, B, C), HybridTime(51)) == 50


def test_the_only_voter_announces_its_own_clock(time):
    announced = time.announce(A, (A,), None)
    assert announced >= from_micros(100 * SECOND)
    assert time.assign() > announced


def test_an_announcement_holds_once_what_it_names_is_applied(time):
    time.note_announced(HybridTime(90), commit_index=7, applied_index=5)
    assert time.safe_time == 0
    time.note_applied(6, HybridTime(60))
    assert time.safe_time == 60
    time.note_applied(7, HybridTime(70))
    assert time.safe_time == 90
    time.note_announced(HybridTime(80), commit_index=7, applied_index=7)
    assert time.safe_time == 90


def test_a_new_leader_waits_out_the_timestamps_in_its_log(time, clock):
    time.note_appended(from_micros(104 * SECOND))
    assert time.wait_before_writes_s() == 0
    time.begin_leadership()
    assert time.wait_before_writes_s() == pytest.approx(4.0)
    clock.advance(4)
    assert time.wait_before_writes_s() == 0
