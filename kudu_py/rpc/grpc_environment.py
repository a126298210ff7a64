"""What gRPC reads from the environment when it is first imported. Imports nothing of gRPC, on purpose.

`choose_engine` is for every process, a user's own among them: `kudu_py/__init__.py` calls it, which runs before any
module of ours can import gRPC. `silence` is for the daemons and the command, whose stderr is ours.

What whoever started the process has set stays. Processes that this one starts inherit the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, MutableMapping

ENGINE = {
    # The event engine hands each message to one more thread. Without it, for one caller, the median of a call over
    # loopback was 0.84 ms instead of 1.01 ms; names that gRPC does not know only log an error, so measure at upgrades.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
SILENCE = {
    # gRPC writes lines of its own to stderr for each refused connection; what matters reaches us as an error.
    "GRPC_VERBOSITY": "NONE",
}


def choose_engine(environ: MutableMapping[str, str] = os.environ, imported: Container[str] = sys.modules) -> None:
    """Takes the quicker of gRPC's engines. Nothing is set once gRPC is imported: its user knows it without."""
    _set(ENGINE, environ, imported)


def silence(environ: MutableMapping[str, str] = os.environ, imported: Container[str] = sys.modules) -> None:
    """Keeps gRPC from writing to stderr. Nothing is set once gRPC is imported, which would not look at it."""
    _set(SILENCE, environ, imported)


def _set(settings: dict[str, str], environ: MutableMapping[str, str], imported: Container[str]) -> None:
    if "grpc" not in imported:
        for name, value in settings.items():
            environ.setdefault(name, value)
