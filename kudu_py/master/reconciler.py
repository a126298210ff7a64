"""`Reconciler`: makes what servers have become what the records say, by asking again until they report it.

The work to do is derived from records and reports (`nudge_ops`), never remembered across reigns: after a crash, a lost
call or a failover the next look finds the same work. A look is taken at tablets that changed, that a server reported
on, or whose work is not done; the answer to a call is only a reason to wait a little before the next.

A tablet that has not begun to run in time gets a replacement on servers chosen anew, all such tablets in one change.
The members of one that runs are `member_policy`'s care.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, TabletId
from kudu_py.env.clock import Clock
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind, Reign
from kudu_py.master.catalog.entries import TabletEntry, TabletServerMode, TabletState
from kudu_py.master.catalog.nudge_ops import CreateReplica, Nudge, nudges_for
from kudu_py.master.catalog.options import CatalogOptions
from kudu_py.master.catalog.report_ops import ReplicaState, ReportedReplica
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import Servers, plan_replace_tablets
from kudu_py.master.member_policy import MemberPolicy
from kudu_py.master.ts_admin_client import TsAdmin
from kudu_py.master.ts_registry import TsRegistry

_log = structlog.get_logger(__name__)

_REPORT_PATIENCE_S = 5.0
"""After a call succeeded, the report that shows it is waited for this long before the call is repeated."""
_ORPHAN_PATIENCE_S = 5.0
"""A copy to a server that is no member is let run for so long: the news that it is one may be on its way."""
_LOOK_AT_ALL_S = 10.0
"""Every tablet is looked at now and then, whatever was or was not reported."""
_SLICE_TABLETS = 100
"""Looked at before the loop gets its turn: the catalog's own heartbeats must not be late."""
_BACKOFF_INITIAL_S = 0.1
_BACKOFF_MAX_S = 10.0

_Key = tuple[str, ServerId]


@dataclass(slots=True)
class _Attempts:
    """What is known of one nudge.

    Attributes:
        not_before_s: monotonic time before which it is not repeated.
        failures: in a row.
    """

    not_before_s: float = 0.0
    failures: int = 0
    is_in_flight: bool = False


class Reconciler:
    """Watches over all tablets while this master reigns; does nothing otherwise."""

    def __init__(
        self,
        *,
        committer: Committer,
        registry: TsRegistry,
        admin: TsAdmin,
        policy: MemberPolicy,
        clock: Clock,
        rng: RandomBits,
        options: CatalogOptions,
    ) -> None:
        self._committer = committer
        self._registry = registry
        self._admin = admin
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._options = options
        self._unsettled: set[TabletId] = set()
        self._creating_since_s: dict[TabletId, float] = {}
        self._attempts: dict[TabletId, dict[_Key, _Attempts]] = {}
        self._orphans_since_s: dict[TabletId, dict[ServerId, float]] = {}
        self._looked_at_all_s = clock.monotonic()
        self._calls: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._bug: BaseException | None = None

    def reign_began(self) -> None:
        """Looks at every tablet."""
        self.reign_ended()
        reign = self._committer.reign
        assert reign is not None
        self._policy.reign_began()
        self._looked_at_all_s = self._clock.monotonic()
        self.look_at(reign.state.tablets)

    def reign_ended(self) -> None:
        """Forgets everything; calls that are under way are left to end, they are safe."""
        self._unsettled.clear()
        self._creating_since_s.clear()
        self._attempts.clear()
        self._orphans_since_s.clear()
        self._policy.reign_ended()

    def look_at(self, tablet_ids: Iterable[TabletId]) -> None:
        """Looks at these tablets soon: their records changed, or a server reported on them."""
        before = len(self._unsettled)
        self._unsettled.update(tablet_ids)
        if len(self._unsettled) != before:
            self._wake.set()

    @property
    def unsettled_count(self) -> int:
        """Tablets whose replicas are not yet known to be what the records say."""
        return len(self._unsettled)

    async def run(self) -> None:
        """Until cancelled: sweeps whenever there is something new, and at intervals while something is not done.

        Raises:
            Exception: what a call ended with, if it is no KuduError: a bug.
        """
        try:
            while True:
                try:
                    async with asyncio.timeout(self._options.nudge_interval_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                if self._bug is not None:
                    raise self._bug
                await self.sweep()
        finally:
            for call in list(self._calls):
                call.cancel()

    async def sweep(self) -> None:
        """One look at every unsettled tablet: starts the calls that are due, replaces what is overdue."""
        reign = self._committer.reign
        if reign is None:
            return
        now_s = self._clock.monotonic()
        self._unsettled.update(self._policy.begin_sweep(reign, now_s))
        if now_s - self._looked_at_all_s >= _LOOK_AT_ALL_S:
            self._looked_at_all_s = now_s
            self._unsettled.update(tablet for tablets in reign.state.tablets_by_table.values() for tablet in tablets)
        await self._policy.end_operations(reign)
        if self._committer.reign is not reign:
            return
        overdue = []
        for number, tablet_id in enumerate(sorted(self._unsettled), 1):
            if self._look(reign, tablet_id, now_s):
                overdue.append(tablet_id)
            if number % _SLICE_TABLETS == 0:
                await asyncio.sleep(0)
                if self._committer.reign is not reign:
                    return
        if overdue:
            await self._replace(overdue)

    def _look(self, reign: Reign, tablet_id: TabletId, now_s: float) -> bool:
        """Starts what is due for one tablet, or settles it. True if it should be replaced."""
        entry = reign.state.tablets.get(tablet_id)
        hosts = self._registry.hosts(tablet_id)
        doubtful = self._doubtful_orphans(entry, hosts, now_s) if entry is not None else frozenset()
        nudges = nudges_for(entry, hosts, doubtful=doubtful)
        for nudge in nudges:
            self._start(reign, nudge, now_s)
        is_creating = entry is not None and entry.state is TabletState.CREATING
        if is_creating:
            since_s = self._creating_since_s.setdefault(tablet_id, now_s)
            return now_s - since_s >= self._options.tablet_creation_timeout_s
        self._creating_since_s.pop(tablet_id, None)
        is_cared_for = entry is not None and self._policy.look(reign, entry, now_s)
        if not nudges and not is_cared_for and not doubtful:
            self._unsettled.discard(tablet_id)
            self._attempts.pop(tablet_id, None)
        return False

    def _doubtful_orphans(
        self, entry: TabletEntry, hosts: Mapping[ServerId, ReportedReplica], now_s: float
    ) -> frozenset[ServerId]:
        """Replicas that are being copied to servers outside the config, and have not been seen so for long.

        A leader has them copied as soon as its config names them, which is before that is committed, or reported.
        """
        copying = [
            server
            for server, replica in hosts.items()
            if replica.state is ReplicaState.COPYING and entry.config.member(server) is None
        ]
        before = self._orphans_since_s.pop(entry.tablet_id, {})
        if not copying:
            return frozenset()
        since_s = self._orphans_since_s[entry.tablet_id] = {server: before.get(server, now_s) for server in copying}
        return frozenset(server for server in copying if now_s - since_s[server] < _ORPHAN_PATIENCE_S)

    def _start(self, reign: Reign, nudge: Nudge, now_s: float) -> None:
        key = (type(nudge).__name__, nudge.server)
        attempts = self._attempts.setdefault(nudge.tablet_id, {}).setdefault(key, _Attempts())
        server = self._registry.get(nudge.server)
        if (
            attempts.is_in_flight
            or now_s < attempts.not_before_s
            or len(self._calls) >= self._options.nudges_in_flight_max
            or server is None
            or not self._registry.is_live(nudge.server, now_s)
        ):
            return
        attempts.is_in_flight = True
        task = asyncio.get_running_loop().create_task(
            self._call(reign, nudge, server.registration.rpc_address, attempts), name=f"nudge {nudge}"
        )
        self._calls.add(task)
        task.add_done_callback(self._call_done)

    def _call_done(self, task: asyncio.Task[None]) -> None:
        was_full = len(self._calls) >= self._options.nudges_in_flight_max
        self._calls.discard(task)
        if was_full:
            self._wake.set()
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._bug = bug
            self._wake.set()

    async def _call(self, reign: Reign, nudge: Nudge, address: str, attempts: _Attempts) -> None:
        try:
            if isinstance(nudge, CreateReplica):
                tablet = reign.state.tablets[nudge.tablet_id]
                await self._admin.create_replica(nudge.server, address, reign.state.tables[tablet.table_id], tablet)
            else:
                await self._admin.delete_replica(address, nudge)
        except KuduError as error:
            attempts.failures += 1
            bound_s = min(_BACKOFF_MAX_S, _BACKOFF_INITIAL_S * 2.0 ** min(attempts.failures - 1, 16))
            wait_s = bound_s * (0.5 + self._rng.getrandbits(16) / (1 << 17))
            attempts.not_before_s = self._clock.monotonic() + wait_s
            if attempts.failures in (1, 10):
                _log.warning(
                    "nudge_failed",
                    nudge=type(nudge).__name__,
                    server=nudge.server,
                    tablet=nudge.tablet_id,
                    failures=attempts.failures,
                    error=str(error),
                )
        else:
            attempts.failures = 0
            attempts.not_before_s = self._clock.monotonic() + _REPORT_PATIENCE_S
        finally:
            attempts.is_in_flight = False

    async def _replace(self, overdue: Sequence[TabletId]) -> None:
        reign = self._committer.require_reign()
        tables = {reign.state.tablets[tablet_id].table_id for tablet_id in overdue}
        locks = [LockKey(LockKind.TABLE, table_id) for table_id in tables]
        locks += [LockKey(LockKind.TABLET, tablet_id) for tablet_id in overdue]
        patience_s = self._options.tablet_creation_timeout_s
        try:
            change = await self._committer.commit(
                locks,
                lambda state: plan_replace_tablets(
                    state,
                    overdue,
                    servers=servers_of(state, self._registry, self._clock.monotonic()),
                    rng=self._rng,
                    note=f"it did not begin to run within {patience_s:g} s",
                ),
            )
        except KuduError as error:
            _log.warning("tablets_not_replaced", count=len(overdue), error=str(error))
            if error.code is ErrorCode.REPLICATION_FACTOR_TOO_HIGH:
                now_s = self._clock.monotonic()
                self._creating_since_s.update((tablet_id, now_s) for tablet_id in overdue)
            return
        for tablet in change.tablets:
            if tablet.state is TabletState.REPLACED:
                _log.warning("tablet_replaced", tablet=tablet.tablet_id, table=tablet.table_id, note=tablet.note)


def servers_of(state: CatalogState, registry: TsRegistry, now_s: float) -> Servers:
    """The tablet servers as planners may see them: one in maintenance or on its way out takes nothing new."""
    known = registry.servers
    return Servers(
        live=tuple(
            server.as_candidate
            for server in known
            if registry.is_live(server.uuid, now_s) and state.mode_of(server.uuid) is TabletServerMode.NORMAL
        ),
        known=frozenset(server.uuid for server in known),
        settling=registry.is_settling(now_s),
    )
