"""The page of tablet copies, the same on both daemons."""

from __future__ import annotations

from collections.abc import Iterable

from kudu_py.env.clock import Clock
from kudu_py.tablet.tablet_copy.board import CopyProgressBoard
from kudu_py.webui.page import Row, TablePage


def copies_page(board: CopyProgressBoard, clock: Clock) -> TablePage:
    """Copies to and from this server: those under way, then those that ended lately."""

    def rows() -> Iterable[Row]:
        now_micros = clock.wall_micros()
        for copy in board.copies():
            until_micros = copy.ended_micros or now_micros
            yield (
                copy.table_name,
                copy.tablet_id,
                copy.source_uuid,
                copy.target_uuid,
                copy.state.value,
                copy.progress.bytes_total,
                copy.progress.bytes_done,
                copy.progress.bytes_resumed,
                copy.bytes_per_s,
                round(max(0, until_micros - copy.started_micros) / 1e6, 3),
                copy.error,
            )

    return TablePage(
        "/tablet-copies",
        "Copies",
        (
            "table",
            "tablet_id",
            "source",
            "target",
            "state",
            "bytes_total",
            "bytes_done",
            "bytes_resumed",
            "bytes_per_s",
            "took_s",
            "error",
        ),
        rows,
    )
