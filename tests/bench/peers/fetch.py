"""Brings the peers to `build/peers`, each when it is first asked for: archives by Maven, Spark by pip, etcd by apt-get.

What cannot be had here raises `Missing`, which says what and why; the others are measured all the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench.results import ROOT

DIRECTORY = ROOT / "build" / "peers"
HERE = Path(__file__).parent
SASL_PATH = "/usr/lib/x86_64-linux-gnu/sasl2"
TIMEOUT_S = 900

KUDU = "1.17.0"
SLF4J = "1.7.36"
"""Upstream's archives expect it on the class path: Spark brings it, a plain `java` does not."""
SPARK = "3.5.6"
"""The newest line that upstream's connector and this Delta Lake are built for, in Scala 2.12; ours has Spark 4."""
DELTA = "3.3.2"


class Missing(Exception):
    """A peer cannot be had; says which and why."""


class Peers:
    """What an earlier run fetched, and what this one has to fetch; nothing is tried twice in a run."""

    def __init__(self) -> None:
        self._found: dict[str, Path | Missing] = {}

    @property
    def kudu_home(self) -> Path:
        """Upstream's daemons and tool."""
        return self._once("Apache Kudu's daemons", _fetch_kudu)

    @property
    def kudu_class_path(self) -> list[Path]:
        """Upstream's Java client."""
        slf4j = partial(_from_maven, f"org.slf4j:slf4j-api:{SLF4J}")
        return [self.kudu_spark, self._once("Apache Kudu's Java client", slf4j)]

    @property
    def kudu_spark(self) -> Path:
        """Upstream's Spark connector, which has the client in it."""
        return self._once(
            "Apache Kudu's Spark connector", partial(_from_maven, f"org.apache.kudu:kudu-spark3_2.12:{KUDU}")
        )

    @property
    def delta(self) -> list[Path]:
        """Delta Lake for `spark_python`."""
        parts = ("delta-spark_2.12", "delta-storage")
        return [self._once(f"Delta Lake ({part})", partial(_from_maven, f"io.delta:{part}:{DELTA}")) for part in parts]

    @property
    def spark_python(self) -> Path:
        """The Python of a virtual environment with the Spark that the peers need."""
        return self._once(f"Spark {SPARK}", _make_spark_environment)

    @property
    def java(self) -> Path:
        """A `java` with a compiler, which runs a source file."""
        return self._once("Java", lambda: _tool("java"))

    @property
    def etcd(self) -> Path:
        """The server."""
        return self._once("etcd", _fetch_etcd)

    @property
    def etcdput(self) -> Path:
        """Its caller."""
        return self._once("etcd's caller", _build_etcdput)

    def _once(self, what: str, bring: Callable[[], Path]) -> Path:
        if what not in self._found:
            DIRECTORY.mkdir(parents=True, exist_ok=True)
            try:
                self._found[what] = bring()
            except (Missing, OSError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
                output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or ""
                self._found[what] = Missing(f"there is no {what}: {error} {output.strip()[-300:]}".rstrip())
        found = self._found[what]
        if isinstance(found, Missing):
            raise found
        return found


def _run(command: list[str | Path], **more: object) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, **more)


def _tool(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"`{name}` is not on the path")
    return Path(found)


def _from_maven(coordinates: str) -> Path:
    """The file of GROUP:ARTIFACT:VERSION[:jar:CLASSIFIER], through the local repository."""
    group, artifact, version, *rest = coordinates.split(":")
    classifier = f"-{rest[1]}" if rest else ""
    target = DIRECTORY / f"{artifact}-{version}{classifier}.jar"
    if not target.exists():
        maven = _tool("mvn")
        print(f"fetching {coordinates} ...", flush=True)
        _run([maven, "-q", "dependency:get", "-Dtransitive=false", f"-Dartifact={coordinates}"])
        repository = Path(os.environ.get("M2_REPO", Path.home() / ".m2" / "repository"))
        _copy(repository / group.replace(".", "/") / artifact / version / target.name, target)
    return target


def _copy(source: Path, target: Path) -> None:
    """Never leaves half a file, which the next run would take for a whole one."""
    partial_file = target.with_name(target.name + ".partial")
    shutil.copy(source, partial_file)
    partial_file.replace(target)


def _fetch_kudu() -> Path:
    archive = _from_maven(f"org.apache.kudu:kudu-binary:{KUDU}:jar:linux-x86_64")
    home = DIRECTORY / f"kudu-binary-{KUDU}-linux-x86_64"
    if not (home / "bin" / "kudu").exists():
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(DIRECTORY)
    for program in (home / "bin").iterdir():
        program.chmod(0o755)
    if not Path(SASL_PATH).exists():
        _install("libsasl2-modules", "libnuma1")
    return home


def _make_spark_environment() -> Path:
    directory = DIRECTORY / f"spark-{SPARK}"
    python = directory / "bin" / "python"
    done = directory / ".installed"
    if not done.exists():
        print(f"installing pyspark {SPARK} into {directory.relative_to(ROOT)} ...", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", directory])
        _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"pyspark=={SPARK}"])
        done.touch()
    return python


def _fetch_etcd() -> Path:
    if shutil.which("etcd") is None:
        _install("etcd-server")
    return _tool("etcd")


def _install(*packages: str) -> None:
    if os.geteuid() != 0:
        raise Missing(f"install {' '.join(packages)} as root")
    apt_get = _tool("apt-get")
    print(f"installing {' '.join(packages)} ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # install, do not start
    _run([apt_get, "update", "-q"], env=environment)
    _run([apt_get, "install", "-y", "-q", *packages], env=environment)


def _build_etcdput() -> Path:
    program = DIRECTORY / "etcdput"
    source = HERE / "etcdput"
    if not program.exists() or program.stat().st_mtime < (source / "main.go").stat().st_mtime:
        go = _tool("go")
        print("building etcdput ...", flush=True)
        _run([go, "build", "-o", program, "."], cwd=source)
    return program
