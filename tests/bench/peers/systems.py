"""The systems that are compared, each as a context that runs a fresh cluster of three servers on loopback.

A figure that a system has no counterpart for is not among its methods.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import uvloop

from kudu_py.client import aio
from kudu_py.testing.process_cluster import ProcessCluster, run_command
from tests.bench import failover, small_writes, workload
from tests.bench.cluster import DIRECTORY, fresh_cluster
from tests.bench.peers import spark
from tests.bench.peers.fetch import HERE, SASL_PATH, Peers
from tests.bench.peers.processes import empty_directory, free_port, run, servers
from tests.bench.peers.spark import Figures
from tests.bench.results import percentile

FAILOVER_TIMEOUT_S = 120


class KuduPy:
    """This project."""

    name = "kudu_py"

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[KuduPy]:
        """A fresh playground; `peers` is not needed."""
        directory = DIRECTORY / "peers"
        try:
            with fresh_cluster(directory.name, flags=["--flush_threshold_secs=5"]) as cluster:
                yield cls(cluster)
        finally:
            # An interrupted start leaves daemons that nobody would stop.
            if (directory / "playground.json").exists():
                run_command("playground", "stop", "--dir", str(directory), check=False)

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

    def spark(self, rows: int) -> Figures:
        """Rows a second of Spark's writes and scans."""
        names = [f"spark-{i}" for i in range(spark.WRITES)]

        async def work(client: aio.Client) -> Figures:
            for name in names:
                await workload.create_table(client, name)
            return {}

        self._with_client(work)
        tables = [{"kudu.master": self._cluster.masters, "kudu.table": name} for name in names]
        return spark.measure(Path(sys.executable), "kudu", tables, rows, settings={})


class KuduCpp:
    """Apache Kudu, its daemons syncing the log before they acknowledge, as ours do."""

    name = "kudu_cpp"

    def __init__(self, peers: Peers, master: str, pids: dict[str, int], directory: Path) -> None:
        self._peers = peers
        self._tool = peers.kudu_home / "bin" / "kudu"
        self._master = master
        self._pids = pids
        self._directory = directory

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[KuduCpp]:
        """A fresh cluster of one master and three tablet servers."""
        home = peers.kudu_home
        directory = empty_directory("kudu")
        master = f"127.0.0.1:{free_port()}"
        of_master = [f"--tserver_master_addrs={master}"]
        daemons = [
            ("master", "kudu-master", master, []),
            *((f"tserver-{i}", "kudu-tserver", f"127.0.0.1:{free_port()}", of_master) for i in range(3)),
        ]
        pids = {}
        with servers() as started:
            for name, program, address, own in daemons:
                data = directory / name
                data.mkdir()
                flags = [
                    "--time_source=system_unsync",
                    "--unlock_unsafe_flags",
                    "--unlock_experimental_flags",
                    "--log_force_fsync_all=true",
                    f"--webserver_doc_root={home / 'www'}",
                    "--webserver_interface=127.0.0.1",
                    "--webserver_port=0",
                    f"--fs_wal_dir={data / 'wal'}",
                    f"--fs_data_dirs={data / 'data'}",
                    f"--log_dir={data}",
                    f"--rpc_bind_addresses={address}",
                ]
                pids[address] = started.start([home / "bin" / program, *flags, *own], data / "out")
            del pids[master]
            system = cls(peers, master, pids, directory)
            started.await_ready(system._has_servers)
            yield system
        shutil.rmtree(directory)  # not if something went wrong: the logs are there

    def _run(self, *arguments: str) -> str:
        return run([self._tool, *arguments], environment={**os.environ, "SASL_PATH": SASL_PATH})

    def _has_servers(self) -> bool:
        """All have registered."""
        try:
            listed = self._run("tserver", "list", self._master, "-columns=rpc-addresses", "-format=json")
        except AssertionError:  # the master does not listen yet
            return False
        return {server["rpc-addresses"] for server in json.loads(listed)} == set(self._pids)

    def _loadgen(self, *more: str) -> float:
        """Seconds that it took to write, by its own clock."""
        output = self._run(
            *("perf", "loadgen", self._master, f"--table_num_replicas={workload.REPLICAS}"),
            *(f"--table_num_hash_partitions={workload.HASH_PARTITIONS}", *more),
        )
        found = re.search(r"time total\s*:\s*([\d.]+) ms", output)
        assert found, output
        return float(found.group(1)) / 1e3

    def _empty_tables(self, count: int, hash_partitions: int) -> list[str]:
        """As loadgen makes its own, with its columns."""
        for _ in range(count):
            self._run(
                *("perf", "loadgen", self._master, f"--table_num_replicas={workload.REPLICAS}", "--num_threads=1"),
                *(f"--table_num_hash_partitions={hash_partitions}", "--table_num_range_partitions=1"),
                *("--num_rows_per_thread=0", "--keep_auto_table=true"),
            )
        return self._run("table", "list", self._master).split()

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
        (table,) = self._empty_tables(1, hash_partitions=1)
        pids = self._directory / "pids"
        pids.write_text("".join(f"{address} {pid}\n" for address, pid in self._pids.items()))
        class_path = os.pathsep.join(str(jar) for jar in self._peers.kudu_class_path)
        output = run(
            [self._peers.java, "-cp", class_path, HERE / "failover" / "Failover.java", self._master, table, pids],
            timeout_s=FAILOVER_TIMEOUT_S,
        )
        found = re.search(r"failover ([\d.]+)", output)
        assert found, output
        return {"seconds": float(found.group(1))}

    def spark(self, rows: int) -> Figures:
        names = self._empty_tables(spark.WRITES, hash_partitions=workload.HASH_PARTITIONS)
        tables = [{"kudu.master": self._master, "kudu.table": name} for name in names]
        settings = spark.jars([self._peers.kudu_spark])
        return spark.measure(self._peers.spark_python, "org.apache.kudu.spark.kudu", tables, rows, settings)


class Etcd:
    """etcd, for small replicated writes."""

    name = "etcd"

    def __init__(self, peers: Peers, endpoints: str) -> None:
        self._caller = peers.etcdput  # before the cluster is there: it may have to be built
        self._endpoints = endpoints

    @classmethod
    @contextmanager
    def running(cls, peers: Peers) -> Iterator[Etcd]:
        """A fresh cluster of three members."""
        program = peers.etcd
        directory = empty_directory("etcd")
        urls = {f"n{i}": (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}") for i in range(3)}
        cluster = ",".join(f"{name}={peer}" for name, (_, peer) in urls.items())
        clients = [client for client, _ in urls.values()]
        with servers() as started:
            for name, (client, peer) in urls.items():
                command = [
                    *(program, "--name", name, "--data-dir", directory / name),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
                ]
                started.start(command, directory / f"{name}.out")
            started.await_ready(lambda: all(_is_healthy(client) for client in clients))
            yield cls(peers, ",".join(client.removeprefix("http://") for client in clients))
        shutil.rmtree(directory)

    def _put(self, callers: int, calls: int) -> Figures:
        given = ["-endpoints", self._endpoints, "-callers", str(callers), "-puts", str(calls)]
        return json.loads(run([self._caller, *given]))

    def lone_writes(self, calls: int) -> Figures:
        put = self._put(1, calls)
        return {"mean_ms": 1e3 / put["per_s"], "p50_ms": put["p50_ms"], "p99_ms": put["p99_ms"]}

    def small_writes(self, calls: int) -> Figures:
        return {"calls_per_s": self._put(64, calls)["per_s"]}


def _is_healthy(client_url: str) -> bool:
    """The member knows of a leader."""
    try:
        with urlopen(f"{client_url}/health", timeout=5) as response:
            return json.load(response)["health"] == "true"
    except OSError:
        return False
