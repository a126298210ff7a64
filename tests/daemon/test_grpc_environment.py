"""gRPC's settings are in the environment before gRPC is imported, and never over the operator's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kudu_py
from kudu_py.daemon import grpc_environment


def test_what_the_operator_has_set_stays():
    environ = {"GRPC_VERBOSITY": "DEBUG"}

    grpc_environment.apply(environ)

    assert environ["GRPC_VERBOSITY"] == "DEBUG"
    assert environ["GRPC_EXPERIMENTS"] == grpc_environment.SETTINGS["GRPC_EXPERIMENTS"]


def test_it_imports_nothing_of_grpc():
    program = "import sys; import kudu_py.daemon.grpc_environment; sys.exit('grpc' in sys.modules)"
    environ = {"PYTHONPATH": str(Path(kudu_py.__file__).parent.parent)}

    assert subprocess.run([sys.executable, "-c", program], env=environ, check=False, timeout=30).returncode == 0
