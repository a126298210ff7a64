"""The paper as a test plan: one test per sentence, quoted loosely, with its section.

Sections without a prefix are those of "In Search of an Understandable Consensus Algorithm (Extended Version)"; "D"
are those of Ongaro's dissertation.
"""

import pytest

from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    ClockAdvanced,
    ElectionRequested,
    EntriesDurable,
    EntryProposed,
    HandoverFailed,
    HardStateDurable,
    ReadIndexRequested,
    RequestFailed,
    StepDownRequested,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.model import EntryKind, HardState, Role
from kudu_py.consensus.core.output import AppendReply, SendRunElection, SendVoteRequest, VoteReply
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

A, B, C = server("a"), server("b"), server("c")


def vote_request(candidate, term, last, *, pre=False, ignore=False):
    return VoteRequested(1, server(candidate), term, OpId(*last), pre, ignore)


def propose(raft, now):
    return raft.step(now, EntryProposed(EntryKind.WRITE, 1))


class TestTerms:
    """Section 5.1."""

    def test_a_server_with_a_smaller_term_updates_it(self):
        raft = make_raft(terms=[1])
        out = raft.step(1.0, append_from("b", 5, (1, 1)))
        assert out.hard_state == HardState(5, None)
        assert raft.term == 5

    @pytest.mark.parametrize("make_role", [campaign, elect])
    def test_a_candidate_or_leader_whose_term_is_out_of_date_reverts_to_follower(self, make_role):
        raft = make_raft()
        make_role(raft)
        out = raft.step(150.0, AppendAnswered(B, 1, 9, False, OpId(0, 0), 0))
        assert raft.role is Role.FOLLOWER
        assert out.hard_state == HardState(9, None)

    def test_a_request_with_a_stale_term_is_rejected(self):
        raft = make_raft(terms=[1, 3])
        (append,) = raft.step(1.0, append_from("b", 2, (1, 1), (2, 2))).replies
        assert append == AppendReply(1, 3, False, OpId(1, 1), 0)
        (vote,) = raft.step(1.0, vote_request("b", 2, (3, 9))).replies
        assert vote == VoteReply(1, 3, False, "INVALID_TERM")
        assert raft.last_op_id == OpId(3, 2)

    def test_a_stale_request_does_not_put_off_the_election(self):
        raft = make_raft(terms=[1, 3])
        deadline = raft.step(1.0, ClockAdvanced()).deadline
        assert raft.step(1.5, append_from("b", 2, (1, 1))).deadline == deadline


class TestElection:
    """Section 5.2, with the pre-vote of D 9.6."""

    def test_servers_begin_as_followers(self):
        assert make_raft().role is Role.FOLLOWER

    def test_a_leader_sends_periodic_heartbeats_to_all_followers(self):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now + 0.3, ClockAdvanced())
        assert list(appends(out)) == [B, C]
        assert all(message.is_heartbeat for message in out.send)
        assert out.deadline == pytest.approx(now + 0.6)

    def test_a_follower_remains_one_as_long_as_it_hears_a_leader(self):
        raft = make_raft(terms=[1])
        for tenth in range(100):
            out = raft.step(tenth / 10, append_from("b", 1, (1, 1)))
            assert out.deadline > tenth / 10 + 1.0
        assert raft.role is Role.FOLLOWER

    def test_a_follower_that_hears_nothing_asks_whether_to_campaign(self):
        raft = make_raft(terms=[1])
        deadline = raft.step(0.0, ClockAdvanced()).deadline
        out = raft.step(deadline, ClockAdvanced())
        assert out.send == [SendVoteRequest(B, 2, OpId(1, 1), True), SendVoteRequest(C, 2, OpId(1, 1), True)]
        assert (raft.role, raft.term, out.hard_state) == (Role.FOLLOWER, 1, None)

    def test_to_begin_an_election_it_increments_its_term_votes_for_itself_and_asks_all_in_parallel(self):
        raft = make_raft(terms=[1])
        out = campaign(raft)
        assert raft.role is Role.CANDIDATE
        assert out.hard_state == HardState(2, A)
        assert out.send_after_durable == [
            SendVoteRequest(B, 2, OpId(1, 1), False),
            SendVoteRequest(C, 2, OpId(1, 1), False),
        ]
        assert out.send == []

    @pytest.mark.parametrize(
        ("voters", "votes", "wins"),
        [
            ("a", "", True),
            ("ab", "", False),
            ("ab", "b", True),
            ("abc", "", False),
            ("abc", "b", True),
            ("abcd", "b", False),
            ("abcd", "bc", True),
            ("abcde", "b", False),
            ("abcde", "bc", True),
        ],
    )
    def test_a_candidate_wins_with_votes_from_a_majority_of_the_full_cluster(self, voters, votes, wins):
        raft = make_raft(config=config_of(voters))
        if voters == "a":
            raft.step(100.0, ClockAdvanced())
        else:
            campaign(raft)
        raft.step(150.0, HardStateDurable(raft.hard_state))
        for voter in votes:
            raft.step(150.0, VoteAnswered(server(voter), 1, True, False, 1))
        assert (raft.role is Role.LEADER) == wins

    def test_a_vote_counts_once(self):
        raft = make_raft(config=config_of("abcde"))
        campaign(raft)
        raft.step(150.0, HardStateDurable(raft.hard_state))
        for _ in range(3):
            raft.step(150.0, VoteAnswered(B, 1, True, False, 1))
        assert raft.role is Role.CANDIDATE

    def test_a_vote_for_another_term_does_not_count(self):
        raft = make_raft(terms=[1])
        campaign(raft)
        raft.step(150.0, HardStateDurable(raft.hard_state))
        raft.step(150.0, VoteAnswered(B, 1, True, False, 1))
        raft.step(150.0, VoteAnswered(B, 1, True, True, 2))
        assert raft.role is Role.CANDIDATE

    def test_each_server_votes_for_at_most_one_candidate_in_a_term_first_come_first_served(self):
        raft = make_raft()
        first = raft.step(1.0, vote_request("b", 1, (0, 0)))
        assert first.replies_after_durable == [VoteReply(1, 1, True)]
        raft.step(1.0, HardStateDurable(HardState(1, B)))
        second = raft.step(1.0, vote_request("c", 1, (0, 0)))
        assert second.replies == [VoteReply(1, 1, False, "ALREADY_VOTED")]
        again = raft.step(1.0, vote_request("b", 1, (0, 0)))
        assert again.replies_after_durable == [VoteReply(1, 1, True)]
        assert again.hard_state is None

    def test_a_vote_is_kept_across_a_restart(self):
        raft = make_raft(term=1, voted_for="b")
        out = raft.step(1.0, vote_request("c", 1, (9, 9)))
        assert out.replies == [VoteReply(1, 1, False, "ALREADY_VOTED")]

    def test_the_winner_tells_all_others_at_once(self):
        out = elect(make_raft())
        assert [entry.kind for entry in out.append] == [EntryKind.NO_OP]
        assert {to: message.last_index for to, message in appends(out).items()} == {B: 1, C: 1}

    def test_a_candidate_recognises_the_leader_of_its_term(self):
        raft = make_raft()
        campaign(raft)
        raft.step(150.0, append_from("b", 1, (0, 0), (1, 1)))
        assert (raft.role, raft.leader) == (Role.FOLLOWER, B)

    def test_a_candidate_rejects_the_leader_of_an_older_term_and_goes_on(self):
        raft = make_raft(terms=[3])
        campaign(raft)
        raft.step(150.0, HardStateDurable(raft.hard_state))
        (answer,) = raft.step(150.0, append_from("b", 3, (3, 1))).replies
        assert (answer.accepted, answer.term) == (False, 4)
        assert raft.role is Role.CANDIDATE

    def test_a_candidate_that_neither_wins_nor_loses_campaigns_anew_when_its_time_is_out(self):
        raft = make_raft(terms=[1])
        deadline = campaign(raft).deadline
        raft.step(150.0, HardStateDurable(raft.hard_state))
        out = raft.step(deadline, ClockAdvanced())
        assert [message.is_pre_vote for message in out.send] == [True, True]
        out = raft.step(deadline, VoteAnswered(B, 2, True, True, 3))
        assert out.hard_state == HardState(3, A)

    def test_election_timeouts_are_drawn_from_an_interval(self):
        low = make_raft(terms=[1], chance=0.0).step(0.0, ClockAdvanced()).deadline
        high = make_raft(terms=[1], chance=0.999).step(0.0, ClockAdvanced()).deadline
        assert low == pytest.approx(1.0)
        assert high == pytest.approx(2.0, abs=0.01)


class TestReplication:
    """Section 5.3."""

    def test_the_leader_appends_and_issues_appends_in_parallel_without_waiting_for_its_disk(self):
        raft = make_raft()
        now = lead(raft)
        out = propose(raft, now)
        assert [entry.op_id for entry in out.append] == [OpId(1, 2)]
        assert {to: (m.preceding, m.last_index) for to, m in appends(out).items()} == {
            B: (OpId(1, 1), 2),
            C: (OpId(1, 1), 2),
        }
        assert out.send_after_durable == []

    def test_an_entry_is_committed_once_it_is_on_a_majority(self):
        raft = make_raft()
        now = lead(raft)
        out = propose(raft, now)
        assert sync(raft, now).commit_to is None
        assert acknowledge(raft, now, appends(out)[B]).commit_to == 2
        assert acknowledge(raft, now, appends(out)[C]).commit_to is None

    def test_two_followers_are_a_majority_before_the_leaders_own_disk(self):
        raft = make_raft()
        now = lead(raft)
        out = propose(raft, now)
        assert acknowledge(raft, now, appends(out)[B]).commit_to is None
        assert acknowledge(raft, now, appends(out)[C]).commit_to == 2

    def test_committing_an_entry_commits_all_before_it_also_those_of_previous_leaders(self):
        raft = make_raft(terms=[1, 1, 2])
        out = elect(raft)
        sync(raft, 150.0)
        assert acknowledge(raft, 150.0, appends(out)[B]).commit_to == 4

    def test_the_leader_includes_the_commit_index_in_later_appends(self):
        raft = make_raft()
        now = lead(raft)
        assert appends(propose(raft, now))[B].commit_index == 1

    def test_a_follower_learns_the_commit_index_from_the_leader(self):
        raft = make_raft(terms=[1, 1])
        assert raft.step(1.0, append_from("b", 1, (1, 2), commit=2)).commit_to == 2

    @pytest.mark.parametrize(
        ("preceding", "accepted"),
        [((0, 0), True), ((1, 1), True), ((2, 2), True), ((1, 2), False), ((3, 2), False), ((2, 3), False)],
    )
    def test_a_follower_refuses_unless_it_has_the_preceding_entry(self, preceding, accepted):
        raft = make_raft(terms=[1, 2], term=3)
        (answer,) = raft.step(1.0, append_from("b", 3, preceding)).replies
        assert answer.accepted == accepted

    @pytest.mark.parametrize(
        ("terms", "preceding", "sent", "truncated", "appended"),
        [
            ([], (0, 0), [(1, 1), (1, 2)], None, 2),
            ([1], (1, 1), [(2, 2)], None, 1),
            ([1, 1, 1], (1, 1), [(2, 2)], 1, 1),
            ([1, 1, 1], (1, 1), [(1, 2), (2, 3)], 2, 1),
            ([1, 2, 2], (0, 0), [(1, 1), (3, 2), (3, 3)], 1, 2),
        ],
    )
    def test_conflicting_entries_are_overwritten_with_the_leaders(self, terms, preceding, sent, truncated, appended):
        raft = make_raft(terms=terms, term=4)
        out = raft.step(1.0, append_from("b", 4, preceding, *sent))
        assert (out.truncate_after, out.abort_after, len(out.append)) == (truncated, truncated, appended)
        assert raft.last_op_id == OpId(*sent[-1])
        assert out.replies_after_durable == [AppendReply(1, 4, True, OpId(*sent[-1]), 0)]

    def test_a_leader_never_overwrites_or_deletes_entries_in_its_log(self):
        raft = make_raft(terms=[1, 1, 2])
        out = elect(raft)
        assert out.truncate_after is None
        assert raft.last_op_id == OpId(3, 4)

    def test_appends_are_retried_indefinitely_at_heartbeat_pace(self):
        raft = make_raft()
        now = lead(raft)
        message = appends(propose(raft, now))[B]
        for _ in range(20):
            assert raft.step(now, RequestFailed(B, message.request)).send == []
            acknowledge(raft, now, appends(raft.step(now, ReadIndexRequested(1)))[C])  # C keeps the quorum
            now += 0.3
            message = appends(raft.step(now, ClockAdvanced()))[B]
            assert (message.preceding, message.last_index) == (OpId(1, 1), 2)

    def test_after_a_refusal_the_leader_goes_back_until_the_logs_match(self):
        raft = make_raft(terms=[1, 1, 1, 4, 4, 5, 5, 6, 6, 6], committed=2)  # figure 7
        message = appends(elect(raft))[B]
        assert message.preceding == OpId(6, 10)
        message = appends(refuse(raft, 150.0, message, (4, 7), 3))[B]  # figure 7 (e): 1 1 1 4 4 4 4
        assert message.preceding == OpId(4, 5)
        acknowledge(raft, 150.0, message)
        assert raft.replicated_index == 0  # C has not answered

    def test_a_follower_with_a_divergent_log_needs_one_refusal_per_term(self):
        follower = make_raft("b", terms=[1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], term=7)  # figure 7 (f)
        (answer,) = follower.step(1.0, append_from("a", 7, (6, 10))).replies
        assert answer.last_received == OpId(3, 10)
        leader = make_raft(terms=[1, 1, 1, 4, 4, 5, 5, 6, 6, 6])
        message = appends(refuse(leader, 150.0, appends(elect(leader))[B], (3, 10), 0))[B]
        assert message.preceding == OpId(1, 3)
        out = follower.step(1.0, append_from("a", 7, (1, 3), (4, 4)))
        assert out.truncate_after == 3


class TestSafety:
    """Section 5.4."""

    @pytest.mark.parametrize(
        ("own", "candidates", "granted"),
        [
            ([1], (1, 1), True),
            ([1], (1, 2), True),
            ([1, 1], (1, 1), False),
            ([1, 1], (2, 1), True),
            ([2], (1, 9), False),
            ([2] * 9, (3, 5), True),
            ([], (0, 0), True),
        ],
    )
    def test_a_vote_is_denied_to_a_candidate_whose_log_is_less_up_to_date(self, own, candidates, granted):
        raft = make_raft(terms=own, term=3)
        raft.step(1.0, ClockAdvanced())
        out = raft.step(1.0, vote_request("b", 4, candidates))
        (answer,) = out.replies + out.replies_after_durable
        assert answer.granted == granted

    def test_a_denied_vote_still_teaches_the_term(self):
        raft = make_raft(terms=[2, 2], term=2)
        out = raft.step(1.0, vote_request("b", 4, (1, 9)))
        assert out.hard_state == HardState(4, None)

    def test_entries_of_older_terms_are_not_committed_by_counting(self):
        # Figure 8 (c): the entry of term 2 reaches a majority; only the entry of term 4 behind it may commit it.
        raft = make_raft(config=config_of("abcde"), terms=[1, 2], term=3, committed=1)
        out = elect(raft)
        sync(raft, 150.0)
        older = [acknowledge(raft, 150.0, appends(out)[follower], last=(2, 2)) for follower in (B, C)]
        assert [answer.commit_to for answer in older] == [None, None]
        own = [acknowledge(raft, 150.0, appends(answer)[to]) for to, answer in zip((B, C), older, strict=True)]
        assert [answer.commit_to for answer in own] == [None, 3]

    def test_the_commit_index_never_goes_back(self):
        raft = make_raft(terms=[1, 1, 1], committed=3)
        assert raft.step(1.0, append_from("b", 2, (1, 3), commit=1)).commit_to is None
        assert raft.commit_index == 3


class TestFigure2:
    """The condensed summary."""

    def test_a_follower_commits_no_further_than_the_last_entry_of_the_message(self):
        raft = make_raft(terms=[1, 1, 1, 1])
        assert raft.step(1.0, append_from("b", 2, (1, 1), (1, 2), commit=9)).commit_to == 2

    def test_appends_are_idempotent(self):
        raft = make_raft()
        first = raft.step(1.0, append_from("b", 1, (0, 0), (1, 1), (1, 2)))
        assert len(first.append) == 2
        sync(raft, 1.0)
        raft.step(1.0, HardStateDurable(raft.hard_state))
        again = raft.step(1.0, append_from("b", 1, (0, 0), (1, 1), (1, 2)))
        assert (again.append, again.truncate_after) == ([], None)
        assert again.replies == [AppendReply(1, 1, True, OpId(1, 2), 0)]

    def test_an_older_shorter_message_does_not_remove_entries_that_match(self):
        raft = make_raft(terms=[1, 1, 1])
        out = raft.step(1.0, append_from("b", 1, (0, 0), (1, 1)))
        assert out.truncate_after is None
        assert raft.last_op_id == OpId(1, 3)

    def test_term_and_vote_are_durable_before_any_answer(self):
        raft = make_raft(terms=[1])
        out = raft.step(1.0, append_from("b", 5, (9, 9)))
        assert out.replies == []
        assert len(out.replies_after_durable) == 1


class TestDissertation:
    """Chapters of the dissertation that the paper leaves out."""

    def test_d_3_10_the_successor_is_told_to_campaign_once_it_has_everything(self):
        raft = make_raft()
        now = lead(raft)
        pending = propose(raft, now)
        out = raft.step(now, StepDownRequested(1, C))
        assert not any(isinstance(message, SendRunElection) for message in out.send)
        assert acknowledge(raft, now, appends(pending)[B]).send == []
        assert acknowledge(raft, now, appends(pending)[C]).send == [SendRunElection(C, 1)]

    def test_d_3_10_whoever_answered_last_is_asked_first_to_take_over(self):
        for order in ((B, C), (C, B)):
            raft = make_raft()
            now = lead(raft)
            for after_s, follower in zip((0.1, 0.2), order, strict=True):
                raft.step(now + after_s, AppendAnswered(follower, 1, 1, True, OpId(1, 1), 1))
            out = raft.step(now + 0.3, StepDownRequested(1, None))
            assert out.send == [SendRunElection(order[1], 1)]

    def test_d_3_10_when_the_successor_cannot_be_told_the_next_one_is(self):
        raft = make_raft()
        now = lead(raft)
        (asked,) = raft.step(now, StepDownRequested(1, None)).send
        other = C if asked.to == B else B
        assert raft.step(now, HandoverFailed(other, 1)).send == []  # was not asked
        assert raft.step(now, HandoverFailed(asked.to, 0)).send == []  # by another leader
        assert raft.step(now, HandoverFailed(asked.to, 1)).send == [SendRunElection(other, 1)]
        assert raft.step(now, HandoverFailed(other, 1)).send == []
        raft.step(now + 0.9, AppendAnswered(B, 1, 1, True, OpId(1, 1), 1))
        raft.step(now + 1.0, ClockAdvanced())
        assert propose(raft, now + 1.0).accepted  # nobody can: it goes on to lead

    def test_d_3_10_a_leader_that_hands_over_takes_no_proposals_until_it_gives_up_waiting(self):
        raft = make_raft()
        now = lead(raft)
        raft.step(now, StepDownRequested(1, None))
        assert [refused.error.code.value for refused in propose(raft, now).refused] == ["STEPPING_DOWN"]
        for follower in (B, C):
            raft.step(now + 0.9, AppendAnswered(follower, 1, 1, True, OpId(0, 0), 0))
        raft.step(now + 1.0, ClockAdvanced())
        assert propose(raft, now + 1.0).accepted

    def test_d_3_10_the_successor_campaigns_at_once_and_is_heard_although_a_leader_lives(self):
        successor, voter = make_raft("b", terms=[1]), make_raft("c", terms=[1])
        for raft in (successor, voter):
            raft.step(1.0, append_from("a", 1, (1, 1)))
        out = successor.step(1.0, ElectionRequested(1, term=1))
        request = out.send_after_durable[0]
        assert (request.is_pre_vote, request.ignore_live_leader, request.term) == (False, True, 2)
        out = voter.step(1.0, vote_request("b", 2, (1, 1), ignore=True))
        assert out.replies_after_durable == [VoteReply(1, 2, True)]

    def test_d_4_2_3_a_vote_request_while_a_leader_is_alive_changes_nothing(self):
        raft = make_raft(terms=[1])
        raft.step(1.0, append_from("b", 1, (1, 1)))
        out = raft.step(1.5, vote_request("c", 9, (9, 9)))
        assert out.replies == [VoteReply(1, 1, False, "LEADER_IS_ALIVE")]
        assert raft.term == 1

    def test_d_6_2_a_leader_that_no_majority_answers_steps_down_and_keeps_its_vote(self):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now + 1.01, ClockAdvanced())
        assert (raft.role, raft.leader, raft.hard_state) == (Role.FOLLOWER, None, HardState(1, A))
        assert out.hard_state is None

    def test_d_6_4_a_read_waits_for_a_majority_to_answer_messages_sent_after_it(self):
        raft = make_raft()
        now = lead(raft)
        before = appends(raft.step(now + 0.3, ClockAdvanced()))
        out = raft.step(now + 0.3, ReadIndexRequested(7))
        assert out.reads_ready == []
        assert acknowledge(raft, now + 0.3, before[B], last=(1, 1)).reads_ready == []
        (ready,) = acknowledge(raft, now + 0.3, appends(out)[B], last=(1, 1)).reads_ready
        assert (ready.token, ready.index) == (7, 1)

    def test_d_6_4_reads_during_a_round_share_the_next_one(self):
        raft = make_raft()
        now = lead(raft)
        first = appends(raft.step(now, ReadIndexRequested(1)))
        assert raft.step(now, ReadIndexRequested(2)).send == []
        assert raft.step(now, ReadIndexRequested(3)).send == []
        out = acknowledge(raft, now, first[B], last=(1, 1))
        assert [ready.token for ready in out.reads_ready] == [1]
        out = acknowledge(raft, now, appends(out)[C], last=(1, 1))
        assert [ready.token for ready in out.reads_ready] == [2, 3]

    def test_d_6_4_a_new_leader_serves_no_read_before_its_no_op_is_committed(self):
        raft = make_raft(terms=[1, 1], committed=1)
        out = elect(raft)
        assert raft.step(150.0, ReadIndexRequested(7)).reads_ready == []
        raft.step(150.0, EntriesDurable(OpId(2, 3)))
        committed = acknowledge(raft, 150.0, appends(out)[B])
        assert (committed.commit_to, committed.reads_ready) == (3, [])
        (ready,) = acknowledge(raft, 150.0, appends(committed)[C], last=(2, 3)).reads_ready
        assert ready.index == 3

    def test_d_6_4_reads_are_refused_when_leadership_is_lost(self):
        raft = make_raft()
        now = lead(raft)
        raft.step(now, ReadIndexRequested(7))
        out = raft.step(now, AppendAnswered(B, 1, 9, False, OpId(0, 0), 0))
        (refused,) = out.refused
        assert (refused.token, refused.error.code.value) == (7, "NOT_THE_LEADER")

    def test_d_10_2_1_the_leader_counts_itself_only_up_to_its_own_disk(self):
        raft = make_raft(config=config_of("a"))
        raft.step(0.0, ClockAdvanced())
        raft.step(0.0, HardStateDurable(HardState(1, A)))
        assert raft.role is Role.LEADER
        assert raft.commit_index == 0
        assert sync(raft, 0.0).commit_to == 1
        assert propose(raft, 0.0).commit_to is None
        assert sync(raft, 0.0).commit_to == 2
