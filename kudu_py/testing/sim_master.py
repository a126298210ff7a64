"""`SimMaster`: a whole master on virtual time, over simulated disk, network and clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kudu_py.daemon.surroundings import Surroundings
from kudu_py.master.master import Master, MasterSettings
from kudu_py.testing.replica_group import TESTING_OPTIONS
from kudu_py.testing.sim_network import SimNetwork
from kudu_py.testing.sim_node import SimNode

TESTING_SETTINGS = MasterSettings(replica=TESTING_OPTIONS)


@dataclass(eq=False)
class SimMaster(SimNode[Master]):
    """One master."""

    settings: MasterSettings = TESTING_SETTINGS

    @classmethod
    def make(
        cls,
        network: SimNetwork,
        address: str,
        *,
        master_addresses: tuple[str, ...] = (),
        settings: MasterSettings = TESTING_SETTINGS,
    ) -> SimMaster:
        """A master with an empty disk that is not started yet. `master_addresses`: of all, if there are several."""
        node = cls.on_empty_disk(network, address, master_addresses)
        node.settings = settings
        return node

    def build(self, surroundings: Surroundings) -> Master:
        return Master(surroundings, replace(self.settings, master_addresses=self.master_addresses))
