"""Options of the connector; no Spark is started."""

from __future__ import annotations

import pytest

from spark_connector.options import parse

GIVEN = {"kudu.master": "127.0.0.1:7051", "kudu.table": "t"}


def test_upsert_is_the_default_because_a_task_may_run_twice():
    assert parse(GIVEN).operation == "upsert"


def test_keys_arrive_in_any_case():
    assert (
        parse({"KUDU.Master": "m:1", "kudu.TABLE": "t", "Kudu.Operation": "insert-ignore"}).operation == "insert_ignore"
    )


def test_the_table_may_be_the_path():
    assert parse({"kudu.master": "m:1", "path": "orders"}).table == "orders"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"kudu.tabel": "x"}, "kudu.tabel"),
        ({"kudu.operation": "merge"}, "merge"),
        ({"kudu.batchSize": "many"}, "kudu.batchSize"),
        ({"kudu.faultTolerantScan": "yes"}, "kudu.faultTolerantScan"),
        ({"kudu.scanLocality": "far"}, "kudu.scanLocality"),
        ({"kudu.splitSizeBytes": "1"}, "not supported"),
    ],
)
def test_a_wrong_option_is_refused_by_name(more, named):
    with pytest.raises(ValueError, match=named):
        parse(GIVEN | more)


@pytest.mark.parametrize("missing", ["kudu.master", "kudu.table"])
def test_a_missing_option_is_named(missing, monkeypatch):
    monkeypatch.delenv("KUDU_MASTERS", raising=False)
    with pytest.raises(ValueError, match=missing):
        parse({name: value for name, value in GIVEN.items() if name != missing})


def test_masters_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KUDU_MASTERS", "m:1")

    assert parse({"kudu.table": "t"}).masters == "m:1"
