"""Which tablets have lost their majority, what is left to go on with, and what would be lost."""

from __future__ import annotations

import pytest

from kudu_py.cli.majority_loss import (
    Loss,
    ReplicaSeen,
    Standing,
    TabletSeen,
    assess,
    can_elect,
    loss_json,
    loss_lines,
    may_be_lost_text,
)
from kudu_py.common.opid import OpId

A, B, C, D, E = (letter * 32 for letter in "abcde")
NOW = 1_763_749_205_000_000
END = OpId(5, 100)


def runs(uuid, end=END, **fields):
    given = {"term": end.term, "committed_index": end.index - 1, "complete_through_micros": NOW - 60_000_000}
    return ReplicaSeen(uuid, f"{uuid[:1]}:7050", True, Standing.RUNS, last_op_id=end, **{**given, **fields})


def gone(uuid):
    return ReplicaSeen(uuid, f"{uuid[:1]}:7050", True, Standing.GONE, "does not answer, silent for 4 m 3 s")


def away(uuid):
    return ReplicaSeen(uuid, f"{uuid[:1]}:7050", True, Standing.AWAY, "starts or stops")


def votes(uuid, end):
    return ReplicaSeen(uuid, f"{uuid[:1]}:7050", True, Standing.VOTES, "was deleted, and votes", last_op_id=end)


def tablet(*replicas):
    return TabletSeen("f" * 32, "metrics", 7, replicas, 3)


def found(*replicas):
    loss = assess(tablet(*replicas))
    assert loss is not None
    return loss


def test_a_tablet_with_a_majority_is_left_alone():
    assert assess(tablet(runs(A), runs(B), gone(C))) is None


def test_a_deleted_replica_that_votes_makes_a_majority_with_one_whose_log_is_long_enough():
    assert assess(tablet(runs(A), votes(B, OpId(5, 90)), gone(C))) is None


def test_a_deleted_replica_that_remembers_a_longer_log_votes_for_none_of_those_left():
    loss = found(runs(A), votes(B, OpId(5, 103)), gone(C))

    assert loss.kept == (runs(A),)
    assert loss.known_lost_entries == 3
    assert "At least 3 entries were written to logs that are gone." in may_be_lost_text(loss, NOW)


def test_of_those_left_the_one_whose_log_ends_last_goes_on_and_the_others_stay():
    loss = found(runs(A, OpId(5, 100)), runs(B, OpId(6, 80)), gone(C), gone(D), gone(E))

    assert loss.survivor.uuid == B
    assert [replica.uuid for replica in loss.kept] == [B, A]
    assert [replica.uuid for replica in loss.given_up] == [C, D, E]


def test_of_equal_logs_the_one_that_knows_more_to_be_committed_goes_on():
    assert found(runs(A), runs(B, committed_index=100), gone(C), gone(D), gone(E)).survivor.uuid == B


def test_nothing_is_given_up_while_a_voter_may_come_back_with_more():
    loss = found(runs(A), away(B), gone(C))

    assert loss.kept == ()
    assert loss.refusal == "1 voter may come back yet, and may hold more than what is left"
    assert f"  voter  {B} at b:7050: starts or stops" in loss_lines(loss, NOW)


def test_two_replicas_of_which_each_may_hold_what_the_other_lacks_are_left_to_a_person():
    # A led in term 3 and reached nobody; B heard in term 4 that its entry 5 of term 2 is committed.
    loser = runs(A, OpId(3, 9), term=3, committed_index=4)
    holder = runs(B, OpId(2, 5), term=4, committed_index=5)

    assert "choose one of them" in found(loser, holder, gone(C), gone(D), gone(E)).refusal


def test_a_replica_that_only_knows_of_commits_in_the_same_log_is_no_rival():
    longer = runs(A, OpId(5, 100), committed_index=90)
    shorter = runs(B, OpId(5, 95), committed_index=95)

    assert found(shorter, longer, gone(C), gone(D), gone(E)).survivor.uuid == A


def test_without_a_voter_that_runs_nothing_is_done():
    learner = ReplicaSeen(D, "d:7050", False, Standing.RUNS, last_op_id=OpId(5, 1))

    assert "its rows are gone unless a server comes back" in found(gone(A), gone(B), gone(C)).refusal
    assert "only 1 PRE_VOTER" in found(gone(A), gone(B), gone(C), learner).refusal


def test_a_pre_voter_is_counted_nowhere():
    learner = ReplicaSeen(D, "d:7050", False, Standing.RUNS, last_op_id=OpId(9, 999))
    loss = found(runs(A), gone(B), gone(C), learner)

    assert [replica.uuid for replica in loss.kept] == [A]


@pytest.mark.parametrize(
    ("voters", "can"),
    [
        ([runs(A)], True),
        ([runs(A), gone(B)], False),
        ([votes(A, OpId(1, 1)), votes(B, OpId(1, 1)), gone(C)], False),
        ([runs(A, OpId(5, 1)), votes(B, OpId(5, 2)), runs(C, OpId(5, 2))], True),
        ([], False),
    ],
)
def test_a_leader_needs_the_votes_of_a_majority_and_a_log_that_they_accept(voters, can):
    assert can_elect(voters) is can


def test_people_are_told_what_is_kept_what_is_lost_and_since_when():
    lines = loss_lines(found(runs(A, row_count=4711), gone(B), gone(C)), NOW)

    assert lines == [
        f"tablet {'f' * 32} of table metrics, config 7",
        f"  keep   {A} at a:7050: last entry 5.100, committed through 99, complete up to "
        "2025-11-21 18:19:05.000 UTC (1 m 0 s ago), 4,711 rows",
        f"  lost   {B} at b:7050: does not answer, silent for 4 m 3 s",
        f"  lost   {C} at c:7050: does not answer, silent for 4 m 3 s",
        "  Acknowledged writes since 2025-11-21 18:19:05.000 UTC (1 m 0 s ago) may be lost; earlier ones are all in "
        f"{A}.",
    ]


def test_where_nobody_knows_since_when_nothing_is_pretended():
    loss = found(runs(A, complete_through_micros=0), gone(B), gone(C))

    assert may_be_lost_text(loss, NOW) == "Acknowledged writes may be lost, and nobody can say since when."


def test_what_is_not_done_is_told_with_its_reason():
    lines = loss_lines(found(gone(A), gone(B), gone(C)), NOW)

    assert lines[1].startswith("  nothing is done: no replica of it is left")
    assert len(lines) == 5


def test_programs_get_the_same():
    shown = loss_json(found(runs(A), gone(B), votes(C, OpId(6, 1))))

    assert (shown["survivor"], shown["known_lost_entries"], shown["refusal"]) == (A, 1, "")
    assert shown["lost"][1]["last_op_id"] == "6.1"
    assert loss_json(Loss(tablet(gone(A)), (), "no"))["survivor"] is None
