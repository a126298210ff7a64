"""`Locator`: what writers, scans and snapshots need of the client to find tablets again."""

from __future__ import annotations

from typing import Final, Protocol

from kudu_py.common.errors import ErrorCode, KuduError

GONE: Final = frozenset({ErrorCode.NOT_FOUND, ErrorCode.TABLE_NOT_FOUND})
"""By which the master says that a tablet or its table was deleted."""


class Locator(Protocol):
    """The client, as whoever looks for a tablet sees it."""

    async def refresh_tablet(self, tablet_id: str) -> None:
        """Asks the master where the tablet is; KuduError NOT_FOUND if its table was deleted, others if it cannot
        tell."""


async def refresh_if_possible(locator: Locator, tablet_id: str) -> None:
    """Asks the master where a tablet is; one that cannot tell is asked again another time.

    Raises:
        KuduError: one of `GONE`: there is no such tablet any more.
    """
    try:
        await locator.refresh_tablet(tablet_id)
    except KuduError as refused:
        if refused.code in GONE:
            raise
