"""The standard gRPC health service (grpc.health.v1) over one set of states, changed without waiting.

grpcio-health-checking has a servicer too; its setters are coroutines that take locks, and a state must change in the
middle of synchronous code, when the process begins to drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpc_health.v1 import health_pb2, health_pb2_grpc

from kudu_py.common.errors import ErrorCode, KuduError

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """Says of the whole server ("") and of each service whether it serves. Begins as NOT_SERVING."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {"": NOT_SERVING}
        self._changed = asyncio.Event()

    def add(self, service: str) -> None:
        """Makes a service known, in the state of the whole server."""
        self._states[service] = self._states[""]

    def set_serving(self, serving: bool) -> None:
        """Changes all states at once and tells the watchers."""
        state = SERVING if serving else NOT_SERVING
        self._states = dict.fromkeys(self._states, state)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: object) -> health_pb2.HealthCheckResponse:
        state = self._states.get(request.service)
        if state is None:
            raise KuduError(ErrorCode.NOT_FOUND, f"the service {request.service[:256]!r} is not known here")
        return health_pb2.HealthCheckResponse(status=state)

    async def List(self, request: health_pb2.HealthListRequest, context: object) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=state) for name, state in self._states.items()}
        )

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: object
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent = -1
        while True:
            changed = self._changed
            state = self._states.get(request.service, SERVICE_UNKNOWN)
            if state != sent:
                sent = state
                yield health_pb2.HealthCheckResponse(status=state)
            await changed.wait()
