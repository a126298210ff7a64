"""A task that failed half way and runs again: what its first attempt wrote is in the table already."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROW_COUNT = 200_000
BATCH_ROWS = 5_000
SCHEMA = "key long, v string"


@pytest.fixture
def frame_whose_tasks_fail_once(spark, context, table):
    """A frame of two tasks; the first attempt of each gives most of its rows, waits until the table has some, and
    fails."""
    masters, name = context.masters, table.name

    def give(batches):
        import time

        from pyspark import TaskContext

        import kudu_py as kudu

        for i, batch in enumerate(batches):
            if TaskContext.get().attemptNumber() > 0 or i < 16:
                yield batch
                continue
            opened = kudu.connect(masters).table(name)
            deadline = time.monotonic() + 60
            while not opened.scanner().count():
                assert time.monotonic() < deadline, "the rows before the failure never came"
            raise RuntimeError("the first attempt fails half way")

    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    # Small batches, so that Spark hands some on to the writer while the first attempt still gives more.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    rows = spark.range(0, ROW_COUNT, numPartitions=2).selectExpr("id as key", "string(id) as v")
    yield rows.mapInArrow(give, SCHEMA)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)


def check_every_row_once(table):
    from pyspark.sql import functions as F

    totals = table.read().agg(F.count("*"), F.countDistinct("key"), F.sum("key"), F.sum(F.expr("int(v = string(key))")))
    assert tuple(totals.first()) == (ROW_COUNT, ROW_COUNT, ROW_COUNT * (ROW_COUNT - 1) // 2, ROW_COUNT)


@pytest.mark.parametrize("operation", ["upsert", "insert_ignore"])
def test_a_task_that_runs_again_does_no_harm(table, frame_whose_tasks_fail_once, operation):
    table.create("key long not null, v string", ["key"])

    table.write(frame_whose_tasks_fail_once, operation)

    check_every_row_once(table)


def test_an_insert_that_runs_again_ends_in_an_error_that_says_so(table, frame_whose_tasks_fail_once):
    table.create("key long not null, v string", ["key"])

    with pytest.raises(Exception, match="ALREADY_PRESENT") as caught:
        table.write(frame_whose_tasks_fail_once, "insert")

    told = str(caught.value)
    assert f"insert into table {table.name} was refused" in told
    assert "key=" in told
    assert "Spark runs again" in told
    assert "insert_ignore" in told
    assert "upsert" in told


def test_deletes_that_run_again_do_no_harm(spark, table):
    table.create("key long not null, v string", ["key"])
    table.write(spark.range(0, 1000).selectExpr("id as key", "string(id) as v"))

    def give(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt fails at its end")

    table.write(
        spark.range(0, 900, numPartitions=2).selectExpr("id as key").mapInArrow(give, "key long"), "delete_ignore"
    )

    assert [key for key, _ in table.rows()] == list(range(900, 1000))
