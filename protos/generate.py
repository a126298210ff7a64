"""Writes the generated code of `protos/` into the package, or checks that what is committed is what would be written.

python protos/generate.py           write kudu_py/pb
python protos/generate.py --check   compare only; exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent
PACKAGE = Path("kudu_py/pb")


def generate(target: Path) -> None:
    """Runs the compiler with `target` as the root of the output."""
    scripts = Path(sysconfig.get_path("scripts"))
    sources = sorted(str(path) for path in (PROTOS / PACKAGE).glob("*.proto"))
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out={target}",
            f"--mypy_grpc_out={target}",
            *sources,
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name: path for path in (Path(scratch) / PACKAGE).iterdir()}
        committed = {path.name: path for path in (ROOT / PACKAGE).glob("*_pb2*")}
        differing = sorted(
            name
            for name in fresh.keys() | committed.keys()
            if name not in fresh
            or name not in committed
            or not filecmp.cmp(fresh[name], committed[name], shallow=False)
        )
        if check:
            if differing:
                print("generated code is not what the protos say; run `make protos`:", *differing, sep="\n  ")
            return 1 if differing else 0
        for name in differing:
            if name in fresh:
                shutil.copyfile(fresh[name], ROOT / PACKAGE / name)
            else:
                committed[name].unlink()
            print("wrote" if name in fresh else "removed", PACKAGE / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
