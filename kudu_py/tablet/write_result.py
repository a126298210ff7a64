"""`WriteResult`: what became of each row of an applied batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique


@unique
class RowErrorCode(IntEnum):
    """Why a row had no effect, by upstream's names."""

    ALREADY_PRESENT = 1
    """INSERT of a key that exists."""
    NOT_FOUND = 2
    """UPDATE or DELETE of a key that does not exist."""


@dataclass(frozen=True, eq=False)
class WriteResult:
    """The outcome of one batch, the same on every replica.

    Attributes:
        row_errors: (row number, code) of the rows that had no effect and should have had one, by rising row number;
            rows of the ignoring operations are not among them.
        inserted, updated, deleted: rows that took effect, by what they did.
    """

    row_errors: tuple[tuple[int, RowErrorCode], ...] = ()
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
