"""How balance is reported."""

from __future__ import annotations

from kudu_py.cli.balance_report import balance_json, verdict_text
from kudu_py.pb.master_pb2 import NORMAL, GetBalanceResponse

STEP = GetBalanceResponse.Step(tablet_id="a" * 32, from_ts_uuid="b" * 32, to_ts_uuid="c" * 32, reason="3 more than")


def test_the_verdict_says_whether_somebody_takes_the_steps():
    assert verdict_text(GetBalanceResponse(enabled=True)) == "balanced: there is no step to take"
    assert verdict_text(GetBalanceResponse(holds=["a server is silent"])) == "nothing is moved as long as that holds"
    taken = verdict_text(GetBalanceResponse(enabled=True, steps=[STEP]))
    assert taken == "1 step to take; the masters take them, a few at a time"
    assert "the rebalancer is off" in verdict_text(GetBalanceResponse(steps=[STEP, STEP]))


def test_programs_get_servers_and_steps():
    server = GetBalanceResponse.Server(ts_uuid="b" * 32, mode=NORMAL, is_live=True, replicas=4, leaders=1)
    shown = balance_json(GetBalanceResponse(enabled=True, servers=[server], steps=[STEP]))

    assert shown["tservers"][0]["mode"] == "NORMAL"
    assert shown["steps"][0]["leadership_only"] is False
