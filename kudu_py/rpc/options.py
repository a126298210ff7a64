"""What both ends of a connection agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

OptionList: TypeAlias = Sequence[tuple[str, int | str]]
"""Channel arguments as gRPC takes them."""

METADATA_BYTES_MAX: Final = 64 << 10
"""Headers and trailers; gRPC's 8 KiB leave little room for an error with its details."""
