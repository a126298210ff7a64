"""How fast a replica comes to another server, beside what the network layer and the disk could do in the same minutes.

Three figures, each the median of rounds that take turns, so that a slow minute of the machine slows all of them: a copy
between two daemons as AddReplica begins it, throttle off, from its turn until the replica is in place; as many bytes
streamed in 1 MiB messages by a bare gRPC server in another process; as many written and synced by one writer on the
same file system.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pyarrow as pa
import uvloop

import kudu_py as kudu
from kudu_py.client import aio
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.pb import consensus_pb2, master_pb2, tablet_copy_pb2
from kudu_py.rpc.dialer import DialerOptions
from kudu_py.rpc.server import RpcServerOptions
from kudu_py.testing.admin_calls import CALL_TIMEOUT_S, AdminCalls
from kudu_py.testing.process_cluster import Daemon, ProcessCluster
from tests.bench.cluster import DIRECTORY, CpuMeter, fresh_cluster, metric, tablet_servers
from tests.bench.results import ROOT, Results

TOTAL_BYTES = 512 << 20
ROW_BYTES = 1 << 10
BATCH_ROWS = 2_000
ROUNDS = 3
COPY_TIMEOUT_S = 180
FLUSH_TIMEOUT_S = 120
PIECE_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
STREAM_METHOD = "/bench/Stream"


async def run(results: Results, scale: float) -> None:
    """`tablet_copy_bytes_per_s`, `raw_stream_bytes_per_s` and `raw_disk_write_bytes_per_s`."""
    rows = max(BATCH_ROWS, int(TOTAL_BYTES * scale) // ROW_BYTES)
    flags = ["--tablet_copy_bytes_per_s=0", "--flush_threshold_secs=2"]
    copied, streamed, written = [], [], []
    with fresh_cluster("tablet_copy", flags=flags) as cluster, AdminCalls(cluster) as calls:
        calls.wait_for_master(len(tablet_servers(cluster)))
        async with await aio.connect(cluster.masters) as client:
            await _filled_table(client, rows)
            tablet_id = table_tablet(cluster, calls)
        await _settled(cluster)
        source = next(server for server in tablet_servers(cluster) if hosts(calls, server, tablet_id))
        targets = [server for server in tablet_servers(cluster) if server.uuid != source.uuid]
        size_bytes = 0
        meter = CpuMeter(cluster)
        for number in range(ROUNDS):
            session = await _copy(calls, tablet_id, targets[number % len(targets)])
            size_bytes = session.bytes_total
            took_s = (session.ended_micros - session.started_micros) / 1e6
            copied.append(size_bytes / took_s)
            streamed.append(await _stream(size_bytes))
            written.append(_write(size_bytes))
        cpu = meter.per(ROUNDS * size_bytes // (1 << 20), "mib")
    params = {"size_bytes": size_bytes, "rounds": ROUNDS}
    results.add(
        "tablet_copy_bytes_per_s",
        statistics.median(copied),
        "bytes/s",
        "higher",
        bound_by="CPU of both servers: gRPC's copies of the bytes, then the disk's; see docs/decisions/tablet-copy.md",
        fastest=round(max(copied)),
        slowest=round(min(copied)),
        share_of_lower=round(
            statistics.median(copied) / min(statistics.median(streamed), statistics.median(written)), 2
        ),
        servers_cpu_us_per_mib=cpu["servers_cpu_us_per_mib"],
        **params,
    )
    results.add(
        "raw_stream_bytes_per_s",
        statistics.median(streamed),
        "bytes/s",
        "higher",
        bound_by="gRPC's copies of the bytes at both ends, without protobuf messages",
        message_bytes=CHUNK_BYTES,
        streams=1,
        **params,
    )
    results.add(
        "raw_disk_write_bytes_per_s",
        statistics.median(written),
        "bytes/s",
        "higher",
        bound_by="the disk",
        piece_bytes=PIECE_BYTES,
        syncs=1,
        **params,
    )


async def _filled_table(client: aio.Client, rows: int) -> aio.Table:
    """One tablet, one replica, rows that no encoding makes smaller."""
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("payload").type(kudu.binary).nullable(False)
    table = await client.create_table("tablet_copy", builder.build(), kudu.Partitioning(), n_replicas=1)
    rng = np.random.default_rng(1)
    session = client.new_session(kudu.FLUSH_AUTO_BACKGROUND)
    offsets = pa.array(np.arange(BATCH_ROWS + 1, dtype=np.int32) * ROW_BYTES).buffers()[1]
    for first in range(0, rows, BATCH_ROWS):
        payload = pa.Array.from_buffers(
            pa.binary(), BATCH_ROWS, [None, offsets, pa.py_buffer(rng.bytes(BATCH_ROWS * ROW_BYTES))]
        )
        keys = pa.array(np.arange(first, first + BATCH_ROWS, dtype=np.int64))
        await session.write(table, pa.RecordBatch.from_arrays([keys, payload], names=["key", "payload"]), "insert")
    await session.flush()
    return table


async def _settled(cluster: ProcessCluster) -> None:
    """Waits until rows are in files and compactions have ended."""
    deadline = time.monotonic() + FLUSH_TIMEOUT_S
    servers = tablet_servers(cluster)
    done = -1.0
    while True:
        assert time.monotonic() < deadline, "rows are not flushed"
        flushed = all(metric(server, "kudu_tablet_memory_bytes") < 1 << 20 for server in servers)
        compactions = sum(metric(server, "kudu_maintenance_compactions_total") for server in servers)
        if flushed and compactions == done:
            return
        done = compactions
        await asyncio.sleep(2)


def hosts(calls: AdminCalls, server: Daemon, tablet_id: str) -> bool:
    """Whether a server has a running replica of the tablet."""
    state = calls.consensus(server.name).GetConsensusState(
        consensus_pb2.GetConsensusStateRequest(dest_uuid=server.uuid), timeout=10
    )
    return any(tablet.tablet_id == tablet_id for tablet in state.tablets)


def table_tablet(cluster: ProcessCluster, calls: AdminCalls) -> str:
    """The only tablet of the only table."""
    for server in tablet_servers(cluster):
        state = calls.consensus(server.name).GetConsensusState(
            consensus_pb2.GetConsensusStateRequest(dest_uuid=server.uuid), timeout=10
        )
        for tablet in state.tablets:
            return tablet.tablet_id
    raise AssertionError("no server hosts a tablet")


async def _copy(calls: AdminCalls, tablet_id: str, target: Daemon) -> tablet_copy_pb2.CopySession:
    """Makes a server a member that does not vote, waits for its copy, and takes it out again."""
    known = len(calls.copy_sessions(target.name, tablet_id))
    calls.master().AddReplica(
        master_pb2.AddReplicaRequest(tablet_id=tablet_id, ts_uuid=target.uuid, member_type=consensus_pb2.PRE_VOTER),
        timeout=CALL_TIMEOUT_S,
    )
    deadline = time.monotonic() + COPY_TIMEOUT_S
    while True:
        sessions = calls.copy_sessions(target.name, tablet_id)
        if len(sessions) > known and sessions[0].ended_micros:
            break
        assert time.monotonic() < deadline, f"the copy does not end: {sessions}"
        await asyncio.sleep(0.25)
    session = sessions[0]
    assert session.state == tablet_copy_pb2.SUCCEEDED, session
    assert session.bytes_resumed == 0, session
    calls.remove_replica(tablet_id, target.name)
    while hosts(calls, target, tablet_id):
        assert time.monotonic() < deadline, "the replica is not deleted"
        await asyncio.sleep(0.25)
    return session


# What the machine could do.


def _write(size_bytes: int) -> float:
    """One writer, one sync at the end."""
    disk, piece = PosixDisk(), np.random.default_rng(3).bytes(PIECE_BYTES)
    path = str(DIRECTORY / "raw_disk_write")
    Path(path).unlink(missing_ok=True)
    started = time.perf_counter()
    file = disk.create(path)
    for offset in range(0, size_bytes, PIECE_BYTES):
        file.write(offset, [piece])
    file.sync()
    seconds = time.perf_counter() - started
    file.close()
    os.unlink(path)
    return size_bytes / seconds


async def _stream(size_bytes: int) -> float:
    """One stream of a bare server in another process."""
    command = [sys.executable, "-m", "tests.bench.tablet_copy"]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert server.stdout is not None
        port = int(await server.stdout.readline())
        options = DialerOptions().channel_options()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stream = channel.unary_stream(STREAM_METHOD, request_serializer=None, response_deserializer=None)
            async for _ in stream(str(CHUNK_BYTES).encode()):  # connects
                pass
            started = time.perf_counter()
            received = 0
            async for message in stream(str(size_bytes).encode()):
                received += len(message)
            seconds = time.perf_counter() - started
        assert received >= size_bytes, received
        return received / seconds
    finally:
        server.kill()
        await server.wait()


async def _serve_stream() -> None:
    chunk = bytes(CHUNK_BYTES)

    async def stream(request: bytes, context: object) -> AsyncIterator[bytes]:
        for _ in range(-(-int(request) // CHUNK_BYTES)):
            yield chunk

    server = grpc.aio.server(options=RpcServerOptions().server_options())
    handler = grpc.unary_stream_rpc_method_handler(stream, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_stream())
