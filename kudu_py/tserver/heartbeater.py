"""`Heartbeater`: tells every master that this server lives, and the leader among them what its replicas do.

One task per master, so that no master is ever cold: whoever wins an election knows the servers already. Followers take
heartbeats for liveness only. The leader gets a full report first, whenever it asks for one, and when a master is newly
seen to lead; after that only what has changed (seed 004, "tablet reports").

A report is numbered one above the last that this master took in. Until it says that it took one in, the same number is
sent again with whatever has changed since, so a lost answer neither loses a change nor counts one twice.

A change (a new leader, a config, a state) is told at once and does not wait for the next beat: clients wait for
masters to know new leaders. A few milliseconds gather what changes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.env.clock import Clock
from kudu_py.pb import common_pb2, master_pb2
from kudu_py.pb.master_pb2_grpc import MasterServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import Backoff, RandomFraction
from kudu_py.tserver.tablet_reports import TabletReports

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """Times in seconds.

    Attributes:
        interval_s: between two heartbeats to a master when nothing has changed.
        timeout_s: a heartbeat without an answer for this long is given up.
        gather_s: changes within so long go into one report.
        sizes_interval_s: how often row counts and sizes are reported, if they have changed.
        backoff: after failures; a master that is away must not be called in a tight loop, nor missed for long.
    """

    interval_s: float = 1.0
    timeout_s: float = 15.0
    gather_s: float = 0.005
    sizes_interval_s: float = 5.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.1, max_s=1.0))


class Heartbeater:
    """The heartbeats of one server to all masters."""

    def __init__(
        self,
        *,
        uuid: ServerId,
        instance_sequence: int,
        master_addresses: Sequence[str],
        reports: TabletReports,
        registration: Callable[[], common_pb2.ServerRegistration],
        dialer: Dialer,
        clock: Clock,
        rng: RandomFraction,
        options: HeartbeatOptions,
    ) -> None:
        """Heartbeats that nobody sends yet; see `tasks`.

        Args:
            uuid: of this server.
            instance_sequence: the number of this start of the server; a master refuses an older process.
            registration: what the server says of itself.
        """
        self.masters = [
            MasterHeartbeats(
                address,
                uuid=uuid,
                instance_sequence=instance_sequence,
                reports=reports,
                registration=registration,
                dialer=dialer,
                clock=clock,
                rng=rng,
                options=options,
            )
            for address in master_addresses
        ]

    def note_changed(self, tablet_id: TabletId) -> None:
        """Something about this tablet's replica is news for the masters."""
        for master in self.masters:
            master.note_changed(tablet_id)


class MasterHeartbeats:
    """The heartbeats to one master.

    Attributes:
        address: of the master.
        is_leader: whether it said last that it leads.
        last_answered_s: when it last answered, monotonic; None: never, or the last call failed.
        failures: in a row.
    """

    def __init__(
        self,
        address: str,
        *,
        uuid: ServerId,
        instance_sequence: int,
        reports: TabletReports,
        registration: Callable[[], common_pb2.ServerRegistration],
        dialer: Dialer,
        clock: Clock,
        rng: RandomFraction,
        options: HeartbeatOptions,
    ) -> None:
        self.address = address
        self._uuid = uuid
        self._instance_sequence = instance_sequence
        self._reports = reports
        self._registration = registration
        self._dialer = dialer
        self._clock = clock
        self._rng = rng
        self._options = options
        self._log = _log.bind(master=address)
        self._news = asyncio.Event()
        self._changed: set[TabletId] = set()
        self._wants_registration = True
        self._wants_full_report = True
        self._taken_sequence = 0
        self._sizes: dict[TabletId, tuple[int, int]] = {}
        self._sizes_at_s = float("-inf")
        self.is_leader = False
        self.last_answered_s: float | None = None
        self.failures = 0

    def note_changed(self, tablet_id: TabletId) -> None:
        """This tablet is part of the next report; the leader is told at once."""
        self._changed.add(tablet_id)
        if self.is_leader:
            self._news.set()

    async def run(self) -> None:
        """Sends heartbeats until cancelled.

        Raises:
            KuduError: a later process of this server has registered; this one must end.
        """
        while True:
            self._news.clear()
            try:
                is_urgent = await self._beat()
            except KuduError as error:
                if error.code is ErrorCode.ALREADY_PRESENT:
                    raise
                if not self.failures:
                    self._log.warning("heartbeat_failed", error=str(error))
                self.failures += 1
                # A master that was away may have become another leader's follower, or forgotten everything.
                self.is_leader = False
                self._wants_full_report = True
                self._changed.clear()  # in the full report; else they would pile up for a master that is gone for good
                self.last_answered_s = None
                delay_s = self._options.backoff.delay_s(self.failures, self._rng)
                await asyncio.sleep(max(delay_s, self._options.gather_s))
                continue
            if self.failures:
                self._log.info("heartbeat_recovered", failures=self.failures)
                self.failures = 0
            await self._wait(is_urgent=is_urgent)

    async def _wait(self, *, is_urgent: bool) -> None:
        """Until the next heartbeat is due, or something has changed."""
        if is_urgent:
            return
        try:
            async with asyncio.timeout(self._options.interval_s):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._options.gather_s)

    async def _beat(self) -> bool:
        """One heartbeat; whether the master asked for something that this one did not bring."""
        sent, self._changed = self._changed, set()
        try:
            request = self._request(sent)
            async with self._dialer.permit(self.address):
                stub = MasterServiceStub(self._dialer.channel(self.address))
                answer = await call(stub.TSHeartbeat(request, timeout=self._options.timeout_s), address=self.address)
        except BaseException:
            self._changed |= sent
            raise
        self.last_answered_s = self._clock.monotonic()
        self._wants_registration = answer.needs_reregister
        if answer.is_leader and not self.is_leader:
            self._log.info("leader_master_found", master_uuid=answer.master_uuid)
        self.is_leader = answer.is_leader
        if not answer.is_leader:
            # It takes no reports; when it leads it gets a full one, so there is nothing to remember for it.
            self._wants_full_report = True
            return answer.needs_reregister and not request.HasField("registration")
        brought_full = request.HasField("tablet_report") and not request.tablet_report.is_incremental
        if request.HasField("tablet_report"):
            if answer.tablet_report_sequence == request.tablet_report.sequence:
                self._taken_sequence = request.tablet_report.sequence
                self._wants_full_report = self._wants_full_report and not brought_full
            else:
                self._changed |= sent
        self._wants_full_report = self._wants_full_report or answer.needs_full_tablet_report
        return (self._wants_full_report and not brought_full) or (
            answer.needs_reregister and not request.HasField("registration")
        )

    def _request(self, changed: set[TabletId]) -> master_pb2.TSHeartbeatRequest:
        alive, leaders = self._reports.counts()
        request = master_pb2.TSHeartbeatRequest(
            ts_uuid=self._uuid,
            instance_sequence=self._instance_sequence,
            live_tablet_count=alive,
            leader_count=leaders,
        )
        if self._wants_registration:
            request.registration.CopyFrom(self._registration())
        self._add_sizes(changed)
        if self.is_leader:
            changed.update(self._reports.copying())
        if self._wants_full_report and (self.is_leader or self.last_answered_s is None):
            request.tablet_report.CopyFrom(self._reports.full(self._taken_sequence + 1))
        elif changed and self.is_leader:
            request.tablet_report.CopyFrom(self._reports.incremental(self._taken_sequence + 1, changed))
        return request

    def _add_sizes(self, changed: set[TabletId]) -> None:
        now = self._clock.monotonic()
        if now - self._sizes_at_s < self._options.sizes_interval_s or not self.is_leader:
            return
        sizes = self._reports.sizes()
        changed.update(tablet_id for tablet_id, size in sizes.items() if self._sizes.get(tablet_id) != size)
        self._sizes, self._sizes_at_s = sizes, now
