"""Counts agree with their nouns."""

from __future__ import annotations

import pytest

from kudu_py.common.counted import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (20_000, "20,000 rows")])
def test_a_noun_agrees_with_its_count(count, said):
    assert counted(count, "row") == said
