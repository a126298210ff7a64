"""PySpark data source for kudu_py tables: `spark.read.format("kudu")` and `frame.write.format("kudu")`.

Spark finds the source by itself (the module `pyspark_kudu`). This package adds `configure`, which sets what Spark
leaves off by default and the source profits from, and `KuduContext`, the table and row calls of upstream's connector.

A loaded DataFrame is read at the snapshot of its first query: Spark plans a source once and keeps the plan with the
DataFrame. `load()` again to see what was written since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_connector.context import KuduContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KuduContext", "PUSH_DOWN_SETTING", "SESSION_SETTINGS", "configure"]

SESSION_SETTINGS = {
    # TCP between the JVM and its Python workers stalls 40 ms in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Timestamps are instants; UTC keeps what is shown the same everywhere.
    "spark.sql.session.timeZone": "UTC",
}


PUSH_DOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def configure(builder: SparkSession.Builder, *, push_down: bool = False) -> SparkSession.Builder:
    """Adds `SESSION_SETTINGS` to a session's builder.

    Args:
        push_down: sends conditions to the servers, so that only matching rows come back. Then `load()` afresh for every
            query: Spark (seen with 4.3) keeps what it planned for the last filter with the loaded DataFrame and
            reads by it again, also for a query without a filter or with two different ones, which then lacks rows.
    """
    for name, value in (SESSION_SETTINGS | {PUSH_DOWN_SETTING: str(push_down).lower()}).items():
        builder = builder.config(name, value)
    return builder
