"""`SimTabletServer`: a whole tablet server on virtual time, over simulated disk, network and clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kudu_py.daemon.surroundings import Surroundings
from kudu_py.testing.replica_group import TESTING_OPTIONS
from kudu_py.testing.sim_node import SimNode
from kudu_py.tserver.tablet_server import TabletServer, TabletServerSettings

TESTING_SETTINGS = TabletServerSettings(replica=TESTING_OPTIONS)


@dataclass(eq=False)
class SimTabletServer(SimNode[TabletServer, TabletServerSettings]):
    """One tablet server, in a fault domain of its own."""

    @staticmethod
    def testing_settings() -> TabletServerSettings:
        return TESTING_SETTINGS

    @property
    def tablet_server(self) -> TabletServer:
        """The process that runs."""
        return self.process

    def build(self, surroundings: Surroundings) -> TabletServer:
        settings = replace(self.settings, master_addresses=self.master_addresses, fault_domain=self.address)
        return TabletServer(surroundings, settings)
