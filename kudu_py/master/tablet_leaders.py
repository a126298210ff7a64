"""`TabletLeaders`: finds the leader of a tablet by asking the replicas, and follows where they point."""

from __future__ import annotations

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.consensus.core.model import Role
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.entries import TabletEntry
from kudu_py.master.consensus_client import ConsensusAdmin, Endpoint, GroupView
from kudu_py.master.ts_registry import TsRegistry

_ASK_TIMEOUT_S = 2.0
"""One replica that does not answer must not use up the time that another needs."""


class TabletLeaders:
    """Asks; remembers nothing."""

    def __init__(self, *, registry: TsRegistry, admin: ConsensusAdmin, clock: Clock) -> None:
        self._registry = registry
        self._admin = admin
        self._clock = clock

    def endpoint(self, tablet: TabletEntry, server: ServerId) -> Endpoint | None:
        """Where a server is called: as it registered, or as the config has it."""
        known = self._registry.get(server)
        if known is not None:
            return Endpoint(server, known.registration.rpc_address)
        member = tablet.config.member(server)
        return Endpoint(server, member.address) if member is not None and member.address else None

    async def find(self, tablet: TabletEntry, *, timeout_s: float) -> GroupView:
        """What the leader says of its group at this moment. One look around; the caller tries again.

        Args:
            tablet: the record of it.
            timeout_s: of the whole look.

        Raises:
            KuduError: UNAVAILABLE (try later) if no replica that answers leads.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        reported = self._registry.leader_of(tablet.tablet_id)
        left = [*([reported] if reported is not None else []), *(member.uuid for member in tablet.config.members)]
        asked: set[ServerId] = set()
        said: list[str] = []
        while left and (left_s := deadline_s - self._clock.monotonic()) > 0:
            server = left.pop(0)
            at = self.endpoint(tablet, server)
            if server in asked or at is None:
                continue
            asked.add(server)
            try:
                view = await self._admin.view(at, tablet.tablet_id, timeout_s=min(left_s, _ASK_TIMEOUT_S))
            except KuduError as error:
                said.append(f"{server}: {error.code.value}")
                continue
            if view.role is Role.LEADER:
                return view  # One that was cut off may be behind; whatever it is told, it cannot commit.
            said.append(f"{server}: {view.role.value}, leader {view.leader or 'unknown'}")
            if view.leader is not None:
                left.insert(0, view.leader)
        raise KuduError(
            ErrorCode.UNAVAILABLE,
            f"tablet {tablet.tablet_id} has no leader at the moment ({'; '.join(said) or 'no replica can be asked'})",
            verdict=Verdict.TRY_LATER,
            details={"tablet_id": tablet.tablet_id},
        )
