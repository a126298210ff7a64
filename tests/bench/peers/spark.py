"""Spark's writes and scans of a system, and Delta Lake, which is nothing but Spark."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_connector import java_runtime
from tests.bench.peers.fetch import DIRECTORY, HERE, Peers
from tests.bench.peers.processes import empty_directory, run
from tests.bench.results import ROOT

WRITES = 2
"""Each into a table of its own."""

Figures = dict[str, float]


def measure(
    python: Path, source: str, tables: Sequence[Mapping[str, str]], rows: int, settings: Mapping[str, str]
) -> Figures:
    """Rows a second that this Python's Spark writes into the tables and sums up of the last.

    Args:
        source: the format's name. tables: the format's options for each, `WRITES` in all; none has rows.
        settings: of the Spark session, above those that all systems share.
    """
    assert len(tables) == WRITES, tables
    job = DIRECTORY / "run" / "spark.json"
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(json.dumps({"format": source, "tables": tables, "rows": rows, "settings": settings}))
    environment = {
        **java_runtime.spark_environment(DIRECTORY / "java"),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # A SPARK_HOME of the machine's would stand in for the Spark beside this Python.
    environment.pop("SPARK_HOME", None)
    times = json.loads(run([python, HERE / "spark_job.py", job], environment=environment).splitlines()[-1])
    return {f"{name}_rows_per_s": rows / statistics.median(taken) for name, taken in times.items()}


def jars(paths: Sequence[Path]) -> dict[str, str]:
    """The setting that puts them on Spark's class path."""
    return {"spark.jars": ",".join(str(path) for path in paths)}


class Delta:
    """Delta Lake, on files in the place where the others keep theirs."""

    name = "delta"

    def __init__(self, peers: Peers, directory: Path) -> None:
        self._peers = peers
        self._directory = directory

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[Delta]:
        """An empty directory; there is no server."""
        directory = empty_directory("delta")
        yield cls(peers, directory)
        shutil.rmtree(directory)

    def spark(self, rows: int) -> Figures:
        settings = {
            **jars(self._peers.delta),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        tables = [{"path": str(self._directory / f"table-{i}")} for i in range(WRITES)]
        return measure(self._peers.spark_python, "delta", tables, rows, settings)
