"""`SimMaster`: a whole master on virtual time, over simulated disk, network and clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kudu_py.daemon.surroundings import Surroundings
from kudu_py.master.master import Master, MasterSettings
from kudu_py.testing.replica_group import TESTING_OPTIONS
from kudu_py.testing.sim_node import SimNode

TESTING_SETTINGS = MasterSettings(replica=TESTING_OPTIONS)


@dataclass(eq=False)
class SimMaster(SimNode[Master, MasterSettings]):
    """One master."""

    @staticmethod
    def testing_settings() -> MasterSettings:
        return TESTING_SETTINGS

    def build(self, surroundings: Surroundings) -> Master:
        return Master(surroundings, replace(self.settings, master_addresses=self.master_addresses))
