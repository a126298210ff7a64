"""Anchors: the lowest one counts, each until it is released."""

import pytest

from kudu_py.wal.anchors import LogAnchors


def test_the_lowest_anchor_counts():
    anchors = LogAnchors()
    assert anchors.lowest() is None
    first, second = anchors.register(7, "a"), anchors.register(5, "b")
    assert anchors.lowest() == 5
    second.update(9)
    assert anchors.lowest() == 7
    assert [(anchor.owner, anchor.index) for anchor in anchors] == [("a", 7), ("b", 9)]
    first.release()
    first.release()
    assert anchors.lowest() == 9


def test_an_anchor_never_goes_back():
    anchor = LogAnchors().register(7, "flush")
    with pytest.raises(AssertionError, match="flush"):
        anchor.update(6)
