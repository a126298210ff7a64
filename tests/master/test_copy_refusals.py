"""Servers to which copies came to nothing are left alone, longer each time."""

from __future__ import annotations

import pytest

from kudu_py.common.ids import ServerId
from kudu_py.master.copy_refusals import CopyRefusals

A, B = ServerId("a" * 32), ServerId("b" * 32)


@pytest.fixture
def refusals() -> CopyRefusals:
    return CopyRefusals(10.0)


def test_each_failure_doubles_the_pause_up_to_a_bound(refusals):
    now_s, pauses = 0.0, []
    for _ in range(6):
        pauses.append(refusals.note(A, now_s))
        now_s += pauses[-1]
    assert pauses == [10, 20, 40, 80, 80, 80]
    assert refusals.count(A) == 6


def test_of_several_failures_together_one_counts(refusals):
    refusals.note(A, 0.0)
    assert refusals.note(A, 4.0) == 6.0
    assert refusals.count(A) == 1


def test_each_server_is_left_alone_until_its_pause_is_over(refusals):
    refusals.note(A, 0.0)
    refusals.note(B, 5.0)
    assert refusals.left_alone(9.9) == {A, B}
    assert refusals.left_alone(10.0) == {B}
    assert refusals.left_alone(15.0) == frozenset()


def test_a_success_makes_it_a_server_like_any_other(refusals):
    refusals.note(A, 0.0)
    refusals.forgive(A)
    refusals.forgive(B)
    assert not refusals
    assert refusals.count(A) == 0
