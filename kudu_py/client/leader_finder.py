"""`LeaderFinder`: finds and remembers the leader master, and carries calls to it until the deadline.

With one address there is nothing to find. With several, all are asked at once who leads, and the first that says it
does is taken. The leader is kept until it fails or says that another leads; its hint is followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.env.clock import Clock
from kudu_py.pb import consensus_pb2, master_pb2
from kudu_py.pb.master_pb2_grpc import MasterServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer
from kudu_py.rpc.retry import Backoff, Deadline, RandomFraction

if TYPE_CHECKING:
    import grpc.aio

    from kudu_py.pb.master_pb2_grpc import MasterServiceAsyncStub

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_BACKOFF = Backoff(initial_s=0.05, max_s=0.5)
_UNREACHABLE = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.TIMED_OUT, ErrorCode.CANCELLED, ErrorCode.SHUTTING_DOWN})


class LeaderFinder:
    """The way to the catalog, for one cluster. Bound to one event loop."""

    def __init__(
        self, addresses: Sequence[str], *, dialer: Dialer, clock: Clock, rng: RandomFraction, attempt_timeout_s: float
    ) -> None:
        """
        Args:
            addresses: `host:port` of the masters; at least one.
        """
        assert addresses, "at least one master address"
        self.addresses = tuple(addresses)
        self._dialer = dialer
        self._clock = clock
        self._rng = rng
        self._attempt_timeout_s = attempt_timeout_s
        self._leader: str | None = addresses[0] if len(addresses) == 1 else None
        self._finding: asyncio.Task[str | None] | None = None

    async def call(
        self,
        method: Callable[[MasterServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Req, Resp]],
        request: Req,
        *,
        what: str,
        deadline: Deadline,
        doubts: list[KuduError] | None = None,
    ) -> Resp:
        """One call to the leader master, repeated until it is answered or the deadline comes.

        Args:
            method: picks the method of a stub.
            what: names the work in errors, such as "creating table 't'".
            doubts: the call changes something. Filled with the errors of attempts whose outcome is unknown, so that a
                caller can tell its own earlier success ("already present") from another's.

        Raises:
            KuduError: the master's answer; UNAVAILABLE that names the addresses and what to check if none can be
            reached;
                TIMED_OUT.
        """
        said: dict[str, KuduError] = {}
        attempt = 0
        while True:
            address = self._leader or await self._find(deadline, said)
            error: KuduError | None = None
            if address is not None:
                timeout_s = deadline.timeout_s(
                    deadline.remaining_s if doubts is not None else self._attempt_timeout_s * 2
                )
                try:
                    stub = MasterServiceStub(self._dialer.channel(address))
                    async with self._dialer.permit(address):
                        return await call(
                            method(stub)(request, timeout=timeout_s), address=address, wrote=doubts is not None
                        )
                except KuduError as raised:
                    error = said[address] = raised
                    if doubts is not None and raised.verdict is Verdict.UNKNOWN:
                        doubts.append(raised)
                    if not self._is_worth_another(address, raised):
                        raise _explained(raised, address, what) from raised
                hint = error.details.get("leader_address")
                self._leader = hint if hint and hint != address and attempt < 20 else None
                if len(self.addresses) == 1 and self._leader is None:
                    self._leader = self.addresses[0]
                if hint and hint != address and not deadline.expired:
                    attempt += 1
                    continue
            delay_s = _BACKOFF.delay_s(attempt, self._rng)
            attempt += 1
            if delay_s >= deadline.remaining_s:
                raise self._given_up(what, said, in_doubt=bool(doubts))
            await asyncio.sleep(delay_s)

    def _is_worth_another(self, address: str, error: KuduError) -> bool:
        if error.code is ErrorCode.NOT_SUPPORTED and "grpc_code" in error.details:
            return False  # not a master at all
        if "is_web_port" in error.details:
            return False
        if error.code in _UNREACHABLE or error.code in (
            ErrorCode.NOT_THE_LEADER,
            ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
        ):
            return True
        return error.verdict is not Verdict.FAILED

    async def _find(self, deadline: Deadline, said: dict[str, KuduError]) -> str | None:
        """Asks every master who leads; callers that ask at the same time share the answer."""
        task = self._finding
        if task is None or task.done():
            task = self._finding = asyncio.create_task(self._ask_all(said), name="find-leader-master")
        try:
            async with asyncio.timeout(deadline.remaining_s):
                found = await asyncio.shield(task)
        except TimeoutError:
            return None
        if found is not None:
            self._leader = found
        return found

    async def _ask_all(self, said: dict[str, KuduError]) -> str | None:
        async def ask(address: str) -> tuple[str, master_pb2.GetMasterRegistrationResponse | KuduError]:
            try:
                stub = MasterServiceStub(self._dialer.channel(address))
                request = master_pb2.GetMasterRegistrationRequest()
                pending = stub.GetMasterRegistration(request, timeout=self._attempt_timeout_s)
                return address, await call(pending, address=address)
            except KuduError as error:
                return address, error

        asking = [asyncio.create_task(ask(address)) for address in self.addresses]
        hints: list[str] = []
        try:
            for next_answer in asyncio.as_completed(asking):
                address, answer = await next_answer
                if isinstance(answer, KuduError):
                    said[address] = answer
                elif answer.role == consensus_pb2.LEADER:
                    return address
                elif answer.leader_address:
                    hints.append(answer.leader_address)
            return hints[0] if hints else None
        finally:
            for task in asking:
                task.cancel()

    def _given_up(self, what: str, said: dict[str, KuduError], *, in_doubt: bool) -> KuduError:
        verdict = Verdict.UNKNOWN if in_doubt else Verdict.TRY_LATER
        told = "; ".join(f"{address}: {error.message}" for address, error in said.items()) or "no answer"
        if all(error.code in _UNREACHABLE for error in said.values()):
            addresses = ", ".join(self.addresses)
            return KuduError(
                ErrorCode.UNAVAILABLE,
                f"no master reachable at {addresses} while {what} ({told}). Is a master running there? Give the "
                "masters' RPC addresses, host:port, as `kudu-py master run` prints them",
                verdict=verdict,
                details={"addresses": addresses, "unreachable": "masters"},
            )
        return KuduError(
            ErrorCode.TIMED_OUT, f"{what} did not succeed in time; the masters said: {told}", verdict=verdict
        )


def _explained(error: KuduError, address: str, what: str) -> KuduError:
    """The error itself, or what a wrong port looks like in words that help."""
    if error.code is ErrorCode.NOT_SUPPORTED and "grpc_code" in error.details:
        return KuduError(
            ErrorCode.NOT_SUPPORTED,
            f"{address} answers, but is no master (while {what}): it may be a tablet server's port. "
            "Give the masters' RPC addresses",
            details=error.details | {"unreachable": "masters"},
        )
    if "http1" in error.message.lower():
        return KuduError(
            ErrorCode.UNAVAILABLE,
            f"{address} is a port for web pages, not a master's RPC port (while {what}). "
            "Give the masters' RPC addresses",
            details=error.details | {"unreachable": "masters"},
        )
    return error
