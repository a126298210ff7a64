"""Hybrid timestamps: physical microseconds plus logical bits, and their arithmetic.

A hybrid time is one unsigned 64-bit integer: microseconds since the Unix epoch in the upper 52 bits, a logical
counter in the lower 12 (upstream's `HybridClock`). Comparing two of them is comparing integers.
"""

from __future__ import annotations

from typing import NewType

HybridTime = NewType("HybridTime", int)

LOGICAL_BITS = 12
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_HYBRID_TIME = HybridTime((1 << 63) - 1)
"""The largest timestamp that is ever used: it also fits a signed 64-bit integer."""


def from_micros(micros: int, logical: int = 0) -> HybridTime:
    """The hybrid time of `micros` (microseconds since the epoch) with a logical part of 0..4095."""
    assert 0 <= logical <= LOGICAL_MASK, logical
    return HybridTime((micros << LOGICAL_BITS) | logical)


def physical_micros(time: HybridTime) -> int:
    """Microseconds since the Unix epoch."""
    return time >> LOGICAL_BITS


def add_micros(time: HybridTime, micros: int) -> HybridTime:
    """`time` moved by `micros` microseconds (may be negative; never below 0), its logical part kept."""
    return HybridTime(max(0, time + (micros << LOGICAL_BITS)))
