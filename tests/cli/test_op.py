"""Long operations as they are shown and named."""

from __future__ import annotations

import pytest

from kudu_py.cli.op import (
    how_far_text,
    match_operation,
    operation_json,
    outcome_of_cancel,
    progress_of,
    state_text,
    what_text,
)
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb.master_pb2 import (
    CHANGE_VOTING_REPLICA_COUNT,
    MOVE_REPLICA,
    RETIRE_TABLET_SERVER,
    Operation,
)

MOVE = Operation(
    operation_id="3f2a" + "0" * 28,
    kind=MOVE_REPLICA,
    state=Operation.RUNNING,
    tablet_id="a" * 32,
    from_ts_uuid="b" * 32,
    to_ts_uuid="c" * 32,
    progress="copying",
    steps_total=3,
    bytes_total=100,
    bytes_done=50,
    bytes_per_s=25,
    log_lag_entries=7,
)


def test_an_operation_says_what_was_asked_for():
    assert what_text(MOVE) == f"move a replica of tablet {'a' * 32} from bbbbbbbb to cccccccc"
    count = Operation(kind=CHANGE_VOTING_REPLICA_COUNT, count=5)
    count.table_name = "metrics"
    assert what_text(count) == "5 voters for table metrics"
    count.tablet_id = "a" * 32
    assert what_text(count) == f"5 voters for tablet {'a' * 32}"
    assert what_text(Operation(kind=RETIRE_TABLET_SERVER, ts_uuid="d" * 32)) == f"retire tablet server {'d' * 32}"


def test_one_under_way_says_how_far_it_is_and_an_ended_one_when_and_why():
    assert how_far_text(MOVE) == "0 of 3: copying; 50 B of 100 B (50 %), 25 B/s, 2.0 s left; 7 entries behind"
    failed = Operation(state=Operation.FAILED, error="the target is dead", ended_micros=1_763_749_205_000_000)
    assert how_far_text(failed) == "ended 2025-11-21 18:20:05.000 UTC"
    assert state_text(failed) == "FAILED: the target is dead"


def test_one_that_has_not_begun_shows_its_state():
    assert progress_of(Operation(state=Operation.PENDING)).text == "PENDING"


def test_programs_get_null_for_what_has_not_ended():
    shown = operation_json(MOVE)

    assert (shown["state"], shown["kind"], shown["ended_micros"]) == ("RUNNING", "MOVE_REPLICA", None)


def test_cancelling_succeeds_if_the_operation_is_cancelled_whoever_did_it_and_fails_if_it_had_ended_otherwise():
    def after(state: Operation.State) -> tuple[int, str]:
        return outcome_of_cancel(Operation(operation_id="1" * 32, kind=RETIRE_TABLET_SERVER, state=state))

    assert after(Operation.CANCELLED)[0] == 0
    for state in (Operation.DONE, Operation.FAILED):
        code, text = after(state)
        assert code == 1
        assert text.endswith(f"had ended before: {Operation.State.Name(state)}")


def test_an_operation_is_named_by_the_beginning_of_its_id():
    other = Operation(operation_id="3f2b" + "0" * 28)

    assert match_operation([MOVE, other], "3f2a") == MOVE.operation_id


@pytest.mark.parametrize(
    ("given", "code"),
    [("3f2", ErrorCode.INVALID_ARGUMENT), ("ffff", ErrorCode.NOT_FOUND)],
)
def test_a_beginning_that_names_none_or_may_name_several_is_refused(given, code):
    with pytest.raises(KuduError) as refused:
        match_operation([MOVE], given)

    assert refused.value.code is code


def test_a_beginning_of_several_is_refused():
    with pytest.raises(KuduError, match="several operations"):
        match_operation([MOVE, Operation(operation_id="3f2a" + "1" * 28)], "3f2a")
