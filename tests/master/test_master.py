"""Whole masters on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import SYS_CATALOG_TABLET_ID
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.pb import common_pb2, consensus_pb2, master_pb2, tserver_admin_pb2
from kudu_py.tablet import quarantine


def state(node):
    return node.process.committer.require_reign().state


async def loaded(node):
    return await node.process.sys_catalog.load()


async def refused(awaitable, code) -> KuduError:
    with pytest.raises(KuduError) as caught:
        await awaitable
    assert caught.value.code is code, caught.value
    return caught.value


async def is_done(world, name):
    request = master_pb2.IsCreateTableDoneRequest(table_name=name)
    return (await world.call(await world.reigning(), "IsCreateTableDone", request)).done


async def until_done(world, name):
    while not await is_done(world, name):  # noqa: ASYNC110  # the master tells nobody
        await asyncio.sleep(0.1)


def test_the_first_leader_mints_the_cluster_id_and_it_stays(simulate):
    async def story(world):
        first = state(world.master).cluster
        assert first is not None
        await world.master.stop()
        await world.master.restart()
        await world.reigning()
        assert state(world.master).cluster == first

    simulate(story)


def test_a_table_is_created_nudged_and_runs(simulate):
    async def story(world):
        table_id = await world.create("flights", buckets=4)
        assert not await is_done(world, "flights")
        await until_done(world, "flights")
        answer = await world.call(
            world.master, "GetTableLocations", master_pb2.GetTableLocationsRequest(table_id=table_id)
        )
        assert [list(t.partition.hash_buckets) for t in answer.tablet_locations] == [[0], [1], [2], [3]]
        for tablet in answer.tablet_locations:
            roles = sorted(consensus_pb2.Role.Name(replica.role) for replica in tablet.replicas)
            assert roles == ["FOLLOWER", "FOLLOWER", "LEADER"]
            assert all(replica.rpc_address.startswith("tserver-") for replica in tablet.replicas)
        statistics = await world.call(
            world.master, "GetTableStatistics", master_pb2.GetTableStatisticsRequest(table_name="flights")
        )
        assert (statistics.live_row_count, statistics.on_disk_size_bytes) == (40, 1200)

    simulate(story)


def test_clients_are_not_told_where_a_tablet_is_that_may_yet_be_replaced(simulate):
    async def story(world):
        await world.create("t")
        answer = await world.call(
            world.master, "GetTableLocations", master_pb2.GetTableLocationsRequest(table_name="t")
        )
        assert [(t.state, len(t.replicas)) for t in answer.tablet_locations] == [(master_pb2.CREATING, 0)] * 2

    simulate(story, beats=True)


def test_everything_acknowledged_survives_a_power_cut(simulate):
    async def story(world):
        for n in range(3):
            await world.create(f"t{n}")
        await until_done(world, "t0")
        await world.call(world.master, "DeleteTable", master_pb2.DeleteTableRequest(table_name="t1"))
        await world.master.crash()
        await world.master.restart()
        await world.reigning()
        assert sorted(state(world.master).ids_by_name) == ["t0", "t2"]
        await until_done(world, "t2")
        assert await is_done(world, "t0"), "that it ran was replicated too"

    simulate(story)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_published_is_what_a_reload_finds(simulate, seed):
    async def story(world):
        for n in range(4):
            await world.create(f"t{n}", num_replicas=1 if n % 2 else 3)
        await until_done(world, "t3")
        await world.call(world.master, "DeleteTable", master_pb2.DeleteTableRequest(table_name="t2"))
        await asyncio.sleep(3)
        assert await loaded(world.master) == state(world.master)

    simulate(story, seed=seed, servers=4)


def test_a_deleted_table_is_gone_at_once_and_its_replicas_soon(simulate):
    async def story(world):
        table_id = await world.create("t")
        await until_done(world, "t")
        request = master_pb2.DeleteTableRequest(table_name="t")
        await world.call(world.master, "DeleteTable", request)
        error = await refused(world.call(world.master, "DeleteTable", request), ErrorCode.TABLE_NOT_FOUND)
        assert "'t'" in error.message
        await world.wait_until(
            lambda: all(replica.data_state == 2 for server in world.servers for replica in server.replicas.values())
        )
        assert await world.create("t") != table_id

    simulate(story)


def test_a_deletion_that_a_server_refuses_is_repeated_until_it_is_reported(simulate):
    async def story(world):
        await world.create("t", buckets=0)
        await until_done(world, "t")
        busy = KuduError(ErrorCode.SERVER_TOO_BUSY, "no", verdict=Verdict.TRY_LATER)
        for server in world.servers:
            server.refusals += [busy] * 3
        await world.call(world.master, "DeleteTable", master_pb2.DeleteTableRequest(table_name="t"))
        await world.wait_until(
            lambda: all(replica.data_state == 2 for server in world.servers for replica in server.replicas.values())
        )
        await asyncio.sleep(30)
        for server in world.servers:
            deletions = [c for c in server.calls if isinstance(c, tserver_admin_pb2.DeleteTabletRequest)]
            assert len(deletions) == 4, "three refused, one done, and none after it was reported"

    simulate(story)


def test_a_deletion_is_carried_on_by_the_next_process(simulate):
    """KUDU-1374: what a report set off and the leader did not live to do."""

    async def story(world):
        await world.create("t", buckets=0)
        await until_done(world, "t")
        for server in world.servers:
            server.refusals += [KuduError(ErrorCode.SERVER_TOO_BUSY, "no", verdict=Verdict.TRY_LATER)] * 2
        await world.call(world.master, "DeleteTable", master_pb2.DeleteTableRequest(table_name="t"))
        await world.master.crash()
        await world.master.restart()
        await world.wait_until(
            lambda: all(replica.data_state == 2 for server in world.servers for replica in server.replicas.values())
        )

    simulate(story)


def test_a_replica_without_a_record_is_never_deleted(simulate):
    async def story(world):
        stranger, server = "f" * 32, world.servers[0]
        config = consensus_pb2.RaftConfig(members=[consensus_pb2.Member(uuid=server.uuid, member_type="VOTER")])
        server.replicas[stranger] = server.report_of(stranger, config)
        await asyncio.sleep(30)
        assert server.calls == []

    simulate(story)


def test_a_replica_outside_the_committed_config_is_deleted_by_compare_and_set(simulate):
    async def story(world):
        await world.create("t", buckets=0)
        await until_done(world, "t")
        outsider = world.servers[2]
        (tablet_id,) = outsider.replicas
        config = consensus_pb2.RaftConfig(
            config_index=7,
            members=[m for m in outsider.replicas[tablet_id].consensus_state.committed_config.members
                     if m.uuid != outsider.uuid],
        )  # fmt: skip
        for server in world.servers[:2]:
            server.replicas[tablet_id] = server.report_of(tablet_id, config)
        await world.wait_until(lambda: outsider.replicas[tablet_id].data_state == 2)
        (deletion,) = [c for c in outsider.calls if isinstance(c, tserver_admin_pb2.DeleteTabletRequest)]
        assert deletion.expected_config_index_max == 7
        assert state(world.master).tablets[tablet_id].config.config_index == 7

    simulate(story)


def test_a_tablet_that_does_not_begin_to_run_is_replaced_elsewhere(simulate):
    async def story(world):
        dead = world.servers[:3]
        for server in dead:
            server.refusals += [KuduError(ErrorCode.IO_ERROR, "no")] * 1000
        while not any(
            set(dead) >= {s for s in world.servers if s.uuid in {m.uuid for m in t.config.members}}
            for t in state(world.master).tablets.values()
        ):
            await world.create(f"t{len(state(world.master).tables)}", buckets=3)
        for name in sorted(state(world.master).ids_by_name):
            await until_done(world, name)
        now = state(world.master)
        replaced = [t for t in now.tablets.values() if t.state.value == "REPLACED"]
        assert replaced
        assert await loaded(world.master) == now

    simulate(story, servers=6, options=CatalogOptions(tablet_creation_timeout_s=3.0))


def test_creation_is_asked_again_until_it_is_reported_and_never_after(simulate):
    async def story(world):
        lost = KuduError(ErrorCode.SERVER_TOO_BUSY, "no", verdict=Verdict.TRY_LATER)
        world.servers[0].refusals += [lost] * 4
        await world.create("t", buckets=0)
        await world.wait_until(lambda: world.servers[0].replicas)
        await asyncio.sleep(30)
        assert [len(server.calls) for server in world.servers] == [5, 1, 1]
        # It votes, then loses its files without a trace: a new, empty replica could vote again in the same term.
        world.servers[0].replicas.clear()
        await asyncio.sleep(30)
        assert len(world.servers[0].calls) == 5

    simulate(story)


def test_a_replication_that_fails_changes_nothing_that_is_visible(simulate):
    async def story(world):
        master = world.master
        before = state(master)
        assert master.threads is not None
        master.threads.hang()
        creation = asyncio.create_task(world.create("t"))
        await asyncio.sleep(5)
        assert state(master) is before
        listed = await world.call(master, "ListTables", master_pb2.ListTablesRequest())
        assert list(listed.tables) == []
        await refused(world.call(master, "GetTableSchema", master_pb2.GetTableSchemaRequest(table_name="t")),
                      ErrorCode.TABLE_NOT_FOUND)  # fmt: skip
        master.threads.release()
        await creation
        assert list(state(master).ids_by_name) == ["t"]

    simulate(story)


def test_after_an_unknown_outcome_the_catalog_is_read_again(simulate):
    async def story(world):
        master = world.master
        assert master.threads is not None
        master.threads.hang()
        request_timeout_s = 200.0
        creation = asyncio.create_task(
            world.call(
                master,
                "CreateTable",
                master_pb2.CreateTableRequest(
                    name="t",
                    schema=common_pb2.Schema(
                        columns=[common_pb2.ColumnSchema(name="key", type=common_pb2.INT64)], key_count=1
                    ),
                    num_replicas=1,
                ),
                timeout_s=request_timeout_s,
            )
        )
        await asyncio.sleep(90)
        with pytest.raises(KuduError) as caught:
            await creation
        assert caught.value.verdict is Verdict.UNKNOWN
        await refused(
            world.call(master, "ListTables", master_pb2.ListTablesRequest()), ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED
        )
        master.threads.release()
        await world.reigning()
        assert list(state(master).ids_by_name) == ["t"], "it did take effect"

    simulate(story)


def test_a_table_entry_larger_than_a_cell_survives(simulate):
    async def story(world):
        columns = [common_pb2.ColumnSchema(name="key", type=common_pb2.INT64)] + [
            common_pb2.ColumnSchema(
                name=f"{n:03d}" + "n" * 250, type=common_pb2.STRING, nullable=True, comment="c" * 250
            )
            for n in range(299)
        ]
        await world.create("wide", schema=common_pb2.Schema(columns=columns, key_count=1))
        before = state(world.master)
        await world.master.crash()
        await world.master.restart()
        await world.reigning()
        assert state(world.master).table_by_name("wide") == before.table_by_name("wide")

    simulate(story)


def test_a_change_above_the_limit_is_refused_whole(simulate):
    async def story(world):
        columns = [common_pb2.ColumnSchema(name="key", type=common_pb2.INT64)] + [
            common_pb2.ColumnSchema(
                name=f"c{n}", type=common_pb2.STRING, default_value=common_pb2.Value(string_value="d" * 65536)
            )
            for n in range(200)
        ]
        error = await refused(
            world.create("wide", schema=common_pb2.Schema(columns=columns, key_count=1)), ErrorCode.INVALID_ARGUMENT
        )
        assert "limit" in error.message
        assert state(world.master).ids_by_name == {}

    simulate(story)


def test_heartbeats_ask_for_what_is_missing(simulate):
    async def story(world):
        server, master = world.servers[0], world.master
        server.registers = False
        answer = await server.heartbeat(master)
        assert (answer.needs_reregister, answer.is_leader) == (True, True)
        server.registers = True
        answer = await server.heartbeat(master, full=False)
        assert (answer.needs_reregister, answer.needs_full_tablet_report) == (False, True)
        assert answer.tablet_report_sequence == 0
        answer = await server.heartbeat(master, full=True)
        assert (answer.needs_full_tablet_report, answer.tablet_report_sequence) == (False, server.sequence)
        server.registers = False
        answer = await server.heartbeat(master, full=False)
        assert (answer.needs_full_tablet_report, answer.tablet_report_sequence) == (False, server.sequence)
        server.sequence += 1
        answer = await server.heartbeat(master, full=False)
        assert (answer.needs_full_tablet_report, answer.tablet_report_sequence) == (False, 0)

    simulate(story, servers=1, beats=False)


def test_an_older_process_of_a_server_is_refused(simulate):
    async def story(world):
        server = world.servers[0]
        server.instance = 5
        await server.heartbeat(world.master)
        server.instance = 4
        await refused(server.heartbeat(world.master), ErrorCode.ALREADY_PRESENT)

    simulate(story, servers=1, beats=False)


def test_a_silent_server_is_shown_as_dead(simulate):
    async def story(world):
        async def states():
            answer = await world.call(world.master, "ListTabletServers", master_pb2.ListTabletServersRequest())
            return {server.uuid: server.state for server in answer.servers}

        away = world.servers.pop()
        assert (await states())[away.uuid] == master_pb2.LIVE
        await asyncio.sleep(62)
        assert (await states())[away.uuid] == master_pb2.DEAD
        error = await refused(world.create("t"), ErrorCode.REPLICATION_FACTOR_TOO_HIGH)
        assert "2 are live" in error.message

    simulate(story)


def test_a_master_that_has_just_started_answers_try_later(simulate):
    """KUDU-1358."""

    async def story(world):
        error = await refused(world.create("t"), ErrorCode.UNAVAILABLE)
        assert error.verdict is Verdict.TRY_LATER
        await asyncio.sleep(2.1)
        await refused(world.create("t"), ErrorCode.REPLICATION_FACTOR_TOO_HIGH)

    simulate(story, servers=0, beats=False)


def test_two_creations_of_one_name_give_one_table(simulate):
    async def story(world):
        results = await asyncio.gather(*(world.create("t") for _ in range(4)), return_exceptions=True)
        ids = [result for result in results if isinstance(result, str)]
        assert len(ids) == 1
        errors = [result for result in results if isinstance(result, KuduError)]
        assert {(e.code, e.details["table_id"]) for e in errors} == {(ErrorCode.TABLE_ALREADY_PRESENT, ids[0])}

    simulate(story)


class TestSeveralMasters:
    def test_all_come_to_one_config_and_one_leads(self, simulate):
        async def story(world):
            leader = await world.reigning()
            answer = await world.call(leader, "ListMasters", master_pb2.ListMastersRequest())
            assert {master.uuid for master in answer.masters} == {node.uuid for node in world.masters}
            assert sorted(master.role for master in answer.masters) == [
                consensus_pb2.FOLLOWER,
                consensus_pb2.FOLLOWER,
                consensus_pb2.LEADER,
            ]

        simulate(story, masters=3)

    def test_a_follower_names_the_leader(self, simulate):
        async def story(world):
            leader = await world.reigning()
            for node in world.masters:
                if node is not leader:
                    error = await refused(
                        world.call(node, "ListTables", master_pb2.ListTablesRequest()), ErrorCode.NOT_THE_LEADER
                    )
                    assert error.details["leader_address"] == leader.address
                    said = await world.call(node, "GetMasterRegistration", master_pb2.GetMasterRegistrationRequest())
                    assert said.leader_address == leader.address

        simulate(story, masters=3)

    def test_the_next_leader_has_every_acknowledged_change_and_finishes_the_work(self, simulate):
        async def story(world):
            names = []
            for n in range(3):
                names.append(f"t{n}")
                await world.create(names[-1])
                leader = await world.reigning()
                await leader.crash()
                await world.reigning()
                await leader.restart()
                await world.wait_until(lambda leader=leader: len(leader.process.registry.servers) == 3)
            for name in names:
                await until_done(world, name)
            node = await world.reigning()
            assert sorted(state(node).ids_by_name) == names
            assert await loaded(node) == state(node)

        simulate(story, masters=3)

    def test_followers_are_never_cold(self, simulate):
        """Heartbeats go to all masters, so that the next leader can place tablets at once."""

        async def story(world):
            await (await world.reigning()).crash()
            assert await world.create("t")

        simulate(story, masters=3)

    def test_a_leader_that_was_cut_off_gives_no_old_answers(self, simulate):
        async def story(world):
            old = await world.reigning()
            world.network.cut(old.address, next(n for n in world.masters if n is not old).address)
            for node in world.masters:
                if node is not old:
                    world.network.cut(old.address, node.address)
            request = master_pb2.ListTablesRequest()
            stale = asyncio.create_task(world.call(old, "ListTables", request, timeout_s=30.0))
            await world.wait_until(lambda: any(n is not old and n.process.committer.reign for n in world.masters))
            node = await world.reigning()
            assert node is not old
            await world.call(
                node,
                "CreateTable",
                master_pb2.CreateTableRequest(
                    name="new",
                    schema=common_pb2.Schema(
                        columns=[common_pb2.ColumnSchema(name="key", type=common_pb2.INT64)], key_count=1
                    ),
                ),
            )
            with pytest.raises(KuduError):
                await stale
            world.network.heal()

        simulate(story, masters=3)

    def test_addresses_that_do_not_name_this_master_are_refused(self, simulate):
        async def story(world):
            other = world.add_master("stranger:7051", (world.master.address,))
            with pytest.raises(KuduError, match="--master_addresses must name each master once"):
                await other.start()
            await other.process.stop()
            world.masters.remove(other)

        simulate(story, servers=0, beats=False)


def test_checkpoints_and_compactions_keep_everything(simulate):
    async def story(world):
        for n in range(6):
            await world.create(f"t{n}")
            await until_done(world, f"t{n}")
            if n % 2:
                await world.call(world.master, "DeleteTable", master_pb2.DeleteTableRequest(table_name=f"t{n}"))
            replica = world.master.process.manager.replica("0" * 32)
            assert await replica.checkpointer.flush()
            await replica.checkpointer.compact()
        before = state(world.master)
        await world.master.crash()
        await world.master.restart()
        await world.reigning()
        assert state(world.master) == before

    simulate(story)


def test_the_log_of_the_sys_catalog_is_kept_small_by_itself(simulate, monkeypatch):
    monkeypatch.setattr("kudu_py.master.sys_catalog._FLUSH_BYTES", 1 << 12)

    async def story(world):
        for n in range(10):
            await world.create(f"t{n}", buckets=4)
        await asyncio.sleep(25)
        replica = world.master.process.manager.replica("0" * 32)
        assert replica.superblock.checkpoint.index > 10

    simulate(story)


def test_what_waits_in_a_masters_quarantine_goes_in_time(simulate):
    async def story(world):
        context = world.master.process.manager.context
        disk, directories = context.threads.disk, context.directories
        quarantine.open_directory(disk, directories, SYS_CATALOG_TABLET_ID, quarantine.QuarantineKind.DELETED, 0)
        await asyncio.sleep(40)
        assert quarantine.entries(disk, directories) == []

    simulate(story)


def damage():
    return KuduError(ErrorCode.CORRUPTION, "file 7.rows is damaged")


@pytest.mark.parametrize("found_by", ["a read", "the upkeep"])
def test_a_master_whose_catalog_turns_out_damaged_ends_and_names_the_damage(simulate, found_by):
    async def story(world):
        from kudu_py.master.pages import MasterPages

        await world.create("t1")
        master = world.master.process
        replica = master.manager.replica("0" * 32)
        if found_by == "a read":
            replica.fail(damage())
        else:

            async def compact():
                raise damage()

            replica.checkpointer.compact = compact
        await asyncio.sleep(11.0)
        (reason,) = world.master.fatal
        assert reason.code is ErrorCode.TABLET_FAILED
        assert "file 7.rows is damaged" in reason.message
        health = MasterPages(master, world.master.clock).health()
        assert (health.ok, health.status) == (False, "FAILED")
        assert "file 7.rows is damaged" in health.facts["reason"]
        world.master.fatal.clear()

    simulate(story)


def test_old_entries_of_the_catalog_are_flushed_as_a_tablet_servers_rows_are(simulate):
    async def story(world):
        replica = world.master.process.manager.replica("0" * 32)
        columns = [common_pb2.ColumnSchema(name="key", type=common_pb2.INT64)] + [
            common_pb2.ColumnSchema(name=f"c{n}", type=common_pb2.INT64, nullable=True, comment="c" * 250)
            for n in range(299)
        ]
        for n in range(20):
            await world.create(f"t{n}", schema=common_pb2.Schema(columns=columns, key_count=1))
        assert replica.tablet.unflushed_bytes > 1 << 20
        await asyncio.sleep(100.0)
        assert replica.superblock.checkpoint.index == 0
        await asyncio.sleep(40.0)
        assert replica.superblock.checkpoint.index > 0

    simulate(story)


def test_the_page_of_a_table_says_what_the_table_is(simulate):
    async def story(world):
        from kudu_py.master.pages import MasterPages

        await world.create("metrics", buckets=2)
        pages = MasterPages(world.master.process, world.master.clock)
        sections = {section.title: section for section in pages.table({"name": "metrics"})}
        rows = {title: [dict(zip(s.columns, row, strict=True)) for row in s.rows] for title, s in sections.items()}
        (table,) = rows["Table"]
        assert (table["name"], table["replication"]) == ("metrics", 3)
        assert table["partitioning"].startswith("HASH (")
        assert table["partitioning"].endswith(") PARTITIONS 2")
        assert rows["Columns"][0]["in_primary_key"] is True
        assert len(rows["Tablets"]) == 2

    simulate(story)
