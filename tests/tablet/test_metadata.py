"""The superblock: whole, old or new, whenever the power goes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import TabletId, mint_id
from kudu_py.common.opid import OpId
from kudu_py.common.partition import HashLevel, Partition, PartitionSchema
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.tablet import metadata
from kudu_py.tablet.metadata import DataState, Superblock
from kudu_py.tablet.records import (
    DeltaLayerRecord,
    FileRecord,
    KeyIndexRecord,
    RowIdRange,
    RowSetRecord,
    TabletRecords,
)
from kudu_py.tablet.retained_results import RequestIdentity, RetainedResults
from kudu_py.tablet.write_result import RowErrorCode, WriteResult
from kudu_py.testing.sim_disk import DiskCrashed, SimDisk

SCHEMA = Schema(
    (
        ColumnSchema("key", DataType.STRING, column_id=3),
        ColumnSchema("amount", DataType.DECIMAL, precision=9, scale=2, nullable=True, column_id=7),
    ),
    key_count=1,
    version=4,
)
PATH = "/meta/superblock"


def a_superblock() -> Superblock:
    retained = RetainedResults()
    who = RequestIdentity("c" * 32, 3, b"x" * 16, HybridTime(9 << 12))
    retained.remember(who, HybridTime(10 << 12), WriteResult(row_errors=((4, RowErrorCode.NOT_FOUND),)))
    file = FileRecord("12.rows", 4096, (1 << 64) - 1)
    rows = TabletRecords(
        op_id=OpId(3, 17),
        timestamp=HybridTime(10 << 12),
        rowsets=(
            RowSetRecord(12, file, None, (RowIdRange(0, 5), RowIdRange(9, 2)), 7, (8,), (9, 10), HybridTime(77)),
            RowSetRecord(13, file, replace(file, name="13.locations"), (RowIdRange(11, 1),), 1),
        ),
        delta_layers=(DeltaLayerRecord(8, replace(file, name="8.deltas"), 3, HybridTime(5), HybridTime(6)),),
        key_runs=(KeyIndexRecord(14, replace(file, name="14.run"), 2, 8),),
        next_row_id=12,
        next_block_id=15,
        live_rows=6,
        history_start=HybridTime(2),
        max_key=(1, (1 << 64) - 1),
        added_columns=(SCHEMA.columns[1],),
    )
    return Superblock(
        tablet_id=TabletId("a" * 32),
        table_id="b" * 32,
        table_name="flights",
        schema=SCHEMA,
        partition_schema=PartitionSchema((HashLevel(("key",), 4, 9),), ("key",)),
        partition=Partition((2,), b"\0low", b"\xff"),
        data_state=DataState.READY,
        checkpoint=OpId(3, 18),
        checkpoint_timestamp=HybridTime(11 << 12),
        rows=rows,
        retained=retained.snapshot(),
    )


def a_disk(seed: int = 1, **options) -> SimDisk:
    disk = SimDisk(random.Random(seed), **options)
    disk.make_dir("/meta")
    disk.sync_dir("/")
    return disk


def test_what_is_written_is_read_back():
    disk, superblock = a_disk(), a_superblock()
    metadata.write(disk, PATH, superblock)
    assert metadata.read(disk, PATH, superblock.tablet_id) == superblock


def test_a_tombstone_keeps_identity_and_last_op_id_and_names_no_files():
    disk, superblock = a_disk(), a_superblock()
    tombstone = superblock.as_tombstone(OpId(4, 20))
    metadata.write(disk, PATH, tombstone)
    read = metadata.read(disk, PATH, superblock.tablet_id)
    assert read == tombstone
    assert (read.data_state, read.tombstone_last_op_id) == (DataState.DELETED, OpId(4, 20))
    assert read.rows.files == ()
    assert (read.table_name, read.schema, read.partition) == ("flights", SCHEMA, superblock.partition)


def test_an_unknown_end_of_the_log_is_told_from_an_empty_log():
    disk, superblock = a_disk(), a_superblock()
    metadata.write(disk, PATH, superblock.as_tombstone(None))
    assert metadata.read(disk, PATH, superblock.tablet_id).tombstone_last_op_id is None
    metadata.write(disk, PATH, superblock.as_tombstone(OpId(0, 0)))
    assert metadata.read(disk, PATH, superblock.tablet_id).tombstone_last_op_id == OpId(0, 0)


def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_superblock():
    old = a_superblock()
    new = replace(old, checkpoint=OpId(4, 40), table_name="other")
    found: set[str] = set()
    steps = 0
    for seed in range(8):
        step = 0
        while True:
            step += 1
            disk = a_disk(100 * step + seed)
            metadata.write(disk, PATH, old)
            disk.crash_at_step = disk.steps + step
            try:
                metadata.write(disk, PATH, new)
            except DiskCrashed:
                pass
            else:
                break
            disk.power_cut()
            disk.restart()
            read = metadata.read(disk, PATH, old.tablet_id)
            assert read in (old, new)
            found.add(read.table_name)
        steps = max(steps, step)
    assert steps > 4
    assert found == {"flights", "other"}


def test_without_its_syncs_a_superblock_is_seen_to_be_lost():
    class Forgetful(SimDisk):
        def drops_sync(self, path: str) -> bool:
            return True

    lost = False
    for seed in range(20):
        disk = Forgetful(random.Random(seed), survival=0.5)
        disk.make_dir("/meta")
        metadata.write(disk, PATH, a_superblock())
        disk.power_cut()
        disk.restart()
        try:
            metadata.read(disk, PATH, TabletId("a" * 32))
        except (KuduError, OSError):
            lost = True
    assert lost


def test_a_damaged_superblock_is_refused_by_name():
    disk, superblock = a_disk(), a_superblock()
    metadata.write(disk, PATH, superblock)
    disk.corrupt(PATH, 40, b"\x55")
    with pytest.raises(KuduError, match=PATH) as raised:
        metadata.read(disk, PATH, superblock.tablet_id)
    assert raised.value.code is ErrorCode.CORRUPTION


def test_another_tablets_superblock_is_refused():
    disk = a_disk()
    metadata.write(disk, PATH, a_superblock())
    with pytest.raises(KuduError, match="superblock of tablet") as raised:
        metadata.read(disk, PATH, TabletId(mint_id(random.Random(3))))
    assert raised.value.code is ErrorCode.CORRUPTION
