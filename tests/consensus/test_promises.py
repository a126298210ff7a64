"""What may leave only once the disk has it."""

from __future__ import annotations

from kudu_py.consensus.core.output import Done
from kudu_py.consensus.promises import Promise, Promises


def promise(token, appends=0, hard_states=0):
    return Promise(appends, hard_states, (), (Done(token),))


def test_a_promise_waits_for_both_files():
    left = []
    promises = Promises(lambda messages, replies: left.extend(reply.token for reply in replies))
    promises.hold(promise(1, appends=1, hard_states=1))
    promises.note_appends_durable(1)
    promises.release_due()
    assert left == []
    promises.note_hard_states_durable(1)
    promises.release_due()
    assert left == [1]


def test_a_later_promise_does_not_overtake_an_earlier_one():
    left = []
    promises = Promises(lambda messages, replies: left.extend(reply.token for reply in replies))
    promises.hold(promise(1, hard_states=1))
    promises.hold(promise(2))
    assert left == []
    promises.note_hard_states_durable(1)
    promises.release_due()
    assert left == [1, 2]


def test_a_promise_with_nothing_to_wait_for_leaves_at_once():
    left = []
    promises = Promises(lambda messages, replies: left.extend(reply.token for reply in replies))
    promises.hold(promise(1))
    assert left == [1]
