"""What of a copied segment is undamaged: where a copy that was interrupted may go on, and whether it is whole.

The header of each batch holds the checksum of the one before it, so the link of the last batch stands for all that came
before: two segments whose links agree hold the same.
"""

from __future__ import annotations

from typing import NamedTuple

from kudu_py.env.disk import File
from kudu_py.wal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_batch_header,
    decode_segment_header,
    decode_table,
    identity_of,
)
from kudu_py.wal.reader import Window, records_intact
from kudu_py.wal.segment import parse_segment_name, read_footer


class IntactPrefix(NamedTuple):
    """The batches at the beginning of a file that are undamaged.

    Attributes:
        end_offset: behind the last of them; 0 if not even the segment's header is right.
        last_crc: its link; 0 if there is none.
    """

    end_offset: int
    last_crc: int


def intact_prefix(file: File, tablet_id: str, name: str) -> IntactPrefix:
    """Reads all of a file that is to be the segment `name` of a tablet. Blocks: for disk jobs."""
    sequence = parse_segment_name(name)
    size_bytes = file.size()
    header = decode_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
    if sequence is None or header is None or header.tablet_id != tablet_id or header.sequence != sequence:
        return IntactPrefix(0, 0)
    identity, window = identity_of(tablet_id, sequence), Window(file, size_bytes)
    end_offset, last_crc = SEGMENT_HEADER_BYTES, 0
    while (batch := decode_batch_header(window.get(end_offset, BATCH_HEADER_BYTES))) is not None:
        if batch.identity != identity or batch.offset != end_offset or batch.end > size_bytes:
            break
        if last_crc and batch.previous_crc != last_crc:
            break
        table = decode_table(batch, window.get(end_offset + BATCH_HEADER_BYTES, batch.table_bytes))
        if table is None or not records_intact(window, batch, table):
            break
        end_offset, last_crc = batch.end, batch.crc
    return IntactPrefix(end_offset, last_crc)


def is_whole(file: File, tablet_id: str, name: str, *, size_bytes: int, last_crc: int) -> bool:
    """Whether a file is what `Log.copied_files` spoke of. Blocks: for disk jobs."""
    if file.size() != size_bytes:
        return False
    prefix = intact_prefix(file, tablet_id, name)
    if prefix.last_crc != last_crc:
        return False
    if prefix.end_offset == size_bytes:
        return True
    sequence = parse_segment_name(name)
    assert sequence is not None, f"{name} has an intact prefix"
    closed = read_footer(file, identity_of(tablet_id, sequence), size_bytes)
    return closed is not None and closed[0] == prefix.end_offset and closed[1].last_crc == last_crc
