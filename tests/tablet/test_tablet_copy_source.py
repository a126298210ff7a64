"""What a source keeps for those who copy from it, for how long, and whom it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig
from kudu_py.pb import tablet_copy_pb2
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.tablet_copy.board import CopyState
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.tablet.tablet_copy.source import CopySessions
from kudu_py.tablet.tablet_replica import ReplicaState, TabletReplica
from kudu_py.testing.replica_group import TESTING_OPTIONS, ReplicaGroup, ReplicaHost, batch_of, rows_of
from kudu_py.testing.tablet_rig import EAGER
from kudu_py.wal.options import WalOptions

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]

ROWS, SEGMENT = tablet_copy_pb2.CopyFile.ROWS, tablet_copy_pb2.CopyFile.LOG_SEGMENT
COPY = TabletCopyOptions(idle_timeout_s=10.0, handover_timeout_s=20.0, sessions_max=2)
SMALL_LOG = WalOptions(segment_size_bytes_first=4096, segment_size_bytes_min=4096, segment_size_bytes_max=4096)
OPTIONS = replace(TESTING_OPTIONS, copy=COPY, wal=SMALL_LOG, tablet=TabletOptions(compaction=EAGER.compaction))
DIRECTORIES = ReplicaDirectories("/data")
TARGET, OTHER, THIRD = (ServerId(digit * 32) for digit in "abc")


@dataclass
class Rig:
    """A server with a tablet of its own alone, and its sessions."""

    group: ReplicaGroup
    tablet_id: TabletId

    @staticmethod
    async def start(size: int = 1, members: int = 1) -> Rig:
        group = ReplicaGroup(size=size, options=OPTIONS)
        await group.start()
        hosts = group.hosts[:members]
        new = replace(group.new_tablet(), config=RaftConfig(0, tuple(host.member for host in hosts)))
        for host in hosts:
            await host.manager.create_tablet(new)
        return Rig(group, new.tablet_id)

    @property
    def host(self) -> ReplicaHost:
        return self.group.hosts[0]

    @property
    def sessions(self) -> CopySessions:
        assert self.host.copy_sessions is not None
        return self.host.copy_sessions

    @property
    def replica(self) -> TabletReplica:
        return self.host.manager.replica(self.tablet_id)

    async def write(self, *keys: int) -> None:
        leader = await self.group.leader(self.tablet_id, [self.host])
        await leader.write_batch(batch_of([(key, key, "x" * 500) for key in keys]))

    async def write_and_flush(self, *keys: int) -> None:
        await self.write(*keys)
        await self.replica.checkpointer.flush()

    async def begin(
        self, target: ServerId = TARGET, committed: OpId = MIN_OP_ID
    ) -> tablet_copy_pb2.BeginCopySessionResponse:
        return await self.sessions.begin(self.tablet_id, target_uuid=target, committed=committed)

    async def read(self, session_id: str, file: tablet_copy_pb2.CopyFile, offset: int = 0) -> bytes:
        chunks = self.sessions.read(session_id, file.kind, file.name, offset)
        return b"".join([chunk.data async for chunk in chunks])

    def row_files(self) -> set[str]:
        return set(self.host.disk.list_dir(DIRECTORIES.row_directory(self.tablet_id)))

    def segments(self) -> set[str]:
        return set(self.host.disk.list_dir(DIRECTORIES.log_directory(self.tablet_id)))


def named(begun: tablet_copy_pb2.BeginCopySessionResponse, kind: int) -> set[str]:
    return {file.name for file in begun.files if file.kind == kind}


def test_files_of_a_session_outlive_flush_and_compaction_and_go_with_it(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1, 2)
        await rig.write_and_flush(3)
        begun = await rig.begin()
        for key in range(4, 8):
            await rig.write_and_flush(key)
            while await rig.replica.checkpointer.compact():
                pass
        now = {file.name for file in rig.replica.superblock.rows.files}
        assert named(begun, ROWS) - now, "compaction replaced files of the session"
        assert named(begun, ROWS) <= rig.row_files()
        for file in begun.files:
            assert len(await rig.read(begun.session_id, file)) == file.size_bytes
        rig.sessions.end(begun.session_id, succeeded=True)
        await rig.group.wait_until(lambda: rig.row_files() == now)
        assert len(rig.replica.checkpointer.pins) == 0
        assert [row[0] for row in rows_of(rig.replica)] == list(range(1, 8))
        await rig.group.stop()

    simulate(main())


def test_the_log_of_a_session_is_not_collected(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(0)
        for key in range(1, 20):
            await rig.write(key, key + 100, key + 200)
        begun = await rig.begin()
        assert len(named(begun, SEGMENT)) > 2
        for key in range(20, 40):
            await rig.write_and_flush(key)
        assert named(begun, SEGMENT) <= rig.segments()
        rig.sessions.end(begun.session_id, succeeded=False, error="enough")
        await rig.write_and_flush(40)
        assert not named(begun, SEGMENT) & rig.segments()
        await rig.group.stop()

    simulate(main())


def test_a_target_that_asks_again_gets_the_session_it_has(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        await rig.write_and_flush(2)
        assert await rig.begin() == begun
        other = await rig.begin(OTHER)
        assert other.session_id != begun.session_id
        assert other.superblock.checkpoint_op_id.index > begun.superblock.checkpoint_op_id.index
        await rig.group.stop()

    simulate(main())


def test_who_only_asks_gets_no_session(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(1)
        asked = await rig.sessions.begin(rig.tablet_id, target_uuid=OTHER, committed=MIN_OP_ID, check_only=True)
        assert (asked.session_id, len(rig.sessions)) == ("", 0)
        with pytest.raises(KuduError) as refused:
            await rig.sessions.begin(rig.tablet_id, target_uuid=OTHER, committed=OpId(9, 999), check_only=True)
        assert refused.value.code is ErrorCode.ILLEGAL_STATE
        await rig.group.stop()

    simulate(main())


def test_a_target_that_needs_more_than_its_session_has_gets_a_new_one(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        await rig.write_and_flush(2)
        again = await rig.begin(committed=rig.replica.applied)
        assert again.session_id != begun.session_id
        assert len(rig.sessions) == 1
        await rig.group.stop()

    simulate(main())


def test_many_begins_at_once_make_one_session(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(1)
        begun = await asyncio.gather(*[rig.begin() for _ in range(20)])
        assert len({answer.session_id for answer in begun}) == 1
        assert len(rig.sessions) == 1
        await rig.group.stop()

    simulate(main())


def test_a_session_that_nobody_asks_anything_expires(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        assert begun.idle_timeout_millis == 10_000
        file = begun.files[0]
        for _ in range(3):
            await asyncio.sleep(9)
            assert await rig.read(begun.session_id, file)
        await asyncio.sleep(11)
        assert len(rig.sessions) == 0
        assert rig.replica.log.anchors.lowest() is None
        with pytest.raises(KuduError, match="has no copy session") as gone:
            await rig.read(begun.session_id, file)
        assert gone.value.code is ErrorCode.NOT_FOUND
        (shown,) = rig.host.manager.context.copies.copies()
        assert (shown.state, shown.error) == (CopyState.FAILED, "nobody asked for anything for 10 s")
        await rig.group.stop()

    simulate(main())


def test_more_sessions_than_allowed_are_told_to_try_later(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        first, _ = await rig.begin(TARGET), await rig.begin(OTHER)
        with pytest.raises(KuduError, match="as many as it allows") as busy:
            await rig.begin(THIRD)
        assert busy.value.code is ErrorCode.SERVER_TOO_BUSY
        rig.sessions.end(first.session_id, succeeded=True)
        await rig.begin(THIRD)
        await rig.group.stop()

    simulate(main())


def test_a_session_ends_with_its_replica(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        await rig.host.manager.delete_tablet(rig.tablet_id)
        with pytest.raises(KuduError) as gone:
            await rig.read(begun.session_id, begun.files[0])
        assert gone.value.code is ErrorCode.TABLET_NOT_RUNNING
        assert len(rig.sessions) == 0
        with pytest.raises(KuduError) as gone:
            await rig.begin()
        assert gone.value.code is ErrorCode.TABLET_NOT_FOUND
        await rig.group.stop()

    simulate(main())


def test_a_server_that_stops_ends_its_sessions_and_opens_no_new_one(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        await rig.sessions.close()
        for refused in (rig.begin(), rig.read(begun.session_id, begun.files[0])):
            with pytest.raises(KuduError, match="is stopping") as stopping:
                await refused
            assert stopping.value.code is ErrorCode.SHUTTING_DOWN
        assert len(rig.replica.checkpointer.pins) == 0
        assert rig.replica.log.anchors.lowest() is None
        await rig.group.stop()

    simulate(main())


def test_a_target_cannot_talk_a_source_into_failing(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(size=3, members=3)
        leader = await rig.group.leader(rig.tablet_id)
        host = next(host for host in rig.group.hosts if host.uuid == leader.consensus.uuid)
        await leader.write_batch(batch_of([(1, 1, None)]))
        await leader.checkpointer.flush()
        assert host.copy_sessions is not None
        begun = await host.copy_sessions.begin(rig.tablet_id, target_uuid=TARGET, committed=MIN_OP_ID)
        named_files = [*named(begun, ROWS), "../../instance", "no such file"]
        host.copy_sessions.end(begun.session_id, succeeded=False, error="lies", damaged_files=named_files)
        await asyncio.sleep(1)
        assert leader.state is ReplicaState.RUNNING
        assert len(leader.checkpointer.pins) == 0
        await rig.group.stop()

    simulate(main())


def test_only_files_of_the_session_are_given(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        for name in ("../../instance", "wal-999999999", ""):
            with pytest.raises(KuduError, match="has no file") as refused:
                await rig.read(begun.session_id, tablet_copy_pb2.CopyFile(kind=ROWS, name=name))
            assert refused.value.code is ErrorCode.NOT_FOUND
        file = next(file for file in begun.files if file.kind == ROWS)
        with pytest.raises(KuduError, match="behind the end"):
            await rig.read(begun.session_id, file, file.size_bytes + 1)
        assert await rig.read(begun.session_id, file, file.size_bytes) == b""
        await rig.group.stop()

    simulate(main())


@pytest.mark.parametrize("target", ["", "../x", "A" * 32])
def test_a_requestor_needs_a_name(simulate: Simulate, target: str):
    async def main() -> None:
        rig = await Rig.start()
        with pytest.raises(KuduError) as refused:
            await rig.begin(ServerId(target))
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        await rig.group.stop()

    simulate(main())


def test_a_server_copies_nothing_from_itself(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        with pytest.raises(KuduError, match="from itself") as refused:
            await rig.begin(rig.host.uuid)
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        await rig.group.stop()

    simulate(main())


def test_only_what_is_durable_here_is_handed_out(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write(1)
        leader = await rig.group.leader(rig.tablet_id)
        writing = asyncio.create_task(leader.write_batch(batch_of([(2, 2, None)])))
        await asyncio.sleep(0)
        last = leader.consensus.last_op_id
        assert leader.log.durable_op_id < last
        begun = await rig.begin()
        assert leader.log.durable_op_id >= last
        segments = [file for file in begun.files if file.kind == SEGMENT]
        assert segments[-1].checksum == leader.log.copied_files(0)[-1].last_crc
        await writing
        await rig.group.stop()

    simulate(main())


def test_the_log_is_not_kept_for_who_is_no_member(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start()
        await rig.write_and_flush(1)
        begun = await rig.begin()
        rig.sessions.end(begun.session_id, succeeded=True)
        assert rig.replica.log.anchors.lowest() is None
        assert rig.sessions.handovers == 0
        await rig.group.stop()

    simulate(main())


async def with_pre_voter(rig: Rig) -> ReplicaHost:
    """Makes the last host, which has no replica, a member that does not vote: its leader has it copy."""
    joining = rig.group.hosts[-1]
    await rig.write_and_flush(1, 2)
    await rig.write(*range(3, 30))
    await rig.replica.consensus.change_config(
        ConfigChange.ADD_SERVER, Member(joining.uuid, MemberType.PRE_VOTER, joining.address)
    )
    return joining


def test_the_anchor_passes_to_the_leader_when_the_new_replica_answers(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(size=2, members=1)
        joining = await with_pre_voter(rig)
        await rig.group.wait_until(lambda: rig.sessions.handovers == 1)
        (anchor,) = rig.replica.log.anchors
        needed = anchor.index
        for key in range(100, 110):
            await rig.write_and_flush(key)
            if rig.sessions.handovers:
                assert rig.replica.log.first_index <= needed
        await rig.group.wait_until(lambda: rig.sessions.handovers == 0)
        assert rig.replica.log.anchors.lowest() is None
        await rig.group.settle(rig.tablet_id)
        joined = joining.manager.replica(rig.tablet_id)
        assert rows_of(joined) == rows_of(rig.replica)
        assert len(rig.host.manager.context.copies.copies()) == 1, "it was copied once"
        await rig.group.stop()

    simulate(main())


def test_the_log_is_kept_for_a_bounded_time_for_a_new_replica_that_never_answers(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(size=2, members=1)
        joining = await with_pre_voter(rig)
        await rig.group.wait_until(lambda: rig.sessions.handovers == 1)
        ended = asyncio.get_running_loop().time()
        await joining.crash()
        await asyncio.sleep(15)
        assert rig.sessions.handovers == 1
        await rig.group.wait_until(lambda: rig.sessions.handovers == 0)
        assert asyncio.get_running_loop().time() - ended == pytest.approx(20, abs=1)
        assert rig.replica.log.anchors.lowest() is None
        await rig.group.stop()

    simulate(main())


def test_a_copy_ends_as_a_voter_although_another_replica_leads_by_then(simulate: Simulate):
    """The source anchored its log. The others kept theirs too, since any of them might lead."""

    async def main() -> None:
        options = replace(OPTIONS, copy=replace(COPY, bytes_per_s=20_000, burst_bytes=1000, chunk_bytes=1 << 10))
        group = ReplicaGroup(size=4, options=options)
        await group.start()
        voters, joining = group.hosts[:3], group.hosts[3]
        new = replace(group.new_tablet(), config=RaftConfig(0, tuple(host.member for host in voters)))
        replicas = [await host.manager.create_tablet(new) for host in voters]

        async def write_and_flush(first: int) -> TabletReplica:
            leader = await group.leader(new.tablet_id, voters)
            for key in range(first, first + 100, 10):
                await leader.write_batch(batch_of([(key + i, key, "x" * 500) for i in range(10)]))
            for replica in replicas:
                await group.wait_until(lambda replica=replica: replica.applied == leader.applied)
                await replica.checkpointer.flush()
            return leader

        source = await write_and_flush(0)
        added = Member(joining.uuid, MemberType.PRE_VOTER, joining.address, promote=True)
        await source.consensus.change_config(ConfigChange.ADD_SERVER, added)
        await group.wait_until(
            lambda: [replica.state for replica in joining.manager.replicas()] == [ReplicaState.COPYING]
        )
        await write_and_flush(100)
        await source.consensus.leader_step_down()
        await group.wait_until(lambda: not source.is_leader)
        leader = await write_and_flush(200)
        assert leader is not source
        assert [replica.state for replica in joining.manager.replicas()] == [ReplicaState.COPYING], "it was fast enough"
        await group.wait_until(lambda: joining.uuid in leader.consensus.committed_config.voters)
        await group.settle(new.tablet_id)
        assert rows_of(joining.manager.replica(new.tablet_id)) == rows_of(leader)
        assert [copy.state for copy in joining.manager.context.copies.copies()] == [CopyState.SUCCEEDED]
        kept = leader.log.first_index
        await write_and_flush(300)
        assert leader.log.first_index > kept, "nobody is awaited any more"
        await group.stop()

    simulate(main())


def test_the_log_is_kept_once_for_who_copies_again_and_again(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(size=2, members=1)
        joining = await with_pre_voter(rig)
        await rig.group.wait_until(lambda: rig.sessions.handovers == 1)
        await joining.crash()
        for key in range(100, 105):
            await rig.write(key)
            begun = await rig.begin(joining.uuid)
            rig.sessions.end(begun.session_id, succeeded=True)
        assert rig.sessions.handovers == 1
        (anchor,) = rig.replica.log.anchors
        assert anchor.index == rig.replica.consensus.last_op_id.index, "of the latest copy"
        await rig.group.wait_until(lambda: rig.sessions.handovers == 0)
        assert rig.replica.log.anchors.lowest() is None
        await rig.group.stop()

    simulate(main())


def test_the_log_is_let_go_when_the_new_member_is_removed(simulate: Simulate):
    async def main() -> None:
        rig = await Rig.start(size=2, members=1)
        joining = await with_pre_voter(rig)
        await rig.group.wait_until(lambda: rig.sessions.handovers == 1)
        await joining.crash()
        await rig.replica.consensus.change_config(
            ConfigChange.REMOVE_SERVER, Member(joining.uuid, MemberType.PRE_VOTER, joining.address)
        )
        await asyncio.sleep(1)
        assert rig.sessions.handovers == 0
        await rig.group.stop()

    simulate(main())
