"""Whether a daemon serves, as the commands ask it."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kudu_py.common.errors import KuduError
from kudu_py.rpc.call import call


async def is_serving(channel: grpc.aio.Channel) -> bool:
    """Whether the health service of the daemon says SERVING."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await call(stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0))
    except KuduError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
