"""Calls as the commands make them: bounded in time, errors as `KuduError`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kudu_py.common.errors import KuduError
from kudu_py.rpc.status import from_rpc_error

T = TypeVar("T")


async def call(pending: Awaitable[T]) -> T:
    """The answer, or the error translated once."""
    try:
        return await pending
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def is_serving(channel: grpc.aio.Channel) -> bool:
    """Whether the health service of the daemon says SERVING."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await call(stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0))
    except KuduError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
