"""`refusal` and `refusal_of`: the error that an operation or a call ends in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from kudu_py.common.errors import KuduError
from kudu_py.rpc.status import from_rpc_error


async def refusal(work: Awaitable[object]) -> KuduError:
    """What `work` was refused with, by a part within the process or by a server.

    Raises:
        AssertionError: it was not refused.
    """
    try:
        answer = await work
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    except KuduError as error:
        return error
    raise AssertionError(f"it was not refused: {answer!r}")


def refusal_of(call: Callable[[], object]) -> KuduError:
    """The same of a blocking call to a server."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"it was not refused: {answer!r}")
