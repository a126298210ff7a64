"""PySpark data source for kudu_py tables: `spark.read.format("kudu")` and `frame.write.format("kudu")`.

Spark finds the source by itself (the module `pyspark_kudu`). This package adds `configure`, which sets what Spark
leaves off by default and the source profits from, and `KuduContext`, the table and row calls of upstream's connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_connector.context import KuduContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KuduContext", "SESSION_SETTINGS", "configure"]

SESSION_SETTINGS = {
    # Off by default in Spark: conditions then travel to the servers, and only matching rows come back.
    "spark.sql.python.filterPushdown.enabled": "true",
    # TCP between the JVM and its Python workers stalls 40 ms in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Timestamps are instants; UTC keeps what is shown the same everywhere.
    "spark.sql.session.timeZone": "UTC",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Adds `SESSION_SETTINGS` to a session's builder."""
    for name, value in SESSION_SETTINGS.items():
        builder = builder.config(name, value)
    return builder
