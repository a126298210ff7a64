"""Who leads a new tablet first."""

from __future__ import annotations

from collections import Counter

from kudu_py.common.partition import Partition
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, RaftOptions
from kudu_py.tablet.first_leader import first_leader, with_head_start

CONFIG = RaftConfig(0, tuple(Member(uuid, MemberType.VOTER) for uuid in ("a", "b", "c")))


def test_leaders_of_a_hash_partitioned_table_are_spread_evenly():
    first = Counter(first_leader(CONFIG, "t" * 32, Partition((bucket,), b"", b"")) for bucket in range(6))

    assert first == {"a": 2, "b": 2, "c": 2}


def test_tables_of_one_tablet_begin_at_different_servers():
    first = {first_leader(CONFIG, f"{table:032x}", Partition((), b"", b"")) for table in range(20)}

    assert first == {"a", "b", "c"}


def test_a_pre_voter_is_never_the_first_leader():
    config = RaftConfig(0, (Member("a", MemberType.PRE_VOTER), Member("b", MemberType.VOTER)))

    assert first_leader(config, "t" * 32, Partition((1,), b"", b"")) == "b"


def test_the_others_are_still_patient_when_the_first_leaders_slowest_draw_is_over():
    options = RaftOptions()
    hasty = with_head_start(options, uuid="a", first="a")
    patient = with_head_start(options, uuid="b", first="a")

    assert patient.initial_election_timeout_s > 2 * hasty.initial_election_timeout_s
