"""Choice of servers for replicas."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.master.catalog.placement import Candidate, Placer, least_sharing
from kudu_py.master.catalog.state import CatalogState


def choose(candidates, count, *, loads, rng, existing=()):
    return Placer(candidates, loads=loads, rng=rng).choose(count, existing=existing)


def uuids(chosen):
    return [candidate.uuid for candidate in chosen]


def test_servers_of_one_tablet_are_distinct(make):
    for seed in range(50):
        chosen = choose(make.candidates(5), 3, loads={}, rng=random.Random(seed))
        assert len(set(uuids(chosen))) == 3


def test_too_few_servers_are_refused(make):
    with pytest.raises(KuduError, match="REPLICATION_FACTOR_TOO_HIGH"):
        choose(make.candidates(2), 3, loads={}, rng=random.Random(1))


def test_servers_with_a_replica_are_passed_over(make):
    candidates = make.candidates(4)
    for seed in range(20):
        (chosen,) = choose(candidates, 1, loads={}, rng=random.Random(seed), existing=candidates[:3])
        assert chosen is candidates[3]


def test_the_order_of_candidates_does_not_matter(make):
    candidates = make.candidates(6)
    forward = choose(candidates, 3, loads={}, rng=random.Random(5))
    assert choose(candidates[::-1], 3, loads={}, rng=random.Random(5)) == forward


def test_domains_are_distinct_where_possible():
    candidates = [Candidate(f"{n}", f"host{n}:1", f"rack{n % 3}") for n in range(9)]
    for seed in range(50):
        chosen = choose(candidates, 3, loads={}, rng=random.Random(seed))
        assert len({candidate.fault_domain for candidate in chosen}) == 3


def test_more_replicas_than_domains_share_as_few_as_possible():
    candidates = [Candidate(f"{n}", f"host{n}:1", f"rack{n % 2}") for n in range(8)]
    for seed in range(50):
        chosen = choose(candidates, 5, loads={}, rng=random.Random(seed))
        assert sorted(Counter(candidate.fault_domain for candidate in chosen).values()) == [2, 3]


def test_processes_on_one_host_count_as_one_domain():
    candidates = [Candidate(f"{n}", f"host{n // 2}:{n}") for n in range(6)]
    for seed in range(50):
        chosen = choose(candidates, 3, loads={}, rng=random.Random(seed))
        assert len({candidate.host for candidate in chosen}) == 3


def test_a_host_is_shared_where_there_is_no_other_way():
    candidates = [Candidate(f"{n}", f"localhost:{n}") for n in range(3)]
    assert len(choose(candidates, 3, loads={}, rng=random.Random(1))) == 3


def test_the_less_loaded_of_two_is_chosen(make):
    low, high = make.candidates(2)
    for seed in range(20):
        assert choose([high, low], 1, loads={high.uuid: 5}, rng=random.Random(seed)) == [low]


def test_a_new_empty_server_is_not_stormed(make):
    candidates = make.candidates(10)
    loads = {candidate.uuid: 100 for candidate in candidates[1:]}
    picked = Counter(uuids(choose(candidates, 1, loads=loads, rng=random.Random(seed)))[0] for seed in range(1000))
    assert 150 < picked[candidates[0].uuid] < 250, "two of ten are drawn, so it is among them one time in five"


def test_what_was_placed_counts_as_load_for_the_next(make):
    placer = Placer(make.candidates(2), loads={}, rng=random.Random(1))
    picked = Counter(uuids(placer.choose(1))[0] for _ in range(100))
    assert sorted(picked.values()) == [50, 50]


def test_the_server_with_fewer_replicas_of_the_table_is_chosen_although_it_has_more_in_all(make):
    low, high = make.candidates(2)
    for seed in range(20):
        placer = Placer(
            [low, high],
            loads={low.uuid: 50, high.uuid: 5},
            table_loads={make.table_id(1): {low.uuid: 1, high.uuid: 2}},
            rng=random.Random(seed),
        )
        assert placer.choose(1, table_id=make.table_id(1)) == [low]
        assert placer.choose(1, table_id=make.table_id(2)) == [high], "of another table neither has any"


def test_replicas_of_a_table_are_spread_whatever_else_there_is(make):
    """Two choices keep a table within two or three of even; chance alone would not."""
    candidates = make.candidates(6)
    loads = {candidate.uuid: 10 * n for n, candidate in enumerate(candidates)}
    for seed in range(20):
        placer = Placer(candidates, loads=loads, rng=random.Random(seed))
        picked = Counter(uuid for _ in range(40) for uuid in uuids(placer.choose(3, table_id=make.table_id(1))))
        assert max(picked.values()) - min(picked.values()) <= 3


def test_loads_are_read_from_the_catalog(make):
    state, change = make.created(CatalogState(), make.new_table(buckets=6), servers=3)
    (table,) = change.tables
    candidates = make.candidates(4)
    placer = Placer.over(state, candidates[2:], rng=random.Random(1), tables=(table.table_id,))
    assert placer.choose(1, table_id=table.table_id) == [candidates[3]]


class TestLeastSharing:
    RACKS = tuple(Candidate(f"{n}", f"host{n}:1", f"rack{n % 3}") for n in range(6))

    def test_those_in_domains_without_a_replica(self):
        assert least_sharing(self.RACKS[3:], self.RACKS[:2]) == [self.RACKS[5]]

    def test_all_where_every_domain_has_one(self):
        assert least_sharing(self.RACKS[3:], self.RACKS[:3]) == list(self.RACKS[3:])

    def test_all_where_there_is_no_replica_yet(self):
        assert least_sharing(self.RACKS, ()) == list(self.RACKS)

    def test_none_of_none(self):
        assert least_sharing((), self.RACKS) == []
