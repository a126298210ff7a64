"""Promotion with catch-up rounds, undo by appending, and the change without a majority, one rule each.

Seed 000 and chapter 4 of the dissertation; which of the two holds where they differ is said in docs/decisions.
"""

import pytest

from kudu_py.common.opid import OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    ClockAdvanced,
    ConfigChangeAborted,
    ConfigChangeProposed,
    ConfigChangeRequested,
    EntryProposed,
    FollowerLacksTablet,
    HardStateDurable,
    StepDownRequested,
    UnsafeConfigForced,
    VoteRequested,
)
from kudu_py.consensus.core.model import (
    ConfigChange,
    EntryKind,
    HardState,
    LogEntry,
    Member,
    MemberType,
    RaftOptions,
    Role,
)
from kudu_py.consensus.core.output import ConfigMark, Divergence, Done, SendAppend, SendRunElection, UndoMark
from kudu_py.testing import core_builder
from kudu_py.testing.core_builder import (
    acknowledge,
    append_from,
    appends,
    config_of,
    elect,
    lead,
    server,
    sync,
)

A, B, C, D, E = (server(name) for name in "abcde")


OPTIONS = RaftOptions(check_invariants=True, request_timeout_s=0.2)
"""What was not answered is sent again with the next heartbeat."""


def make_raft(*args, **keywords):
    return core_builder.make_raft(*args, options=OPTIONS, **keywords)


def change(raft, now, new):
    (accepted,) = raft.step(now, ConfigChangeProposed(new, None, 9)).accepted
    return accepted.op_id


def refusal_of(out):
    (refused,) = out.refused
    assert out.append == []
    return refused.error


def answer(raft, now, out, *, entries="", heartbeats=""):
    """Those named acknowledge what this output sent them: entries, or only that they are there. The entries that the
    leader appended by then come back."""
    appended = list(out.append)
    for message in out.send:
        if isinstance(message, SendAppend):
            if message.to in entries:
                appended += acknowledge(raft, now, message).append
            elif message.to in heartbeats:
                last = OpId(raft.term, 1)
                appended += raft.step(now, AppendAnswered(message.to, message.request, raft.term, True, last, 0)).append
    return appended


def let_pass(raft, now, seconds, *, entries="", heartbeats=""):
    """Time passes in heartbeats; returns the time and what the leader appended meanwhile."""
    appended, end = [], now + seconds
    while now < end and raft.role is Role.LEADER:
        now += 0.25
        appended += answer(raft, now, raft.step(now, ClockAdvanced()), entries=entries, heartbeats=heartbeats)
    return now, appended


class TestPromotion:
    """Dissertation section 4.2.1; seed 000, step 2 of "Process for adding a new node"."""

    def test_a_marked_pre_voter_that_has_caught_up_becomes_a_voter(self):
        raft = make_raft(config=config_of("abc", promoted="d"))
        lead(raft)
        assert raft.pending_config == config_of("abcd", config_index=2)

    def test_one_that_is_not_marked_stays_a_pre_voter(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        assert let_pass(raft, now, 20.0, entries="bcd")[1] == []

    def test_the_mark_that_it_is_to_be_replaced_stays(self):
        members = (*config_of("abc").members, Member(D, MemberType.PRE_VOTER, "d:7050", promote=True, replace=True))
        raft = make_raft(config=type(config_of("a"))(0, members))
        lead(raft)
        assert raft.pending_config.member(D) == Member(D, MemberType.VOTER, "d:7050", replace=True)

    def test_one_at_a_time_the_next_once_that_is_committed(self):
        raft = make_raft(config=config_of("abc", promoted="de"))
        now = lead(raft)
        assert raft.pending_config == config_of("abcd", promoted="e", config_index=2)
        sync(raft, now)
        now, appended = let_pass(raft, now, 1.0, entries="bcde")
        assert [entry.config for entry in appended] == [config_of("abcde", config_index=3)]

    def test_not_before_an_entry_of_the_own_term_is_committed(self):
        raft = make_raft(config=config_of("abc", promoted="d"), terms=[1], committed=1)
        out = elect(raft)
        assert acknowledge(raft, 150.0, appends(out)[D]).append == []
        acknowledge(raft, 150.0, appends(out)[B])
        assert [entry.config for entry in sync(raft, 150.0).append] == [config_of("abcd", config_index=3)]

    def test_not_while_a_round_takes_longer_than_an_election_timeout(self):
        raft = core_builder.make_raft(config=config_of("abc", promoted="d"))
        out, now = elect(raft), 150.0
        sync(raft, now)
        answer(raft, now, out, entries="bc")
        message = appends(out)[D]

        def written_and_taken_after(seconds):
            """Writes go on, so that each round leaves something for the next, and D takes its round so much later."""
            nonlocal message, now
            answer(raft, now, raft.step(now, EntryProposed(EntryKind.WRITE, 1)), entries="bc")
            end = now + seconds
            while now < end:
                now = min(end, now + 0.25)
                answer(raft, now, raft.step(now, ClockAdvanced()), entries="bc")
            out = acknowledge(raft, now, message)
            message = appends(out)[D]
            return [entry.kind for entry in out.append]

        assert written_and_taken_after(0.1) == []  # which begins the first round
        assert [written_and_taken_after(seconds) for seconds in (1.5, 1.1, 1.0)] == [[], [], []]
        assert written_and_taken_after(0.9) == [EntryKind.CONFIG_CHANGE]

    def test_one_that_kept_the_pace_and_falls_back_is_not_promoted(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abc", promoted="d"))
        sync(raft, now)
        # D, which was up to date, hears heartbeats but takes no entries any more.
        now, appended = let_pass(raft, now, 5.0, entries="bc", heartbeats="d")
        assert (appended, raft.pending_config) == ([], None)

    def test_one_that_needs_a_copy_begins_anew(self):
        raft = make_raft(config=config_of("abc", promoted="d"))
        out, now = elect(raft), 150.0
        raft.step(now, FollowerLacksTablet(D, appends(out)[D].request))
        sync(raft, now)
        answer(raft, now, out, entries="bc")
        assert raft.has_committed_in_own_term
        assert raft.pending_config is None

    def test_not_while_too_few_of_the_voters_answer(self):
        raft = make_raft(config=config_of("abcd", promoted="e"))
        out, now = elect(raft), 150.0
        sync(raft, now)
        answer(raft, now, out, entries="bc")
        # Of the five there would be, only A and E are heard within the last election timeout.
        assert acknowledge(raft, now + 1.1, appends(out)[E]).append == []

    def test_not_while_it_hands_over(self):
        raft = make_raft(config=config_of("abc", promoted="d"))
        out, now = elect(raft), 150.0
        sync(raft, now)
        answer(raft, now, out, entries="bc")
        assert raft.step(now, StepDownRequested(1, B)).send == [SendRunElection(B, 1)]
        assert acknowledge(raft, now, appends(out)[D]).append == []

    def test_a_follower_promotes_nobody(self):
        raft = make_raft(config=config_of("abc", promoted="d"), terms=[1])
        assert raft.step(1.0, append_from("b", 1, (1, 1), (1, 2), commit=2)).append[0].kind is EntryKind.WRITE


class TestUndo:
    """docs/decisions/config-change.md; seed 002, "Support AddServer abort?"."""

    def test_a_change_that_does_not_commit_in_time_is_undone_by_appending_the_previous_members(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        begun = change(raft, now, config_of("abcd"))
        sync(raft, now)
        now, appended = let_pass(raft, now, 9.5, entries="b")
        assert appended == []
        now, appended = let_pass(raft, now, 1.0, entries="b")
        previous = config_of("abc", "d", config_index=3)
        assert appended == [LogEntry(OpId(1, 3), EntryKind.CONFIG_CHANGE, previous)]
        assert (raft.active_config, raft.committed_config.config_index) == (previous, 0)
        assert begun == OpId(1, 2)

    def test_the_output_says_what_was_undone_and_cuts_nothing(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        out = raft.step(now, ConfigChangeAborted(None, 7))
        assert out.undo == UndoMark(OpId(1, 2), OpId(1, 3), "it was aborted")
        assert (out.truncate_after, out.abort_after) == (None, None)
        assert [mark.op_id for mark in out.accepted] == [OpId(1, 3)]
        assert out.config == ConfigMark(config_of("abc", "d", config_index=3), config_of("abc", "d"), persist=False)

    def test_an_undo_is_counted_by_the_members_that_it_brings_back(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        sync(raft, now)
        out = raft.step(now, ConfigChangeAborted(None, 7))
        sync(raft, now)
        now, _ = let_pass(raft, now, 0.5, entries="b")
        assert raft.committed_config == config_of("abc", "d", config_index=3)
        assert out.undo is not None

    def test_change_and_undo_commit_together(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        changed = raft.step(now, ConfigChangeProposed(config_of("abcd"), None, 9))
        sync(raft, now)
        raft.step(now, ConfigChangeAborted(None, 7))
        sync(raft, now)
        # B and C hold the change, which is a majority of the members before: it is not committed without its undo.
        assert acknowledge(raft, now, appends(changed)[B]).commit_to is None
        out = acknowledge(raft, now, appends(changed)[C])
        assert out.commit_to is None
        assert acknowledge(raft, now, appends(out)[C]).commit_to == 3
        assert raft.committed_config == config_of("abc", "d", config_index=3)

    def test_an_undo_is_not_undone(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        sync(raft, now)
        raft.step(now, ConfigChangeAborted(None, 7))
        now, appended = let_pass(raft, now, 30.0, heartbeats="bcd")
        assert (appended, raft.role) == ([], Role.LEADER)
        out = raft.step(now, ConfigChangeAborted(None, 8))
        assert (out.append, out.replies) == ([], [Done(8)])

    def test_no_other_change_before_the_undo_is_committed(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        raft.step(now, ConfigChangeAborted(None, 7))
        error = refusal_of(raft.step(now, ConfigChangeProposed(config_of("abc"), None, 9)))
        assert error.code.value == "CONFIG_CHANGE_PENDING"

    def test_a_leader_that_finds_a_change_in_its_log_does_not_undo_it(self):
        inherited = config_of("abcd", config_index=2)
        raft = make_raft(config=config_of("abc", "d"), terms=[1, 1], committed=1, pending_configs=[inherited])
        elect(raft)
        now, appended = let_pass(raft, 150.0, 30.0, heartbeats="bcd")
        assert (appended, raft.role, raft.pending_config) == ([], Role.LEADER, inherited)
        error = refusal_of(raft.step(now, ConfigChangeAborted(None, 7)))
        assert (error.code.value, "earlier leader" in error.message) == ("ILLEGAL_STATE", True)

    def test_nor_does_the_leader_that_appended_it_once_its_term_has_passed(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        raft.step(now, VoteRequested(1, B, 5, OpId(0, 0), False, ignore_live_leader=True))
        assert (raft.role, raft.term) == (Role.FOLLOWER, 5)
        raft.step(now, HardStateDurable(raft.hard_state))
        sync(raft, now)
        elect(raft, now + 50.0)
        now, appended = let_pass(raft, now + 100.0, 30.0, heartbeats="bcd")
        assert (appended, raft.role) == ([], Role.LEADER)
        assert refusal_of(raft.step(now, ConfigChangeAborted(None, 7))).code.value == "ILLEGAL_STATE"

    @pytest.mark.parametrize("answering", ["b", "c", "bc", "bd", "bcd"])
    def test_a_leader_goes_on_while_a_majority_of_either_config_answers(self, answering):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        let_pass(raft, now, 5.0, heartbeats=answering)
        assert raft.role is Role.LEADER

    @pytest.mark.parametrize("answering", ["", "d"])
    def test_it_gives_up_if_no_majority_of_either_does(self, answering):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        let_pass(raft, now, 5.0, heartbeats=answering)
        assert raft.role is Role.FOLLOWER

    def test_once_it_is_committed_only_the_new_members_count_for_the_leader(self):
        raft = make_raft(config=config_of("abc"))
        now = lead(raft)
        change(raft, now, config_of("ab"))
        sync(raft, now)
        now, _ = let_pass(raft, now, 1.0, entries="b")
        assert raft.committed_config == config_of("ab", config_index=2)
        let_pass(raft, now, 5.0, heartbeats="c")
        assert raft.role is Role.FOLLOWER

    def test_a_removal_whose_other_members_died_is_undone_with_the_one_that_was_to_go(self):
        raft = make_raft(config=config_of("abc"))
        now = lead(raft)
        change(raft, now, config_of("ab"))
        sync(raft, now)
        now, appended = let_pass(raft, now, 11.0, entries="c")
        assert [entry.config for entry in appended] == [config_of("abc", config_index=3)]
        sync(raft, now)
        let_pass(raft, now, 1.0, entries="c")
        assert raft.committed_config == config_of("abc", config_index=3)

    def test_it_is_not_undone_while_the_previous_members_could_not_commit_that(self):
        raft = make_raft(config=config_of("abcd"))
        now = lead(raft)
        change(raft, now, config_of("abc"))
        sync(raft, now)
        # B answers but its disk hangs; C and D are gone: of the three a majority answers, of the four none.
        now, appended = let_pass(raft, now, 30.0, heartbeats="b")
        assert (appended, raft.role) == ([], Role.LEADER)
        assert refusal_of(raft.step(now, ConfigChangeAborted(None, 7))).code.value == "UNAVAILABLE"
        let_pass(raft, now, 4.0, entries="b")
        assert raft.committed_config == config_of("abc", config_index=2)

    def test_an_abort_names_the_change_it_means(self):
        raft = make_raft(config=config_of("abc", "d"))
        now = lead(raft)
        change(raft, now, config_of("abcd"))
        error = refusal_of(raft.step(now, ConfigChangeAborted(5, 7)))
        assert (error.code.value, error.details) == ("CAS_FAILED", {"config_index": "2"})
        assert raft.step(now, ConfigChangeAborted(2, 7)).accepted

    def test_an_abort_without_a_change_has_nothing_to_do(self):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now, ConfigChangeAborted(None, 7))
        assert (out.replies, out.append) == ([Done(7)], [])

    def test_only_a_leader_undoes(self):
        raft = make_raft(terms=[1])
        raft.step(1.0, append_from("b", 1, (1, 1)))
        assert refusal_of(raft.step(1.0, ConfigChangeAborted(None, 7))).code.value == "NOT_THE_LEADER"

    def test_an_undone_promotion_is_not_tried_again_at_once(self):
        raft = make_raft(config=config_of("abc", promoted="d"))
        now = lead(raft)
        raft.step(now, ConfigChangeAborted(None, 7))
        sync(raft, now)
        now, appended = let_pass(raft, now, 9.0, entries="bcd")
        assert (appended, raft.committed_config.config_index) == ([], 3)
        now, appended = let_pass(raft, now, 2.0, entries="bcd")
        assert [entry.config for entry in appended] == [config_of("abcd", config_index=4)]


class TestHeldBack:
    """Who loses its vote must not learn of it before that is committed (dissertation section 4.2.2, figure 4.6)."""

    @pytest.mark.parametrize("new", [config_of("ab"), config_of("ab", "c")])
    def test_it_hears_heartbeats_and_gets_no_entries_until_the_change_is_committed(self, new):
        raft = make_raft()
        now = lead(raft)
        out = raft.step(now, ConfigChangeProposed(new, None, 9))
        assert set(appends(out)) == {B}
        for _ in range(4):
            now += 0.3
            out = raft.step(now, ClockAdvanced())
            assert appends(out)[C].last_index == appends(out)[C].preceding.index == 1
            answer(raft, now, out, heartbeats="bc")

    def test_a_demoted_member_gets_entries_from_then_on(self):
        raft = make_raft()
        now = lead(raft)
        change(raft, now, config_of("ab", "c"))
        sync(raft, now)
        now, _ = let_pass(raft, now, 1.0, entries="bc")
        assert raft.committed_config == config_of("ab", "c", config_index=2)
        assert [row.match_index for row in raft.followers] == [2, 2]

    def test_a_removed_member_is_not_heard_any_more(self):
        raft = make_raft()
        now = lead(raft)
        change(raft, now, config_of("ab"))
        sync(raft, now)
        now, _ = let_pass(raft, now, 1.0, entries="bc")
        assert raft.pending_config is None
        assert set(appends(raft.step(now + 0.3, ClockAdvanced()))) == {B}

    def test_it_is_not_copied(self):
        raft = make_raft()
        now = lead(raft)
        change(raft, now, config_of("ab"))
        out = raft.step(now + 0.3, ClockAdvanced())
        assert raft.step(now + 0.3, FollowerLacksTablet(C, appends(out)[C].request)).copy_to == []


class TestRequest:
    """One member at a time, by whoever drives (seed 000, "Process for adding", "Process for removing")."""

    def request(self, raft, now, kind, member, expected=None):
        return raft.step(now, ConfigChangeRequested(kind, member, expected, 7))

    def test_a_voter_joins_as_a_pre_voter_that_is_to_be_promoted(self):
        raft = make_raft()
        now = lead(raft)
        out = self.request(raft, now, ConfigChange.ADD_SERVER, Member(D, MemberType.VOTER, "d:7050"))
        assert out.append[0].config == config_of("abc", promoted="d", config_index=2)

    def test_what_is_so_already_changes_nothing(self):
        raft = make_raft()
        now = lead(raft)
        for kind, member in [
            (ConfigChange.ADD_SERVER, Member(C, MemberType.VOTER, "c:7050")),
            (ConfigChange.REMOVE_SERVER, Member(D, MemberType.VOTER)),
            (ConfigChange.CHANGE_ROLE, Member(C, MemberType.VOTER)),
        ]:
            out = self.request(raft, now, kind, member, 0)
            assert (out.replies, out.append, out.refused) == ([Done(7)], [], [])
            assert refusal_of(self.request(raft, now, kind, member, 3)).code.value == "CAS_FAILED"

    def test_a_mark_on_the_leader_itself_leaves_it_the_leader(self):
        raft = make_raft()
        now = lead(raft)
        out = self.request(raft, now, ConfigChange.CHANGE_ROLE, Member(A, MemberType.VOTER, replace=True))
        assert out.append[0].config.member(A) == Member(A, MemberType.VOTER, "a:7050", replace=True)
        assert raft.role is Role.LEADER

    def test_a_leader_asked_to_demote_itself_says_where_to_go(self):
        raft = make_raft()
        now = lead(raft)
        out = self.request(raft, now, ConfigChange.CHANGE_ROLE, Member(A, MemberType.PRE_VOTER))
        error = refusal_of(out)
        assert (error.code.value, error.details) == (
            "STEPPING_DOWN",
            {"term": "1", "leader_uuid": "b", "leader_address": "b:7050"},
        )
        assert out.send == [SendRunElection(B, 1)]

    def test_the_last_voter_is_not_removed(self):
        raft = make_raft(config=config_of("a", "b"))
        raft.step(1.0, ClockAdvanced())
        raft.step(1.0, HardStateDurable(raft.hard_state))
        sync(raft, 1.0)
        error = refusal_of(self.request(raft, 1.0, ConfigChange.REMOVE_SERVER, Member(A, MemberType.VOTER)))
        assert (error.code.value, "has no voter" in error.message) == ("INVALID_CONFIG", True)
        assert raft.role is Role.LEADER


class TestWithoutMajority:
    """Seed 000, "Restoring availability after catastrophic data loss"."""

    def force(self, raft, now, members):
        return raft.step(now, UnsafeConfigForced(tuple(server(name) for name in members), 7))

    def test_the_survivor_takes_a_new_term_and_the_config_and_elects_itself(self):
        raft = make_raft(terms=[1, 1], committed=1)
        raft.step(0.0, ClockAdvanced())
        out = self.force(raft, 9.0, "a")
        assert out.hard_state == HardState(2, A)
        assert out.append == [LogEntry(OpId(2, 3), EntryKind.CONFIG_CHANGE, config_of("a", config_index=3))]
        assert (out.replies, out.replies_after_durable, out.deadline) == ([], [Done(7)], 9.0)
        raft.step(9.0, HardStateDurable(HardState(2, A)))
        sync(raft, 9.0)
        raft.step(9.0, ClockAdvanced())
        raft.step(9.0, HardStateDurable(raft.hard_state))
        assert (raft.role, raft.term) == (Role.LEADER, 3)
        # What its log held is committed with it: it may have been acknowledged.
        assert sync(raft, 9.0).commit_to == 4
        assert raft.committed_config == config_of("a", config_index=3)

    def test_the_others_that_stay_are_asked_for_their_votes(self):
        raft = make_raft(config=config_of("abcde"), terms=[1])
        raft.step(0.0, ClockAdvanced())
        self.force(raft, 9.0, "ab")
        raft.step(9.0, HardStateDurable(raft.hard_state))
        out = raft.step(9.0, ClockAdvanced())
        assert [(message.to, message.last_op_id) for message in out.send] == [(B, OpId(2, 2))]

    def test_types_and_addresses_are_kept_also_of_a_change_that_is_not_committed(self):
        pending = config_of("abc", promoted="d", config_index=2)
        raft = make_raft(terms=[1, 1], committed=1, pending_configs=[pending])
        raft.step(0.0, ClockAdvanced())
        self.force(raft, 9.0, "ad")
        assert raft.active_config == config_of("a", promoted="d", config_index=3)

    @pytest.mark.parametrize(
        ("members", "word"),
        [("az", "z: not a member"), ("bc", "a itself is not among"), ("", "a itself is not among")],
    )
    def test_only_some_of_the_present_members_and_itself_can_stay(self, members, word):
        raft = make_raft(terms=[1])
        raft.step(0.0, ClockAdvanced())
        error = refusal_of(self.force(raft, 9.0, members))
        assert (error.code.value, word in error.message) == ("INVALID_ARGUMENT", True)
        assert raft.term == 1

    def test_a_pre_voter_cannot_go_on_alone(self):
        raft = make_raft("d", config_of("abc", "d"), terms=[1])
        raft.step(0.0, ClockAdvanced())
        assert "not a voter" in refusal_of(self.force(raft, 9.0, "d")).message

    def test_not_while_a_leader_is_alive(self):
        raft = make_raft(terms=[1])
        raft.step(1.0, append_from("b", 1, (1, 1)))
        assert refusal_of(self.force(raft, 1.5, "a")).code.value == "ILLEGAL_STATE"
        leader = make_raft()
        now = lead(leader)
        assert refusal_of(self.force(leader, now, "a")).code.value == "ILLEGAL_STATE"

    @pytest.mark.parametrize(
        "message",
        [
            append_from("b", 3, (3, 2), (3, 3)),  # the entry before differs from one that is committed here
            append_from("b", 3, (1, 1), (3, 2), (3, 3)),  # one of the entries does
        ],
    )
    def test_a_replica_that_committed_otherwise_than_its_leader_is_silent_from_then_on(self, message):
        raft = make_raft(terms=[1, 1], committed=2)
        raft.step(0.0, ClockAdvanced())
        out = raft.step(1.0, message)
        assert out.divergence == Divergence(OpId(1, 2), OpId(3, 2))
        assert (out.append, out.replies, out.replies_after_durable, out.truncate_after) == ([], [], [], None)

    def test_members_that_were_given_up_and_are_back_do_not_silence_those_that_went_on(self):
        raft = make_raft(config=config_of("a"), terms=[1, 2], committed=2)
        raft.step(0.0, ClockAdvanced())
        raft.step(0.0, HardStateDurable(raft.hard_state))
        assert (raft.role, raft.term) == (Role.LEADER, 3)
        for message in (append_from("b", 9, (0, 0)), append_from("b", 9, (1, 1), (9, 2))):
            out = raft.step(1.0, message)
            assert refusal_of(out).code.value == "ILLEGAL_STATE"
            assert (out.divergence, out.hard_state, raft.role, raft.term) == (None, None, Role.LEADER, 3)

    def test_nor_do_they_those_that_follow_one_that_went_on(self):
        raft = make_raft(config=config_of("ac"), terms=[1, 2], committed=2)
        raft.step(0.0, append_from("c", 2, (2, 2)))
        assert refusal_of(raft.step(0.9, append_from("b", 9, (2, 2), (9, 3)))).code.value == "ILLEGAL_STATE"
        assert (raft.leader, raft.term) == (C, 2)

    def test_a_leader_that_is_not_known_to_be_a_member_is_followed_where_none_is_heard(self):
        raft = make_raft(config=config_of("ac"), terms=[1, 2], committed=2)
        raft.step(0.0, append_from("c", 2, (2, 2)))
        out = raft.step(1.1, append_from("b", 9, (2, 2), (9, 3)))
        assert (raft.leader, raft.term, len(out.append)) == (B, 9, 1)

    def test_what_equals_the_committed_log_is_no_divergence(self):
        raft = make_raft(terms=[1, 1], committed=2)
        raft.step(0.0, ClockAdvanced())
        out = raft.step(1.0, append_from("b", 3, (1, 1), (1, 2), (3, 3)))
        assert (out.divergence, [entry.op_id for entry in out.append]) == (None, [OpId(3, 3)])
