"""Times a Spark write and scan: `python spark_job.py JOB`, a JSON file, which `spark.py` makes; prints times as JSON.

Runs in whichever Spark has the system's connector, hence as a file that imports nothing of this project but for our own
format. Every write goes into an empty table. The first of the scans of the last one is not counted, as the JVM compiles
the query in it; each must come to the right totals of all columns.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

WARM_UP_SCANS, SCANS = 1, 3


def main(job: dict[str, Any]) -> dict[str, list[float]]:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "3g")
    for name, value in job["settings"].items():
        builder = builder.config(name, value)
    if job["format"] == "kudu":
        import spark_connector

        builder = spark_connector.configure(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.range(0, job["rows"], 1, 4).select(
        F.col("id").alias("key"),
        (F.col("id") % 1000).cast("int").alias("int_val"),
        F.concat(F.lit("s"), F.col("id").cast("string")).alias("string_val"),
    )
    write, scan = [], []
    for options in job["tables"]:
        started = time.perf_counter()
        frame.write.format(job["format"]).options(**options).mode("append").save()
        write.append(time.perf_counter() - started)
    expected = tuple(_totals(frame))
    for _ in range(WARM_UP_SCANS + SCANS):
        started = time.perf_counter()
        totals = tuple(_totals(spark.read.format(job["format"]).options(**job["tables"][-1]).load()))
        scan.append(time.perf_counter() - started)
        assert totals == expected, (totals, expected)
    spark.stop()
    return {"write": write, "scan": scan[WARM_UP_SCANS:]}


def _totals(frame: DataFrame) -> Row:
    rows, key, int_val, string_val = F.count("*"), F.sum("key"), F.sum("int_val"), F.sum(F.length("string_val"))
    return frame.agg(rows, key, int_val, string_val).collect()[0]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
