"""`python -m kudu_py.master`: a master as a process; the same as `kudu-py master run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kudu_py.rpc import grpc_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a master until it is told to stop; the exit status. `argv` is without the program's name."""
    grpc_environment.silence()  # before anything imports gRPC
    from kudu_py import __version__
    from kudu_py.daemon.options import MasterOptions
    from kudu_py.daemon.process import run_daemon
    from kudu_py.master.serve import serve

    return run_daemon(
        MasterOptions,
        serve,
        sys.argv[1:] if argv is None else argv,
        program="kudu-py master run",
        about="Keeps the catalog of tables and tablets, places replicas, and cares for tablet servers.",
        version=__version__,
    )


if __name__ == "__main__":
    sys.exit(main())
