"""States and legal transitions."""

from __future__ import annotations

import itertools

import pytest

from kudu_py.master.catalog.entries import TabletState


def test_replaced_and_deleted_are_final(make):
    for final, after in itertools.product((TabletState.REPLACED, TabletState.DELETED), TabletState):
        with pytest.raises(AssertionError):
            make.tablet(state=final).moved_to(after, "")


def test_a_tablet_never_goes_back_to_creating(make):
    for before in TabletState:
        with pytest.raises(AssertionError):
            make.tablet(state=before).moved_to(TabletState.CREATING, "")


def test_only_creating_and_running_tablets_live(make):
    assert [s for s in TabletState if make.tablet(state=s).is_live] == [TabletState.CREATING, TabletState.RUNNING]
