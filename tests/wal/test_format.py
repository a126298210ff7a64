"""The bytes of a segment: what is encoded is decoded, and no changed byte goes unseen."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kudu_py.common.opid import OpId
from kudu_py.wal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    CloseReason,
    Footer,
    Record,
    crc32c,
    decode_batch_header,
    decode_footer,
    decode_segment_header,
    decode_table,
    decode_trailer,
    encode_batch,
    encode_footer,
    encode_segment_header,
    identity_of,
)

TABLET = "a" * 32
IDENTITY = identity_of(TABLET, 7)


def batch_of(payloads):
    preceding = OpId(2, 10)
    return encode_batch(
        identity=IDENTITY,
        offset=4242,
        truncates=True,
        preceding=preceding,
        durable_upto=9,
        previous_crc=123,
        records=[Record(OpId(3, preceding.index + 1 + i), payload) for i, payload in enumerate(payloads)],
    )


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_a_batch_comes_back(payloads):
    batch = batch_of(payloads)
    raw = b"".join(batch.buffers)
    assert len(raw) == batch.size_bytes
    header = decode_batch_header(raw)
    assert header.end - header.offset == batch.size_bytes
    assert (header.identity, header.offset, header.truncates) == (IDENTITY, 4242, True)
    assert (header.preceding, header.durable_upto, header.previous_crc) == (OpId(2, 10), 9, 123)
    assert header.last_index == 10 + len(payloads)
    assert batch.last == (OpId(3, header.last_index) if payloads else OpId(2, 10))
    table = decode_table(header, raw[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + header.table_bytes])
    assert [(row.term, row.length, row.crc) for row in table] == [(3, len(p), crc32c(p)) for p in payloads]
    assert raw[header.payload_offset - header.offset :] == b"".join(payloads)


def test_large_payloads_are_not_copied():
    payload = bytes(1 << 20)
    assert any(buffer is payload for buffer in batch_of([payload, b"x"]).buffers)


def test_no_changed_bit_of_header_or_table_goes_unseen():
    raw = b"".join(batch_of([b"abc", b"", b"defgh"]).buffers)
    header = decode_batch_header(raw)
    table_end = BATCH_HEADER_BYTES + header.table_bytes
    for position in range(table_end * 8):
        changed = bytearray(raw)
        changed[position // 8] ^= 1 << position % 8
        found = decode_batch_header(bytes(changed))
        assert found is None or decode_table(found, bytes(changed[BATCH_HEADER_BYTES:table_end])) is None


def test_a_segment_header_comes_back_and_no_changed_bit_goes_unseen():
    raw = encode_segment_header(TABLET, 7)
    assert len(raw) == SEGMENT_HEADER_BYTES
    assert decode_segment_header(raw)[1:] == (TABLET, 7)
    assert decode_segment_header(raw[:-1]) is None
    for position in range(92 * 8):
        changed = bytearray(raw)
        changed[position // 8] ^= 1 << position % 8
        assert decode_segment_header(bytes(changed)) is None


def test_a_footer_comes_back_and_no_changed_bit_goes_unseen():
    footer = Footer(
        CloseReason.ROLLED,
        1,
        2,
        OpId(3, 4),
        OpId(5, 600),
        array("Q", [5, 70]),
        array("Q", [512, 4096]),
        array("Q", [5]),
        array("Q", [5]),
    )
    raw = encode_footer(IDENTITY, 9_000, footer)
    offset, length = decode_trailer(raw[-TRAILER_BYTES:])
    assert (offset, length) == (9_000, len(raw) - TRAILER_BYTES)
    assert decode_footer(IDENTITY, raw[:length]) == footer
    assert decode_footer(identity_of(TABLET, 8), raw[:length]) is None
    for position in range(length * 8):
        changed = bytearray(raw[:length])
        changed[position // 8] ^= 1 << position % 8
        assert decode_footer(IDENTITY, bytes(changed)) is None
