"""How a new member is on its way, and how members are shown."""

from __future__ import annotations

from kudu_py.cli.membership import MemberSeen, config_json, config_text, obstacle, progress_of
from kudu_py.common.errors import ErrorCode
from kudu_py.pb import consensus_pb2, tablet_copy_pb2
from kudu_py.pb.common_pb2 import OpId
from kudu_py.pb.consensus_pb2 import PRE_VOTER, VOTER, ConsensusState, Member, PeerStatus, RaftConfig
from kudu_py.pb.tablet_copy_pb2 import CopySession

A, B, NEW = "a" * 32, "b" * 32, "c" * 32


def leader_state(new_type=PRE_VOTER, health=consensus_pb2.HEALTHY, match_index=900):
    members = [Member(uuid=A, member_type=VOTER), Member(uuid=B, member_type=VOTER)]
    peers = [PeerStatus(uuid=B, health=consensus_pb2.HEALTHY, match_index=1000)]
    if new_type:
        members.append(Member(uuid=NEW, member_type=new_type, promote=True))
        peers.append(PeerStatus(uuid=NEW, health=health, match_index=match_index))
    return ConsensusState(
        role=consensus_pb2.LEADER,
        last_op_id=OpId(term=3, index=5000),
        committed_config=RaftConfig(config_index=7, members=members),
        peers=peers,
    )


def text(seen, wanted=VOTER):
    progress = progress_of(seen, NEW, wanted)
    return None if progress is None else progress.text


def test_a_member_is_followed_from_the_copy_to_the_vote():
    copy = CopySession(state=tablet_copy_pb2.FETCHING, bytes_total=100, bytes_done=50, bytes_per_s=10)

    assert text(MemberSeen(None)) == "the tablet has no leader at the moment"
    assert text(MemberSeen(leader_state(new_type=None))) == "waiting for it to become a member"
    needs_copy = leader_state(health=consensus_pb2.NEEDS_COPY, match_index=0)
    assert text(MemberSeen(needs_copy)) == "waiting for the copy to begin"
    queued = CopySession(state=tablet_copy_pb2.QUEUED)
    assert text(MemberSeen(needs_copy, queued)) == "waiting for its turn to copy; 5,000 entries behind"
    copied = "copying; 50 B of 100 B (50 %), 10 B/s, 5.0 s left; 5,000 entries behind"
    assert text(MemberSeen(needs_copy, copy)) == copied
    assert text(MemberSeen(leader_state())) == "catching up with the log; 4,100 entries behind"
    assert text(MemberSeen(leader_state(new_type=VOTER))) is None


def test_a_member_that_the_leader_does_not_reach_is_told_of():
    unreachable = leader_state(health=consensus_pb2.UNREACHABLE)

    assert text(MemberSeen(unreachable)) == "the leader does not reach it; 4,100 entries behind"


def test_a_pre_voter_that_stays_one_is_waited_for_until_it_has_nearly_caught_up():
    assert text(MemberSeen(leader_state()), PRE_VOTER) == "catching up with the log; 4,100 entries behind"
    assert text(MemberSeen(leader_state(match_index=4500)), PRE_VOTER) is None


def test_a_member_that_was_removed_is_not_waited_for():
    gone = leader_state(new_type=None)

    error = obstacle(gone, NEW, VOTER, joined_index=6)

    assert error is not None
    assert error.code is ErrorCode.OPERATION_ABORTED
    assert "config 7" in error.message
    assert obstacle(gone, NEW, VOTER, joined_index=None) is None, "it may be about to join"
    assert obstacle(gone, NEW, VOTER, joined_index=7) is None, "a leader of before may not know it yet"
    gone.pending_config.config_index = 8
    gone.pending_config.members.add(uuid=NEW)
    assert obstacle(gone, NEW, VOTER, joined_index=6) is None


def test_a_member_that_nobody_is_to_promote_is_not_waited_for_to_become_a_voter():
    state = leader_state()
    assert obstacle(state, NEW, VOTER, joined_index=7) is None
    assert obstacle(leader_state(new_type=VOTER), NEW, VOTER, joined_index=7) is None
    state.committed_config.members[2].promote = False

    error = obstacle(state, NEW, VOTER, joined_index=7)

    assert error is not None
    assert error.code is ErrorCode.ILLEGAL_STATE
    assert "change_replica_type" in error.message
    assert obstacle(state, NEW, PRE_VOTER, joined_index=7) is None


def test_a_config_names_voters_pre_voters_and_who_is_to_be_replaced():
    config = leader_state().committed_config
    config.members[1].replace = True

    assert config_text(config) == f"config 7: voters {A}, {B} (to be replaced); pre-voter {NEW}"
    assert config_json(config)["members"][2]["promote"] is True
