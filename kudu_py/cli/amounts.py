"""Amounts as people read them: bytes, rates, durations, instants."""

from __future__ import annotations

import datetime
from typing import Final

_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: int) -> str:
    """`0 B`, `999 B`, `1.5 kB`, `52 MB`: two digits or three, decimal units."""
    amount = float(count)
    for unit in _BYTE_UNITS:
        rounded = f"{amount:.1f}" if amount < 9.95 and unit != "B" else f"{amount:.0f}"
        if float(rounded) < 1000 or unit == _BYTE_UNITS[-1]:
            return f"{rounded} {unit}"
        amount /= 1000
    raise AssertionError(count)


def duration_text(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 m 5 s`, `2 h 5 m`, `3 d 4 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def instant_text(micros: int) -> str:
    """Microseconds since the epoch as UTC to the millisecond: `2026-11-21 18:20:05.123 UTC`."""
    moment = datetime.datetime.fromtimestamp(micros // 1000 / 1000, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"


def time_left_s(done: int, total: int, per_s: int) -> float | None:
    """How long the rest takes at this rate; None if nothing moves."""
    return (total - done) / per_s if per_s and total >= done else None
