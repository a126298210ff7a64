"""`LeaderProbe`: asks the replicas of a tablet who leads.

After a leader's death many tablets ask the same few servers, several times until there is a new leader. Questions to
one
server share a call: while one is on its way, those that arrive wait for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kudu_py.client.location_cache import LocationCache, Replica
from kudu_py.common.errors import KuduError
from kudu_py.pb import consensus_pb2
from kudu_py.pb.consensus_pb2_grpc import ConsensusServiceStub
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

State = consensus_pb2.ConsensusState


def choose_leader(replicas: Sequence[Replica], states: Mapping[str, State], dead: frozenset[str]) -> str | None:
    """Who leads, by what replicas said: the server of the highest term that is known to have a leader.

    Args:
        states: answers by server uuid.
        dead: servers that did not answer; one of them is believed to lead by nobody but itself.
    """
    best: tuple[int, str] | None = None
    for uuid, state in states.items():
        leader = uuid if state.role == consensus_pb2.LEADER else state.leader_uuid
        if leader and leader not in dead and (best is None or state.term > best[0]):
            best = (state.term, leader)
    if best is None:
        return None
    members = {m.uuid: m.address for state in states.values() for m in state.committed_config.members}
    address = next((replica.address for replica in replicas if replica.uuid == best[1]), None)
    return address or members.get(best[1]) or None


class LeaderProbe:
    """Who leads which tablet, asked of the replicas themselves. Bound to one event loop."""

    def __init__(self, *, dialer: Dialer, cache: LocationCache, timeout_s: float) -> None:
        self._dialer = dialer
        self._cache = cache
        self._timeout_s = timeout_s
        self._waiting: dict[str, dict[str, asyncio.Future[State | None]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def find(self, tablet_id: str, *, patience_s: float) -> str | None:
        """The address of the leader's server, noted in the cache; None if nobody knows it.

        Args:
            patience_s: waits so long for the slower replicas once one has answered without naming a leader.
        """
        replicas = [replica for replica in self._cache.replicas(tablet_id) if replica.votes]
        asked = {replica.uuid: self._ask(replica, tablet_id) for replica in replicas}
        if not asked:
            return None
        states: dict[str, State] = {}
        pending = set(asked.values())
        by_future = {future: uuid for uuid, future in asked.items()}
        deadline = asyncio.get_running_loop().time() + patience_s
        while pending:
            timeout = deadline - asyncio.get_running_loop().time()
            if timeout <= 0:
                break
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                state = future.result()
                if state is not None:
                    states[by_future[future]] = state
            if any(state.role == consensus_pb2.LEADER for state in states.values()):
                # A deposed leader that does not know it yet has a lower term than what its followers tell.
                top = max(states.values(), key=lambda state: state.term)
                if top.role == consensus_pb2.LEADER or len(states) * 2 > len(asked):
                    break
        dead = frozenset(uuid for uuid in asked if uuid not in states)
        leader = choose_leader(replicas, states, dead)
        if leader is not None:
            self._cache.leads(tablet_id, leader)
        return leader

    async def close(self) -> None:
        """Ends the calls under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, replica: Replica, tablet_id: str) -> asyncio.Future[State | None]:
        """The replica's state, or None if its server does not answer; shared by all who ask the same."""
        waiting = self._waiting.setdefault(replica.uuid, {})
        future = waiting.get(tablet_id)
        if future is None:
            future = waiting[tablet_id] = asyncio.get_running_loop().create_future()
        if replica.uuid not in self._tasks:
            task = asyncio.create_task(self._ask_server(replica), name=f"probe {replica.address}")
            self._tasks[replica.uuid] = task
        return future

    async def _ask_server(self, replica: Replica) -> None:
        asked: dict[str, asyncio.Future[State | None]] = {}
        try:
            while asked := self._waiting.pop(replica.uuid, {}):
                states: dict[str, State] = {}
                try:
                    stub = ConsensusServiceStub(self._dialer.channel(replica.address))
                    request = consensus_pb2.GetConsensusStateRequest(dest_uuid=replica.uuid, tablet_ids=list(asked))
                    response = await call(
                        stub.GetConsensusState(request, timeout=self._timeout_s), address=replica.address
                    )
                    states = {item.tablet_id: item.state for item in response.tablets}
                except KuduError:
                    pass  # no answer is an answer: this server cannot be asked now
                for tablet_id, future in asked.items():
                    future.set_result(states.get(tablet_id))
        finally:
            del self._tasks[replica.uuid]
            for future in [*asked.values(), *self._waiting.pop(replica.uuid, {}).values()]:
                if not future.done():
                    future.set_result(None)
