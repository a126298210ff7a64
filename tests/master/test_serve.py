"""The master as its process runs it: real disk, ports and pages, within this process."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from contextlib import asynccontextmanager

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon.metrics import new_registry
from kudu_py.daemon.options import MasterOptions, load_options
from kudu_py.daemon.process import Process
from kudu_py.master.serve import serve
from kudu_py.pb import master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer


@asynccontextmanager
async def running(directory, *flags):
    """A master on free ports, and a stub of it."""
    process = Process(registry=new_registry(role="master", version="test"), version="test", exit_now=pytest.fail)
    loaded = load_options(
        MasterOptions,
        [f"--fs_wal_dir={directory}", "--rpc_bind_addresses=127.0.0.1:0", "--webserver_port=0", *flags],
        {},
    )
    async with serve(process, loaded) as ready:
        dialer = GrpcDialer()
        try:
            yield ready, master_pb2_grpc.MasterServiceStub(dialer.channel(ready.rpc_address))
        finally:
            await dialer.close()
            await process.drain()


async def fetch(address: str, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.get_running_loop().run_in_executor(None, get)


async def cluster_id(stub) -> str:
    while True:
        answer = await call(stub.GetMasterRegistration(master_pb2.GetMasterRegistrationRequest(), timeout=5))
        if answer.cluster_id:
            return answer.cluster_id
        await asyncio.sleep(0.01)


async def test_it_serves_and_finds_itself_again(tmp_path):
    async with running(tmp_path / "m") as (first, stub):
        minted = await cluster_id(stub)
    async with running(tmp_path / "m") as (second, stub):
        assert await cluster_id(stub) == minted
        assert second.uuid == first.uuid
        listed = await call(stub.ListMasters(master_pb2.ListMastersRequest(), timeout=5))
        assert [master.rpc_address for master in listed.masters] == [second.rpc_address]


async def test_its_pages_answer(tmp_path):
    async with running(tmp_path / "m") as (ready, stub):
        await cluster_id(stub)
        for path in ("/", "/masters", "/tablet-servers", "/tables", "/varz", "/healthz", "/metrics"):
            status, text = await fetch(ready.http_address, path)
            assert status == 200, (path, text)
        assert (await fetch(ready.http_address, "/table?name=nope"))[0] == 404
        assert "kudu_master_is_leader 1.0" in (await fetch(ready.http_address, "/metrics"))[1]


async def test_a_directory_in_use_is_refused_by_name(tmp_path):
    async with running(tmp_path / "m"):
        with pytest.raises(KuduError, match="in use by another process"):
            async with running(tmp_path / "m"):
                pass


async def test_a_port_in_use_is_refused_by_name(tmp_path):
    async with running(tmp_path / "m") as (ready, _):
        with pytest.raises(KuduError) as caught:
            async with running(tmp_path / "n", f"--rpc_bind_addresses={ready.rpc_address}"):
                pass
        assert caught.value.code is ErrorCode.CONFIGURATION_ERROR
        assert ready.rpc_address in caught.value.message
