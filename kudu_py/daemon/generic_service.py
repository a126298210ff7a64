"""`GenericServicer`: what every daemon says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kudu_py.pb import common_pb2, server_pb2
from kudu_py.pb.server_pb2_grpc import GenericServiceServicer


class GenericServicer(GenericServiceServicer):
    """Answers who lives here and how they are; the same on masters and tablet servers."""

    def __init__(
        self, registration: Callable[[], common_pb2.ServerRegistration], problems: Callable[[], Sequence[str]]
    ) -> None:
        self._registration = registration
        self._problems = problems

    async def GetStatus(self, request: server_pb2.GetStatusRequest, context: Any) -> server_pb2.GetStatusResponse:
        return server_pb2.GetStatusResponse(registration=self._registration(), problems=self._problems())
