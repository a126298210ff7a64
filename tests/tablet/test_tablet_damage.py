"""A damaged file is never read as if it were whole: CORRUPTION, and the file's name."""

from __future__ import annotations

import random

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.row_batch import RowOperation
from kudu_py.testing.sim_disk import SimDisk
from kudu_py.testing.tablet_rig import TabletRig


def _rig():
    disk = SimDisk(random.Random(1))
    disk.make_dir("/tablet")
    disk.sync_dir("/")
    rig = TabletRig("/tablet", disk=disk)
    keys = random.Random(2).sample(range(3000), 3000)
    rig.write(RowOperation.INSERT, keys, [k % 50 for k in keys], [f"value {k}" for k in keys])
    rig.flush()
    rig.write(RowOperation.UPDATE, keys[:500], [k % 50 for k in keys[:500]], ["changed"] * 500)
    rig.write(RowOperation.DELETE, keys[500:600], [0] * 100, [""] * 100)
    rig.flush()
    return rig, keys


def _use(rig, keys):
    """Everything that a tablet does with its files; what it answered."""
    rig.reopen()
    rows = sorted(rig.rows())
    result = rig.write(RowOperation.INSERT, keys, keys, [""] * len(keys))
    rig.reopen()
    return rows, result.row_errors


def _damage_seen(rig, keys, good):
    """The error that the damage led to. None: it is in bytes that nobody reads, such as padding."""
    try:
        assert _use(rig, keys) == good
    except KuduError as error:
        return error
    return None


@pytest.mark.parametrize("kind", [".rows", ".locations", ".deltas", ".run"])
def test_no_damage_is_read_as_data(kind):
    rig, keys = _rig()
    name = next(file.name for file in rig.records.files if file.name.endswith(kind))
    path = f"/tablet/{name}"
    good = _use(rig, keys)
    rng = random.Random(kind)
    size = rig.disk.size(path)
    content = rig.disk.durable_content(path)
    seen = 0
    for offset in [0, size - 1, size - 40, *(rng.randrange(size) for _ in range(60))]:
        rig, keys = _rig()
        rig.disk.corrupt(path, offset, bytes([content[offset] ^ (1 << rng.randrange(8))]))
        error = _damage_seen(rig, keys, good)
        if error is not None:
            assert error.code is ErrorCode.CORRUPTION
            assert path in error.message
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("kind", [".rows", ".locations", ".deltas", ".run"])
@pytest.mark.parametrize("length", [0, 10, 1000])
def test_a_file_that_was_cut_is_refused_at_open(kind, length):
    rig, _ = _rig()
    name = next(file.name for file in rig.records.files if file.name.endswith(kind))
    file = rig.disk.open(f"/tablet/{name}", writable=True)
    file.truncate(length)
    file.close()
    with pytest.raises(KuduError, match=name) as caught:
        rig.reopen()
    assert caught.value.code is ErrorCode.CORRUPTION


def test_a_missing_file_is_an_error_that_names_it():
    rig, _ = _rig()
    name = rig.records.rowsets[0].rows_file.name
    rig.disk.unlink(f"/tablet/{name}")
    with pytest.raises(FileNotFoundError, match=name):
        rig.reopen()
