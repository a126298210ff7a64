"""What the memory of answers promises: a retried write is answered or refused, never applied twice."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.hybrid_time import HybridTime, add_micros, from_micros
from kudu_py.pb import storage_pb2, tserver_pb2
from kudu_py.tablet import retained_results
from kudu_py.tablet.retained_results import RequestIdentity, RetainedResults, RetainedSnapshot, digest_of, identity_of
from kudu_py.tablet.write_result import RowErrorCode, WriteResult

START = from_micros(1_800_000_000_000_000)
HOUR_MICROS = retained_results.REMEMBER_CLIENTS_MICROS
FINE = WriteResult()


def identity(client: int = 1, sequence: int = 1, digest: bytes = b"d", at: HybridTime = START) -> RequestIdentity:
    return RequestIdentity(f"{client:032x}", sequence, digest, at)


def after(micros: int) -> HybridTime:
    return add_micros(START, micros)


def errors(count: int) -> WriteResult:
    return WriteResult(row_errors=tuple((row, RowErrorCode.ALREADY_PRESENT) for row in range(count)))


def refusal(retained: RetainedResults, who: RequestIdentity, now: HybridTime = START) -> KuduError:
    with pytest.raises(KuduError) as raised:
        retained.lookup(who, now)
    return raised.value


def test_a_new_write_is_to_be_applied():
    assert RetainedResults().lookup(identity(), START) is None


def test_a_retry_gets_the_answer_of_the_first_attempt():
    retained = RetainedResults()
    result = errors(2)
    retained.remember(identity(), after(5), result)
    answer = retained.lookup(identity(), after(9))
    assert answer is not None
    assert (answer.timestamp, answer.row_errors) == (after(5), result.row_errors)


def test_a_sequence_that_carried_something_else_is_refused():
    retained = RetainedResults()
    retained.remember(identity(), START, FINE)
    error = refusal(retained, identity(digest=b"other"))
    assert (error.code, error.verdict) == (ErrorCode.REQUEST_ID_REUSED, Verdict.FAILED)


def test_a_sequence_below_the_highest_without_an_answer_is_unknown():
    retained = RetainedResults()
    retained.remember(identity(sequence=5), START, FINE)
    error = refusal(retained, identity(sequence=4))
    assert (error.code, error.verdict) == (ErrorCode.REQUEST_STALE, Verdict.UNKNOWN)


def test_a_first_attempt_older_than_the_horizon_is_unknown():
    error = refusal(RetainedResults(), identity(at=START), now=after(HOUR_MICROS))
    assert error.code is ErrorCode.REQUEST_STALE
    assert RetainedResults().lookup(identity(at=after(1)), after(HOUR_MICROS)) is None


def test_an_old_first_attempt_is_answered_as_long_as_the_answer_is_remembered():
    retained = RetainedResults()
    retained.remember(identity(), START, FINE)
    assert retained.lookup(identity(), after(2 * HOUR_MICROS)) is not None


def test_forgetting_follows_the_timestamps_of_entries():
    retained = RetainedResults()
    retained.remember(identity(client=1), START, FINE)
    retained.remember(identity(client=2, at=after(HOUR_MICROS - 1)), after(HOUR_MICROS - 1), FINE)
    assert len(retained) == 2
    retained.remember(identity(client=3, at=after(HOUR_MICROS)), after(HOUR_MICROS), FINE)
    assert len(retained) == 2
    assert retained.forgotten_through == START


def test_a_write_of_a_forgotten_client_is_unknown_also_if_its_clock_was_ahead():
    retained = RetainedResults()
    ahead = identity(client=1, at=after(60_000_000))
    retained.remember(ahead, START, FINE)
    retained.forget(after(HOUR_MICROS + 60_000_000))
    assert len(retained) == 0
    # Its first attempt is within the hour before this entry, by the client's clock.
    assert refusal(retained, ahead, now=after(HOUR_MICROS + 30_000_000)).code is ErrorCode.REQUEST_STALE


def test_a_client_that_goes_on_is_not_forgotten():
    retained = RetainedResults()
    for step in range(5):
        at = after(step * HOUR_MICROS // 2)
        retained.remember(identity(sequence=step + 1, at=at), at, FINE)
    assert len(retained) == 1
    assert retained.lookup(identity(sequence=5, at=after(2 * HOUR_MICROS)), after(2 * HOUR_MICROS)) is not None


def test_too_many_clients_push_out_the_one_heard_least_recently(monkeypatch):
    monkeypatch.setattr(retained_results, "CLIENTS_MAX", 2)
    retained = RetainedResults()
    for client in (1, 2):
        retained.remember(identity(client=client), after(client), FINE)
    retained.remember(identity(client=1, sequence=2), after(3), FINE)
    retained.remember(identity(client=3, at=after(4)), after(4), FINE)
    assert refusal(retained, identity(client=2), now=after(5)).code is ErrorCode.REQUEST_STALE
    assert retained.lookup(identity(client=1, sequence=2), after(5)) is not None


def test_a_client_keeps_its_last_answers():
    retained = RetainedResults()
    last = retained_results.ANSWERS_PER_CLIENT_MAX + 1
    for sequence in range(1, last + 1):
        retained.remember(identity(sequence=sequence), after(sequence), FINE)
    assert retained.lookup(identity(sequence=2), after(last)) is not None
    assert refusal(retained, identity(sequence=1), now=after(last)).code is ErrorCode.REQUEST_STALE


def test_row_errors_are_bounded_but_the_latest_answer_stays(monkeypatch):
    monkeypatch.setattr(retained_results, "ROW_ERRORS_MAX", 10)
    retained = RetainedResults()
    retained.remember(identity(client=1), after(1), errors(8))
    retained.remember(identity(client=2), after(2), errors(20))
    assert refusal(retained, identity(client=1), now=after(3)).code is ErrorCode.REQUEST_STALE
    answer = retained.lookup(identity(client=2), after(3))
    assert answer is not None
    assert len(answer.row_errors) == 20


def test_a_snapshot_is_not_changed_by_what_comes_later():
    retained = RetainedResults()
    retained.remember(identity(), START, errors(1))
    snapshot = retained.snapshot()
    retained.remember(identity(sequence=2), after(1), FINE)
    restored = RetainedResults(snapshot)
    assert restored.lookup(identity(sequence=2), after(1)) is None
    assert restored.lookup(identity(), after(1)) is not None


def test_a_restored_memory_decides_like_the_one_that_lived_on(monkeypatch):
    monkeypatch.setattr(retained_results, "ROW_ERRORS_MAX", 12)
    monkeypatch.setattr(retained_results, "ANSWERS_PER_CLIENT_MAX", 3)
    lived = RetainedResults()
    for step in range(40):
        lived.remember(identity(client=step % 3, sequence=step + 1, at=after(step)), after(step), errors(step % 5))
    message = storage_pb2.RetainedResults.FromString(lived.snapshot().to_pb().SerializeToString())
    restored = RetainedResults(RetainedSnapshot.from_pb(message))
    for step in range(40, 80):
        for memory in (lived, restored):
            memory.remember(identity(client=step % 4, sequence=step + 1, at=after(step)), after(step), errors(step % 5))
        assert lived.snapshot().to_pb() == restored.snapshot().to_pb()


def test_the_digest_tells_what_is_written_and_not_who_asks():
    request = tserver_pb2.WriteRequest(rows=b"rows", schema_version=1, client_id="a" * 32, sequence=1)
    other_caller = tserver_pb2.WriteRequest(rows=b"rows", schema_version=1, client_id="b" * 32, sequence=9)
    other_rows = tserver_pb2.WriteRequest(rows=b"rowz", schema_version=1)
    other_columns = tserver_pb2.WriteRequest(rows=b"rows", schema_version=1, column_ids=[0])
    assert digest_of(request) == digest_of(other_caller)
    assert len({digest_of(request), digest_of(other_rows), digest_of(other_columns)}) == 3


def test_a_write_without_a_client_has_no_identity():
    assert identity_of(tserver_pb2.WriteRequest(rows=b"rows", sequence=3)) is None
