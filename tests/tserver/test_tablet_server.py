"""The whole server: start, power cut, drain; and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog

from kudu_py.pb import tserver_pb2
from kudu_py.pb.server_pb2 import GetStatusRequest
from kudu_py.pb.server_pb2_grpc import GenericServiceStub
from kudu_py.testing.replica_group import batch_of, request_of

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


async def count(stub: Any, tablet_id: str) -> int:
    request = tserver_pb2.ScanRequest(tablet_id=tablet_id, count_only=True)
    return sum([response.row_count async for response in stub.Scan(request)])


def test_a_server_has_its_tablets_after_a_power_cut(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            tablet_id = await servers.create()
            await servers.stub().Write(request_of(tablet_id, batch_of([(key, key, None) for key in range(500)])))
            await servers.servers[0].crash()
            await servers.servers[0].restart()
            await servers.leader(tablet_id)
            assert await count(servers.stub(), tablet_id) == 500

    simulate(main())


def test_a_server_that_drains_hands_over_before_it_stops(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving(size=3) as servers:
            tablet_id = await servers.create()
            leader = servers.servers[servers.number_of((await servers.leader(tablet_id)).consensus.uuid)]
            started = asyncio.get_running_loop().time()
            await leader.stop()
            successor = await servers.leader(tablet_id)
            # Shorter than any follower's patience: nobody waited for an election timeout.
            assert asyncio.get_running_loop().time() - started < 1.0
            assert successor.consensus.uuid != leader.uuid

    simulate(main())


def test_pages_and_metrics_tell_what_is_there(simulate: Simulate, serving: Any):
    async def main() -> None:
        from prometheus_client.exposition import generate_latest

        from kudu_py.tserver.pages import TabletServerPages

        async with serving() as servers:
            kept, deleted = await servers.create(), await servers.create()
            await servers.stub().Write(request_of(kept, batch_of([(1, 1, None)])))
            server = servers.servers[0]
            await server.tablet_server.manager.delete_tablet(deleted)
            await count(servers.stub(), kept)
            pages = TabletServerPages(server.tablet_server, server.clock)
            assert pages.health().ok
            assert dict(pages.facts())["leaders"] == 1
            for page in pages.pages():
                rows = list(page.rows())
                assert all(len(row) == len(page.columns) for row in rows), page.path
                if page.path == "/tablets":
                    assert [row[1] for row in rows] == [kept]
                if page.path == "/tombstones":
                    assert [row[1] for row in rows] == [deleted]
                if page.path == "/scans":
                    assert [row[3] for row in rows] == ["finished"]
            text = generate_latest(server.tablet_server._surroundings.registry).decode()
            assert 'kudu_tablet_replicas{state="RUNNING"} 1.0' in text
            assert "kudu_tablet_live_rows 1.0" in text

    simulate(main())


def test_a_full_disk_degrades_a_server_by_name_until_there_is_room(simulate: Simulate, serving: Any):
    async def main() -> None:
        from kudu_py.tserver.pages import TabletServerPages

        async with serving() as servers:
            server = servers.servers[0]
            pages = TabletServerPages(server.tablet_server, server.clock)
            stub = GenericServiceStub(servers.network.dialer("client:1").channel(server.address))
            await servers.create()
            await asyncio.sleep(3.0)
            assert pages.health().status == "SERVING"
            server.disk.capacity_bytes = 1 << 20
            await asyncio.sleep(3.0)
            free_bytes = server.disk.free_bytes("/data")
            health = pages.health()
            assert (health.ok, health.status) == (True, "DEGRADED")
            assert f"the disk of /data is full: {free_bytes} bytes are free" in str(health.facts["problems"])
            answer = await stub.GetStatus(GetStatusRequest())
            assert list(answer.problems) == [health.facts["problems"]]
            server.disk.capacity_bytes = None
            await asyncio.sleep(3.0)
            assert pages.health().status == "SERVING"
            assert not (await stub.GetStatus(GetStatusRequest())).problems

    with structlog.testing.capture_logs() as events:
        simulate(main())
    told = [event["event"] for event in events if event["event"].startswith("disk_")]
    assert told == ["disk_full", "disk_has_room"]


def daemon(directory: Path, ready_file: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kudu_py.tserver",
            f"--fs_wal_dir={directory}",
            "--rpc_bind_addresses=127.0.0.1:0",
            "--webserver_port=0",
            "--tserver_master_addrs=127.0.0.1:1",
            f"--ready_file={ready_file}",
            *more,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


async def ready(process: subprocess.Popen[bytes], file: Path) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not file.exists():  # noqa: ASYNC240  # another process makes it
            assert process.poll() is None, process.communicate()
            await asyncio.sleep(0.05)
    content: dict[str, Any] = json.loads(file.read_text())  # noqa: ASYNC240
    return content


@pytest.mark.integration
async def test_a_process_stops_in_good_order_and_refuses_a_second_on_its_directory(tmp_path: Path):
    file = tmp_path / "ready"
    first = daemon(tmp_path / "data", file)
    try:
        uuid = (await ready(first, file))["uuid"]
        second = daemon(tmp_path / "data", tmp_path / "other")
        _, errors = await asyncio.to_thread(second.communicate, timeout=60)
        assert second.returncode == 1
        assert b"is in use by another process" in errors
        first.send_signal(signal.SIGTERM)
        await asyncio.to_thread(first.communicate, timeout=30)
        assert first.returncode == 0
        file.unlink(missing_ok=True)
        first = daemon(tmp_path / "data", file)
        assert (await ready(first, file))["uuid"] == uuid
    finally:
        first.kill()
        first.communicate()
