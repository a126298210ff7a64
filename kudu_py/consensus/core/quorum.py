"""Majority arithmetic on plain ints and sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from kudu_py.common.ids import ServerId

Ordered = TypeVar("Ordered", int, float)


def majority(voters: int) -> int:
    """How many of `voters` make a majority: 1 of 1, 2 of 2, 2 of 3, 3 of 4."""
    assert voters > 0, "a group without voters has no majority"
    return voters // 2 + 1


def majority_value(values: Sequence[Ordered]) -> Ordered:
    """The highest value that a majority has reached, given one value of each voter."""
    assert values, "a group without voters has no majority"
    return sorted(values)[(len(values) - 1) // 2]


def has_majority(voters: Sequence[ServerId], agreeing: Collection[ServerId]) -> bool:
    """Whether more than half of `voters` are among `agreeing`; whoever is not a voter is not counted."""
    return len(voters) > 0 and sum(uuid in agreeing for uuid in voters) >= majority(len(voters))
