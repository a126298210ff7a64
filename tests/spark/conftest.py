"""One Spark session and one cluster for all tests here; each test has a table of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kudu_py.testing.process_cluster import ProcessCluster

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def pytest_configure(config):
    # PySpark says so whenever it meets pandas 3; only `mapInArrow` of the tests uses it.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")
    # py4j leaves the sockets of the session's gateway to the garbage collector when the JVM ends first.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("spark") / "cluster") as started:
        yield started


class Jvm(subprocess.Popen):
    """Spark's JVM, whose end while it starts is an error that tells its exit status and what it said.

    PySpark tells neither, and waits for ever for one that ended with status 0.
    """

    log: Path
    is_started = False

    def __init__(self, command, **options):
        with self.log.open("ab") as log:
            super().__init__(command, **(options | {"stdout": log, "stderr": log}))

    def poll(self):
        status = super().poll()
        if status is not None and not self.is_started:
            self.stdin.close()
            raise RuntimeError(f"Spark's JVM ended with status {status} while it started; it said: {self.said()}")
        return status

    @classmethod
    def said(cls):
        return cls.log.read_text(errors="replace")[-4000:].strip() or "nothing"


@pytest.fixture(scope="session")
def starting_jvm():
    """A context in which PySpark starts its JVM as a `Jvm`; what it says goes to a file in the given directory."""

    @contextlib.contextmanager
    def starting(directory):
        kind = type("JvmHere", (Jvm,), {"log": directory / "jvm.log"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyspark.java_gateway.Popen", kind)
            try:
                yield kind
            except Exception as error:
                # It may have died behind the point up to which PySpark watches it.
                error.add_note(f"Spark's JVM said: {kind.said() if kind.log.exists() else 'nothing'}")
                raise
        kind.is_started = True

    return starting


@pytest.fixture(scope="session")
def spark(tmp_path_factory, starting_jvm):
    """Two cores, each task tried four times, as on a real cluster."""
    from pyspark.sql import SparkSession

    import spark_connector
    from spark_connector import java_runtime

    directory = tmp_path_factory.mktemp("spark-session")
    before = dict(os.environ)
    os.environ.update(java_runtime.spark_environment(directory / "java"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    with starting_jvm(directory) as jvm:
        session = spark_connector.configure(builder).getOrCreate()
    session.jvm_log = jvm.log
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def push_down(spark):
    """Spark's filter push-down is on during the test."""
    before = spark.conf.get(PUSH_DOWN)
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.set(PUSH_DOWN, before)


@pytest.fixture
def context(spark, cluster):
    from spark_connector import KuduContext

    before = spark.jvm_log.stat().st_size
    yield KuduContext(cluster.masters, spark)
    sys.stderr.write(spark.jvm_log.read_bytes()[before:].decode(errors="replace"))


class TestTable:
    """A table of one test: short forms of what Spark's users write."""

    __test__ = False

    def __init__(self, context, name):
        self.context = context
        self.name = name

    def create(self, schema, keys, *, buckets=2):
        """Creates it with the columns of a schema or a DDL text such as `key long not null, v string`."""
        from pyspark.sql.types import StructType

        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        self.context.createTable(self.name, parsed, keys, hash_partitions={"columns": keys[:1], "buckets": buckets})
        return self

    def read(self, schema=None, **options):
        """A fresh DataFrame; options by their part behind `kudu.`."""
        reader = self.context.spark.read.format("kudu")
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**self._options(options)).load()

    def write(self, frame, operation="upsert", **options):
        """Appends with an operation."""
        options["operation"] = operation
        frame.write.format("kudu").options(**self._options(options)).mode("append").save()

    def rows(self, **options):
        """All rows as tuples, in order."""
        return sorted(tuple(row) for row in self.read(**options).collect())

    def _options(self, options):
        given = {f"kudu.{name}": str(value) for name, value in options.items()}
        return {"kudu.master": self.context.masters, "kudu.table": self.name} | given


@pytest.fixture(scope="session")
def _numbers():
    return itertools.count(1)


@pytest.fixture
def table(context, _numbers):
    return TestTable(context, f"t{next(_numbers)}")
