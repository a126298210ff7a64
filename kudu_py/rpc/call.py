"""One call as the callers of other servers make it: the answer, or a `KuduError`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio

from kudu_py.rpc.status import from_rpc_error

T = TypeVar("T")


async def call(pending: Awaitable[T], *, address: str = "", wrote: bool = False) -> T:
    """Awaits `stub.Method(request, timeout=...)`; see `from_rpc_error` for the arguments.

    Cancelling it cancels the call; the server may carry it out all the same.

    Raises:
        KuduError: whatever the server or gRPC said.
    """
    try:
        return await pending
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, wrote=wrote, address=address) from error
