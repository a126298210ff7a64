"""`python -m kudu_py.tserver`: a tablet server as a process; the same as `kudu-py tserver run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kudu_py.rpc import grpc_environment


def main(argv: Sequence[str]) -> int:
    """Runs a tablet server until it is told to stop; the exit status. `argv` is without the program's name."""
    grpc_environment.silence()  # before anything imports gRPC
    from kudu_py import __version__
    from kudu_py.daemon.options import TabletServerOptions
    from kudu_py.daemon.process import run_daemon
    from kudu_py.tserver.serve import serve

    return run_daemon(
        TabletServerOptions,
        serve,
        argv,
        program="kudu-py tserver run",
        about="Holds replicas of tablets, which take writes and scans.",
        version=__version__,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
