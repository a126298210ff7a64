"""The rules of the seed documents, one test each: config change (seed 000), consensus (seed 001), roles (seed 003)."""

import pytest

from kudu_py.common.errors import Verdict
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    AppendReceived,
    ClockAdvanced,
    ConfigChangeProposed,
    ElectionRequested,
    EntryProposed,
    FollowerBehindLog,
    FollowerLacksTablet,
    HardStateDurable,
    LogStalled,
    ReadIndexRequested,
    StepDownRequested,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import EntryKind, HardState, LogEntry, Role
from kudu_py.consensus.core.output import ConfigMark, SendRunElection, VoteReply
from kudu_py.testing.core_builder import (
    acknowledge,
    append_from,
    appends,
    campaign,
    config_of,
    elect,
    lead,
    make_raft,
    refuse,
    server,
    sync,
)

A, B, C, D = server("a"), server("b"), server("c"), server("d")


def change(raft, now, new, expected=None):
    return raft.step(now, ConfigChangeProposed(new, expected, 9))


def refusal_of(out):
    (refused,) = out.refused
    assert out.append == []
    return refused.error


def config_entry(term, index, config):
    return LogEntry(OpId(term, index), EntryKind.CONFIG_CHANGE, config)


class TestConfigChange:
    """Seed 000, "Membership change"."""

    def test_a_change_is_adopted_at_once_and_persisted_only_when_committed(self):
        raft = make_raft()
        now = lead(raft)
        out = change(raft, now, config_of("abc", "d"))
        new = config_of("abc", "d", config_index=2)
        assert out.append == [config_entry(1, 2, new)]
        assert out.config == ConfigMark(new, config_of("abc"), persist=False)
        assert set(appends(out)) == {B, C, D}
        sync(raft, now)
        committed = acknowledge(raft, now, appends(out)[B])
        assert committed.config == ConfigMark(new, new, persist=True)

    def test_a_follower_adopts_on_receipt_and_persists_at_commit(self):
        raft = make_raft(terms=[1])
        new = config_of("abc", "d", config_index=2)
        out = raft.step(1.0, AppendReceived(1, B, 1, OpId(1, 1), (config_entry(1, 2, new),), 1))
        assert out.config == ConfigMark(new, config_of("abc"), persist=False)
        out = raft.step(1.0, append_from("b", 1, (1, 2), commit=2))
        assert out.config == ConfigMark(new, new, persist=True)

    def test_an_overwritten_change_rolls_back_to_exactly_what_was_before(self):
        raft = make_raft(terms=[1])
        new = config_of("ab", config_index=2)
        raft.step(1.0, AppendReceived(1, B, 1, OpId(1, 1), (config_entry(1, 2, new),), 1))
        assert raft.active_config == new
        out = raft.step(1.0, append_from("c", 2, (1, 1), (2, 2)))
        assert out.config == ConfigMark(config_of("abc"), config_of("abc"), persist=False)
        assert raft.pending_config is None

    def test_roll_back_of_the_second_of_two_changes_leaves_the_first(self):
        raft = make_raft(terms=[1])
        first, second = config_of("abc", "d", config_index=2), config_of("abcd", config_index=3)
        changes = (config_entry(1, 2, first), config_entry(1, 3, second))
        raft.step(1.0, AppendReceived(1, B, 1, OpId(1, 1), changes, 1))
        assert raft.active_config == second
        raft.step(1.0, append_from("c", 2, (1, 2), (2, 3)))
        assert raft.active_config == first

    def test_one_change_at_a_time(self):
        raft = make_raft()
        now = lead(raft)
        change(raft, now, config_of("abc", "d"))
        error = refusal_of(change(raft, now, config_of("abc", "e")))
        assert (error.code.value, error.verdict) == ("CONFIG_CHANGE_PENDING", Verdict.TRY_LATER)

    def test_compare_and_set_on_the_committed_config(self):
        raft = make_raft()
        now = lead(raft)
        error = refusal_of(change(raft, now, config_of("abc", "d"), expected=7))
        assert (error.code.value, error.details) == ("CAS_FAILED", {"config_index": "0"})
        assert change(raft, now, config_of("abc", "d"), expected=0).accepted

    @pytest.mark.parametrize(
        ("new", "word"),
        [
            (config_of("a"), "changes 2 voters at once"),
            (config_of("abde"), "changes 3 voters at once"),
            (config_of(""), "has no voter"),
            (config_of("abc"), "changes nothing"),
            (config_of("abc", "a"), "names a server twice"),
        ],
    )
    def test_a_senseless_change_is_refused_by_name(self, new, word):
        raft = make_raft()
        now = lead(raft)
        error = refusal_of(change(raft, now, new))
        assert error.code.value == "INVALID_CONFIG"
        assert word in error.message

    def test_several_pre_voters_may_join_at_once(self):
        raft = make_raft()
        now = lead(raft)
        assert change(raft, now, config_of("abc", "de")).accepted

    def test_no_change_before_an_entry_of_the_own_term_is_committed(self):
        raft = make_raft(terms=[1], committed=1)
        elect(raft)
        error = refusal_of(change(raft, 150.0, config_of("abc", "d")))
        assert (error.code.value, error.verdict) == ("ILLEGAL_STATE", Verdict.TRY_LATER)

    def test_no_change_unless_a_majority_of_the_new_config_answered_lately(self):
        raft = make_raft()
        now = lead(raft)
        raft.step(now + 0.9, AppendAnswered(B, 1, 1, True, MIN_OP_ID, 0))
        # C was last heard more than an election timeout ago: without B nobody but the leader would be left.
        error = refusal_of(change(raft, now + 1.2, config_of("ac")))
        assert (error.code.value, error.verdict) == ("UNAVAILABLE", Verdict.TRY_LATER)
        assert change(raft, now + 1.2, config_of("ab")).accepted

    def test_only_a_leader_changes_members(self):
        raft = make_raft(terms=[1])
        raft.step(1.0, append_from("b", 1, (1, 1)))
        error = refusal_of(change(raft, 1.0, config_of("abc", "d")))
        assert error.code.value == "NOT_THE_LEADER"
        assert error.details == {"term": "1", "leader_uuid": "b", "leader_address": "b:7050"}

    def test_a_leader_asked_to_remove_itself_hands_over_and_answers_stepping_down(self):
        raft = make_raft()
        now = lead(raft)
        out = change(raft, now, config_of("bc"))
        assert refusal_of(out).code.value == "STEPPING_DOWN"
        assert out.send == [SendRunElection(B, 1)]

    def test_a_pre_voter_is_not_counted_for_commit(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        out = raft.step(now, EntryProposed(EntryKind.WRITE, 1))
        sync(raft, now)
        assert acknowledge(raft, now, appends(out)[D]).commit_to is None
        assert acknowledge(raft, now, appends(out)[B]).commit_to == 2

    def test_a_pre_voters_vote_is_not_counted(self):
        raft = make_raft(config=config_of("abc", "d"))
        campaign(raft)
        raft.step(150.0, HardStateDurable(raft.hard_state))
        raft.step(150.0, VoteAnswered(D, 1, True, False, 1))
        assert raft.role is Role.CANDIDATE

    def test_a_pre_voters_answer_neither_confirms_reads_nor_keeps_the_leader(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        raft.step(now + 0.5, ClockAdvanced())
        raft.step(now + 0.5, ReadIndexRequested(1))
        proposed = raft.step(now + 0.5, EntryProposed(EntryKind.WRITE, 1))
        assert acknowledge(raft, now + 0.5, appends(proposed)[D]).reads_ready == []
        raft.step(now + 0.9, AppendAnswered(D, 1, 1, True, MIN_OP_ID, 0))
        raft.step(now + 1.1, ClockAdvanced())
        assert raft.role is Role.FOLLOWER

    def test_the_promoted_replica_counts_at_once(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        out = change(raft, now, config_of("abcd"))
        sync(raft, now)
        assert acknowledge(raft, now, appends(out)[B]).commit_to is None
        assert acknowledge(raft, now, appends(out)[D]).commit_to == 2

    def test_a_replica_that_does_not_know_yet_that_it_votes_still_votes(self):
        raft = make_raft("d", config_of("abc", "d"), terms=[1])
        raft.step(1.0, ClockAdvanced())
        out = raft.step(1.0, VoteRequested(1, A, 2, OpId(1, 2), False))
        assert out.replies_after_durable == [VoteReply(1, 2, True)]

    @pytest.mark.parametrize(("uuid", "role"), [("d", Role.LEARNER), ("e", Role.NON_PARTICIPANT), ("a", Role.FOLLOWER)])
    def test_the_role_is_that_of_the_own_active_config(self, uuid, role):
        raft = make_raft(uuid, config_of("abc", "d"))
        assert raft.step(0.0, ClockAdvanced()).role.role is role

    @pytest.mark.parametrize("uuid", ["d", "e"])
    def test_who_is_not_a_voter_in_its_own_config_never_campaigns(self, uuid):
        raft = make_raft(uuid, config_of("abc", "d"), terms=[1])
        assert raft.step(0.0, ClockAdvanced()).deadline is None
        out = raft.step(99.0, ClockAdvanced())
        assert out.send == []
        (refused,) = raft.step(99.0, ElectionRequested(1)).refused
        assert refused.error.code.value == "ILLEGAL_STATE"

    def test_a_removed_replica_stops_campaigning_when_it_hears_of_it_and_starts_when_that_is_undone(self):
        raft = make_raft(terms=[1])
        removed = config_entry(1, 2, config_of("bc", config_index=2))
        out = raft.step(1.0, AppendReceived(1, B, 1, OpId(1, 1), (removed,), 1))
        assert (out.role.role, out.deadline) == (Role.NON_PARTICIPANT, None)
        out = raft.step(1.0, append_from("c", 2, (1, 1), (2, 2)))
        assert raft.role is Role.FOLLOWER
        assert out.deadline is not None

    def test_an_uncommitted_change_in_the_log_is_in_force_after_a_restart(self):
        new = config_of("ab", config_index=2)
        raft = make_raft(terms=[1, 1], committed=1, pending_configs=[new])
        out = raft.step(0.0, ClockAdvanced())
        assert out.config == ConfigMark(new, config_of("abc"), persist=False)

    def test_a_committed_change_that_was_not_persisted_before_the_crash_is_persisted_at_the_start(self):
        new = config_of("ab", config_index=2)
        raft = make_raft(terms=[1, 1], committed=2, pending_configs=[new])
        out = raft.step(0.0, ClockAdvanced())
        assert out.config == ConfigMark(new, new, persist=True)

    def test_metadata_ahead_of_the_log_is_not_set_back_by_the_log(self):
        committed = config_of("ab", config_index=2)
        raft = make_raft(config=committed, terms=[1])
        out = raft.step(1.0, AppendReceived(1, B, 1, OpId(1, 1), (config_entry(1, 2, committed),), 1))
        assert out.config is None
        assert raft.active_config == committed


class TestDisruption:
    """Seed 000, "Preventing disruptive servers"; seed 001, "flapping"."""

    def test_a_pre_vote_is_refused_while_a_leader_was_heard_lately(self):
        raft = make_raft(terms=[1])
        raft.step(1.0, append_from("b", 1, (1, 1)))
        out = raft.step(1.9, VoteRequested(1, C, 2, OpId(9, 9), True))
        assert out.replies == [VoteReply(1, 1, False, "LEADER_IS_ALIVE")]
        out = raft.step(2.1, VoteRequested(1, C, 2, OpId(9, 9), True))
        assert out.replies == [VoteReply(1, 1, True)]

    def test_a_pre_vote_changes_neither_term_nor_vote_nor_timer(self):
        raft = make_raft(terms=[1])
        deadline = raft.step(0.0, ClockAdvanced()).deadline
        for _ in range(3):
            out = raft.step(1.2, VoteRequested(1, C, 8, OpId(9, 9), True))
            assert out.replies == [VoteReply(1, 1, True)]
            assert (out.hard_state, out.deadline) == (None, deadline)
        assert raft.hard_state == HardState(1, None)

    def test_a_failed_pre_vote_is_repeated_without_raising_the_term(self):
        raft = make_raft(terms=[1])
        deadline = raft.step(0.0, ClockAdvanced()).deadline
        pauses = []
        for _ in range(6):
            out = raft.step(deadline, ClockAdvanced())
            assert {message.term for message in out.send} == {2}
            pauses.append(round(out.deadline - deadline, 3))
            deadline = out.deadline
        assert raft.term == 1
        assert pauses == [0.375, 0.75, 1.5, 1.5, 1.5, 1.5]

    def test_a_leader_refuses_a_pre_vote(self):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now, VoteRequested(1, C, 2, OpId(9, 9), True))
        assert out.replies == [VoteReply(1, 1, False, "LEADER_IS_ALIVE")]

    def test_a_granted_pre_vote_counts_whatever_the_voters_term(self):
        raft = make_raft(terms=[1])
        raft.step(raft.step(0.0, ClockAdvanced()).deadline, ClockAdvanced())
        raft.step(1.5, VoteAnswered(B, 2, True, True, 2))
        assert raft.role is Role.CANDIDATE

    def test_a_refused_pre_vote_teaches_a_higher_term(self):
        raft = make_raft(terms=[1])
        raft.step(raft.step(0.0, ClockAdvanced()).deadline, ClockAdvanced())
        assert raft.step(1.5, VoteAnswered(B, 5, False, True, 2)).hard_state == HardState(5, None)

    def test_a_follower_that_overslept_hears_what_has_arrived_before_it_campaigns(self):
        raft = make_raft(terms=[1])
        raft.step(0.0, append_from("b", 1, (1, 1)))
        out = raft.step(7.0, ClockAdvanced())
        assert (out.send, out.role, out.deadline) == ([], None, pytest.approx(7.3))
        assert raft.step(7.0, append_from("b", 1, (1, 1))).deadline == pytest.approx(8.5)

    def test_a_follower_that_always_oversleeps_campaigns_all_the_same(self):
        raft = make_raft(terms=[1])
        raft.step(0.0, ClockAdvanced())
        raft.step(7.0, ClockAdvanced())
        assert len(raft.step(14.0, ClockAdvanced()).send) == 2

    def test_a_leader_that_overslept_reads_its_answers_before_it_steps_down(self):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now + 7.0, ClockAdvanced())
        assert raft.role is Role.LEADER
        acknowledge(raft, now + 7.0, appends(out)[B])
        raft.step(now + 7.3, ClockAdvanced())
        assert raft.role is Role.LEADER

    def test_a_leader_that_overslept_steps_down_if_no_answer_has_come(self):
        raft = make_raft()
        now = lead(raft)
        raft.step(now + 7.0, ClockAdvanced())
        raft.step(now + 7.3, ClockAdvanced())
        assert raft.role is Role.FOLLOWER

    def test_a_slow_disk_does_not_pile_up_terms(self):
        raft = make_raft(terms=[1])
        deadline = campaign(raft).deadline
        for _ in range(5):
            out = raft.step(deadline, ClockAdvanced())
            assert (out.send, out.hard_state) == ([], None)
            deadline = out.deadline
        assert raft.term == 2

    def test_a_late_fact_about_an_older_hard_state_does_not_count(self):
        raft = make_raft(terms=[1])
        campaign(raft)
        raft.step(150.0, HardStateDurable(HardState(1, None)))
        raft.step(150.0, VoteAnswered(B, 2, True, False, 2))
        assert raft.role is Role.CANDIDATE

    def test_a_stale_request_to_campaign_is_refused(self):
        raft = make_raft(terms=[1], term=3)
        (refused,) = raft.step(1.0, ElectionRequested(1, term=2)).refused
        assert refused.error.code.value == "INVALID_TERM"

    def test_step_down_of_a_follower_or_towards_a_stranger_is_refused(self):
        raft = make_raft()
        assert refusal_of(raft.step(0.0, StepDownRequested(1))).code.value == "NOT_THE_LEADER"
        now = lead(raft)
        assert refusal_of(raft.step(now, StepDownRequested(1, D))).code.value == "INVALID_ARGUMENT"
        single = make_raft(config=config_of("a"))
        single.step(0.0, ClockAdvanced())
        single.step(0.0, HardStateDurable(HardState(1, A)))
        assert refusal_of(single.step(0.0, StepDownRequested(1))).code.value == "ILLEGAL_STATE"


class TestStalledLog:
    """A disk that hangs must not be hidden by heartbeats, which need none (hashicorp/raft #503)."""

    def test_a_leader_with_a_stalled_log_gives_up_and_keeps_term_vote_and_entries(self):
        raft = make_raft()
        now = lead(raft)
        raft.step(now, EntryProposed(EntryKind.WRITE, 1))
        term, last = raft.term, raft.last_op_id
        out = raft.step(now, LogStalled())
        assert (raft.role, raft.leader, raft.term, raft.last_op_id) == (Role.FOLLOWER, None, term, last)
        assert (out.send, out.hard_state, out.abort_after) == ([], None, None)

    def test_a_leader_that_nobody_could_replace_goes_on(self):
        raft = make_raft(config=config_of("a", "b"))
        raft.step(100.0, ClockAdvanced())
        raft.step(100.0, HardStateDurable(raft.hard_state))
        assert raft.role is Role.LEADER
        out = raft.step(110.0, LogStalled())
        assert raft.role is Role.LEADER
        assert B in appends(out)

    def test_a_replica_with_a_stalled_log_does_not_campaign(self):
        raft = make_raft()
        deadline = raft.step(100.0, ClockAdvanced()).deadline
        out = raft.step(deadline + 0.01, LogStalled())
        assert out.send == []
        assert out.deadline > deadline + 0.01


class TestStart:
    """New groups and restarts."""

    def test_a_new_group_elects_within_a_quarter_of_a_second(self):
        raft = make_raft(chance=0.999)
        assert raft.step(0.0, ClockAdvanced()).deadline < 0.25

    def test_a_single_replica_elects_itself_at_once(self):
        raft = make_raft(config=config_of("a"))
        out = raft.step(5.0, ClockAdvanced())
        assert out.hard_state == HardState(1, A)
        out = raft.step(5.0, HardStateDurable(HardState(1, A)))
        assert raft.role is Role.LEADER
        assert (out.send, out.deadline) == ([], None)

    def test_a_single_replica_serves_reads_alone(self):
        raft = make_raft(config=config_of("a"))
        raft.step(5.0, ClockAdvanced())
        raft.step(5.0, HardStateDurable(HardState(1, A)))
        assert raft.step(5.0, ReadIndexRequested(1)).reads_ready == []
        (ready,) = sync(raft, 5.0).reads_ready
        assert ready.index == 1

    def test_a_log_of_a_later_term_than_the_metadata_raises_the_term_without_a_vote(self):
        raft = make_raft(terms=[1, 3], term=1, voted_for="b")
        assert raft.step(0.0, ClockAdvanced()).hard_state == HardState(3, None)


class TestCopy:
    """Followers that cannot be served from the log."""

    def test_a_follower_without_a_replica_is_named_once_per_heartbeat(self):
        raft = make_raft()
        now = lead(raft)
        message = appends(raft.step(now, EntryProposed(EntryKind.WRITE, 1)))[C]
        for _ in range(5):
            acknowledge(raft, now, appends(raft.step(now, ReadIndexRequested(1)))[B])  # B keeps the quorum
            out = raft.step(now, FollowerLacksTablet(C, message.request))
            assert (out.copy_to, out.send) == ([C], [])
            now += 0.3
            message = appends(raft.step(now, ClockAdvanced()))[C]
            assert message.last_index == message.preceding.index

    def test_a_copied_follower_is_continued_where_its_copy_ends(self):
        raft = make_raft()
        now = lead(raft)
        message = appends(raft.step(now, EntryProposed(EntryKind.WRITE, 1)))[C]
        raft.step(now, FollowerLacksTablet(C, message.request))
        probe = appends(raft.step(now + 0.3, ClockAdvanced()))[C]
        assert probe.preceding == OpId(1, 2)
        resumed = appends(refuse(raft, now + 0.3, probe, (1, 1), 1))[C]
        assert (resumed.preceding, resumed.last_index) == (OpId(1, 1), 2)

    def test_a_follower_behind_the_logs_beginning_is_copied(self):
        log = LogView(runs=[(11, 2)], last_index=12, preceding=OpId(2, 10))
        raft = make_raft(log=log)
        message = appends(elect(raft))[B]
        assert message.preceding == OpId(2, 12)
        out = refuse(raft, 150.0, message, (2, 5), 5)
        assert (out.copy_to, out.send) == ([B], [])

    def test_a_follower_at_the_logs_beginning_is_served_from_it(self):
        log = LogView(runs=[(11, 2)], last_index=12, preceding=OpId(2, 10))
        raft = make_raft(log=log)
        out = refuse(raft, 150.0, appends(elect(raft))[B], (2, 10), 0)
        assert out.copy_to == []
        assert appends(out)[B].preceding == OpId(2, 10)

    def test_a_range_that_was_collected_meanwhile_leads_to_a_copy(self):
        raft = make_raft()
        now = lead(raft)
        message = appends(raft.step(now, EntryProposed(EntryKind.WRITE, 1)))[C]
        out = raft.step(now, FollowerBehindLog(C, message.request))
        assert (out.copy_to, out.send) == ([C], [])

    def test_a_member_that_needs_a_copy_does_not_hold_back_log_collection(self):
        raft = make_raft()
        now = lead(raft)
        message = appends(raft.step(now, EntryProposed(EntryKind.WRITE, 1)))
        assert raft.replicated_index == 1
        acknowledge(raft, now, message[B])
        raft.step(now, FollowerLacksTablet(C, message[C].request))
        assert raft.replicated_index == 2

    def test_the_log_is_held_for_a_copied_member_from_its_first_answer_on(self):
        """Seed 000, step 4: before, the copy's own anchor holds it."""
        raft = make_raft()
        now = lead(raft)
        message = appends(raft.step(now, EntryProposed(EntryKind.WRITE, 1)))
        acknowledge(raft, now, message[B])
        raft.step(now, FollowerLacksTablet(C, message[C].request))
        assert (raft.needs_copy(C), raft.replicated_index) == (True, 2)
        probe = appends(raft.step(now + 0.3, ClockAdvanced()))[C]
        refuse(raft, now + 0.3, probe, (1, 1), 1)
        assert (raft.needs_copy(C), raft.replicated_index) == (False, 0)

    def test_a_follower_accepts_after_its_collected_beginning(self):
        raft = make_raft("b", log=LogView(runs=[(11, 2)], last_index=12, preceding=OpId(2, 10)))
        out = raft.step(1.0, append_from("a", 2, (1, 4), *[(2, i) for i in range(5, 14)], commit=13))
        assert [entry.op_id for entry in out.append] == [OpId(2, 13)]
        assert out.commit_to == 13
