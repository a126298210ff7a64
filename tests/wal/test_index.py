"""The index says of every entry which batch holds its latest version."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kudu_py.common.opid import OpId
from kudu_py.wal.index import SegmentIndex, TermRuns


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=20), st.integers(0, 9))
def test_each_entry_is_found_in_the_last_batch_that_wrote_it(steps, base):
    index = SegmentIndex(OpId(1, base), OpId(1, base))
    model, lowest = {}, base
    for number, (back, count) in enumerate(steps):
        preceding = OpId(number + 1, max(0, index.last.index - back))
        last = OpId(number + 1, preceding.index + count)
        index.add(
            preceding=preceding,
            offset=number * 100,
            runs=[(preceding.index + 1, number + 1)] if count else [],
            last=last,
        )
        lowest = min(lowest, preceding.index)
        model = {i: at for i, at in model.items() if i <= preceding.index}
        model |= dict.fromkeys(range(preceding.index + 1, last.index + 1), number)
    assert index.lowest.index == lowest
    for i, number in model.items():
        place = index.place(index.position_of(i))
        assert place.offset == number * 100
        assert place.first <= i < place.end
        assert index.runs.term_at(i) == number + 1
    assert sorted(model) == list(range(index.lowest.index + 1, index.last.index + 1))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_term_runs_answer_like_a_list(increments, data):
    terms, term = [], 0
    runs = TermRuns()
    for index, increment in enumerate(increments, 1):
        term += increment
        terms.append(term)
        runs.add(index, term)
    cut = data.draw(st.integers(1, len(terms)))
    runs.truncate_after(cut)
    low = data.draw(st.integers(1, cut))
    runs.drop_before(low)
    assert [runs.term_at(i) for i in range(low, cut + 1)] == terms[low - 1 : cut]
    assert list(TermRuns(array("Q", [4]), array("Q", [7]))) == [(4, 7)]
