"""The systems that are compared, each as a context that runs a fresh cluster of three servers on loopback.

A figure that a system has no counterpart for is not among its methods.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from kudu_py.client import aio
from kudu_py.testing.process_cluster import ProcessCluster
from tests.bench import failover, small_writes, workload
from tests.bench.cluster import fresh_cluster
from tests.bench.peers.fetch import DIRECTORY, HERE, SASL_PATH, Peers
from tests.bench.results import percentile

TOOL_TIMEOUT_S = 900
START_TIMEOUT_S = 60

Figures = dict[str, float]


class KuduPy:
    """This project."""

    name = "kudu_py"

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[KuduPy]:
        """A fresh playground."""
        with fresh_cluster("peers", flags=["--flush_threshold_secs=5"]) as cluster:
            yield cls(cluster)

    def _with_client(self, work) -> Figures:
        async def run() -> Figures:
            async with await aio.connect(self._cluster.masters) as client:
                return await work(client)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())

    def ingest(self, rows: int, *, is_random: bool) -> Figures:
        """Rows a second in batches, into a new table."""
        keys = workload.random_keys(rows) if is_random else workload.sequential_keys(rows)
        batches = workload.batches(keys)

        async def work(client: aio.Client) -> Figures:
            table = await workload.create_table(client, f"ingest-{is_random}")
            started = time.perf_counter()
            await workload.ingest(client, table, batches)
            return {"rows_per_s": rows / (time.perf_counter() - started)}

        return self._with_client(work)

    def lone_writes(self, calls: int) -> Figures:
        """One row a call, one caller."""

        async def work(client: aio.Client) -> Figures:
            table = await workload.create_table(client, "lone")
            keys = workload.random_keys(calls + 300).tolist()
            await small_writes.write(client, table, keys[:300])
            taken = await small_writes.write(client, table, keys[300:])
            return {
                "mean_ms": statistics.mean(taken) * 1e3,
                "p50_ms": percentile(taken, 50) * 1e3,
                "p99_ms": percentile(taken, 99) * 1e3,
            }

        return self._with_client(work)

    def small_writes(self, calls: int) -> Figures:
        """One row a call, 64 callers in one process."""

        async def work(client: aio.Client) -> Figures:
            table = await workload.create_table(client, "small")
            keys = workload.random_keys(calls).tolist()
            started = time.perf_counter()
            await small_writes.write_concurrently(client, table, keys)
            return {"calls_per_s": calls / (time.perf_counter() - started)}

        return self._with_client(work)

    def scan(self, rows: int) -> Figures:
        """Rows a second of a full scan, best of three after the rows were flushed."""
        batches = workload.batches(workload.random_keys(rows))

        async def work(client: aio.Client) -> Figures:
            table = await workload.create_table(client, "scan")
            await workload.ingest(client, table, batches)
            await asyncio.sleep(15)
            taken = []
            for _ in range(3):
                started = time.perf_counter()
                seen = sum([batch.num_rows async for batch in table.scanner().record_batches()])
                taken.append(time.perf_counter() - started)
                assert seen == rows, seen
            return {"rows_per_s": rows / min(taken)}

        return self._with_client(work)

    def failover(self) -> Figures:
        """Seconds from the kill of a leader's server to the next acknowledged row."""

        async def work(client: aio.Client) -> Figures:
            return {"seconds": (await failover.gaps(self._cluster, client, 1))[0]}

        return self._with_client(work)


class KuduCpp:
    """Apache Kudu, its daemons syncing the log before they acknowledge, as ours do."""

    name = "kudu_cpp"

    def __init__(self, peers: Peers, master: str, pids: dict[str, int], directory: Path) -> None:
        assert peers.kudu_home is not None
        self._tool = peers.kudu_home / "bin" / "kudu"
        self._jar = peers.kudu_jar
        self._master = master
        self._pids = pids
        self._directory = directory

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[KuduCpp]:
        """A fresh cluster of one master and three tablet servers."""
        assert peers.kudu_home is not None
        directory = _empty_directory("kudu")
        master = f"127.0.0.1:{_free_port()}"
        daemons = [("master", "kudu-master", ["--rpc_bind_addresses=" + master])]
        for i in range(3):
            own = [f"--rpc_bind_addresses=127.0.0.1:{_free_port()}", f"--tserver_master_addrs={master}"]
            daemons.append((f"tserver-{i}", "kudu-tserver", own))
        processes = []
        try:
            for name, program, own in daemons:
                data = directory / name
                data.mkdir()
                flags = [
                    "--time_source=system_unsync",
                    "--unlock_unsafe_flags",
                    "--unlock_experimental_flags",
                    "--log_force_fsync_all=true",
                    f"--webserver_doc_root={peers.kudu_home / 'www'}",
                    "--webserver_interface=127.0.0.1",
                    "--webserver_port=0",
                    f"--fs_wal_dir={data / 'wal'}",
                    f"--fs_data_dirs={data / 'data'}",
                    f"--log_dir={data}",
                ]
                command = [str(peers.kudu_home / "bin" / program), *flags, *own]
                processes.append(_start(command, data / "out"))
            system = cls(peers, master, {}, directory)
            system._pids = system._await_servers(
                {own[0].partition("=")[2]: process.pid for (_, _, own), process in zip(daemons, processes, strict=True)}
            )
            yield system
        finally:
            _end(processes)
        shutil.rmtree(directory)

    def _run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [str(self._tool), *arguments],
            env={**os.environ, "SASL_PATH": SASL_PATH},
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kudu {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    def _await_servers(self, pid_of: dict[str, int]) -> dict[str, int]:
        """Pids by address, once all have registered."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            listed = self._run("tserver", "list", self._master, "-columns=rpc-addresses", "-format=json", check=False)
            servers = json.loads(listed) if listed.strip().startswith("[") else []
            if len(servers) == 3:
                return {server["rpc-addresses"]: pid_of[server["rpc-addresses"]] for server in servers}
            if time.monotonic() > deadline:
                raise AssertionError("upstream's daemons do not start, see build/peers/run/kudu/*/out")
            time.sleep(0.5)

    def _loadgen(self, *more: str) -> float:
        """Seconds that it took to write, by its own clock."""
        output = self._run(
            *("perf", "loadgen", self._master, f"--table_num_replicas={workload.REPLICAS}"),
            *(f"--table_num_hash_partitions={workload.HASH_PARTITIONS}", *more),
        )
        found = re.search(r"time total\s*:\s*([\d.]+) ms", output)
        assert found, output
        return float(found.group(1)) / 1e3

    def ingest(self, rows: int, *, is_random: bool) -> Figures:
        more = ["--use_random"] if is_random else []
        return {"rows_per_s": rows / self._loadgen("--num_threads=2", f"--num_rows_per_thread={rows // 2}", *more)}

    def lone_writes(self, calls: int) -> Figures:
        seconds = self._loadgen("--num_threads=1", "--flush_per_n_rows=1", f"--num_rows_per_thread={calls}")
        return {"mean_ms": seconds / calls * 1e3}

    def small_writes(self, calls: int) -> Figures:
        calls = calls // 64 * 64
        seconds = self._loadgen("--num_threads=64", "--flush_per_n_rows=1", f"--num_rows_per_thread={calls // 64}")
        return {"calls_per_s": calls / seconds}

    def scan(self, rows: int) -> Figures:
        self._loadgen("--num_threads=2", f"--num_rows_per_thread={rows // 2}", "--use_random", "--keep_auto_table=true")
        time.sleep(15)
        (table,) = self._run("table", "list", self._master).split()
        taken = []
        for _ in range(3):
            output = self._run("perf", "table_scan", self._master, table, "--num_threads=2")
            found = re.search(r"[Tt]otal count (\d+) cost ([\d.]+) seconds", output)
            assert found, output
            taken.append(float(found.group(2)))
        return {"rows_per_s": rows / min(taken)}

    def failover(self) -> Figures:
        if self._jar is None or shutil.which("java") is None:
            return {}
        self._run(
            *("perf", "loadgen", self._master, f"--table_num_replicas={workload.REPLICAS}", "--num_threads=1"),
            *("--table_num_hash_partitions=1", "--table_num_range_partitions=1"),
            *("--num_rows_per_thread=0", "--keep_auto_table=true"),
        )
        (table,) = self._run("table", "list", self._master).split()
        pids = self._directory / "pids"
        pids.write_text("".join(f"{address} {pid}\n" for address, pid in self._pids.items()))
        done = subprocess.run(
            ["java", "-cp", str(self._jar), str(HERE / "failover" / "Failover.java"), self._master, table, str(pids)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found = re.search(r"failover ([\d.]+)", done.stdout)
        if not found:
            raise AssertionError(f"the Java client: {done.stdout[-300:]}{done.stderr[-500:]}")
        return {"seconds": float(found.group(1))}


class Etcd:
    """etcd, for small replicated writes."""

    name = "etcd"

    def __init__(self, peers: Peers, endpoints: str) -> None:
        self._caller = peers.etcdput
        self._endpoints = endpoints

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[Etcd]:
        """A fresh cluster of three members."""
        directory = _empty_directory("etcd")
        urls = {f"n{i}": (f"http://127.0.0.1:{_free_port()}", f"http://127.0.0.1:{_free_port()}") for i in range(3)}
        cluster = ",".join(f"{name}={peer}" for name, (_, peer) in urls.items())
        processes = []
        try:
            for name, (client, peer) in urls.items():
                command = [
                    *(str(peers.etcd), "--name", name, "--data-dir", str(directory / name)),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
                ]
                processes.append(_start(command, directory / f"{name}.out"))
            yield cls(peers, ",".join(client.removeprefix("http://") for client, _ in urls.values()))
        finally:
            _end(processes)
        shutil.rmtree(directory)

    def _put(self, callers: int, calls: int) -> Figures:
        done = subprocess.run(
            [str(self._caller), "-endpoints", self._endpoints, "-callers", str(callers), "-puts", str(calls)],
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout)

    def lone_writes(self, calls: int) -> Figures:
        put = self._put(1, calls)
        return {"mean_ms": 1e3 / put["per_s"], "p50_ms": put["p50_ms"], "p99_ms": put["p99_ms"]}

    def small_writes(self, calls: int) -> Figures:
        return {"calls_per_s": self._put(64, calls)["per_s"]}


def _empty_directory(name: str) -> Path:
    directory = DIRECTORY / "run" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        environment = {**os.environ, "SASL_PATH": SASL_PATH}
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
