"""`python -m kudu_py.tserver`: a tablet server, configured by its flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kudu_py.daemon import grpc_environment


def main(argv: Sequence[str]) -> int:
    """Runs a tablet server until it is told to stop; the exit status. `argv` is without the program's name."""
    grpc_environment.apply()  # before anything imports gRPC
    from importlib.metadata import PackageNotFoundError, version

    from kudu_py.daemon.options import TabletServerOptions
    from kudu_py.daemon.process import run_daemon
    from kudu_py.tserver.serve import serve

    try:
        installed = version("kudu_py")
    except PackageNotFoundError:
        installed = "unknown"
    return run_daemon(
        TabletServerOptions,
        serve,
        argv,
        program="python -m kudu_py.tserver",
        about="Runs a tablet server: replicas of tablets, which take writes and scans.",
        version=installed,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
