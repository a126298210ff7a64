"""The asyncio and the blocking surface have the same names."""

from __future__ import annotations

import pytest

from kudu_py import client as blocking
from kudu_py.client import aio


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


# What only the parts of the asyncio client need of each other.
OF_THE_HOUSE = {
    "Client": {"known_locations", "locations", "observe", "observe_clock", "refresh_tablet", "verify", "writer"}
    | {"choose_snapshot"},
    "Session": {"hold_back"},
    "Scanner": {"next_record_batch", "plan"},
}


@pytest.mark.parametrize("name", ["Client", "Table", "Session", "Scanner", "ScanToken", "ScanTokenBuilder", "RowBatch"])
def test_both_surfaces_have_the_same_names(name):
    here = blocking.Table if name == "Table" else getattr(blocking, name)
    there = getattr(aio, name)

    assert public(here) - public(there) - {"client", "client_id", "table"} == set()  # attributes there
    assert public(there) - public(here) == OF_THE_HOUSE.get(name, set())
