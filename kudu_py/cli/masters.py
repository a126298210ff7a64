"""`Masters`: the masters of a cluster as a command asks them, whichever of them leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from kudu_py.cli.console import say
from kudu_py.cli.ksck import CALL_TIMEOUT_S, leader_master
from kudu_py.cli.unsafe_config import now_micros
from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import is_id
from kudu_py.pb import master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

T = TypeVar("T")

ServerSeen = master_pb2.ListTabletServersResponse.Server

LEADER_PATIENCE_S: Final = 10.0
"""How long a command waits for a leader among masters of which one answers: an election or a start takes less."""

POLL_INTERVAL_S: Final = 0.25
UUID_PREFIX_MIN: Final = 4
"""A shorter beginning of a uuid is a slip more often than a choice."""

_NOT_NOW: Final = frozenset(
    {
        ErrorCode.NOT_THE_LEADER,
        ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
        ErrorCode.UNAVAILABLE,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.TIMED_OUT,
    }
)
"""What a master says that restarts, or is no leader any more. None of it says anything about the request."""


class Masters:
    """Calls to whichever master leads.

    Attributes:
        dialer: for calls to other servers of the cluster.
    """

    def __init__(self, addresses: Iterable[str], dialer: GrpcDialer) -> None:
        self.dialer = dialer
        self._addresses = tuple(addresses)
        self._leader = ""

    @property
    def text(self) -> str:
        """As the user gave them."""
        return ",".join(self._addresses)

    async def ask(self, what: Callable[[master_pb2_grpc.MasterServiceAsyncStub], Awaitable[T]]) -> T:
        """What `what`, which only asks, gives when called with the leader's stub. Waits a while for a leader.

        Raises:
            KuduError: what the leader answered; UNAVAILABLE if no master answers, at once, or none leads.
        """
        return await self._at_leader(lambda stub: call(what(stub)))

    async def tell(self, what: Callable[[master_pb2_grpc.MasterServiceAsyncStub], Awaitable[T]]) -> T:
        """As `ask`, of a request that changes something: it is not repeated once a leader may have taken it.

        Raises:
            KuduError: as `ask`; with the verdict UNKNOWN if the connection broke or the answer took too long.
        """
        return await self._at_leader(lambda stub: call(what(stub), wrote=True))

    async def _at_leader(self, what: Callable[[master_pb2_grpc.MasterServiceAsyncStub], Awaitable[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + LEADER_PATIENCE_S
        while True:
            try:
                return await what(await self._stub())
            except KuduError as error:
                has_no_master = error.details.get("unreachable") == "masters"
                if error.code not in _NOT_NOW or error.verdict is Verdict.UNKNOWN or has_no_master:
                    raise
                self._leader = ""
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)

    async def ask_patiently(self, what: Callable[[master_pb2_grpc.MasterServiceAsyncStub], Awaitable[T]]) -> T:
        """As `ask`, but for what may be asked twice, and over restarts of the masters, however long they take."""
        has_complained = False
        while True:
            try:
                answer = await call(what(await self._stub()))
            except KuduError as error:
                if error.code not in _NOT_NOW:
                    raise
                self._leader = ""
                if not has_complained:
                    say(f"the masters at {self.text} do not answer ({error.message}); trying on")
                    has_complained = True
                await asyncio.sleep(4 * POLL_INTERVAL_S)
                continue
            if has_complained:
                say("the masters answer again")
            return answer

    async def servers(self) -> list[ServerSeen]:
        """The tablet servers that the masters know, alive or not."""
        request = master_pb2.ListTabletServersRequest()
        answer = await self.ask(lambda stub: stub.ListTabletServers(request, timeout=CALL_TIMEOUT_S))
        return list(answer.servers)

    async def running_s(self) -> float:
        """For how long the leader has run, as far as the clocks of its host and of this one agree."""
        request = master_pb2.GetMasterRegistrationRequest()
        answer = await self.ask(lambda stub: stub.GetMasterRegistration(request, timeout=CALL_TIMEOUT_S))
        return (now_micros() - answer.registration.start_time_micros) / 1e6

    async def server_uuid(self, given: str) -> str:
        """The uuid of the tablet server that a user means; a whole uuid is believed, the master judges it."""
        return given if is_id(given) else match_server(await self.servers(), given).uuid

    async def locations(self, tablet_id: str) -> master_pb2.TabletLocations:
        """A tablet and its replicas.

        Raises:
            KuduError: TABLET_NOT_FOUND.
        """
        request = master_pb2.GetTabletLocationsRequest(tablet_ids=[tablet_id])
        answer = await self.ask_patiently(lambda stub: stub.GetTabletLocations(request, timeout=CALL_TIMEOUT_S))
        if not answer.tablet_locations:
            raise KuduError(ErrorCode.TABLET_NOT_FOUND, f"the masters know no tablet {tablet_id}")
        return answer.tablet_locations[0]

    async def _stub(self) -> master_pb2_grpc.MasterServiceAsyncStub:
        if not self._leader:
            self._leader, _, _ = await leader_master(self.dialer, self._addresses)
        return master_pb2_grpc.MasterServiceStub(self.dialer.channel(self._leader))


@asynccontextmanager
async def connected(addresses: Iterable[str]) -> AsyncIterator[Masters]:
    """The masters at these addresses; its connections end with it."""
    dialer = GrpcDialer()
    try:
        yield Masters(addresses, dialer)
    finally:
        await dialer.close()


def run_with_masters(addresses: Iterable[str], body: Callable[[Masters], Coroutine[object, object, T]]) -> T:
    """Runs a command's body to its end. Ctrl-C cancels it and raises KeyboardInterrupt."""

    async def main() -> T:
        async with connected(addresses) as masters:
            return await body(masters)

    return asyncio.run(main())


def match_server(servers: Iterable[ServerSeen], given: str) -> ServerSeen:
    """The server whose uuid begins with `given`, or that lives at that address.

    Raises:
        KuduError: INVALID_ARGUMENT that lists the servers, if it is none or several.
    """
    known = list(servers)
    found = [
        server
        for server in known
        if given == server.rpc_address or (len(given) >= UUID_PREFIX_MIN and server.uuid.startswith(given))
    ]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{server.uuid} at {server.rpc_address}" for server in known) or "none"
    what = "names several tablet servers" if found else "names no tablet server that the masters know"
    raise KuduError(
        ErrorCode.INVALID_ARGUMENT,
        f"{given!r} {what}; give a uuid, its first {UUID_PREFIX_MIN} characters or more, or an address. "
        f"They know: {listed}",
    )
