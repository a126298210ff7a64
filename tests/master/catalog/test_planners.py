"""The house rule about planners, for modules to come."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_module_of_the_catalog_but_the_committer_is_held_to_being_functions():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (held,) = [c["source_modules"] for c in contracts if c["name"] == "Catalog planners are functions"]
    found = {f"kudu_py.master.catalog.{path.stem}" for path in (ROOT / "kudu_py/master/catalog").glob("*.py")}
    exempt = {"kudu_py.master.catalog.__init__", "kudu_py.master.catalog.committer"}
    assert found - exempt == set(held)
