"""One Spark session and one cluster for all tests here; each test has a table of its own."""

from __future__ import annotations

import itertools
import os
import sys

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


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
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
    session = spark_connector.configure(builder).getOrCreate()
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

    return KuduContext(cluster.masters, spark)


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
