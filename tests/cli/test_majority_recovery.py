"""What masters and servers say, as tablets are judged; where new replicas go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kudu_py.cli.majority_loss import Loss, Standing, TabletSeen
from kudu_py.cli.majority_recovery import (
    Outcome,
    ServerAnswer,
    Standstill,
    choose_server,
    counting,
    goal_of,
    losses,
    outcome_text,
    recovery_json,
    replica_seen,
    still_as_seen,
    tablet_seen,
)
from kudu_py.cli.tablet import keep_only
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.opid import OpId
from kudu_py.pb import master_pb2, tserver_pb2
from kudu_py.pb.common_pb2 import OpId as OpIdPb
from kudu_py.pb.consensus_pb2 import PRE_VOTER, VOTER, ConsensusState, Member, RaftConfig
from kudu_py.pb.master_pb2 import ListTabletServersResponse, ReplicaLocation, TabletLocations
from kudu_py.pb.tserver_pb2 import TabletStatus

TABLET = "f" * 32
A, B, C, D = (letter * 32 for letter in "abcd")
Server = ListTabletServersResponse.Server


def server(uuid, state=master_pb2.LIVE, mode=master_pb2.NORMAL, **fields):
    return Server(uuid=uuid, rpc_address=f"{uuid[0]}:1", state=state, mode=mode, **fields)


def status(config_index=7, members=(A, B, C), **fields):
    config = RaftConfig(config_index=config_index, members=[Member(uuid=m, member_type=VOTER) for m in members])
    state = ConsensusState(term=5, last_op_id=OpIdPb(term=5, index=100), committed_index=99, committed_config=config)
    given = {
        "tablet_id": TABLET,
        "state": tserver_pb2.RUNNING,
        "data_state": tserver_pb2.READY,
        "consensus_state": state,
        "safe_timestamp": 1_000_000 << 12,
        "row_count": 3,
    }
    return TabletStatus(**{**given, **fields})


def answered(*statuses):
    return ServerAnswer(True, replicas={each.tablet_id: each for each in statuses})


SILENT = ServerAnswer(False, "does not answer")


def standing(server_known, answer, *, listening_s=3600.0):
    member = Member(uuid=A, member_type=VOTER, address="a:1")
    seen = replica_seen(member, TABLET, server_known, answer, listening_s=listening_s)
    return seen.standing, seen.why


def test_a_replica_that_runs_tells_where_its_log_ends_and_up_to_when_it_is_complete():
    seen = replica_seen(Member(uuid=A, member_type=VOTER), TABLET, server(A), answered(status()), listening_s=0.0)

    assert seen.standing is Standing.RUNS
    assert (seen.last_op_id, seen.term, seen.committed_index) == (OpId(5, 100), 5, 99)
    assert (seen.complete_through_micros, seen.row_count) == (1_000_000, 3)


def test_a_silent_server_is_gone_unless_the_masters_hear_of_it_or_expect_it_back():
    dead = server(A, master_pb2.DEAD, millis_since_heartbeat=243_000)
    maintained = server(A, master_pb2.DEAD, master_pb2.MAINTENANCE)

    assert standing(dead, SILENT) == (Standing.GONE, "does not answer, silent for 4 m 3 s")
    assert standing(None, SILENT)[0] is Standing.GONE
    assert standing(dead, SILENT, listening_s=243.0)[0] is Standing.GONE
    assert standing(None, SILENT, listening_s=12.0) == (
        Standing.AWAY,
        "does not answer; the masters have not heard of it yet, and have run for 12 s only",
    )
    heard_of = server(A, millis_since_heartbeat=3_400)
    why = "does not answer; the masters heard of it 3.4 s ago, and do not take it for dead yet"
    assert standing(heard_of, SILENT) == (Standing.AWAY, why)
    assert standing(maintained, SILENT)[0] is Standing.AWAY


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        (None, Standing.GONE),
        (status(state=tserver_pb2.FAILED, error="CORRUPTION: x"), Standing.GONE),
        (status(state=tserver_pb2.BOOTSTRAPPING), Standing.AWAY),
        (status(state=tserver_pb2.NOT_STARTED, data_state=tserver_pb2.COPYING), Standing.AWAY),
        (status(state=tserver_pb2.STOPPED, data_state=tserver_pb2.DELETED), Standing.GONE),
        (
            status(
                state=tserver_pb2.STOPPED,
                data_state=tserver_pb2.DELETED,
                tombstone_last_op_id=OpIdPb(term=4, index=9),
            ),
            Standing.VOTES,
        ),
    ],
)
def test_a_server_that_answers_tells_how_its_replica_stands(replica, expected):
    answer = answered(replica) if replica is not None else answered()

    assert standing(server(A), answer)[0] is expected


def test_the_newest_config_that_anybody_tells_of_counts():
    known = TabletLocations(
        tablet_id=TABLET,
        config_index=7,
        replicas=[ReplicaLocation(ts_uuid=uuid, member_type=VOTER, rpc_address="x:1") for uuid in (A, B, C)],
        wanted_voters=3,
    )
    servers = {uuid: server(uuid) for uuid in (A, B, C, D)}

    newer = tablet_seen("t", known, servers, {A: answered(status(9, (A, B, D)))}, listening_s=0.0)
    older = tablet_seen("t", known, servers, {A: answered(status(5, (A, B)))}, listening_s=0.0)

    assert ([replica.uuid for replica in newer.replicas], newer.config_index) == ([A, B, D], 9)
    assert ([replica.uuid for replica in older.replicas], older.config_index) == ([A, B, C], 7)
    assert newer.wanted_voters == 3


def lost_tablet():
    known = TabletLocations(tablet_id=TABLET, config_index=7, wanted_voters=3)
    dead = {uuid: server(uuid, master_pb2.DEAD) for uuid in (B, C)}
    answers = {A: answered(status()), B: SILENT, C: SILENT}
    return tablet_seen("t", known, {A: server(A), **dead}, answers, listening_s=0.0)


def test_two_of_three_servers_gone_is_a_loss_with_one_to_go_on():
    (loss,) = losses([lost_tablet()])

    assert [replica.uuid for replica in loss.kept] == [A]


def test_a_tablet_that_changed_while_somebody_thought_is_left_alone():
    tablet = lost_tablet()
    (loss,) = losses([tablet])
    (later,) = losses(
        [replace(tablet, replicas=(replace(tablet.replicas[0], committed_index=100), *tablet.replicas[1:]))]
    )

    assert still_as_seen([loss], [later]) == [loss]
    assert still_as_seen([loss], []) == []
    assert still_as_seen([loss], [Loss(tablet, (), "a voter may come back")]) == []


def test_a_new_replica_goes_to_a_domain_of_its_own_then_to_the_least_loaded():
    config = RaftConfig(members=[Member(uuid=A, member_type=VOTER)])
    here = server(A, fault_domain="r1")
    same_domain = server(B, fault_domain="r1")
    loaded, free = server(C, fault_domain="r2", live_tablet_count=9), server(D, fault_domain="r3")

    assert choose_server(config, [here, same_domain, loaded, free]) is free
    assert choose_server(config, [here, same_domain, loaded]) is loaded
    assert choose_server(config, [here, server(B, master_pb2.DEAD), server(C, mode=master_pb2.RETIRING)]) is None


def test_no_more_voters_are_waited_for_than_there_are_servers():
    config = RaftConfig(
        members=[Member(uuid=A, member_type=VOTER), Member(uuid=B, member_type=PRE_VOTER, promote=True)]
    )

    assert goal_of(3, config, [server(A), server(B)]) == 2
    assert goal_of(3, config, [server(A), server(B), server(C), server(D)]) == 3
    assert counting(config) == [A, B]


def test_a_standstill_is_ended_by_a_voter_or_a_copy_and_by_nothing_else():
    standstill = Standstill(0.0)

    assert standstill.lasts_s(1, 5.0, is_copying=False) == 0.0
    assert standstill.lasts_s(1, 15.0, is_copying=False) == 10.0
    assert standstill.lasts_s(1, 20.0, is_copying=True) == 0.0
    assert standstill.lasts_s(0, 40.0, is_copying=False) == 20.0
    assert standstill.lasts_s(1, 50.0, is_copying=False) == 30.0
    assert standstill.lasts_s(2, 60.0, is_copying=False) == 0.0


def test_the_report_tells_what_came_back_and_what_did_not():
    (loss,) = losses([lost_tablet()])
    head = f"tablet {TABLET} of table t"

    assert outcome_text(Outcome(loss, 3, 3)) == f"{head}: takes writes again, 3 of 3 voters"
    short = Outcome(loss, 2, 3, "1 voter short: no other live tablet server")
    assert outcome_text(short).endswith("2 of 3 voters (1 voter short: no other live tablet server)")
    assert outcome_text(Outcome(loss, 0, 3, "it refused")) == f"{head}: NOT brought back: it refused"
    shown = recovery_json([loss.tablet], [loss], [])
    assert shown["losses"][0]["outcome"] is None
    assert recovery_json([loss.tablet], [loss], [short])["losses"][0]["outcome"]["voters"] == 2


def test_only_voters_that_run_may_stay():
    tablet = lost_tablet()

    assert [replica.uuid for replica in keep_only(tablet, [A]).kept] == [A]
    for uuid, code in ((D, ErrorCode.NOT_FOUND), (B, ErrorCode.ILLEGAL_STATE)):
        with pytest.raises(KuduError) as refused:
            keep_only(tablet, [uuid])
        assert refused.value.code is code


def test_a_tablet_that_can_elect_a_leader_is_never_split():
    running = tuple(replace(lost_tablet().replicas[0], uuid=uuid) for uuid in (A, B))
    tablet = TabletSeen(TABLET, "t", 7, (*running, lost_tablet().replicas[2]), 3)

    with pytest.raises(KuduError, match="has a majority") as refused:
        keep_only(tablet, [A])

    assert refused.value.code is ErrorCode.ILLEGAL_STATE
