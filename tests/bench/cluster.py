"""Clusters to measure: fresh playgrounds under `build/bench/`, stopped and removed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from kudu_py.testing.process_cluster import Daemon, ProcessCluster
from tests.bench.results import ROOT

DIRECTORY = ROOT / "build" / "bench"


@contextmanager
def fresh_cluster(name: str, *, flags: Sequence[str] = ()) -> Iterator[ProcessCluster]:
    """One master and three tablet servers, their data empty; each figure has its own, so that none inherits another's
    files, memory or compactions.
    """
    directory = DIRECTORY / name
    if (directory / "playground.json").exists():
        ProcessCluster(directory).stop()  # what an interrupted run left
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with ProcessCluster(directory, tservers=3, flags=flags) as cluster:
        yield cluster
    shutil.rmtree(directory)


def tablet_servers(cluster: ProcessCluster) -> list[Daemon]:
    """The daemons that hold rows."""
    return [daemon for daemon in cluster.daemons if daemon.name.startswith("tserver")]


def peak_rss_bytes(daemon: Daemon) -> int:
    """The most memory that the process has had resident since it started (VmHWM)."""
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{daemon.name} (pid {daemon.pid}) has no VmHWM")


def metric(daemon: Daemon, name: str) -> float:
    """A metric without labels, from the daemon's `/metrics`."""
    with urlopen(f"http://{daemon.http_address}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"{daemon.name} has no metric {name}")


def option(daemon: Daemon, name: str) -> str:
    """The value of a flag in force, from the daemon's `/varz`."""
    with urlopen(f"http://{daemon.http_address}/varz?format=json", timeout=10) as response:
        settings = json.load(response)
    return str(next(setting["value"] for setting in settings if setting["name"] == name))


class CpuMeter:
    """CPU seconds, user and system, that this process and a cluster's daemons take from its making on.

    Where every core is busy, throughput is bounded by cores / (CPU per row); and other load on a shared machine changes
    CPU times much less than wall times.
    """

    def __init__(self, cluster: ProcessCluster) -> None:
        self._daemons = cluster.daemons
        self._client = time.process_time()
        self._servers = sum(_cpu_s(daemon.pid) for daemon in self._daemons)

    def per(self, count: int, unit: str) -> dict[str, float]:
        """Microseconds of CPU per row or call, as parameters of a figure."""
        client = time.process_time() - self._client
        servers = sum(_cpu_s(daemon.pid) for daemon in self._daemons) - self._servers
        return {
            f"client_cpu_us_per_{unit}": round(client / count * 1e6, 2),
            f"servers_cpu_us_per_{unit}": round(servers / count * 1e6, 2),
        }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
