"""Brings the peers to `build/peers`: upstream's C++ daemons and Java client by Maven, etcd by apt-get.

What cannot be had here is left out with a sentence that says which tool is missing; the rest is measured all the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.results import ROOT

DIRECTORY = ROOT / "build" / "peers"
VERSION = "1.17.0"
HERE = Path(__file__).parent
SASL_PATH = "/usr/lib/x86_64-linux-gnu/sasl2"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Peers:
    """What was found.

    Attributes:
        kudu_home: of upstream's daemons and tool; None if they are not to be had.
        kudu_jar: upstream's Java client, with what it needs.
        etcd: the server. etcdput: its caller.
    """

    kudu_home: Path | None
    kudu_jar: Path | None
    etcd: Path | None
    etcdput: Path | None


def fetch() -> Peers:
    """Finds what an earlier run fetched, and fetches the rest."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    home = _attempt("Apache Kudu's daemons", _fetch_kudu)
    jar = _attempt("Apache Kudu's Java client", lambda: _from_maven(f"kudu-spark3_2.12:{VERSION}"))
    etcd = _attempt("etcd", _fetch_etcd)
    etcdput = _attempt("etcd's caller", _build_etcdput)
    return Peers(home, jar, etcd, etcdput)


class Missing(Exception):
    """A peer cannot be had; says why."""


def _attempt(what: str, bring):
    try:
        return bring()
    except (Missing, OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or ""
        print(f"without {what}: {error} {output.strip()[-300:]}".rstrip(), flush=True)
        return None


def _run(command: list[str], **more: object) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, **more)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"there is no `{name}` here")
    return found


def _from_maven(coordinates: str) -> Path:
    """The file of an artifact, fetched into the local repository if it is not there."""
    artifact, version, *rest = coordinates.split(":")
    classifier = f"-{rest[1]}" if rest else ""
    target = DIRECTORY / f"{artifact}-{version}{classifier}.jar"
    if not target.exists():
        print(f"fetching {coordinates} ...", flush=True)
        _run([_tool("mvn"), "-q", "dependency:get", "-Dtransitive=false", f"-Dartifact=org.apache.kudu:{coordinates}"])
        repository = Path(os.environ.get("M2_REPO", Path.home() / ".m2" / "repository"))
        shutil.copy(repository / "org/apache/kudu" / artifact / version / target.name, target)
    return target


def _fetch_kudu() -> Path:
    archive = _from_maven(f"kudu-binary:{VERSION}:jar:linux-x86_64")
    home = DIRECTORY / f"kudu-binary-{VERSION}-linux-x86_64"
    if not (home / "bin" / "kudu").exists():
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(DIRECTORY)
    for program in (home / "bin").iterdir():
        program.chmod(0o755)
    if not Path(SASL_PATH).exists():
        _install("libsasl2-modules", "libnuma1")
    return home


def _fetch_etcd() -> Path:
    if shutil.which("etcd") is None:
        _install("etcd-server")
    return Path(_tool("etcd"))


def _install(*packages: str) -> None:
    if os.geteuid() != 0:
        raise Missing(f"install {' '.join(packages)} as root")
    print(f"installing {' '.join(packages)} ...", flush=True)
    apt_get = _tool("apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # install, do not start
    _run([apt_get, "update", "-q"], env=environment)
    _run([apt_get, "install", "-y", "-q", *packages], env=environment)


def _build_etcdput() -> Path:
    program = DIRECTORY / "etcdput"
    source = HERE / "etcdput"
    if not program.exists() or program.stat().st_mtime < (source / "main.go").stat().st_mtime:
        print("building etcdput ...", flush=True)
        _run([_tool("go"), "build", "-o", str(program), "."], cwd=source)
    return program
