"""Three replicas in three processes on loopback: latency and throughput of proposals at the leader.

    python tests/bench/consensus.py [--transport stream|unary] [--callers 1,64] [--payload-bytes 512] [--seconds 3]

Prints one line per number of callers: what a proposal takes from `propose` to applied, and CPU per proposal in the
leader's and in a follower's process. The client's hop is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Before grpc is imported: the polling engine of sockets costs a thread hand-off a message less without these.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="stream")
    parser.add_argument("--callers", default="1,64")
    parser.add_argument("--payload-bytes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--port", type=int, default=7450)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dir", default="")
    parser.add_argument("--number", type=int, default=-1)
    return parser.parse_args()


async def serve(options: argparse.Namespace) -> None:
    """One server; whoever leads measures."""
    import structlog
    from prometheus_client import CollectorRegistry

    from kudu_py.common.ids import ServerId, TabletId, mint_id
    from kudu_py.consensus.options import ConsensusOptions
    from kudu_py.consensus.peer_links import PeerLinkOptions, Transport
    from kudu_py.env.clock import SystemClock
    from kudu_py.env.posix_disk import PosixDiskThreads
    from kudu_py.rpc.dialer import GrpcDialer
    from kudu_py.rpc.server import RpcServer
    from kudu_py.testing.consensus_group import GroupServer, group_config

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rng = random.Random(1)
    tablet_id = TabletId(mint_id(rng))
    threads, dialer = PosixDiskThreads(), GrpcDialer()
    uuids = [ServerId(mint_id(rng)) for _ in range(3)]
    servers = [
        GroupServer(
            uuid=uuid,
            tablet_id=tablet_id,
            address=f"127.0.0.1:{options.port + number}",
            directory=f"{options.dir}/{number}",
            threads=threads,
            clock=SystemClock(),
            rng=random.Random(number),
            dialer=dialer,
            serve=lambda uuid=uuid: RpcServer(uuid=uuid, registry=CollectorRegistry()),
            options=ConsensusOptions(),
            link_options=PeerLinkOptions(transport=Transport(options.transport)),
        )
        for number, uuid in enumerate(uuids)
    ]
    server = servers[options.number]
    await server.create(group_config(servers))
    await server.start()
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    cpu = time.process_time()
    while not told.done():
        await asyncio.sleep(0.05)
        if server.raft.is_leader_ready():
            await asyncio.sleep(1.0)
            for callers in map(int, options.callers.split(",")):
                print(json.dumps(await measure(server, callers, options)), flush=True)
            print("done", flush=True)
            break
    await told
    print(json.dumps({"cpu_s": time.process_time() - cpu, "entries": server.raft.applied_index}), flush=True)
    os._exit(0)


async def measure(server: object, callers: int, options: argparse.Namespace) -> dict[str, float]:
    from kudu_py.testing.consensus_group import GroupServer

    assert isinstance(server, GroupServer)
    payload, latencies, end = os.urandom(options.payload_bytes), [], time.perf_counter() + options.seconds
    batches = server.raft.log.batches_written

    async def call() -> None:
        while (begun := time.perf_counter()) < end:
            await server.propose(payload).future
            latencies.append(time.perf_counter() - begun)

    cpu = time.process_time()
    if options.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
    await asyncio.gather(*(call() for _ in range(callers)))
    if options.profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    cpu = time.process_time() - cpu
    latencies.sort()
    count = len(latencies)
    return {
        "callers": callers,
        "p50_ms": round(latencies[count // 2] * 1e3, 3),
        "p99_ms": round(latencies[int(count * 0.99)] * 1e3, 3),
        "per_s": round(count / options.seconds),
        "leader_cpu_us": round(cpu / count * 1e6, 1),
        "group": round(count / max(1, server.raft.log.batches_written - batches), 1),
    }


def main() -> None:
    """Starts three of these and passes on what the leader prints."""
    options = parse()
    if options.number >= 0:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, *sys.argv[1:], "--dir", directory]
        for number in range(3):
            Path(directory, str(number)).mkdir()
        processes = [
            subprocess.Popen(
                [*command, "--number", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for number in range(3)
        ]
        import selectors

        waiting = selectors.DefaultSelector()
        for process in processes:
            waiting.register(process.stdout, selectors.EVENT_READ)
        while True:
            lines = [key.fileobj.readline().strip() for key, _ in waiting.select()]
            for line in lines:
                print(line)
            if "done" in lines or "" in lines:
                break
        for process in processes:
            print(process.communicate("stop\n", timeout=20)[0].strip(), flush=True)


if __name__ == "__main__":
    main()
