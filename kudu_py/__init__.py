"""A replicated, columnar table store in the design of Apache Kudu.

`import kudu_py as kudu; client = kudu.connect("127.0.0.1:7051")` is the blocking client with kudu-python's names;
`kudu_py.aio` is the same for asyncio. Names are loaded when first used, so that a daemon does not load the client.
Importing anything of the package sets `GRPC_EXPERIMENTS`, where it is not set and gRPC not imported yet: see
`kudu_py.rpc.grpc_environment`.

The layers, of which each imports only what is below:
    testing, cli            simulator and harness; the command
    tserver, master         the two daemons, which meet over gRPC only
    daemon                  the process around a server
    tablet, webui, client   never each other
    consensus               Raft: the machine and its drivers
    rpc, wal                gRPC plumbing; the log of one tablet
    env                     time, disk and workers
    common                  values and errors
    pb                      generated code
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kudu_py.rpc.grpc_environment import choose_engine as _choose_engine

if TYPE_CHECKING:
    from kudu_py.client import *  # noqa: F403 - the same names, for type checkers and editors

__version__ = "0.1.0"

_choose_engine()  # before any module of ours can import gRPC


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    client = import_module("kudu_py.client")
    if name not in client.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    client = import_module("kudu_py.client")
    return sorted([*globals(), *client.__all__])
