"""Loads a CSV or Parquet data set into a table, scans it back, and compares every aggregate with the same query on
the input.

    spark-submit ingest.py --masters 127.0.0.1:7051 --table flights --recipe flights --input flights.csv
    spark-submit ingest.py --masters 127.0.0.1:7051 --table orders --input orders.parquet --key order_id \\
        --group-by country

What it does, in order: reads and cleans the input; shows that the primary key is unique; creates the table if it is not
there; writes by upsert (`--times 2` writes again: the same result); scans with and without predicates; compares. Any
difference ends the job with status 1 and is printed. Run again after a failure: upserts make the second run harmless.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_connector
from spark_connector.pipelines.cleaning import RECIPES, read_text_csv

R = TypeVar("R")


@dataclass
class Report:
    """What the job found out; written as JSON for `--report`."""

    input: str
    table: str
    masters: str
    key: list[str]
    row_count: int = 0
    key_is_unique: bool = False
    timings_s: dict[str, float] = field(default_factory=dict)
    predicate: str = ""
    predicate_row_count: int = 0
    groups: list[dict[str, object]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def timed(self, name: str, action: Callable[[], R]) -> R:
        """Runs `action`, keeps its seconds, and says so."""
        print(f"  {name} ...", end="", flush=True)
        started = time.perf_counter()
        result = action()
        self.timings_s[name] = round(time.perf_counter() - started, 3)
        print(f" {self.timings_s[name]:.1f} s", flush=True)
        return result


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The options; a wrong one ends the job with status 2 and says what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", required=True, help="comma-separated master addresses, host:port")
    parser.add_argument("--table", required=True, help="table to write; created if it is not there")
    parser.add_argument("--input", required=True, help="a .csv or .parquet file or directory")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="any", help="how to clean the input")
    parser.add_argument("--key", default="", help="comma-separated primary key columns (default: the recipe's)")
    parser.add_argument(
        "--group-by", default="", help="comma-separated columns of the aggregates (default: the recipe's)"
    )
    parser.add_argument(
        "--predicate", default="", help="SQL condition of the scan with predicates (default: the recipe's)"
    )
    parser.add_argument("--hash-partitions", type=int, default=6, help="tablets to spread the table over (default 6)")
    parser.add_argument("--replicas", type=int, default=3, help="replication factor (default 3)")
    parser.add_argument("--times", type=int, default=1, help="write the input so many times (default 1)")
    parser.add_argument("--report", default="", help="write a JSON report to this file")
    return parser.parse_args(argv)


def read_input(spark: SparkSession, path: str, recipe: str) -> DataFrame:
    """The input, cleaned."""
    if path.rstrip("/").endswith(".parquet"):
        raw = spark.read.parquet(path)
    elif recipe == "any":
        raw = spark.read.option("header", True).option("inferSchema", True).option("nullValue", "NA").csv(path)
    else:
        raw = read_text_csv(spark, path)
    return RECIPES[recipe].clean(raw)


def measures(frame: DataFrame, group_by: list[str]) -> list[Column]:
    """Aggregates that are exact whatever the order of rows: counts for all columns, sums for whole numbers and
    decimals, least and greatest for everything that has an order."""
    columns: list[Column] = [F.count(F.lit(1)).alias("rows")]
    for column in frame.schema.fields:
        if column.name in group_by:
            continue
        name = F.col(column.name)
        columns.append(F.count(name).alias(f"count_{column.name}"))
        if isinstance(column.dataType, T.IntegralType | T.DecimalType):
            columns.append(F.sum(name).alias(f"sum_{column.name}"))
        if not isinstance(column.dataType, T.BinaryType | T.BooleanType):
            columns.append(F.min(name).alias(f"min_{column.name}"))
            columns.append(F.max(name).alias(f"max_{column.name}"))
    return columns


def aggregate(frame: DataFrame, group_by: list[str]) -> dict[tuple[object, ...], Row]:
    """Every group with its measures."""
    rows = frame.groupBy(*group_by).agg(*measures(frame, group_by)).collect()
    return {tuple(row[name] for name in group_by): row for row in rows}


def compare(expected: dict[tuple[object, ...], Row], found: dict[tuple[object, ...], Row], what: str) -> list[str]:
    """Differences in words, none if equal to the last row."""
    differences = []
    for group in sorted(expected.keys() | found.keys(), key=repr):
        wanted, got = expected.get(group), found.get(group)
        if wanted is None or got is None:
            differences.append(
                f"{what}: group {group} is {'not in the input' if wanted is None else 'missing in the table'}"
            )
        elif wanted != got:
            first = next(name for name in wanted.asDict() if wanted[name] != got[name])
            differences.append(
                f"{what}: group {group}: {first} is {got[first]} in the table, {wanted[first]} in the input"
            )
    return differences


def check_key(frame: DataFrame, key: list[str], row_count: int) -> str:
    """Shows that the key is unique and whole, or ends the job with the rows that say otherwise."""
    nulls = (
        frame.where(F.concat(*[F.col(name).isNull().cast("string") for name in key]).contains("true"))
        .limit(1)
        .collect()
    )
    if nulls:
        raise SystemExit(f"the key ({', '.join(key)}) is null in {nulls[0]}; choose other columns with --key")
    distinct = frame.select(*key).distinct().count()
    if distinct != row_count:
        doubles = frame.groupBy(*key).count().where("count > 1").limit(3).collect()
        raise SystemExit(
            f"the key ({', '.join(key)}) is not unique: {row_count:,} rows, {distinct:,} keys, such as {doubles}; "
            "choose other columns with --key"
        )
    return f"the key ({', '.join(key)}) is unique: {row_count:,} rows, {distinct:,} keys"


def run(spark: SparkSession, options: argparse.Namespace) -> Report:
    """The job."""
    recipe = RECIPES[options.recipe]
    key = [name for name in options.key.split(",") if name] or list(recipe.key)
    group_by = [name for name in options.group_by.split(",") if name] or list(recipe.group_by)
    predicate = options.predicate or recipe.predicate
    if not key:
        raise SystemExit("a primary key is needed: name its columns with --key")
    report = Report(options.input, options.table, options.masters, key, predicate=predicate)
    kudu = {"kudu.master": options.masters, "kudu.table": options.table}

    frame = read_input(spark, options.input, options.recipe)
    missing = [name for name in (*key, *group_by) if name not in frame.columns]
    if missing:
        raise SystemExit(f"{options.input} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")
    # Key columns come first in a table.
    frame = frame.select(*key, *[name for name in frame.columns if name not in key]).cache()
    report.row_count = report.timed("read and clean", frame.count)
    print("  " + report.timed("check the key", lambda: check_key(frame, key, report.row_count)))
    report.key_is_unique = True

    context = spark_connector.KuduContext(options.masters, spark)
    if not context.tableExists(options.table):
        report.timed(
            "create the table",
            lambda: context.createTable(
                options.table, frame.schema, key, hash_partitions={"columns": key, "buckets": options.hash_partitions},
                num_replicas=options.replicas,
            ),
        )  # fmt: skip

    def load() -> DataFrame:
        # Afresh for every query: a loaded DataFrame keeps the snapshot, and the pushed filter, of its last plan. In
        # key order a scan goes on where the server that gave it died.
        return spark.read.format("kudu").options(**kudu).option("kudu.faultTolerantScan", "true").load()

    expected = report.timed("aggregate the input", lambda: aggregate(frame, group_by))
    for i in range(options.times):
        name = "write" if i == 0 else f"write again ({i + 1})"
        report.timed(name, lambda: frame.write.format("kudu").options(**kudu).mode("append").save())
        found = report.timed(f"scan and aggregate after {name}", lambda: aggregate(load(), group_by))
        report.differences += compare(expected, found, f"after {name}")
    if predicate:
        found = report.timed("scan with predicates", lambda: aggregate(load().where(predicate), group_by))
        report.differences += compare(aggregate(frame.where(predicate), group_by), found, f"where {predicate}")
        report.predicate_row_count = sum(row["rows"] for row in found.values())
    report.groups = [row.asDict() for _, row in sorted(expected.items(), key=lambda item: repr(item[0]))]
    frame.unpersist()
    return report


def main(argv: list[str]) -> int:
    """The command."""
    options = parse_arguments(argv)
    # Said whenever pandas 3 is installed; nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    builder = SparkSession.builder.appName(f"ingest {options.table}")
    spark = spark_connector.configure(builder, push_down=True).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    report = run(spark, options)
    if options.report:
        Path(options.report).write_text(json.dumps(report.__dict__, default=str, indent=2) + "\n")
    if report.differences:
        print(f"{len(report.differences)} differences:", *report.differences[:20], sep="\n  ", file=sys.stderr)
        return 1
    print(f"  {len(report.groups):,} groups of {report.row_count:,} rows are equal in the table and in the input")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
