"""The same group over real gRPC and real files: what a simulation cannot promise."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from kudu_py.common.ids import ServerId, TabletId, mint_id
from kudu_py.consensus.peer_links import PeerLinkOptions, Transport
from kudu_py.env.clock import SystemClock
from kudu_py.env.posix_disk import PosixDiskThreads
from kudu_py.rpc.dialer import GrpcDialer
from kudu_py.rpc.server import RpcServer
from kudu_py.testing.consensus_group import GroupServer, group_config
from kudu_py.testing.waiting import wait_until


def free_addresses(count):
    """Ports that were free a moment ago: members know each other's addresses before any server listens."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


async def story(directory, transport):
    rng = random.Random(1)
    tablet_id, threads = TabletId(mint_id(rng)), PosixDiskThreads()
    servers = []
    for number, address in enumerate(free_addresses(3)):
        uuid = ServerId(mint_id(rng))
        (directory / str(number)).mkdir()
        servers.append(
            GroupServer(
                uuid=uuid,
                tablet_id=tablet_id,
                address=address,
                directory=str(directory / str(number)),
                threads=threads,
                clock=SystemClock(),
                rng=random.Random(number),
                dialer=GrpcDialer(),
                serve=lambda uuid=uuid: RpcServer(uuid=uuid, registry=CollectorRegistry()),
                link_options=PeerLinkOptions(transport=transport),
            )
        )
    for server in servers:
        await server.create(group_config(servers))
    for server in servers:
        await server.start()

    def ready():
        return [server for server in servers if server.replica is not None and server.raft.is_leader_ready()]

    await wait_until(ready)
    first = ready()[0]
    rounds = [first.propose(bytes([i]) * 100) for i in range(200)]
    await asyncio.gather(*(pending.future for pending in rounds))
    assert await first.raft.read_index() >= rounds[-1].op_id.index
    await first.stop()
    await wait_until(ready)
    second = ready()[0]
    await second.propose(b"after").future
    await first.start()
    await wait_until(lambda: len({server.raft.applied_index for server in servers}) == 1)
    for server in servers:
        assert server.machine.payloads == [*(bytes([i]) * 100 for i in range(200)), b"after"]
        assert server.fatal is None
    for server in servers:
        await server.stop()
        await server.dialer.close()
    threads.close()


@pytest.mark.parametrize("transport", list(Transport), ids=lambda transport: transport.value)
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_group_commits_loses_its_leader_and_takes_it_back(tmp_path, transport, loop_factory):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story(tmp_path, transport))
