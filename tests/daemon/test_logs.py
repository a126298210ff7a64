"""Log lines are events with fields; they never end what they tell of."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from kudu_py.common.errors import KuduError
from kudu_py.daemon import logs
from kudu_py.daemon.kill_point import KillPoint, parse_kill_point

pytestmark = pytest.mark.usefixtures("restored_logs")


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_time_level_event_and_the_processs_fields():
    out = io.StringIO()
    logs.configure(form="json", level="info", stream=out)
    logs.set_process_fields(role="tserver", uuid="abc")

    structlog.get_logger().info("role_changed", tablet_id="t1", term=3)
    structlog.get_logger().debug("left_out")

    (line,) = lines(out)
    assert {k: line[k] for k in ("event", "level", "role", "uuid", "tablet_id", "term")} == {
        "event": "role_changed", "level": "info", "role": "tserver", "uuid": "abc", "tablet_id": "t1", "term": 3,
    }  # fmt: skip
    assert line["time"].endswith("Z")


def test_an_exception_is_one_line_with_its_traceback():
    out = io.StringIO()
    logs.configure(form="json", level="info", stream=out)

    structlog.get_logger().error("failed", exc_info=ValueError("why"))

    assert "ValueError: why" in lines(out)[0]["exception"]


def test_lines_of_libraries_take_the_same_way():
    out = io.StringIO()
    logs.configure(form="json", level="info", stream=out)

    logging.getLogger("asyncio").error("task %s died", "x")
    logging.getLogger("uvicorn.error").info("chatter")

    assert [(line["event"], line["text"]) for line in lines(out)] == [("library_message", "task x died")]


def test_the_form_for_people_is_text():
    out = io.StringIO()
    logs.configure(form="console", level="info", stream=out)

    structlog.get_logger().info("serving", port=7050)

    assert "serving" in out.getvalue()
    assert "port=7050" in out.getvalue()


def test_a_reader_that_has_gone_away_does_no_harm():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    logs.configure(form="json", level="info", stream=Broken())

    structlog.get_logger().info("unheard")


def test_the_process_ends_itself_right_after_the_chosen_line_was_written():
    out, killed_after = io.StringIO(), []
    point = KillPoint("step_done", 2, kill=lambda: killed_after.append(len(lines(out))))
    logs.configure(form="json", level="info", stream=out, kill_point=point)

    for event in ("step_done", "other", "step_done"):
        assert killed_after == []
        structlog.get_logger().info(event)

    assert killed_after == [3]


@pytest.mark.parametrize("text", ["a b", "step_done:", "step_done:0", "step_done:x", ":1"])
def test_a_kill_point_that_is_no_event_is_refused(text):
    with pytest.raises(KuduError, match="EVENT:N"):
        parse_kill_point(text)
    assert parse_kill_point("") is None
    assert parse_kill_point("step_done:3") == KillPoint("step_done", 3)
