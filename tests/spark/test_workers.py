"""What Spark's Python workers keep: their daemon collects garbage after every task and every hook of planning, over
everything that is not frozen."""

from __future__ import annotations

import collections
import gc
import os

import pytest

from spark_connector.cluster import FREEZES
from spark_connector.datasource import KuduDataSource
from spark_connector.reader import KuduReader

pytestmark = [pytest.mark.spark, pytest.mark.integration]

OBJECTS_MAX = 10_000
"""Libraries alone are 60,000 to 90,000."""


@pytest.fixture
def counts(spark, table, tmp_path):
    """For each process of some scans, by its task: how many objects were not frozen, each time it was used."""
    seen_in = str(tmp_path / "objects")
    name = f"counted_{table.name}"

    def note(task):
        with open(seen_in, "a") as file:
            file.write(f"{task} {os.getpid()} {len(gc.get_objects())}\n")

    class CountingReader(KuduReader):
        def read(self, partition):
            note("scan")
            yield from super().read(partition)

    class CountingSource(KuduDataSource):
        @classmethod
        def name(cls):
            return name

        def schema(self):
            note("schema")
            return super().schema()

        def reader(self, schema):
            note("plan")
            kept = super().reader(schema)
            return CountingReader(kept._options, schema)

    spark.dataSource.register(CountingSource)
    table.create("key long, v string", ["key"])
    table.write(spark.range(1000).selectExpr("id as key", "string(id) as v"))
    options = {"kudu.master": table.context.masters, "kudu.table": table.name}
    for _ in range(FREEZES + 4):
        assert spark.read.format(name).options(**options).load().count() == 1000
    found = collections.defaultdict(list)
    with open(seen_in) as file:
        for task, pid, count in map(str.split, file):
            found[task, int(pid)].append(int(count))
    return found


def test_workers_that_were_used_a_few_times_have_little_to_collect(counts):
    used = {process: seen[FREEZES:] for process, seen in counts.items() if len(seen) > FREEZES}

    assert {task for task, _ in used} == {"schema", "plan", "scan"}
    assert {process: max(seen) for process, seen in used.items() if max(seen) > OBJECTS_MAX} == {}
