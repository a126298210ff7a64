"""Terms by index and the marks of the log."""

import random

import pytest

from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.log_view import LogView
from kudu_py.testing.core_builder import log_of


def view_with(*op_ids):
    log = LogView()
    for op_id in op_ids:
        log.append(OpId(*op_id))
    return log


def test_an_empty_log_holds_only_the_op_id_before_its_beginning():
    log = LogView()
    assert log.last == MIN_OP_ID
    assert log.holds(MIN_OP_ID)
    assert log.term_at(1) is None


def test_terms_are_kept_as_runs():
    log = view_with((1, 1), (1, 2), (3, 3), (3, 4), (4, 5))
    assert log.runs == [(1, 1), (3, 3), (5, 4)]
    assert [log.term_at(index) for index in range(7)] == [0, 1, 1, 3, 3, 4, None]


def test_a_collected_log_knows_the_term_before_its_beginning_and_none_further_back():
    log = LogView(runs=[(11, 2), (13, 4)], last_index=14, preceding=OpId(2, 10))
    assert [log.term_at(index) for index in (9, 10, 11, 12, 13, 14, 15)] == [None, 2, 2, 2, 4, 4, None]
    assert log.committed_index == 10


def test_truncation_forgets_terms_and_lowers_the_durable_mark():
    log = log_of([1, 1, 2, 3])
    log.truncate_after(2)
    assert (log.last, log.runs, log.durable_index) == (OpId(1, 2), [(1, 1)], 2)
    log.append(OpId(5, 3))
    assert log.term_at(3) == 5


def test_committed_entries_are_never_cut():
    log = log_of([1, 1, 2], committed=2)
    with pytest.raises(AssertionError, match="committed 2"):
        log.truncate_after(1)


def test_the_commit_index_never_falls():
    log = log_of([1, 1, 2], committed=2)
    with pytest.raises(AssertionError, match="from 2 to 1"):
        log.commit(1)


def test_a_gap_is_refused():
    with pytest.raises(AssertionError, match="does not follow"):
        view_with((1, 1), (1, 3))


@pytest.mark.parametrize(
    ("index", "term", "found"),
    [(6, 9, (3, 6)), (6, 3, (3, 6)), (6, 2, (2, 4)), (3, 2, (2, 3)), (6, 1, (1, 2)), (6, 0, (0, 0)), (0, 9, (0, 0))],
)
def test_the_last_entry_at_or_below_an_index_and_a_term(index, term, found):
    assert log_of([1, 1, 2, 2, 3, 3]).last_at_or_below(index, term) == OpId(*found)


def test_last_at_or_below_agrees_with_a_plain_search():
    rng = random.Random(1)
    for _ in range(300):
        terms = sorted(rng.choices(range(1, 6), k=rng.randint(1, 12)))
        log = log_of(terms)
        index, term = rng.randint(0, len(terms)), rng.randint(0, 6)
        expected = [OpId(t, i) for i, t in enumerate(terms, start=1) if i <= index and t <= term]
        assert log.last_at_or_below(index, term) == (expected[-1] if expected else MIN_OP_ID)


def test_a_late_report_for_an_overwritten_entry_says_nothing():
    log = view_with((1, 1), (1, 2))
    log.truncate_after(1)
    log.append(OpId(2, 2))
    log.mark_durable(OpId(1, 2))
    assert log.durable_index == 0
    log.mark_durable(OpId(2, 2))
    assert log.durable_index == 2


def test_a_report_for_an_entry_that_was_cut_and_appended_again_is_not_believed():
    log = view_with((1, 1), (1, 2))
    log.truncate_after(1)
    log.append(OpId(1, 2))
    log.mark_durable(OpId(1, 2))  # of the first time, for all that can be known
    assert log.durable_index == 0
    log.append(OpId(1, 3))
    log.mark_durable(OpId(1, 3))
    assert log.durable_index == 3


def test_a_report_from_below_the_cut_is_believed_and_settles_nothing():
    log = view_with((1, 1), (1, 2), (1, 3))
    log.truncate_after(1)
    log.append(OpId(1, 2))
    log.mark_durable(OpId(1, 1))
    assert log.durable_index == 1
    log.mark_durable(OpId(1, 2))
    assert log.durable_index == 1
