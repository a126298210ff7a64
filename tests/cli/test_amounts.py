"""Amounts as people read them."""

from __future__ import annotations

import pytest

from kudu_py.cli.amounts import bytes_text, duration_text, instant_text, time_left_s


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_449, "1.4 kB"),
        (9_950, "10 kB"),
        (52_000_000, "52 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.0 GB"),
        (3_200_000_000_000, "3.2 TB"),
        (10**19, "10000 PB"),
    ],
)
def test_bytes_have_two_digits_or_three(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 m 0 s"),
        (185, "3 m 5 s"),
        (7_500, "2 h 5 m"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert duration_text(seconds) == text


def test_instants_are_in_utc_to_the_millisecond():
    assert instant_text(1_763_749_205_123_999) == "2025-11-21 18:20:05.123 UTC"


def test_time_left_is_not_guessed_where_nothing_moves():
    assert time_left_s(20, 100, 40) == 2.0
    assert time_left_s(20, 100, 0) is None
