"""Creating, deleting and replacing, as functions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.partition import HashLevel, PartitionSchema, RangePartition
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.master.catalog.entries import TableState, TabletState
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers, plan_delete_table, plan_replace_tablets


def refused(plan, request, code, **given) -> KuduError:
    with pytest.raises(KuduError) as caught:
        plan(request, **given)
    assert caught.value.code is code
    return caught.value


def test_a_table_and_all_its_tablets_are_one_change(make, plan):
    change = plan(make.new_table(buckets=4))
    (table,) = change.tables
    assert len(change.tablets) == 4
    assert {tablet.table_id for tablet in change.tablets} == {table.table_id}
    assert table.state is TableState.RUNNING
    assert all(tablet.state is TabletState.CREATING and tablet.config.config_index == 0 for tablet in change.tablets)


def test_columns_get_ids_and_the_next_id_is_above_all(make, plan):
    (table,) = plan(make.new_table()).tables
    assert [column.column_id for column in table.schema.columns] == [0, 1]
    assert table.next_column_id == 2


def test_ids_sent_by_the_caller_are_not_trusted(make, plan):
    request = make.new_table()
    columns = tuple(replace(column, column_id=77) for column in request.schema.columns)
    (table,) = plan(replace(request, schema=Schema(columns, 1, version=9))).tables
    assert [column.column_id for column in table.schema.columns] == [0, 1]
    assert table.schema.version == 0


def test_the_same_seed_gives_the_same_plan(make, plan):
    request = make.new_table(buckets=8)
    assert plan(request, rng=random.Random(3)) == plan(request, rng=random.Random(3))
    assert plan(request, rng=random.Random(3)) != plan(request, rng=random.Random(4))


def test_hash_levels_and_ranges_multiply(make, plan):
    request = replace(
        make.new_table(buckets=3),
        partition_schema=PartitionSchema((HashLevel(("key",), 3),), ("key",)),
        ranges=(RangePartition(None, (0,)), RangePartition((0,), None)),
    )
    change = plan(request)
    assert len({tablet.partition for tablet in change.tablets}) == 6


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b"])
def test_a_table_name_has_1_to_256_bytes_and_no_nul(make, plan, name):
    refused(plan, make.new_table(name), ErrorCode.INVALID_ARGUMENT)


def test_a_name_in_use_is_refused_and_named(make, plan):
    state, change = make.created(CatalogState(), make.new_table("taken"))
    error = refused(plan, make.new_table("taken"), ErrorCode.TABLE_ALREADY_PRESENT, state=state)
    assert "taken" in error.message
    assert error.details["table_id"] == change.tables[0].table_id


def test_the_name_of_a_deleted_table_can_be_used_again(make, plan):
    state, change = make.created(CatalogState(), make.new_table("again"))
    state = state.applying(plan_delete_table(state, change.tables[0].table_id, note="gone"))
    (table,) = plan(make.new_table("again"), state=state).tables
    assert table.table_id != change.tables[0].table_id


def test_an_invalid_schema_is_refused(make, plan):
    columns = (ColumnSchema("key", DataType.DOUBLE),)
    refused(plan, replace(make.new_table(buckets=0), schema=Schema(columns, 1)), ErrorCode.INVALID_SCHEMA)


def test_an_invalid_partition_schema_is_refused(make, plan):
    request = replace(make.new_table(), partition_schema=PartitionSchema((HashLevel(("value",), 2),)))
    refused(plan, request, ErrorCode.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    ("num_replicas", "code"),
    [
        (2, ErrorCode.EVEN_REPLICATION_FACTOR),
        (9, ErrorCode.ILLEGAL_REPLICATION_FACTOR),
        (5, ErrorCode.REPLICATION_FACTOR_TOO_HIGH),
    ],
)
def test_a_replication_factor_that_cannot_be_is_refused(make, plan, num_replicas, code):
    refused(plan, make.new_table(num_replicas=num_replicas), code)


def test_too_few_servers_are_named_with_both_numbers(make, plan):
    error = refused(plan, make.new_table(num_replicas=5), ErrorCode.REPLICATION_FACTOR_TOO_HIGH)
    assert "replication factor of 5" in error.message
    assert "3 are live" in error.message
    assert all(candidate.uuid in error.message for candidate in make.candidates(3))


def test_no_factor_means_the_default(make, plan):
    assert plan(make.new_table(num_replicas=0)).tables[0].num_replicas == 3


def test_a_cluster_of_one_server_defaults_to_one_replica(make, plan):
    change = plan(make.new_table(num_replicas=0), servers=make.servers(1))
    assert change.tables[0].num_replicas == 1


def test_a_dead_server_does_not_lower_the_default(make, plan):
    three = make.servers(3)
    refused(
        plan,
        make.new_table(num_replicas=0),
        ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
        servers=Servers(three.live[:1], three.known),
    )


def test_a_server_that_only_the_catalog_knows_does_not_lower_the_default(make, plan):
    state, _ = make.created(CatalogState(), make.new_table("other"))
    refused(
        plan,
        make.new_table(num_replicas=0),
        ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
        servers=make.servers(1),
        state=state,
    )


def test_a_cold_master_answers_try_later_instead_of_too_high(make, plan):
    """KUDU-1358."""
    error = refused(plan, make.new_table(), ErrorCode.UNAVAILABLE, servers=make.servers(1, settling=True))
    assert error.verdict is Verdict.TRY_LATER


def test_a_cold_master_waits_for_servers_that_the_catalog_knows(make, plan):
    """KUDU-1358, second point: tablets would pile up on the servers that came first."""
    state, _ = make.created(CatalogState(), make.new_table("other", num_replicas=5), servers=5)
    refused(plan, make.new_table(), ErrorCode.UNAVAILABLE, servers=make.servers(3, settling=True), state=state)


def test_a_settling_master_that_has_heard_of_enough_creates(make, plan):
    assert plan(make.new_table(), servers=make.servers(3, settling=True)).tables


def test_a_table_with_too_many_tablets_is_refused(make, plan):
    refused(plan, make.new_table(buckets=61), ErrorCode.TOO_MANY_TABLETS)
    assert len(plan(make.new_table(buckets=60)).tablets) == 60


def test_billions_of_partitions_are_refused_before_they_are_made(make, plan):
    columns = (ColumnSchema("a", DataType.INT64), ColumnSchema("b", DataType.INT64))
    levels = (HashLevel(("a",), 65536), HashLevel(("b",), 65536))
    request = replace(make.new_table(), schema=Schema(columns, 2), partition_schema=PartitionSchema(levels))
    refused(plan, request, ErrorCode.TOO_MANY_TABLETS)


def test_the_bound_on_tablets_can_be_switched_off(make, plan):
    options = CatalogOptions(max_create_tablets_per_ts=0)
    assert len(plan(make.new_table(buckets=100), options=options).tablets) == 100


def test_replicas_are_spread_evenly(make, plan):
    change = plan(make.new_table(buckets=40), servers=make.servers(6))
    counts = CatalogState().applying(change).replica_counts.values()
    assert sum(counts) == 120
    assert max(counts) - min(counts) <= 3


def test_deleting_takes_the_table_and_all_tablets_at_once(make):
    state, change = make.created(CatalogState())
    deletion = plan_delete_table(state, change.tables[0].table_id, note="by request")
    assert deletion.tables[0].state is TableState.REMOVED
    assert [tablet.state for tablet in deletion.tablets] == [TabletState.DELETED] * 4
    after = state.applying(deletion)
    assert not after.ids_by_name
    assert not after.replica_counts
    assert len(after.tablets) == 4, "records of deleted tablets are kept forever"


def test_deleting_twice_says_that_it_was_deleted(make):
    state, change = make.created(CatalogState())
    table_id = change.tables[0].table_id
    after = state.applying(plan_delete_table(state, table_id, note=""))
    with pytest.raises(KuduError, match=r"TABLE_NOT_FOUND.*has been deleted"):
        plan_delete_table(after, table_id, note="")


def test_a_replacement_takes_the_partition_and_leaves_the_old_record(make):
    state, change = make.created(CatalogState())
    old = change.tablets[1]
    replacement = plan_replace_tablets(
        state, [old.tablet_id], servers=make.servers(5), rng=random.Random(2), note="timed out"
    )
    replaced, new = replacement.tablets
    assert replaced.tablet_id == old.tablet_id
    assert replaced.state is TabletState.REPLACED
    assert new.tablet_id in replaced.note
    assert (new.partition, new.state, len(new.config.members)) == (old.partition, TabletState.CREATING, 3)
    after = state.applying(replacement)
    assert [t.partition for t in after.tablets_of(new.table_id)] == [t.partition for t in change.tablets]


def test_a_tablet_that_runs_is_never_replaced(make):
    state, change = make.created(CatalogState())
    running = change.tablets[0].moved_to(TabletState.RUNNING, "")
    state = state.applying(replace(change, tables=(), tablets=(running,)))
    assert plan_replace_tablets(
        state, [running.tablet_id], servers=make.servers(3), rng=random.Random(1), note=""
    ).is_empty
