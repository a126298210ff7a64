"""Copies, asked of both their servers."""

from __future__ import annotations

from kudu_py.cli.copies import each_once, how_far_text, session_json, under_way
from kudu_py.pb import tablet_copy_pb2
from kudu_py.pb.tablet_copy_pb2 import CopySession

TABLET, SOURCE, TARGET = "a" * 32, "b" * 32, "c" * 32


def session(**changes):
    fields = {
        "tablet_id": TABLET,
        "source_uuid": SOURCE,
        "target_uuid": TARGET,
        "state": tablet_copy_pb2.FETCHING,
        "bytes_total": 100,
        "bytes_done": 40,
        "bytes_per_s": 30,
        "started_micros": 1,
    }
    return CopySession(**{**fields, **changes})


def test_a_copy_that_both_servers_tell_of_is_shown_once_as_its_target_sees_it():
    as_source, as_target = session(is_source=True, bytes_done=60), session()

    assert each_once([as_source, as_target]) == [as_target]


def test_a_copy_whose_target_is_silent_is_shown_as_its_source_sees_it():
    as_source = session(is_source=True)

    assert each_once([as_source]) == [as_source]


def test_an_earlier_copy_of_the_same_replica_is_another():
    later = session(started_micros=10_000_000)
    earlier = session(is_source=True, session_id="s", state=tablet_copy_pb2.FAILED, started_micros=5_000_000)

    assert each_once([earlier, later]) == [later, earlier]


def test_the_newest_copy_comes_first():
    old, new = session(started_micros=1), session(started_micros=2, tablet_id="d" * 32)

    assert each_once([old, new]) == [new, old]


def test_only_a_copy_that_goes_on_is_under_way():
    failed = session(state=tablet_copy_pb2.FAILED)

    assert under_way([failed], TABLET, TARGET) is None
    assert under_way([failed, session()], TABLET, TARGET) == session()
    assert under_way([session()], TABLET, SOURCE) is None


def test_a_copy_says_how_far_it_is_or_how_it_ended():
    assert how_far_text(session()) == "40 B of 100 B (40 %), 30 B/s, 2.0 s left"
    assert how_far_text(session(bytes_resumed=20)).endswith("2.0 s left, 20 B of them from before")
    assert how_far_text(session(state=tablet_copy_pb2.FAILED, error="disk full")) == "disk full"
    assert how_far_text(session(state=tablet_copy_pb2.SUCCEEDED, bytes_done=100)) == "100 B"
    assert session_json(session())["state"] == "FETCHING"
