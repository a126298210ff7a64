"""The members of one tablet: which step is next, and that steps lead to the end without ever risking the group."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace

import pytest

from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.consensus.core.quorum import majority
from kudu_py.master.catalog.entries import OperationEntry, OperationId, OperationKind, TabletServerMode
from kudu_py.master.catalog.replica_ops import (
    Add,
    Blocked,
    Evict,
    Health,
    LeaderReport,
    Surroundings,
    health_of,
    is_well,
    joining_voters,
    leader_report,
    next_step,
    voters_to_be,
)
from kudu_py.master.catalog.report_ops import PeerHealth, PeerStatus, ReplicaState, ReportedReplica

TABLET = "7a" + "0" * 30
PEER_HEALTH = {
    Health.HEALTHY: PeerHealth.HEALTHY,
    Health.UNKNOWN: PeerHealth.UNKNOWN,
    Health.FAILED: PeerHealth.UNREACHABLE,
    Health.PAST_HELP: PeerHealth.NEEDS_COPY,
}
H, U, F, P = Health.HEALTHY, Health.UNKNOWN, Health.FAILED, Health.PAST_HELP


def server(n: int) -> ServerId:
    return ServerId(f"5e{n:030x}")


@dataclass
class Group:
    """A tablet by hand: voters and joining members by number, the first voter leads unless said otherwise."""

    voters: dict[int, Health]
    joining: dict[int, Health] = field(default_factory=dict)
    learners: dict[int, Health] = field(default_factory=dict)
    wanted: int = 3
    marked: set[int] = field(default_factory=set)
    modes: dict[int, TabletServerMode] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    move: tuple[int, int] | None = None
    undone: int | None = None
    loads: dict[int, int] = field(default_factory=dict)
    domains: dict[int, str] = field(default_factory=dict)
    index: int = 7
    leader: int | None = None

    def __post_init__(self) -> None:
        self.leader = self.leader or min(self.voters)

    @property
    def config(self) -> RaftConfig:
        members = [
            *(Member(server(n), MemberType.VOTER, replace=n in self.marked) for n in self.voters),
            *(Member(server(n), MemberType.PRE_VOTER, promote=True) for n in self.joining),
            *(Member(server(n), MemberType.PRE_VOTER) for n in self.learners),
        ]
        return RaftConfig(self.index, tuple(sorted(members, key=lambda m: m.uuid)))

    @property
    def healths(self) -> dict[int, Health]:
        return {**self.voters, **self.joining, **self.learners}

    def report(self, **fields) -> LeaderReport:
        peers = tuple(
            PeerStatus(server(n), PEER_HEALTH[health]) for n, health in self.healths.items() if n != self.leader
        )
        given = {
            "state": ReplicaState.RUNNING, "role": Role.LEADER, "term": 3, "committed_config": self.config,
            "peers": peers,
        }  # fmt: skip
        return LeaderReport(server(self.leader), ReportedReplica(TABLET, **{**given, **fields}))

    @property
    def around(self) -> Surroundings:
        return Surroundings(
            gone=frozenset(map(server, self.gone)),
            modes={server(n): mode for n, mode in self.modes.items()},
            past_help=frozenset(server(n) for n, health in self.healths.items() if health is P),
            loads={server(n): load for n, load in self.loads.items()},
            domains={server(n): domain for n, domain in self.domains.items()},
        )

    @property
    def move_entry(self) -> OperationEntry | None:
        if self.move is None:
            return None
        from_, to = self.move
        return OperationEntry(
            OperationId("0" * 32), OperationKind.MOVE_REPLICA, tablet_id=TABLET, from_=server(from_), to=server(to)
        )

    def step(self, **fields):
        return next_step(
            self.config,
            self.report(**fields),
            wanted=self.wanted,
            around=self.around,
            move=self.move_entry,
            undone=server(self.undone) if self.undone else None,
        )

    def evicts(self) -> int | None:
        """The number of the server that is evicted next."""
        step = self.step()
        return int(step.server[2:], 16) if isinstance(step, Evict) else None

    def is_leaving(self, n: int) -> bool:
        return (
            n in self.marked
            or self.modes.get(n) in (TabletServerMode.RETIRING, TabletServerMode.RETIRED)
            or (self.move is not None and self.move[0] == n)
        )

    def is_lost(self, n: int) -> bool:
        health = self.healths[n]
        is_expected = self.modes.get(n) is TabletServerMode.MAINTENANCE and n not in self.joining
        return health is P or (health is F and not is_expected)


# Nothing to do, or not now.


def test_a_healthy_tablet_is_left_alone():
    assert Group({1: H, 2: H, 3: H}).step() is None


def test_a_replica_whose_health_is_not_known_is_waited_for():
    assert Group({1: H, 2: H, 3: U}).step() is None


def test_nothing_is_done_while_a_change_is_pending():
    group = Group({1: H, 2: H, 3: F})
    assert group.step(pending_config=replace(group.config, config_index=9)) is None


@pytest.mark.parametrize("index", [6, 8])
def test_nothing_is_done_on_a_report_of_another_config_than_the_newest_known(index):
    group = Group({1: H, 2: H, 3: F})
    assert group.step(committed_config=replace(group.config, config_index=index)) is None


def test_only_the_leader_of_the_newest_term_counts():
    def replica(term: int, role: Role) -> ReportedReplica:
        return ReportedReplica(TABLET, ReplicaState.RUNNING, role=role, term=term)

    old, new, other = replica(3, Role.LEADER), replica(4, Role.LEADER), replica(4, Role.FOLLOWER)
    assert leader_report({server(1): old, server(2): other}) is None, "its leader has not reported yet"
    assert leader_report({server(1): old, server(2): new}) == LeaderReport(server(2), new)
    failed = replace(new, state=ReplicaState.FAILED)
    assert leader_report({server(1): old, server(2): failed}) == LeaderReport(server(1), old)


# Health.


@pytest.mark.parametrize(
    ("said", "gone", "past_help", "health"),
    [
        (PeerHealth.HEALTHY, True, True, H),
        (PeerHealth.UNREACHABLE, False, False, F),
        (PeerHealth.UNKNOWN, False, False, U),
        (PeerHealth.UNKNOWN, True, False, F),
        (PeerHealth.NEEDS_COPY, False, False, U),
        (PeerHealth.NEEDS_COPY, True, False, U),
        (PeerHealth.NEEDS_COPY, False, True, P),
    ],
)
def test_the_leaders_word_on_health_comes_before_what_the_master_heard(said, gone, past_help, health):
    peers = (PeerStatus(server(2), said),)
    report = LeaderReport(server(1), ReportedReplica(TABLET, ReplicaState.RUNNING, peers=peers))
    around = Surroundings(
        gone=frozenset({server(2)} if gone else ()), past_help=frozenset({server(2)} if past_help else ())
    )
    assert health_of(server(2), report, around) is health
    assert health_of(server(1), report, around) is H, "the leader has reported"


def test_a_server_that_only_the_master_lost_sight_of_is_not_replaced():
    assert Group({1: H, 2: H, 3: H}, gone={3}).step() is None


# Prepare, then evict.


def test_a_failed_voter_is_replaced_before_it_is_evicted():
    group = Group({1: H, 2: H, 3: F})
    assert isinstance(group.step(), Add)
    group.joining = {4: U}
    assert group.step() is None, "one is on its way"
    group.joining, group.voters[4] = {}, H
    assert group.evicts() == 3


def test_a_joining_member_of_unknown_health_counts_as_on_its_way():
    assert Group({1: H, 2: H, 3: F}, {4: U}).step() is None


def test_a_joining_member_that_fails_is_given_up_and_another_added():
    group = Group({1: H, 2: H, 3: F}, {4: F})
    assert group.evicts() == 4
    group.joining = {}
    assert isinstance(group.step(), Add)


def test_nothing_is_added_without_a_healthy_majority():
    step = Group({1: H, 2: F, 3: F}).step()
    assert isinstance(step, Blocked)
    assert "1 of 3 voters are healthy" in step.reason


def test_a_voter_that_comes_back_stays_and_the_joining_one_goes():
    assert Group({1: H, 2: H, 3: H}, {4: H}).evicts() == 4


def test_a_replica_past_help_goes_first_and_its_own_server_may_get_a_new_one():
    group = Group({1: H, 2: H, 3: P})
    assert group.evicts() == 3
    del group.voters[3]
    assert isinstance(group.step(), Add)


def test_a_replica_past_help_stays_while_the_others_could_not_go_on():
    group = Group({1: H, 2: P, 3: F})
    assert not isinstance(group.step(), Evict)


def test_two_voters_never_become_one_unless_one_is_wanted():
    assert not isinstance(Group({1: H, 2: P}, wanted=2).step(), Evict)
    assert Group({1: H, 2: H}, wanted=1).evicts() == 2


def test_an_even_number_of_voters_is_kept_if_it_is_wanted():
    assert Group({1: H, 2: H, 3: H, 4: H}, wanted=4).step() is None


@pytest.mark.parametrize("wanted", [1, 2, 4, 5, 7])
def test_the_wanted_number_is_approached_from_either_side(wanted):
    step = Group({1: H, 2: H, 3: H}, wanted=wanted).step()
    assert isinstance(step, Add if wanted > 3 else Evict)


# Who goes.


def test_the_leader_is_never_the_one_too_many():
    for leader in (1, 2, 3, 4):
        assert Group({1: H, 2: H, 3: H, 4: H}, leader=leader).evicts() != leader


def test_the_worst_goes_first():
    for health in (P, F, U):
        assert Group({1: H, 2: H, 3: H, 4: H, 5: health}, wanted=4).evicts() == 5
    assert Group({1: H, 2: H, 3: H, 4: F, 5: P}).evicts() == 5


def test_of_equals_the_one_that_shares_a_domain_goes_then_the_one_on_the_fullest_server():
    group = Group({1: H, 2: H, 3: H, 4: H}, domains={1: "a", 2: "b", 3: "c", 4: "b"}, loads={2: 5, 3: 90, 4: 6})
    assert group.evicts() == 4
    group.domains = {}
    assert group.evicts() == 3


def test_of_equals_the_target_of_a_move_that_was_cancelled_goes():
    assert Group({1: H, 2: H, 3: H, 4: H}, loads={2: 9, 4: 0}, undone=4).evicts() == 4


def test_a_marked_voter_goes_once_another_counts():
    group = Group({1: H, 2: H, 3: H}, marked={3})
    assert isinstance(group.step(), Add)
    group.voters[4] = H
    assert group.evicts() == 3


def test_a_marked_leader_is_told_to_go_when_its_replacement_counts():
    assert isinstance(Group({1: H, 2: H, 3: H}, marked={1}).step(), Add)
    assert Group({1: H, 2: H, 3: H, 4: H}, marked={1}).evicts() == 1


def test_of_two_that_are_marked_the_leader_goes_last():
    assert Group({1: H, 2: H, 3: H, 4: H}, marked={1, 2}).evicts() == 2


def test_a_single_marked_voter_is_replaced_and_not_forever():
    group = Group({1: H}, wanted=1, marked={1})
    assert isinstance(group.step(), Add)
    group.voters[2] = H
    assert group.evicts() == 1
    del group.voters[1]
    group.leader = 2
    assert group.step() is None


# Learners of an administrator.


def test_a_learner_that_is_not_to_be_promoted_stays():
    assert Group({1: H, 2: H, 3: H}, learners={4: H}).step() is None


def test_a_learner_does_not_stand_in_for_a_voter():
    assert isinstance(Group({1: H, 2: H, 3: F}, learners={4: H}).step(), Add)


def test_a_learner_that_failed_or_whose_server_retires_goes():
    assert Group({1: H, 2: H, 3: H}, learners={4: F}).evicts() == 4
    assert Group({1: H, 2: H, 3: H}, learners={4: H}, modes={4: TabletServerMode.RETIRING}).evicts() == 4


# Modes.


def test_a_silent_server_in_maintenance_is_expected_back():
    group = Group({1: H, 2: H, 3: F}, modes={3: TabletServerMode.MAINTENANCE})
    assert group.step() is None
    group.modes = {}
    assert isinstance(group.step(), Add)


def test_a_joining_member_on_a_silent_server_in_maintenance_joins_elsewhere():
    assert Group({1: H, 2: H}, {3: F}, modes={3: TabletServerMode.MAINTENANCE}).evicts() == 3


def test_a_replica_past_help_is_replaced_also_in_maintenance():
    assert Group({1: H, 2: H, 3: P}, modes={3: TabletServerMode.MAINTENANCE}).evicts() == 3


@pytest.mark.parametrize("mode", [TabletServerMode.RETIRING, TabletServerMode.RETIRED])
def test_replicas_leave_a_server_that_retires(mode):
    group = Group({1: H, 2: H, 3: H}, modes={2: mode})
    assert isinstance(group.step(), Add)
    group.voters[4] = H
    assert group.evicts() == 2


def test_a_replica_that_was_on_its_way_to_a_server_that_retires_goes_elsewhere():
    group = Group({1: H, 2: H, 3: F}, {4: H}, modes={4: TabletServerMode.RETIRING})
    assert group.evicts() == 4


# Moves.


def test_a_move_adds_its_target_and_then_evicts_its_source():
    group = Group({1: H, 2: H, 3: H}, move=(3, 5))
    step = group.step()
    assert isinstance(step, Add)
    assert step.server == server(5)
    group.joining = {5: U}
    assert group.step() is None
    group.joining, group.voters[5] = {}, H
    assert group.evicts() == 3


def test_the_source_of_a_move_goes_also_if_it_was_made_a_learner_meanwhile():
    assert Group({1: H, 2: H}, joining={4: H}, learners={3: H}, wanted=2, move=(3, 4)).step() is None
    step = Group({1: H, 2: H, 4: H}, learners={3: H}, move=(3, 4)).step()
    assert isinstance(step, Evict)
    assert step.server == server(3)


def test_a_move_does_not_evict_its_own_target_while_all_others_are_well():
    assert Group({1: H, 2: H, 3: H}, {5: H}, move=(3, 5)).step() is None


def test_another_failure_during_a_move_gets_a_replacement_of_its_own():
    group = Group({1: H, 2: F, 3: H}, {5: U}, move=(3, 5))
    step = group.step()
    assert isinstance(step, Add)
    assert step.server is None


def test_a_move_adds_its_target_even_if_there_are_too_many():
    assert Group({1: H, 2: H, 3: H}, wanted=2, move=(3, 5)).evicts() == 3, "what is to go is one too many"
    step = Group({1: H, 2: H}, wanted=2, move=(3, 5)).step()
    assert isinstance(step, Add)
    assert step.server == server(5)


def test_a_cancelled_move_leaves_one_too_many_which_goes():
    assert Group({1: H, 2: H, 3: H}, {5: H}, undone=5).evicts() == 5
    assert Group({1: H, 2: H, 3: H, 5: H}, undone=5).evicts() == 5


# What a change makes of the number of voters.


def test_a_replacement_on_its_way_makes_one_voter_together_with_what_it_replaces():
    group = Group({1: H, 2: H, 3: H}, {4: U}, marked={3})
    assert voters_to_be(group.config) == 3
    assert voters_to_be(Group({1: H, 2: H, 3: H}, {4: U}).config) == 4
    assert voters_to_be(Group({1: H, 2: H, 3: H}, {4: U}).config, [server(3)]) == 3
    assert voters_to_be(Group({1: H, 2: H, 3: H}, learners={4: U}).config) == 3
    assert voters_to_be(Group({1: H, 2: H, 3: H}).config, [server(3)], replacements=1) == 2
    assert voters_to_be(Group({1: H, 2: H, 3: H}).config, replacements=1) == 3, "the one that was replaced is gone"


# All groups there are.


def all_groups():
    """Every group of up to four voters, or three and one joining member, with every health and mark."""
    for count in range(1, 5):
        for joining in range(2 if count < 4 else 1):
            numbers = list(range(1, count + joining + 1))
            for healths in itertools.product(Health, repeat=len(numbers) - 1):
                health = dict(zip(numbers, (H, *healths), strict=True))
                for marked in itertools.product((False, True), repeat=count):
                    for wanted in (1, 2, 3, 5) if count < 3 else (3,):
                        yield Group(
                            {n: health[n] for n in numbers[:count]},
                            {n: health[n] for n in numbers[count:]},
                            wanted=wanted,
                            marked={n for n, is_marked in enumerate(marked, 1) if is_marked},
                        )


def drawn_groups(count: int):
    """Larger ones, with modes, moves and learners."""
    rng = random.Random(5)
    modes = [*TabletServerMode]
    for _ in range(count):
        voters, joining, learners = rng.randint(1, 7), rng.randint(0, 3), rng.randint(0, 2)
        numbers = range(1, voters + joining + learners + 1)
        health = {n: H if n == 1 else rng.choice([H, H, H, *Health]) for n in numbers}
        group = Group(
            {n: health[n] for n in numbers[:voters]},
            {n: health[n] for n in numbers[voters : voters + joining]},
            {n: health[n] for n in numbers[voters + joining :]},
            wanted=rng.randint(1, 7),
            marked={n for n in numbers[:voters] if rng.random() < 0.15},
            modes={n: rng.choice(modes) for n in numbers if rng.random() < 0.2},
        )
        if rng.random() < 0.5:
            able = [n for n in numbers[voters : voters + joining] if not group.is_lost(n)]
            group.move = rng.choice(numbers[:voters]), rng.choice([50, *able])
        yield group


def check(group: Group, step) -> None:
    """That a step risks nothing."""
    healthy = [n for n, health in group.voters.items() if health is H]
    if isinstance(step, Add):
        assert len(healthy) >= majority(len(group.voters)), group
        if step.server is None:
            kept = [n for n in group.voters if not group.is_leaving(n) and not group.is_lost(n)]
            coming = [n for n in group.joining if not group.is_lost(n)]
            assert len(kept) + len(coming) < group.wanted, group
        else:
            assert group.move is not None, group
            assert step.server == server(group.move[1]), group
            assert group.move[1] not in group.healths, group
    elif isinstance(step, Evict):
        gone = int(step.server[2:], 16)
        assert gone != group.leader or group.is_leaving(gone), group
        assert len(healthy) >= majority(len(group.voters)) or gone in group.voters, group
        if gone in group.voters:
            left = len(group.voters) - 1
            assert left >= min(2, group.wanted), group
            assert len([n for n in healthy if n != gone]) >= majority(left), group
            assert len(group.voters) > group.wanted or group.healths[gone] is P, group


def live(group: Group) -> Group:
    """Carries out steps until there are none; new members are copied and promoted, a leader that goes hands over."""
    for _ in range(40):
        if group.move is not None and group.move[1] in group.voters and group.move[0] not in group.voters:
            group.move = None  # It has ended.
        step = group.step()
        check(group, step)
        if isinstance(step, Add):
            group.joining[int(step.server[2:], 16) if step.server else 100 + group.index] = H
        elif isinstance(step, Evict):
            gone = int(step.server[2:], 16)
            if gone == group.leader:
                group.leader = next(n for n, health in group.voters.items() if health is H and n != gone)
            else:
                for members in (group.voters, group.joining, group.learners):
                    members.pop(gone, None)
        else:
            promoted = next((n for n, health in group.joining.items() if health is H), None)
            if promoted is None:
                return group
            group.voters[promoted] = group.joining.pop(promoted)
        group.index += 1
    raise AssertionError(f"it never ends: {group}")


def check_end(group: Group, had_majority: bool) -> None:
    if not had_majority:
        return
    step = group.step()
    assert step is None, group
    if U in group.voters.values() or U in group.joining.values():
        return  # Who is not known yet is waited for.
    assert len(group.voters) == group.wanted, group
    if not group.joining:
        assert not [n for n in group.voters if group.is_leaving(n) or group.is_lost(n)], group


def has_majority(group: Group) -> bool:
    return sum(health is H for health in group.voters.values()) >= majority(len(group.voters))


def test_every_small_group_comes_to_what_is_wanted_without_a_risky_step():
    for group in all_groups():
        had_majority = has_majority(group)
        check_end(live(group), had_majority)


def test_drawn_groups_come_to_what_is_wanted_without_a_risky_step():
    for group in drawn_groups(1000):
        had_majority = has_majority(group)
        check_end(live(group), had_majority)


def test_a_group_that_is_well_needs_no_step():
    well = [group for group in all_groups() if is_well(group.config, group.report(), group.wanted)]
    assert well
    assert [group for group in well if group.step() is not None] == []


def test_a_reason_names_the_server_that_it_is_about():
    for group in itertools.islice(all_groups(), 0, None, 37):
        step = group.step()
        if isinstance(step, Evict) and "other voters are enough" not in step.reason:
            assert step.server in step.reason


def test_joining_voters_are_those_to_be_promoted():
    assert [m.uuid for m in joining_voters(Group({1: H}, {2: H}, {3: H}).config)] == [server(2)]
