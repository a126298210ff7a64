"""Decisions on where tablets are and who leads them."""

import pytest

from kudu_py.client.leader_probe import choose_leader
from kudu_py.client.location_cache import LocationCache, Replica, TableLocations, Tablet
from kudu_py.client.snapshot import lacks_majority
from kudu_py.common.partition import HashLevel, Partition, PartitionSchema, RangePartition, create_partitions
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.pb import consensus_pb2

REPLICAS = tuple(Replica(uuid, f"{uuid}:1") for uuid in ("a", "b", "c"))


def tablet(config_index: int = 1, leader: str | None = "a", replicas: tuple[Replica, ...] = REPLICAS) -> Tablet:
    return Tablet("t", Partition(), config_index, replicas, leader)


def state(term: int, leader: str = "", *, leads: bool = False) -> consensus_pb2.ConsensusState:
    role = consensus_pb2.LEADER if leads else consensus_pb2.FOLLOWER
    return consensus_pb2.ConsensusState(term=term, leader_uuid=leader, role=role)


def test_the_masters_word_counts_where_no_leader_is_known():
    cache = LocationCache()
    cache.learn([tablet(leader="a")])
    assert cache.leader("t") == "a:1"
    cache.leads("t", "b:1")
    cache.learn([tablet(leader="a")])
    assert cache.leader("t") == "b:1", "what a replica said is newer"


def test_only_the_leader_itself_can_be_found_not_to_lead():
    cache = LocationCache()
    cache.learn([tablet(leader="a")])
    cache.does_not_lead("t", "c:1")
    assert cache.leader("t") == "a:1"
    cache.does_not_lead("t", "a:1")
    assert cache.leader("t") is None


def test_an_older_config_does_not_replace_a_newer_one():
    cache = LocationCache()
    cache.learn([tablet(config_index=5)])
    cache.learn([tablet(config_index=4, replicas=REPLICAS[:1])])
    assert cache.replicas("t") == REPLICAS
    assert cache.address_of("t", "b") == "b:1"
    cache.forget(["t"])
    assert cache.replicas("t") == ()
    assert cache.leader("t") is None


def test_tablets_stand_in_partition_order():
    schema = Schema((ColumnSchema("k", DataType.INT64),), 1)
    layout = PartitionSchema((HashLevel(("k",), 3),))
    given = [Tablet(str(i), Partition((i,)), 1, ()) for i in (2, 0, 1)]
    assert [t.tablet_id for t in TableLocations.of(schema, layout, given).tablets] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("states", "dead", "leader"),
    [
        ({"a": state(3, leads=True), "b": state(3, "a")}, "", "a:1"),
        # A deposed leader that does not know it yet: its followers are in a higher term.
        ({"a": state(3, leads=True), "b": state(4, "c"), "c": state(4, leads=True)}, "", "c:1"),
        # Followers still name a leader that does not answer: it may be dead.
        ({"b": state(3, "a"), "c": state(3, "a")}, "a", None),
        ({"b": state(4, "c")}, "a", "c:1"),
        ({"b": state(4), "c": state(4)}, "a", None),
        ({}, "abc", None),
    ],
)
def test_the_leader_of_the_highest_term_is_believed(states, dead, leader):
    assert choose_leader(REPLICAS, states, frozenset(dead)) == leader


def test_a_leader_outside_the_known_replicas_is_found_by_the_config():
    told = state(4, "d")
    told.committed_config.members.add(uuid="d", address="d:1")
    assert choose_leader(REPLICAS, {"b": told}, frozenset()) == "d:1"


def test_a_snapshot_needs_the_clocks_of_a_majority_of_each_tablet():
    assert lacks_majority([tablet()], {"a": 1, "b": 2}) is None
    assert lacks_majority([tablet()], {"a": 1}) is not None
    learner = (*REPLICAS[:1], Replica("d", "d:1", votes=False))
    assert lacks_majority([tablet(replicas=learner)], {"a": 1}) is None
    assert lacks_majority([tablet(replicas=())], {"a": 1}) is not None, "of an unknown tablet nothing is known"


@pytest.mark.parametrize("ranges", [(), (RangePartition((0,), (500,)), RangePartition((700,), None))])
@pytest.mark.parametrize("buckets", [(), (6,), (3, 4)])
def test_a_row_is_placed_as_the_partitioner_does(buckets, ranges):
    schema = Schema(tuple(ColumnSchema(name, DataType.INT64) for name in ("a", "b")), 2)
    levels = tuple(HashLevel((name,), count) for name, count in zip(("a", "b"), buckets, strict=False))
    layout = PartitionSchema(levels, ("a",) if ranges else ())
    partitions = create_partitions(schema, layout, ranges)
    tablets = [Tablet(str(i), partition, 1, REPLICAS) for i, partition in enumerate(partitions)]
    locations = TableLocations.of(schema, layout, tablets)
    rows = [[key, key * 7, "no key"] for key in range(-20, 1000, 9)]
    placed = [locations.position_of(row) for row in rows]
    assert placed == [locations.partitioner.row_to_partition(row) for row in rows]
    assert set(placed) >= set(range(len(tablets)))
