"""Majority arithmetic."""

import pytest

from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.quorum import has_majority, majority, majority_value


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_majority_is_more_than_half(voters, needed):
    assert majority(voters) == needed


@pytest.mark.parametrize(
    ("values", "reached"),
    [([7], 7), ([7, 3], 3), ([9, 1, 5], 5), ([9, 1, 5, 7], 5), ([1, 1, 9, 9], 1), ([1, 2, 3, 4, 5], 3)],
)
def test_the_majority_value_is_what_a_majority_has_reached(values, reached):
    assert majority_value(values) == reached
    assert sum(value >= reached for value in values) >= majority(len(values))


def test_only_voters_are_counted():
    voters = tuple(ServerId(name) for name in "abc")
    assert not has_majority(voters, {ServerId("a"), ServerId("x"), ServerId("y")})
    assert has_majority(voters, {ServerId("a"), ServerId("c")})
    assert not has_majority((), {ServerId("a")})
