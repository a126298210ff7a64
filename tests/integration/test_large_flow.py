"""More rows than memory is wanted for: flushes, log collection, recovery from all kills, catching up from the log."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kudu_py as kudu
from kudu_py.testing.process_cluster import ProcessCluster, wait_until
from kudu_py.testing.workload import make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROWS = 200_000
BATCH_ROWS = 10_000


def rows(first, count):
    keys = np.random.default_rng(first).permutation(np.arange(first, first + count, dtype=np.int64))
    text = pa.array([f"{key:032d}" for key in keys.tolist()])
    return pa.record_batch({"key": pa.array(keys), "value": pa.array(keys * 3), "text": text})


def write(client, table, first, count):
    session = client.new_session()
    for start in range(first, first + count, BATCH_ROWS):
        session.write(table, rows(start, BATCH_ROWS), "insert")
    session.flush()


def check(table, count):
    found = table.scanner().to_arrow().sort_by("key")
    assert found["key"].to_pylist() == list(range(count))
    assert found["value"].equals(pa.chunked_array([np.arange(count, dtype=np.int64) * 3]))
    assert found["text"].combine_chunks().equals(pa.array([f"{key:032d}" for key in range(count)]))


def log_bytes(cluster):
    def of(name):
        files = [path for path in Path(cluster.daemon(name).dir).glob("wals/**/*") if path.is_file()]
        return sum(path.stat().st_blocks * 512 for path in files)

    return {name: of(name) for name in ("tserver-1", "tserver-2", "tserver-3")}


@pytest.fixture(scope="module")
def small_memory(tmp_path_factory):
    flags = ["--flush_threshold_mb=1", "--log_segment_size_mb=1", "--log_retain_mb=1"]
    with ProcessCluster(tmp_path_factory.mktemp("large") / "playground", flags=flags) as cluster:
        yield cluster


def test_rows_are_flushed_the_log_is_collected_and_all_is_there_after_all_were_killed(small_memory):
    cluster = small_memory
    with kudu.connect(cluster.masters) as client:
        table = make_table(client, "large", buckets=2)
        write(client, table, 0, ROWS)
        payload_bytes = ROWS * (8 + 8 + 36)
        # Each replica holds all rows; what is flushed leaves the log.
        wait_until(lambda: max(log_bytes(cluster).values()) < payload_bytes, "the log to be collected", 60.0)
        assert '"log_collected"' in cluster.log("tserver-1")
        print(f"\n{payload_bytes} bytes of rows, logs: {log_bytes(cluster)}")
        check(table, ROWS)
        cluster.kill_all()
        cluster.start()
        check(table, ROWS)
        cluster.wait_healthy()
        # Over what was flushed: overwritten and deleted rows, and inserts that are refused.
        session = client.new_session()
        session.write(table, pa.table({"key": [5], "value": [-5]}), "upsert")
        session.write(table, pa.table({"key": [7]}), "delete")
        session.flush()
        session.write(table, pa.table({"key": [5, 7], "value": [0, 21], "text": ["", f"{7:032d}"]}), "insert")
        with pytest.raises(kudu.KuduAlreadyPresent):
            session.flush()
        (error,) = session.get_pending_errors()[0]
        assert error.row["key"] == 5
        cluster.kill_all()
        cluster.start()
        assert table.scanner().add_predicate(table["key"] == 5).read_all_tuples()[0][1] == -5
        session.write(table, pa.table({"key": [5], "value": [15]}), "update")
        session.flush()
        check(table, ROWS)
        cluster.wait_healthy()


def test_a_replica_that_was_away_catches_up_from_the_log(small_memory):
    cluster = small_memory
    with kudu.connect(cluster.masters) as client:
        table = make_table(client, "away", buckets=2)
        write(client, table, 0, BATCH_ROWS)
        away = cluster.kill("tserver-3")
        write(client, table, BATCH_ROWS, 100_000)
        cluster.restart(away.name)
        report = cluster.wait_healthy(90.0)
        tablets = {tablet["id"] for tablet in report["tablets"] if tablet["table"] == "away"}
        own = [c for c in report["checksums"]["replicas"] if c["tablet"] in tablets and c["tserver"] == away.uuid]
        assert sum(c["rows"] for c in own) == BATCH_ROWS + 100_000
        check(table, BATCH_ROWS + 100_000)
