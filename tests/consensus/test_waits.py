"""Waiting for entries to be applied and for timestamps to be safe."""

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.consensus.waits import Waits


async def test_each_wait_ends_when_its_time_has_come():
    waits = Waits()
    near, far = waits.applied(5), waits.applied(9)
    early, late = waits.safe(HybridTime(50)), waits.safe(HybridTime(51))
    waits.note_applied(4)
    waits.note_safe(HybridTime(49))
    assert len(waits) == 4
    waits.note_applied(7)
    waits.note_safe(HybridTime(50))
    assert (await near, await early, far.done(), late.done()) == (7, None, False, False)
    assert len(waits) == 2


async def test_whoever_gave_up_is_forgotten():
    waits = Waits()
    waits.applied(5).cancel()
    waits.safe(HybridTime(50)).cancel()
    waits.note_applied(1)
    waits.note_safe(HybridTime(1))
    assert len(waits) == 0


async def test_a_stop_ends_all_waits():
    waits = Waits()
    futures = [waits.applied(5), waits.safe(HybridTime(50))]
    waits.fail_all(KuduError(ErrorCode.TABLET_NOT_RUNNING, "stopped"))
    for future in futures:
        with pytest.raises(KuduError, match="stopped"):
            await future
    assert len(waits) == 0
