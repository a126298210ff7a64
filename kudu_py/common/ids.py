"""Identifiers: what they look like and how they are minted.

Every id is 32 lower-case hexadecimal characters, upstream's form of a UUID. Ids become file names, so they are
checked wherever they enter from outside (`require_id`), both at the RPC edge and in the file layer.
"""

from __future__ import annotations

import re
from typing import NewType, Protocol

from kudu_py.common.errors import ErrorCode, KuduError

ServerId = NewType("ServerId", str)
TabletId = NewType("TabletId", str)
TableId = NewType("TableId", str)

SYS_CATALOG_TABLET_ID = TabletId("0" * 32)
"""The id of the tablet that holds the masters' catalog, as upstream's."""

_ID = re.compile(r"[0-9a-f]{32}\Z")


class RandomBits(Protocol):
    """The one method of `random.Random` that minting needs; the seam for chance."""

    def getrandbits(self, k: int, /) -> int: ...


def mint_id(rng: RandomBits) -> str:
    """A new id from 128 random bits."""
    return f"{rng.getrandbits(128):032x}"


def is_id(value: str) -> bool:
    """Whether `value` has the form of an id."""
    return _ID.match(value) is not None


def require_id(value: str, what: str) -> str:
    """`value` itself if it has the form of an id.

    Raises:
        KuduError: INVALID_ARGUMENT that names `what` (such as "tablet_id") and shows a bounded part of the value.
    """
    if not is_id(value):
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"{what} must be 32 lower-case hexadecimal characters, not {value[:64]!r}",
        )
    return value
