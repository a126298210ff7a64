"""Offline tools: what they take and show, and that they leave running servers alone."""

from __future__ import annotations

import random

import pytest

from kudu_py.cli.local_replica import opened, parse_peer, record_json, record_lines
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import HardState, Member, MemberType, RaftConfig
from kudu_py.consensus.metadata import ConsensusRecord
from kudu_py.daemon import layout
from kudu_py.env.posix_disk import PosixDisk

A, B = "a" * 32, "b" * 32
RECORD = ConsensusRecord(
    TabletId("f" * 32),
    HardState(7, ServerId(A)),
    RaftConfig(3, (Member(ServerId(A), MemberType.VOTER, "a:1"), Member(ServerId(B), MemberType.PRE_VOTER, "b:1"))),
)


def test_a_peer_is_a_uuid_with_its_address_or_a_member():
    assert parse_peer(f"{A}:127.0.0.1:7050", {}) == Member(ServerId(A), MemberType.VOTER, "127.0.0.1:7050")
    assert parse_peer(A, {A: "a:1"}) == Member(ServerId(A), MemberType.VOTER, "a:1")


@pytest.mark.parametrize("text", ["", "nonsense:1", B, f"{A}:", f"{A}:host", f"{A}:host:99999"])
def test_any_other_peer_is_refused(text):
    with pytest.raises(KuduError) as refused:
        parse_peer(text, {})

    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_term_vote_and_members_are_shown():
    assert record_lines(RECORD) == [
        f"tablet {'f' * 32}",
        f"term 7, voted for {A}",
        "committed config 3",
        f"  VOTER     {A} at a:1",
        f"  PRE_VOTER {B} at b:1",
    ]
    assert record_json(RECORD)["voted_for"] == A


def test_the_directory_of_a_running_server_is_refused(tmp_path):
    disk = PosixDisk()
    running = layout.open_or_create(disk, str(tmp_path), role="tserver", rng=random.Random(1), wall_micros=1)
    try:
        with pytest.raises(KuduError, match="in use by another process"), opened(tmp_path):
            pass
    finally:
        running.close()


def test_a_directory_that_is_no_servers_is_refused_and_stays_as_it_is(tmp_path):
    with pytest.raises(KuduError, match="no data directory"), opened(tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_stopped_server_are_opened_and_its_lock_is_let_go(tmp_path):
    layout.open_or_create(PosixDisk(), str(tmp_path), role="tserver", rng=random.Random(1), wall_micros=1).close()

    for _ in range(2):
        with opened(tmp_path) as files:
            assert (files.replicas(), files.quarantine()) == ([], [])
