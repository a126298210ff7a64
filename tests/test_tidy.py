"""House rules that a linter cannot say: who may touch time, disk, network, chance and threads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kudu_py"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "pb")

AT_THE_EDGE = ("cli/", "daemon/", "testing/")
"""Started before the loop or outside the simulation: they may read files and clocks at start."""

BANS: dict[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "the clock": (
        re.compile(r"(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|sleep)|datetime\.(datetime\.)?(now|utcnow|today))\Z"),
        (*AT_THE_EDGE, "env/clock.py", "client/blocking.py"),
    ),
    "chance": (
        re.compile(r"(random\.(random|randint|choice|choices|shuffle|sample|uniform|getrandbits|SystemRandom|Random)|uuid\.uuid\d|secrets\.\w+)\Z"),
        (*AT_THE_EDGE, "client/", "master/__main__.py", "tserver/__main__.py"),
    ),
    "files": (
        re.compile(r"(open|os\.(open|rename|replace|unlink|remove|mkdir|makedirs|listdir|fsync|fdatasync|pwrite|pread|rmdir|scandir)|shutil\.\w+)\Z"),
        (*AT_THE_EDGE, "env/posix_disk.py", "env/disk.py"),
    ),
    "threads": (
        re.compile(r"(asyncio\.to_thread|threading\.Thread|ThreadPoolExecutor|concurrent\.futures\.ThreadPoolExecutor|\w+\.run_in_executor)\Z"),
        ("testing/", "env/", "client/blocking.py"),
    ),
    "gRPC": (
        re.compile(r"grpc\.(aio\.)?(insecure_channel|secure_channel|server)\Z"),
        ("rpc/", "testing/"),
    ),
}  # fmt: skip


def calls(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every call in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize("what", sorted(BANS))
def test_the_outside_world_is_reached_through_its_seam_alone(what):
    pattern, allowed = BANS[what]
    found = [
        f"{path.relative_to(ROOT)}:{line} calls {name}"
        for path in SOURCES
        if not str(path.relative_to(PACKAGE)).startswith(allowed)
        for line, name in calls(path)
        if pattern.match(name)
    ]
    assert not found, f"{what} belongs behind its seam:\n" + "\n".join(found)


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *(ROOT / "spark_connector").rglob("*.py")]
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_no_module_is_a_drawer_for_anything():
    drawers = {"utils", "util", "helpers", "helper", "misc", "common_utils"}
    assert not [path for path in SOURCES if path.stem in drawers]


def test_nothing_is_unpickled():
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*SOURCES, *(ROOT / "spark_connector").rglob("*.py")]
        for _, name in calls(path)
        if re.match(r"(c?loud)?pickle\.loads?\Z|marshal\.loads?\Z|eval\Z|exec\Z", name)
    ]
    assert not found


def test_no_test_sleeps_for_real():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "tests").rglob("test_*.py")
        if "bench" not in path.parts
        for line, name in calls(path)
        if name == "time.sleep"
    ]
    assert not found, "wait for what happens, not for time to pass:\n" + "\n".join(found)
