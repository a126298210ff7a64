"""gRPC's settings are in the environment before gRPC is imported, and never over those of whoever runs the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kudu_py
from kudu_py.rpc import grpc_environment

ENGINE = grpc_environment.ENGINE["GRPC_EXPERIMENTS"]


def settings_after(program, **environ):
    """gRPC's variables in a new process after a program, and whether it has imported gRPC."""
    tell = (
        "import json, os, sys\n"
        "found = {name: value for name, value in os.environ.items() if name.startswith('GRPC_')}\n"
        "print(json.dumps([found, 'grpc' in sys.modules]))"
    )
    environ["PYTHONPATH"] = str(Path(kudu_py.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{tell}"],
        env=environ,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert "experiment" not in done.stderr.lower()
    found, imported = json.loads(done.stdout)
    return found, imported


def test_whoever_imports_the_package_has_the_engine_before_grpc_is_imported():
    assert settings_after("import kudu_py") == ({"GRPC_EXPERIMENTS": ENGINE}, False)


@pytest.mark.parametrize("module", ["kudu_py.client", "kudu_py.rpc.dialer", "kudu_py.pb.master_pb2_grpc"])
def test_no_way_into_the_package_imports_grpc_before_the_engine_is_chosen(module):
    seen = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        assert name != 'grpc' or os.environ.get('GRPC_EXPERIMENTS') == {ENGINE!r}\n"
        "sys.meta_path.insert(0, Watch())\n"
    )

    assert settings_after(f"{seen}import {module}") == ({"GRPC_EXPERIMENTS": ENGINE}, True)


def test_what_the_user_has_set_stays():
    assert settings_after("import kudu_py", GRPC_EXPERIMENTS="") == ({"GRPC_EXPERIMENTS": ""}, False)
    assert settings_after("import kudu_py.cli", GRPC_VERBOSITY="DEBUG")[0]["GRPC_VERBOSITY"] == "DEBUG"


def test_a_process_that_uses_grpc_already_is_left_as_it_is():
    assert settings_after("import grpc, kudu_py.client") == ({}, True)


def test_the_command_is_silent():
    found, _ = settings_after("import kudu_py.cli")

    assert found == {"GRPC_EXPERIMENTS": ENGINE, "GRPC_VERBOSITY": "NONE"}


def test_grpc_knows_the_engine():
    """It would say so on stderr of a name that it does not know."""
    program = "import kudu_py.client, grpc; grpc.insecure_channel('127.0.0.1:1').close()"

    assert settings_after(program) == ({"GRPC_EXPERIMENTS": ENGINE}, True)
