"""`python -m kudu_py.master`: a master, configured by its flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kudu_py.daemon import grpc_environment


def main(argv: Sequence[str]) -> int:
    """Runs a master until it is told to stop; the exit status. `argv` is without the program's name."""
    grpc_environment.apply()  # before anything imports gRPC
    from importlib.metadata import PackageNotFoundError, version

    from kudu_py.daemon.options import MasterOptions
    from kudu_py.daemon.process import run_daemon
    from kudu_py.master.serve import serve

    try:
        installed = version("kudu_py")
    except PackageNotFoundError:
        installed = "unknown"
    return run_daemon(
        MasterOptions,
        serve,
        argv,
        program="python -m kudu_py.master",
        about="Runs a master: the catalog of tables and tablets, and the care for tablet servers.",
        version=installed,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
