"""`counted`: how many of what, for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`: the noun, which takes an s, agrees with the count."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
