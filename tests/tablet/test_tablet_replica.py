"""A replica from write to restart."""

from __future__ import annotations

from kudu_py.testing import sim_loop
from kudu_py.testing.replica_group import ReplicaGroup, batch_of, rows_of


def test_a_single_replica_has_all_acknowledged_rows_after_flush_and_restart() -> None:
    async def main() -> None:
        group = ReplicaGroup()
        await group.start()
        tablet_id = await group.create()
        rows = [(i, i * 2, f"row {i}") for i in range(100)]
        await group.write(tablet_id, batch_of(rows[:50]))
        replica = await group.leader(tablet_id)
        assert await replica.checkpointer.flush()
        await group.write(tablet_id, batch_of(rows[50:]))
        assert rows_of(replica) == rows
        await group.stop()
        await group.hosts[0].restart()
        replica = await group.leader(tablet_id)
        assert rows_of(replica) == rows
        await group.stop()
        assert group.fatal() == []

    sim_loop.run(main(), seed=1)
