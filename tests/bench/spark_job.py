"""The Spark side of `spark.py`: `python -m tests.bench.spark_job MASTERS TABLE ROWS REPORT`, times as JSON.

One scan is not counted: it starts Spark's Python workers and has the JVM compile the query. The times that follow still
fall, as the JVM goes on compiling; all are reported. A scan is timed from `load()` on, planning included, and every
one must come to the right totals of all columns.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark_connector

WRITES, WARM_UP_SCANS, SCANS = 3, 1, 9


def main(masters: str, table: str, rows: int, report: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = spark_connector.configure(builder.config("spark.driver.memory", "3g")).getOrCreate()
    options = {"kudu.master": masters, "kudu.table": table}
    frame = spark.range(0, rows, 1, 4).select(
        F.col("id").alias("key"),
        (F.col("id") % 1000).cast("int").alias("int_val"),
        F.concat(F.lit("s"), F.col("id").cast("string")).alias("string_val"),
    )
    write, scan = [], []
    for _ in range(WRITES):
        started = time.perf_counter()
        frame.write.format("kudu").options(**options).mode("append").save()
        write.append(time.perf_counter() - started)
    expected = tuple(_totals(frame))
    for _ in range(WARM_UP_SCANS + SCANS):
        started = time.perf_counter()
        totals = tuple(_totals(spark.read.format("kudu").options(**options).load()))
        scan.append(time.perf_counter() - started)
        assert totals == expected, (totals, expected)
    times = {"write": write, "scan_warm_up": scan[:WARM_UP_SCANS], "scan": scan[WARM_UP_SCANS:]}
    report.write_text(json.dumps(times))
    spark.stop()


def _totals(frame: DataFrame) -> Row:
    rows, key, int_val, string_val = F.count("*"), F.sum("key"), F.sum("int_val"), F.sum(F.length("string_val"))
    return frame.agg(rows, key, int_val, string_val).collect()[0]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
