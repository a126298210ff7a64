"""Heartbeats: to every master, with reports that neither lose a change nor wait for the next beat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, mint_id
from kudu_py.pb import consensus_pb2, master_pb2, tserver_pb2
from kudu_py.pb.master_pb2_grpc import MasterServiceServicer, add_MasterServiceServicer_to_server
from kudu_py.testing.sim_network import SimNetwork, SimServer
from kudu_py.testing.waiting import wait_until

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


class ScriptedMaster(MasterServiceServicer):
    """A master that remembers heartbeats and answers as it is told.

    Attributes:
        is_leader: what it says of itself.
        takes_reports: whether it says that it took a report in.
        wants_full, wants_registration: asked for with the next answer, once.
        error: raised instead of an answer.
    """

    def __init__(self, network: SimNetwork, address: str) -> None:
        self.uuid = ServerId(mint_id(network.rng))
        self.address = address
        self.network = network
        self.heartbeats: list[master_pb2.TSHeartbeatRequest] = []
        self.times: list[float] = []
        self.is_leader = True
        self.takes_reports = True
        self.wants_full = False
        self.wants_registration = False
        self.error: KuduError | None = None

    async def start(self) -> None:
        server: SimServer = self.network.server(self.address, self.uuid)
        server.add(add_MasterServiceServicer_to_server, self, checks_dest_uuid=False)
        await server.start()

    async def TSHeartbeat(self, request: master_pb2.TSHeartbeatRequest, context: Any) -> master_pb2.TSHeartbeatResponse:
        self.heartbeats.append(request)
        self.times.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error
        answer = master_pb2.TSHeartbeatResponse(
            master_uuid=self.uuid,
            is_leader=self.is_leader,
            needs_full_tablet_report=self.wants_full,
            needs_reregister=self.wants_registration,
        )
        self.wants_full = self.wants_registration = False
        if self.is_leader and self.takes_reports and request.HasField("tablet_report"):
            answer.tablet_report_sequence = request.tablet_report.sequence
        return answer

    def reports(self) -> list[master_pb2.TabletReport]:
        return [beat.tablet_report for beat in self.heartbeats if beat.HasField("tablet_report")]


ADDRESSES = ("master-0:7051", "master-1:7051")


async def masters_of(servers: Any, count: int = 1) -> list[ScriptedMaster]:
    masters = [ScriptedMaster(servers.network, address) for address in ADDRESSES[:count]]
    for master in masters:
        await master.start()
    return masters


def test_the_first_heartbeat_registers_and_reports_in_full(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            tablet_id = await servers.create()
            (master,) = await masters_of(servers)
            await wait_until(lambda: bool(master.reports()))
            first = master.heartbeats[0]
            assert first.ts_uuid == servers.servers[0].uuid
            assert first.registration.rpc_address == servers.servers[0].address
            assert first.instance_sequence > 0
            assert not first.tablet_report.is_incremental
            assert [tablet.tablet_id for tablet in first.tablet_report.updated_tablets] == [tablet_id]
            await wait_until(lambda: len(master.heartbeats) > 2)
            assert not master.heartbeats[-1].HasField("registration")

    simulate(main())


def test_changes_do_not_pile_up_for_a_master_that_is_gone(simulate: Simulate, serving: Any):
    """Whoever orders copies of tablets that nobody has makes news of as many tablets as there are names."""

    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            tablet_id = await servers.create()
            heartbeater = servers.servers[0].tablet_server.heartbeater
            for _ in range(100):
                heartbeater.note_changed(mint_id(servers.network.rng))
                await asyncio.sleep(1.0)
            (beats,) = heartbeater.masters
            assert beats.failures > 3
            assert len(beats._changed) < 5
            (master,) = await masters_of(servers)
            await wait_until(lambda: bool(master.reports()))
            assert [tablet.tablet_id for tablet in master.reports()[0].updated_tablets] == [tablet_id]

    simulate(main())


def test_a_new_leader_is_reported_at_once(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            await wait_until(lambda: len(master.heartbeats) > 1)
            tablet_id = await servers.create()
            elected = asyncio.get_running_loop().time()

            def leads() -> bool:
                return any(
                    tablet.tablet_id == tablet_id and tablet.consensus_state.role == consensus_pb2.LEADER
                    for report in master.reports()
                    for tablet in report.updated_tablets
                )

            await wait_until(leads)
            assert asyncio.get_running_loop().time() - elected < 0.05
            last = master.reports()[-1]
            assert last.is_incremental
            (tablet,) = last.updated_tablets
            assert tablet.state == tserver_pb2.RUNNING
            assert tablet.consensus_state.leader_uuid == servers.servers[0].uuid

    simulate(main())


def test_without_news_heartbeats_come_at_their_interval_and_carry_no_report(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            await servers.create()
            await asyncio.sleep(10.0)
            seen = len(master.heartbeats)
            await asyncio.sleep(20.0)
            assert 18 <= len(master.heartbeats) - seen <= 21
            assert not any(beat.HasField("tablet_report") for beat in master.heartbeats[seen:])

    simulate(main())


def test_a_report_that_was_not_taken_in_is_repeated_under_its_number(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            await wait_until(lambda: len(master.heartbeats) > 1)
            taken = master.reports()[-1].sequence
            master.takes_reports = False
            tablet_id = await servers.create()
            await wait_until(lambda: len(master.reports()) > 3)
            unheard = [report for report in master.reports() if report.sequence > taken]
            assert {report.sequence for report in unheard} == {taken + 1}
            master.takes_reports = True
            seen = len(master.reports())
            await wait_until(lambda: len(master.reports()) > seen)
            assert [tablet.tablet_id for tablet in master.reports()[seen].updated_tablets] == [tablet_id]
            await servers.servers[0].tablet_server.manager.delete_tablet(tablet_id)
            await wait_until(
                lambda: any(
                    tablet.data_state == tserver_pb2.DELETED and report.sequence > taken + 1
                    for report in master.reports()
                    for tablet in report.updated_tablets
                )
            )

    simulate(main())


def test_a_master_that_asks_gets_registration_and_full_report(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            await servers.create()
            await asyncio.sleep(3.0)
            seen = len(master.heartbeats)
            master.wants_full = master.wants_registration = True
            await wait_until(lambda: len(master.heartbeats) > seen + 1)
            asked = master.heartbeats[seen + 1]
            assert asked.HasField("registration")
            assert not asked.tablet_report.is_incremental
            assert len(asked.tablet_report.updated_tablets) == 1
            assert master.times[seen + 1] - master.times[seen] < 0.1

    simulate(main())


def test_followers_hear_that_the_server_lives_and_a_new_leader_gets_everything(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES) as servers:
            leader, follower = await masters_of(servers, 2)
            follower.is_leader = False
            await servers.create()
            await asyncio.sleep(3.0)
            assert len(follower.heartbeats) > 2
            assert not any(beat.HasField("tablet_report") for beat in follower.heartbeats[1:])
            leader.is_leader, follower.is_leader = False, True
            seen = len(follower.reports())
            await wait_until(lambda: len(follower.reports()) > seen)
            report = follower.reports()[seen]
            assert not report.is_incremental
            assert len(report.updated_tablets) == 1

    simulate(main())


def test_a_master_that_is_away_is_called_again_and_told_everything(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            await servers.create()
            await asyncio.sleep(2.0)
            servers.network.kill(master.address)
            await asyncio.sleep(30.0)
            seen = len(master.heartbeats)
            await master.start()
            await wait_until(lambda: len(master.heartbeats) > seen)
            await wait_until(
                lambda: any(
                    not beat.tablet_report.is_incremental and beat.HasField("tablet_report")
                    for beat in master.heartbeats[seen:]
                )
            )
            assert servers.servers[0].fatal == []

    simulate(main())


def test_an_older_process_of_the_same_server_ends(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(masters=ADDRESSES[:1]) as servers:
            master = ScriptedMaster(servers.network, ADDRESSES[0])
            master.error = KuduError(ErrorCode.ALREADY_PRESENT, "a later process has been heard of")
            await master.start()
            server = servers.servers[0]
            await wait_until(lambda: bool(server.fatal))
            assert isinstance(server.fatal[0], KuduError)
            server.fatal.clear()

    simulate(main())


def test_row_counts_of_leaders_are_reported_now_and_then(simulate: Simulate, serving: Any):
    async def main() -> None:
        from kudu_py.testing.replica_group import batch_of, request_of

        async with serving(masters=ADDRESSES[:1]) as servers:
            (master,) = await masters_of(servers)
            tablet_id = await servers.create()
            await servers.stub().Write(request_of(tablet_id, batch_of([(key, key, None) for key in range(77)])))
            await wait_until(
                lambda: any(t.row_count == 77 for report in master.reports() for t in report.updated_tablets)
            )

    simulate(main())
