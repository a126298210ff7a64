"""Planners of balance, by example and by property."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest

from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.master.catalog.balance import (
    BalanceServer,
    BalanceStep,
    BalanceTablet,
    MoveLimits,
    after,
    plan_leader_moves,
    plan_replica_moves,
    unlimited,
)
from kudu_py.master.catalog.placement import Candidate

ALL = unlimited(10_000)


def server(n: int, *, domain: str = "", takes_part: bool = True) -> BalanceServer:
    return BalanceServer(Candidate(ServerId(f"s{n}"), f"host{n}:7050", domain), takes_part)


def servers(count: int) -> list[BalanceServer]:
    return [server(n) for n in range(count)]


def tablet(
    n: int, members: Sequence[int], *, table: str = "t", leader: int | None = None, is_held: bool = False
) -> BalanceTablet:
    return BalanceTablet(
        TabletId(f"{table}-{n:04}"),
        TableId(table),
        tuple(ServerId(f"s{m}") for m in members),
        None if leader is None else ServerId(f"s{leader}"),
        is_held,
    )


def replicas_by_server(tablets: Sequence[BalanceTablet], *, table: str | None = None) -> Counter[str]:
    return Counter(uuid for each in tablets if table in (None, each.table_id) for uuid in each.members)


def leaders_by_server(tablets: Sequence[BalanceTablet], *, table: str | None = None) -> Counter[str]:
    return Counter(each.leader for each in tablets if table in (None, each.table_id) and each.leader)


def skew(counts: Counter[str], among: Sequence[BalanceServer]) -> int:
    values = [counts[each.uuid] for each in among if each.takes_part]
    return max(values, default=0) - min(values, default=0)


def shared_domains(tablets: Sequence[BalanceTablet], among: Sequence[BalanceServer]) -> int:
    """Pairs of replicas of one tablet in one domain."""
    domain = {each.uuid: each.candidate.domain for each in among}
    return sum(domain[a] == domain[b] for each in tablets for a, b in combinations(each.members, 2))


def evened(among: Sequence[BalanceServer], tablets: Sequence[BalanceTablet]) -> Sequence[BalanceTablet]:
    """What is left when plans are made and done until there is none."""
    for _ in range(100):
        steps = plan_replica_moves(among, tablets, ALL)
        if not steps:
            return tablets
        tablets = after(tablets, steps)
    raise AssertionError("it does not end")


class TestReplicas:
    def test_an_even_cluster_is_left_alone(self):
        tablets = [tablet(n, (0, 1, 2)) for n in range(7)]
        assert plan_replica_moves(servers(3), tablets, ALL) == []

    def test_a_difference_of_one_is_rounding(self):
        tablets = [tablet(0, (0, 1, 2)), tablet(1, (0, 1, 3))]
        assert plan_replica_moves(servers(4), tablets, ALL) == []

    @pytest.mark.parametrize("count", [4, 10, 60])
    def test_an_empty_fourth_server_is_filled(self, count):
        tablets = [tablet(n, (0, 1, 2), leader=n % 3) for n in range(count)]
        among = servers(4)

        filled = evened(among, tablets)

        assert skew(replicas_by_server(filled), among) <= 1
        assert replicas_by_server(filled)["s3"] >= count * 3 // 4

    def test_each_of_several_tables_is_spread(self):
        tablets = [tablet(n, (0, 1, 2), table=table) for table in "abc" for n in range(8)]
        among = servers(4)

        filled = evened(among, tablets)

        assert {table: skew(replicas_by_server(filled, table=table), among) for table in "abc"} == dict.fromkeys(
            "abc", 0
        )

    def test_two_tables_on_opposite_servers_change_places_although_the_sums_are_even(self):
        tablets = [tablet(n, (n // 4,), table="ab"[n // 4]) for n in range(8)]
        among = servers(2)

        even = evened(among, tablets)

        assert skew(replicas_by_server(even), among) == 0
        assert skew(replicas_by_server(even, table="a"), among) == 0

    def test_followers_move_rather_than_leaders(self):
        tablets = [tablet(n, (0, 1, 2), leader=0) for n in range(8)]
        steps = plan_replica_moves(servers(4), tablets, unlimited(4))
        assert [step.source for step in steps if step.source == "s0"]
        moved = {step.tablet_id: step.source for step in steps}
        assert len(steps) == 4
        assert sum(source == "s0" for source in moved.values()) <= 2, "the leaders' server gives last among equals"

    def test_a_held_tablet_stays_and_counts(self):
        tablets = [tablet(n, (0, 1, 2), is_held=n < 6) for n in range(8)]
        steps = plan_replica_moves(servers(4), tablets, ALL)
        assert {step.tablet_id for step in steps} <= {"t-0006", "t-0007"}

    def test_a_server_that_takes_no_part_gives_nothing_and_gets_nothing(self):
        among = [*servers(3), server(3, takes_part=False)]
        tablets = [tablet(n, (0, 1, 2)) for n in range(8)]
        assert plan_replica_moves(among, tablets, ALL) == []

        full = [tablet(n, (1, 2, 3)) for n in range(8)]
        assert all(step.source != "s3" for step in plan_replica_moves(among, full, ALL))

    def test_limits_hold_for_each_server_and_count_what_is_under_way(self):
        tablets = [tablet(n, (0, 1, 2)) for n in range(20)]
        among = servers(5)

        steps = plan_replica_moves(among, tablets, MoveLimits(10, 1, {}))
        assert max(Counter(uuid for step in steps for uuid in (step.source, step.target)).values()) == 1
        assert len(steps) == 2

        under_way = {ServerId("s3"): 1}
        assert {step.target for step in plan_replica_moves(among, tablets, MoveLimits(10, 1, under_way))} == {"s4"}

    def test_a_tablet_is_concerned_by_one_step_of_a_plan_at_most(self):
        tablets = [tablet(n, (0, 1, 2)) for n in range(3)]
        steps = plan_replica_moves(servers(9), tablets, ALL)
        assert len({step.tablet_id for step in steps}) == len(steps)


class TestFaultDomains:
    def test_no_move_makes_two_replicas_share_a_domain(self):
        among = [server(n, domain=f"rack{n % 3}") for n in range(9)]
        tablets = [tablet(n, (0, 1, 2)) for n in range(30)]

        even = evened(among, tablets)

        assert shared_domains(even, among) == 0
        assert skew(replicas_by_server(even), among) <= 1

    def test_a_domain_is_worth_more_than_evenness(self):
        """The third rack has one small server: it keeps a replica of every tablet."""
        among = [server(0, domain="a"), server(1, domain="a"), server(2, domain="b"), server(3, domain="c")]
        tablets = [tablet(n, (0, 2, 3)) for n in range(8)]

        even = evened(among, tablets)

        assert shared_domains(even, among) == 0
        assert replicas_by_server(even) == {"s0": 4, "s1": 4, "s2": 8, "s3": 8}

    def test_sharing_is_no_reason_to_move_where_there_is_no_other_way(self):
        among = [server(n, domain=f"rack{n % 2}") for n in range(3)]
        assert plan_replica_moves(among, [tablet(n, (0, 1, 2)) for n in range(6)], ALL) == []

    def test_a_new_domain_takes_one_of_two_that_share(self):
        among = [server(0, domain="a"), server(1, domain="a"), server(2, domain="b"), server(3, domain="c")]

        (step,) = plan_replica_moves(among, [tablet(0, (0, 1, 2), leader=0)], ALL)

        assert (step.source, step.target) == ("s1", "s3"), "the leader stays"
        assert "shares fault domain a" in step.reason

    def test_servers_on_one_host_share_it_where_no_domain_is_named(self):
        among = [BalanceServer(Candidate(ServerId(f"s{n}"), f"host{n // 2}:{n}")) for n in range(6)]
        tablets = [tablet(n, (0, 2, 4)) for n in range(8)]

        even = evened(among, tablets)

        assert shared_domains(even, among) == 0
        assert skew(replicas_by_server(even), among) <= 1

    def test_a_member_that_never_registered_shares_with_nobody(self):
        assert plan_replica_moves(servers(3), [tablet(0, (0, 1, 9))], ALL) == []


class TestLeaders:
    def test_leaders_spread_over_the_voters(self):
        tablets = [tablet(n, (0, 1, 2), leader=0) for n in range(9)]
        among = servers(3)

        even = after(tablets, plan_leader_moves(among, tablets, ALL))

        assert leaders_by_server(even) == {"s0": 3, "s1": 3, "s2": 3}
        assert [each.members for each in even] == [each.members for each in tablets]

    @pytest.mark.parametrize("leaders", [(0,), (0, 1), (0, 0, 1, 2), (0, 0, 1, 1, 2)])
    def test_rounding_moves_no_leader(self, leaders):
        tablets = [tablet(n, (0, 1, 2), leader=leader) for n, leader in enumerate(leaders)]
        assert plan_leader_moves(servers(3), tablets, ALL) == []

    def test_a_difference_below_a_tenth_of_the_mean_moves_no_leader(self):
        tablets = [tablet(n, (0, 1, 2), leader=n % 3) for n in range(300)]
        tablets[1:14:3] = [tablet(n, (0, 1, 2), leader=0) for n in range(1, 14, 3)]
        assert leaders_by_server(tablets) == {"s0": 105, "s1": 95, "s2": 100}
        assert len(plan_leader_moves(servers(3), tablets, ALL)) == 1, "ten of a hundred is a tenth, nine are not"

    def test_only_a_voter_is_asked(self):
        tablets = [tablet(n, (0, 1), leader=0) for n in range(6)]
        assert {step.target for step in plan_leader_moves(servers(3), tablets, ALL)} == {"s1"}

    def test_nobody_is_asked_where_no_leader_is_known(self):
        assert plan_leader_moves(servers(3), [tablet(n, (0, 1, 2)) for n in range(6)], ALL) == []


def a_cluster(rng: random.Random) -> tuple[list[BalanceServer], list[BalanceTablet]]:
    count = rng.randint(1, 9)
    domains = rng.randint(1, count)
    among = [server(n, domain=f"d{rng.randrange(domains)}", takes_part=rng.random() < 0.9) for n in range(count)]
    tablets = []
    for table in "abcd"[: rng.randint(1, 4)]:
        factor = rng.choice([1, 3, 3, 5])
        favoured = rng.sample(range(count), min(count, factor + rng.randint(0, 2)))
        for n in range(rng.randint(0, 15)):
            members = rng.sample(favoured, min(factor, len(favoured)))
            tablets.append(tablet(n, members, table=table, leader=rng.choice(members), is_held=rng.random() < 0.1))
    return among, tablets


@pytest.mark.parametrize("seed", range(150))
def test_plans_end_and_never_make_anything_worse(seed):
    among, tablets = a_cluster(random.Random(seed))
    tables = {each.table_id for each in tablets}
    for plan, counts in ((plan_replica_moves, replicas_by_server), (plan_leader_moves, leaders_by_server)):
        rounds = 0
        while steps := plan(among, tablets, ALL):
            rounds += 1
            assert rounds < 100, "it does not end"
            for step in steps:
                then = after(tablets, [step])
                check_step(step, among, tablets)
                assert shared_domains(then, among) <= shared_domains(tablets, among)
                if "shares" not in step.reason:
                    for table in tables:
                        assert skew(counts(then, table=table), among) <= skew(counts(tablets, table=table), among)
                    assert skew(counts(then), among) <= max(skew(counts(tablets), among), 2)
                tablets = then


def check_step(step: BalanceStep, among: Sequence[BalanceServer], tablets: Sequence[BalanceTablet]) -> None:
    before = next(each for each in tablets if each.tablet_id == step.tablet_id)
    assert not before.is_held
    assert {step.source, step.target} <= {each.uuid for each in among if each.takes_part}
    if step.leadership_only:
        assert before.leader == step.source
        assert step.target in before.members
    else:
        assert step.source in before.members
        assert step.target not in before.members


@pytest.mark.parametrize("seed", range(40))
def test_where_every_server_is_a_domain_of_its_own_all_becomes_even(seed):
    rng = random.Random(seed)
    count = rng.randint(3, 8)
    among = servers(count)
    tablets = [
        tablet(n, rng.sample(range(count), 3), table=table) for table in "abc" for n in range(rng.randint(0, 20))
    ]

    even = evened(among, tablets)

    assert skew(replicas_by_server(even), among) <= 1
    assert all(skew(replicas_by_server(even, table=table), among) <= 1 for table in "abc")
