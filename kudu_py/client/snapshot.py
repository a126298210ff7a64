"""`choose_snapshot`: a hybrid time that holds every write to some tablets that was acknowledged before.

Why a majority of replicas is asked and not the leaders: who leads may have changed without the client's knowing, and a
deposed leader's clock may be behind. An acknowledged write is in the logs of a majority, followers move their clocks
past the timestamps of what they log, and two majorities have a member in common: those of the config that the client
knows and of the present one, as long as not most members were replaced since (`docs/decisions/client-writes.md`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kudu_py.client.location_cache import LocationCache, Tablet
from kudu_py.client.locator import Locator, refresh_if_possible
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.pb import tserver_pb2
from kudu_py.pb.tserver_pb2_grpc import TabletServerServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import Deadline

_GRACE_S = 0.1
"""How long slower servers are waited for once a majority of each tablet's replicas has answered."""


def lacks_majority(tablets: Sequence[Tablet], told: Mapping[str, int]) -> Tablet | None:
    """A tablet of which no majority of voters has told its clock; None if there is none.

    Args:
        told: clocks by server uuid.
    """
    for tablet in tablets:
        voters = [replica.uuid for replica in tablet.replicas if replica.votes]
        if sum(uuid in told for uuid in voters) * 2 <= len(voters):
            return tablet
    return None


async def choose_snapshot(
    tablets: Sequence[Tablet],
    *,
    cache: LocationCache,
    locator: Locator,
    dialer: Dialer,
    deadline: Deadline,
    attempt_timeout_s: float,
    floor: int,
) -> int:
    """The largest clock of the servers that host the tablets, and at least `floor`.

    Where too few answer, the tablet may have moved: the master is asked, and then its new servers.

    Raises:
        KuduError: TABLE_NOT_FOUND: there is no such tablet any more; UNAVAILABLE that names a tablet of which too few
            replicas answered until the deadline.
    """
    told: dict[str, int] = {}
    pause_s = 0.05
    while True:
        present = [cache.tablet(tablet.tablet_id) or tablet for tablet in tablets]
        servers = {r.uuid: r.address for tablet in present for r in tablet.replicas if r.votes}
        # What a server told in an earlier round still holds: the writes were acknowledged before all rounds.
        asking = {
            asyncio.create_task(_ask(dialer, address, attempt_timeout_s)): uuid for uuid, address in servers.items()
        }
        pending: set[asyncio.Task[int | None]] = set(asking)
        try:
            while pending:
                enough = lacks_majority(present, told) is None
                timeout = _GRACE_S if enough else None
                done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    clock = task.result()
                    if clock is not None:
                        told[asking[task]] = clock
        finally:
            for task in pending:
                task.cancel()
        missing = lacks_majority(present, told)
        if missing is None:
            return max(floor, *told.values())
        if pause_s >= deadline.remaining_s:
            voters = [replica for replica in missing.replicas if replica.votes]
            raise KuduError(
                ErrorCode.UNAVAILABLE,
                f"too few servers of tablet {missing.tablet_id} answer to choose a snapshot; it has "
                f"{', '.join(replica.address for replica in voters) or 'none is known'}",
                verdict=Verdict.TRY_LATER,
            )
        await refresh_if_possible(locator, missing.tablet_id)
        moved = cache.tablet(missing.tablet_id)
        if moved is None or moved.config_index == missing.config_index:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.5)


async def _ask(dialer: Dialer, address: str, timeout_s: float) -> int | None:
    stub = TabletServerServiceStub(dialer.channel(address))
    try:
        request = tserver_pb2.GetServerClockRequest()
        return (await call(stub.GetServerClock(request, timeout=timeout_s), address=address)).timestamp
    except KuduError:
        return None
