"""A crash at any step of a flush or a compaction loses nothing, and a disk that loses syncs is seen to."""

from __future__ import annotations

import random

import pytest

from kudu_py.common.row_batch import RowOperation
from kudu_py.testing.sim_disk import DiskCrashed, Fault, Operation, SimDisk
from kudu_py.testing.tablet_rig import TabletRig

DIRECTORY = "/tablet"


def _rig(disk):
    if not disk.exists(DIRECTORY):
        disk.make_dir(DIRECTORY)
        disk.sync_dir("/")
    return TabletRig(DIRECTORY, disk=disk)


def _write_some(rig, rng):
    keys = [rng.randrange(200) for _ in range(60)]
    rig.write(RowOperation.UPSERT, keys, [rng.randrange(1000) for _ in keys], ["x" * rng.randrange(9) for _ in keys])
    rig.write(RowOperation.DELETE, [rng.randrange(200) for _ in range(15)], [0] * 15, [""] * 15)


def _prepared(disk):
    """A tablet with rowsets, layers and key runs, ready for one more of `acts`."""
    rng = random.Random(8)
    rig = _rig(disk)
    for _ in range(4):
        _write_some(rig, rng)
        rig.flush()
    _write_some(rig, rng)
    return rig


def _flush(rig):
    rig.flush()


def _compact(rig):
    assert rig.compact(history_start=rig.timestamp - 40)


def _compact_rows(rig):
    assert rig.compact(history_start=rig.timestamp - 40)
    assert rig.compact(history_start=rig.timestamp - 40)


ACTS = [_flush, _compact, _compact_rows]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("survival", [0.0, 1.0, None])
def test_a_crash_at_any_step_leaves_the_tablet_as_it_was(act, survival):
    dry = SimDisk(random.Random(1), survival=survival)
    rig = _prepared(dry)
    expected, digest = sorted(rig.rows()), rig.tablet.digest(rig.timestamp)
    begin = dry.steps
    act(rig)
    # Where chance decides what survives, every step; else every other one.
    for step in range(begin + 1, dry.steps + 1, 1 if survival is None else 2):
        disk = SimDisk(random.Random(step), survival=survival)
        rig = _prepared(disk)
        disk.crash_at_step = step
        with pytest.raises(DiskCrashed):
            act(rig)
        disk.restart()
        for _ in range(2):
            rig.reopen()
            assert sorted(rig.rows()) == expected
            assert rig.tablet.digest(rig.timestamp) == digest
            # And it can do now what it could not do then.
            rig.flush()
            rig.compact(history_start=rig.timestamp - 40)


@pytest.mark.parametrize("act", ACTS)
def test_what_was_published_is_durable(act):
    for seed in range(8):
        disk = SimDisk(random.Random(seed))
        rig = _prepared(disk)
        act(rig)
        expected = sorted(rig.rows())
        disk.power_cut()
        disk.restart()
        rig.reopen()
        assert sorted(rig.rows()) == expected


class _ForgetfulDisk(SimDisk):
    forgets = ""

    def drops_sync(self, path):
        return path.endswith(self.forgets)


@pytest.mark.parametrize("forgotten", [".rows", ".deltas", ".locations", ".run", DIRECTORY])
def test_a_sync_that_is_left_out_is_seen(forgotten):
    class Forgetful(_ForgetfulDisk):
        forgets = forgotten

    seen = 0
    for seed in range(6):
        disk = Forgetful(random.Random(seed), survival=0.3)
        rig = _prepared(disk)
        expected = sorted(rig.rows())
        disk.power_cut()
        disk.restart()
        try:
            rig.reopen()
            seen += sorted(rig.rows()) != expected
        except Exception:
            seen += 1
    assert seen > 0


@pytest.mark.parametrize("act", ACTS)
def test_a_disk_that_fills_or_fails_leaves_the_tablet_as_it_was(act):
    for operation in (Operation.WRITE, Operation.SYNC, Operation.CREATE):
        disk = SimDisk(random.Random(2))
        rig = _prepared(disk)
        expected = sorted(rig.rows())
        plan = rig.tablet.begin_flush() if act is _flush else rig.tablet.begin_compaction(rig.timestamp - 40)
        fault = disk.inject(Fault(operation))
        with pytest.raises(OSError, match="/tablet/"):
            plan.run(disk)
        fault.times = 0
        assert sorted(rig.rows()) == expected
        # The same plan may be run again.
        rig.carry_out(plan)
        assert sorted(rig.rows()) == expected
        rig.reopen()
        assert sorted(rig.rows()) == expected
