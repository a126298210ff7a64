"""What masters ask: replicas made and deleted, once, and only here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kudu_py.common.errors import ErrorCode
from kudu_py.pb import consensus_pb2, tserver_admin_pb2
from kudu_py.testing.refusals import refusal

Simulate = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_tablet_is_created_and_deleted(simulate: Simulate, serving: Any):
    async def main() -> None:
        async with serving() as servers:
            server = servers.servers[0]
            request = servers.create_request(dest_uuid=server.uuid)
            await servers.admin().CreateTablet(request)
            assert (await refusal(servers.admin().CreateTablet(request))).code is ErrorCode.TABLET_ALREADY_EXISTS
            delete = tserver_admin_pb2.DeleteTabletRequest(
                dest_uuid=server.uuid,
                tablet_id=request.tablet_id,
                reason="a test",
                delete_type=tserver_admin_pb2.TOMBSTONED,
            )
            await servers.admin().DeleteTablet(delete)
            await servers.admin().DeleteTablet(delete)
            assert server.tablet_server.manager.replicas() == []
            delete.delete_type = 77
            assert (await refusal(servers.admin().DeleteTablet(delete))).code is ErrorCode.INVALID_ARGUMENT
            assert len(server.tablet_server.manager.tombstones()) == 1
            delete.delete_type = tserver_admin_pb2.DELETED_COMPLETELY
            await servers.admin().DeleteTablet(delete)
            assert server.tablet_server.manager.tombstones() == []
            assert (await refusal(servers.admin().DeleteTablet(delete))).code is ErrorCode.TABLET_NOT_FOUND
            await servers.admin().CreateTablet(request)
            delete.tablet_id = "0" * 32
            assert (await refusal(servers.admin().DeleteTablet(delete))).code is ErrorCode.TABLET_NOT_FOUND

    simulate(main())


@pytest.mark.parametrize("dest_uuid", ["", "f" * 32])
def test_a_request_for_another_server_is_refused(simulate: Simulate, serving: Any, dest_uuid: str):
    async def main() -> None:
        async with serving() as servers:
            error = await refusal(servers.admin().CreateTablet(servers.create_request(dest_uuid=dest_uuid)))
            assert error.code is ErrorCode.WRONG_SERVER_UUID
            assert servers.servers[0].tablet_server.manager.replicas() == []

    simulate(main())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tablet_id": "../../etc/passwd"}, ErrorCode.INVALID_ARGUMENT),
        ({"table_id": "x"}, ErrorCode.INVALID_ARGUMENT),
        ({"schema": None}, ErrorCode.INVALID_SCHEMA),
        ({"config": consensus_pb2.RaftConfig()}, ErrorCode.INVALID_CONFIG),
        (
            {"config": consensus_pb2.RaftConfig(members=[consensus_pb2.Member(uuid="x", member_type="VOTER")])},
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
def test_what_cannot_be_created_is_refused(simulate: Simulate, serving: Any, changes: dict[str, Any], code: ErrorCode):
    async def main() -> None:
        async with serving() as servers:
            request = servers.create_request(dest_uuid=servers.servers[0].uuid, **changes)
            assert (await refusal(servers.admin().CreateTablet(request))).code is code
            assert servers.servers[0].tablet_server.manager.replicas() == []

    simulate(main())
