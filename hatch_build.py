"""Puts the module that Spark discovers at the top level of an editable install, as the wheel does."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DiscoveryHook(BuildHookInterface[Any]):
    """Spark imports every top-level module whose name begins with `pyspark_`; ours lives in `spark_connector`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the module to editable wheels, which ignore `force-include`."""
        if version == "editable":
            build_data["force_include_editable"]["spark_connector/pyspark_kudu.py"] = "pyspark_kudu.py"
