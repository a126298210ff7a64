"""The snapshot of all records."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudu_py.common.errors import KuduError
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.master import codec
from kudu_py.master.catalog.change import CatalogChange
from kudu_py.master.catalog.entries import ClusterEntry, TabletState
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica, plan_report
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import plan_delete_table, plan_replace_tablets


def test_a_snapshot_never_changes(make):
    before, change = make.created(CatalogState())
    frozen = (dict(before.tables), dict(before.tablets), dict(before.ids_by_name), dict(before.replica_counts))
    before.applying(plan_delete_table(before, change.tables[0].table_id, note=""))
    assert frozen == (before.tables, before.tablets, before.ids_by_name, before.replica_counts)


def test_tablets_are_listed_in_partition_order(make):
    state, change = make.created(CatalogState(), make.new_table(buckets=16))
    shuffled = CatalogState.build(None, change.tables, random.Random(1).sample(change.tablets, 16))
    assert shuffled == state
    assert [t.partition.hash_buckets for t in state.tablets_of(change.tables[0].table_id)] == [
        (bucket,) for bucket in range(16)
    ]


def test_an_unknown_table_is_named(make):
    with pytest.raises(KuduError, match=r"TABLE_NOT_FOUND.*'nope'"):
        CatalogState().table_by_name("nope")


def test_a_table_that_was_deleted_is_told_from_one_that_never_was(make):
    state, change = make.created(CatalogState(), make.new_table("old"))
    table_id = change.tables[0].table_id
    state = state.applying(plan_delete_table(state, table_id, note=""))
    with pytest.raises(KuduError, match="'old' and has been deleted"):
        state.table_by_id(table_id)
    with pytest.raises(KuduError, match="TABLE_NOT_FOUND"):
        state.table_by_name("old")


def reloaded(state: CatalogState) -> CatalogState:
    """The state as the next leader would build it, from the encoded records in any order."""
    tables = [codec.decode_table(i, codec.encode_table(t)) for i, t in state.tables.items()]
    tablets = [codec.decode_tablet(i, codec.encode_tablet(t)) for i, t in state.tablets.items()]
    cluster = None if state.cluster is None else codec.decode_cluster(codec.encode_cluster(state.cluster))
    rng = random.Random(5)
    rng.shuffle(tables)
    rng.shuffle(tablets)
    return CatalogState.build(cluster, tables, tablets)


# `make` holds no state, so that one for all examples does no harm.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from("crdnm"), st.integers(0, 1 << 16)), max_size=25))
def test_reloading_the_records_gives_the_published_state(make, steps):
    """Whatever operations came: create, report, delete, new (replacing), move."""
    state = CatalogState(ClusterEntry("c" * 32, 5))
    for number, (step, drawn) in enumerate(steps):
        seed = drawn * 100 + number  # Ids are minted from it and must differ.
        rng = random.Random(seed)
        live = sorted(t.tablet_id for t in state.tablets.values() if t.is_live)
        change = CatalogChange()
        if step == "c":
            state, _ = make.created(state, make.new_table(f"t{number}", buckets=3), servers=5, seed=seed)
        elif step == "d" and state.ids_by_name:
            change = plan_delete_table(state, rng.choice(sorted(state.ids_by_name.values())), note=f"step {number}")
        elif step == "n":
            picked = [i for i in live if state.tablets[i].state is TabletState.CREATING][:2]
            change = plan_replace_tablets(state, picked, servers=make.servers(5), rng=rng, note="late")
        elif step in "rm" and live:
            tablet = state.tablets[rng.choice(live)]
            server = rng.choice(tablet.config.members).uuid
            config = tablet.config
            if step == "m":
                members = (*config.members[1:], Member(make.server(9), MemberType.PRE_VOTER, "host9:7050"))
                config = RaftConfig(number + 1, tuple(sorted(set(members), key=lambda m: m.uuid)))
            replica = ReportedReplica(
                tablet.tablet_id, ReplicaState.RUNNING, leader=server, term=3, committed_config=config
            )
            change = plan_report(state, server, [replica])
        state = state.applying(change)
    assert reloaded(state) == state


def test_replica_counts_follow_a_move(make):
    state, change = make.created(CatalogState(), make.new_table(buckets=0))
    moved = replace(change.tablets[0], config=make.config([2, 3, 4], index=7))
    counts = state.applying(CatalogChange((moved,))).replica_counts
    assert counts == {make.server(n): 1 for n in (2, 3, 4)}
