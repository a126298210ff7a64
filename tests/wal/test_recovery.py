"""What an open believes, what it cuts, what it refuses: the decision table of `kudu_py/wal/recovery.py`."""

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.testing.sim_disk import Fault, Operation
from kudu_py.wal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_batch_header,
    encode_batch,
    encode_segment_header,
    identity_of,
)

TABLET = "0123456789abcdef" * 2
FOREIGN = "f" * 32


def batches(raw):
    """The headers of the batches in a segment."""
    found, offset = [], SEGMENT_HEADER_BYTES
    while (header := decode_batch_header(raw[offset : offset + BATCH_HEADER_BYTES])) is not None:
        found.append(header)
        offset = header.end
    return found


async def written(rig, make_records, *, count=6, size=150, sync=True):
    """A log of one segment in use with a batch a record; the process is dead afterwards."""
    log = await rig.open()
    for one in make_records(1, 1, count, size):
        log.append([one])
        await rig.settle()
    rig.disk.kill()
    rig.disk.restart()
    return batches(rig.bytes_of(rig.segment(1)))


async def refused(rig, match):
    with pytest.raises(KuduError, match=match) as caught:
        await rig.open()
    assert caught.value.code is ErrorCode.CORRUPTION
    before = {name: rig.bytes_of(f"{rig.segment(1).rpartition('/')[0]}/{name}") for name in rig.files()}
    with pytest.raises(KuduError, match=match):
        await rig.open()
    assert before == {name: rig.bytes_of(f"{rig.segment(1).rpartition('/')[0]}/{name}") for name in rig.files()}


def flip(rig, path, offset):
    rig.disk.corrupt(path, offset, bytes([rig.bytes_of(path)[offset] ^ 0x10]))


@pytest.mark.parametrize("where", ["header", "table", "payload"])
def test_a_damaged_last_batch_is_cut_and_what_is_known_of_it_is_kept(simulate, rig, make_records, where):
    async def main():
        last = (await written(rig, make_records))[-1]
        flip(
            rig, rig.segment(1), {"header": last.offset + 20, "table": last.offset + 85, "payload": last.end - 3}[where]
        )
        log = await rig.open()
        assert log.last_op_id == (1, 5)
        assert log.torn_tail.path == rig.segment(1)
        assert log.torn_tail.offset == last.offset
        assert log.torn_tail.last_op_id == (OpId(1, 6) if where == "payload" else None)
        assert await rig.content() == make_records(1, 1, 5, 150)
        log = await rig.open()
        assert log.torn_tail is None
        log.append(make_records(2, 6, 7))
        await rig.settle()
        assert await rig.content() == make_records(1, 1, 5, 150) + make_records(2, 6, 7)

    simulate(main())


@pytest.mark.parametrize("where", ["header", "table", "payload", "zeros"])
@pytest.mark.parametrize("which", [0, 2, 4])
def test_a_damaged_batch_that_an_undamaged_one_follows_is_refused(simulate, rig, make_records, where, which):
    async def main():
        bad = (await written(rig, make_records))[which]
        if where == "zeros":
            rig.disk.corrupt(rig.segment(1), bad.offset, bytes(bad.end - bad.offset))
        else:
            flip(
                rig,
                rig.segment(1),
                {"header": bad.offset + 20, "table": bad.offset + 85, "payload": bad.end - 3}[where],
            )
        await refused(rig, f"wal-000000001 at offset {bad.offset}: the batch is damaged, and an undamaged one follows")

    simulate(main())


def test_bytes_of_a_payload_that_look_like_a_batch_do_not_make_a_torn_tail_a_corruption(simulate, rig, make_records):
    async def main():
        decoy = encode_batch(
            identity=identity_of(TABLET, 1),
            offset=600,
            truncates=False,
            preceding=OpId(1, 1),
            durable_upto=1,
            previous_crc=0,
            records=make_records(1, 2, 2),
        )
        log = await rig.open()
        log.append([make_records(1, 1, 1)[0]._replace(payload=b"".join(decoy.buffers) * 3)])
        await rig.settle()
        rig.disk.kill()
        rig.disk.restart()
        flip(rig, rig.segment(1), SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES + 3)
        log = await rig.open()
        assert log.last_op_id == (0, 0)
        assert log.torn_tail is not None

    simulate(main())


def test_bytes_behind_the_end_of_a_damaged_last_batch_are_refused(simulate, rig, make_records):
    async def main():
        last = (await written(rig, make_records))[-1]
        flip(rig, rig.segment(1), last.end - 3)
        rig.disk.corrupt(rig.segment(1), last.end + 100, b"x")
        await refused(rig, f"offset {last.offset}: the batch is damaged, and something was written behind its end")

    simulate(main())


def forged(rig, headers, make_records, **changes):
    """Overwrites the last batch by an undamaged one that cannot be there."""
    last, before = headers[-1], headers[-2]
    values = {
        "identity": identity_of(TABLET, 1),
        "offset": last.offset,
        "truncates": False,
        "preceding": OpId(1, 5),
        "durable_upto": 5,
        "previous_crc": before.crc,
        "records": make_records(1, 6, 6, 150),
    }
    values.update(changes)
    rig.disk.corrupt(rig.segment(1), last.offset, b"".join(encode_batch(**values).buffers))
    return last.offset


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"identity": identity_of(TABLET, 2)}, "belongs to offset"),
        ({"identity": identity_of(FOREIGN, 1)}, "belongs to offset"),
        ({"offset": 512}, "belongs to offset 512"),
        ({"previous_crc": 77}, "does not continue the one before"),
        ({"preceding": OpId(1, 7)}, "continues 1.7, the log ends with 1.5"),
        ({"preceding": OpId(2, 5)}, "continues 2.5, the log ends with 1.5"),
        ({"preceding": OpId(1, 3), "durable_upto": 3}, "continues 1.3, the log ends with 1.5"),
        ({"preceding": OpId(2, 3), "durable_upto": 3, "truncates": True}, "truncates after 2.3"),
        ({"preceding": OpId(1, 5), "truncates": True}, "truncates after 1.5"),
        ({"durable_upto": 6}, "entries up to 6 were durable"),
    ],
)
def test_an_undamaged_batch_that_cannot_be_there_is_refused(simulate, rig, make_records, changes, why):
    async def main():
        headers = await written(rig, make_records)
        offset = forged(rig, headers, make_records, **changes)
        await refused(rig, f"wal-000000001 at offset {offset}: .*{why}")

    simulate(main())


def test_a_batch_that_ends_behind_the_file_is_refused(simulate, rig, make_records):
    async def main():
        last = (await written(rig, make_records))[-1]
        rig.disk.open(rig.segment(1), writable=True).truncate(last.end - 5)
        await refused(rig, f"offset {last.offset}: the batch ends at {last.end}, behind the end of the file")

    simulate(main())


async def many_segments(rig, make_records, *, close=False):
    log = await rig.open()
    for one in make_records(1, 1, 60, 400):
        log.append([one])
        await rig.settle()
    assert log.segment_count >= 4
    if close:
        await log.close()
    rig.disk.kill()
    rig.disk.restart()


def test_a_segment_that_is_missing_is_refused(simulate, make_rig, make_records):
    async def main(number, match):
        rig = make_rig()
        await many_segments(rig, make_records)
        rig.disk.unlink(rig.segment(number))
        await refused(rig, match)

    simulate(main(2, "wal-000000002 at offset 0: missing, while segment 3 is there"))
    simulate(main(4, "segment 4 is missing|wal-000000004"))


def test_a_missing_last_segment_is_refused(simulate, rig, make_records):
    async def main():
        await many_segments(rig, make_records)
        used = [n for n in range(1, len(rig.files()) + 1) if batches(rig.bytes_of(rig.segment(n)))]
        for number in range(used[-1], len(rig.files()) + 1):
            rig.disk.unlink(rig.segment(number))
        await refused(rig, f"segment {used[-1]} is missing")

    simulate(main())


def test_an_emptied_last_segment_is_refused_when_the_next_is_there(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        index = 0
        while not log.segment_count == len(rig.files()) - 1 == 3:
            index += 1
            log.append(make_records(1, index, index, 400))
            await rig.settle()
            await asyncio.sleep(0.1)
        rig.disk.kill()
        rig.disk.restart()
        rig.disk.corrupt(rig.segment(3), 512, bytes(rig.disk.size(rig.segment(3)) - 512))
        await refused(rig, "wal-000000003 at offset 512: empty, while segment 4 is there")

    simulate(main())


def test_a_damaged_footer_of_a_segment_before_the_last_is_refused(simulate, rig, make_records):
    async def main():
        await many_segments(rig, make_records)
        size = rig.disk.size(rig.segment(2))
        flip(rig, rig.segment(2), size - 40)
        await refused(rig, "wal-000000002 at offset .*: the footer of a closed segment is missing or damaged")

    simulate(main())


def test_a_damaged_header_is_refused_and_so_is_one_of_another_tablet_or_number(simulate, make_rig, make_records):
    async def main(header, match):
        rig = make_rig()
        await many_segments(rig, make_records)
        rig.disk.corrupt(rig.segment(3), 0, header)
        await refused(rig, f"wal-000000003 at offset 0: {match}")

    simulate(main(bytes(512), "the segment header is damaged"))
    simulate(main(b"X", "the segment header is damaged"))
    simulate(main(encode_segment_header(FOREIGN, 3), f"the segment belongs to tablet {FOREIGN}"))
    simulate(main(encode_segment_header(TABLET, 4), "the header says segment 4"))


def test_another_tablets_log_is_refused(simulate, rig, make_records):
    async def main():
        await many_segments(rig, make_records)
        with pytest.raises(KuduError, match="belongs to tablet") as caught:
            await rig.open(tablet_id=FOREIGN)
        assert caught.value.code is ErrorCode.CORRUPTION

    simulate(main())


def test_a_batch_damaged_in_a_closed_last_segment_is_refused_once_its_footer_is_gone_too(simulate, rig, make_records):
    async def main():
        log = await rig.open()
        for one in make_records(1, 1, 5, 150):
            log.append([one])
            await rig.settle()
        await log.close()
        path = rig.segment(1)
        last = batches(rig.bytes_of(path))[-1]
        flip(rig, path, last.end + 60)  # in the footer
        flip(rig, path, last.end - 3)
        await refused(rig, f"offset {last.offset}: .*closed after it was durable|something was written behind")

    simulate(main())


def test_a_swapped_segment_of_the_same_log_is_refused(simulate, rig, make_records):
    async def main():
        await many_segments(rig, make_records)
        rig.disk.rename(rig.segment(3), rig.segment(2) + "x")
        rig.disk.rename(rig.segment(2), rig.segment(3))
        rig.disk.rename(rig.segment(2) + "x", rig.segment(2))
        await refused(rig, "the header says segment")

    simulate(main())


@pytest.mark.parametrize("operation", [Operation.READ, Operation.OPEN, Operation.SYNC, Operation.SYNC_DIR])
def test_an_error_of_the_disk_during_recovery_is_that_and_changes_nothing(simulate, make_rig, make_records, operation):
    async def main(skip):
        rig = make_rig()
        await many_segments(rig, make_records)
        fault = rig.disk.inject(Fault(operation, skip=skip))
        result = (await asyncio.gather(rig.open(), return_exceptions=True))[0]
        if fault.times == 0:
            assert isinstance(result, KuduError)
            assert result.code is ErrorCode.IO_ERROR
            assert "/wals" in result.message
        fault.times = 0
        await rig.open()
        assert await rig.content() == make_records(1, 1, 60, 400)

    for skip in range(12):
        simulate(main(skip))


def test_no_room_to_recover_is_said_and_changes_nothing(simulate, rig, make_records):
    async def main():
        await written(rig, make_records)
        rig.disk.capacity_bytes = 4096
        with pytest.raises(KuduError, match="No space") as caught:
            await rig.open()
        assert caught.value.code is ErrorCode.DISK_FULL
        rig.disk.capacity_bytes = None
        await rig.open()
        assert await rig.content() == make_records(1, 1, 6, 150)

    simulate(main())


def test_leftovers_are_removed_and_strangers_left_alone(simulate, rig, make_records):
    async def main():
        await written(rig, make_records)
        directory = rig.segment(1).rpartition("/")[0]
        for name in ("wal-000000002.tmp", "notes.tmp", "wal-7"):
            rig.disk.create(f"{directory}/{name}").close()
        await rig.open()
        assert rig.files() == ["notes.tmp", "wal-000000001", "wal-7"]

    simulate(main())


def test_a_copied_log_opens_at_the_receiver(simulate, make_rig, make_records):
    """Tablet copy sends the durable part of each file; the last one has no footer then."""

    async def main():
        source, target = make_rig(), make_rig()
        log = await source.open()
        for one in make_records(1, 1, 60, 400):
            log.append([one])
            await source.settle()
        target.disk.make_dir(source.segment(1).rpartition("/")[0])
        for path, durable_bytes in log.segment_files():
            file = target.disk.create(path)
            file.write(0, [source.bytes_of(path)[:durable_bytes]])
            file.sync()
        await target.open()
        assert await target.content() == make_records(1, 1, 60, 400)

    simulate(main())
