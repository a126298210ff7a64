"""The Spark side of `spark.py`: `python -m tests.bench.spark_job MASTERS TABLE ROWS REPORT`, times as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

WRITES, SCANS = 3, 5


def main(masters: str, table: str, rows: int, report: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
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
    for _ in range(SCANS):
        started = time.perf_counter()
        _totals(spark.read.format("kudu").options(**options).load())
        scan.append(time.perf_counter() - started)
    assert spark.read.format("kudu").options(**options).load().count() == rows
    report.write_text(json.dumps({"write": write, "scan": scan}))
    spark.stop()


def _totals(frame: DataFrame) -> object:
    return frame.agg(F.sum("key"), F.sum("int_val"), F.sum(F.length("string_val"))).collect()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
