"""Which servers should host a new replica.

Each replica goes to the less loaded of two servers drawn at random ("the power of two choices", upstream's placement
too): loads stay close without the herd that "always the least loaded" sends to a new, empty server. A server's load is
how many replicas of the same table it has, and only then how many in all: rows of one table tend to be hot together.
The draw is among the servers that share the fewest fault domains with replicas already placed: first the domain the
operator named, then the host, since processes on one host fail together. Sharing is accepted where there is no other
way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId, TableId
from kudu_py.master.catalog.state import CatalogState


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that may take replicas.

    Attributes:
        address: host:port of its RPC service; the host is the smallest fault domain.
        fault_domain: what the operator named, such as a rack; may be empty.
    """

    uuid: ServerId
    address: str
    fault_domain: str = ""

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0]

    @property
    def domain(self) -> str:
        """What fails as one with it: the domain that the operator named, or else the host."""
        return self.fault_domain or self.host


class _Seat(NamedTuple):
    """A candidate with what is asked of it most often."""

    candidate: Candidate
    domain: str
    host: str


class Placer:
    """Chooses servers for the replicas of one change; counts what it has placed towards the next choice.

    Args:
        candidates: servers that may take replicas: live, and neither in maintenance nor on their way out.
        loads: replicas by server; absent means none.
        table_loads: the same for single tables; absent means none.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        *,
        loads: Mapping[ServerId, int],
        rng: RandomBits,
        table_loads: Mapping[TableId, Mapping[ServerId, int]] | None = None,
    ) -> None:
        # In the order of uuids, so that a seed gives the same choice whatever order the servers came in.
        self._seats = [_Seat(c, c.domain, c.host) for c in sorted(candidates, key=lambda c: c.uuid)]
        self._loads = Counter(loads)
        self._table_loads = {table_id: Counter(of_table) for table_id, of_table in (table_loads or {}).items()}
        self._rng = rng

    @classmethod
    def over(
        cls, state: CatalogState, candidates: Iterable[Candidate], *, rng: RandomBits, tables: Iterable[TableId] = ()
    ) -> Placer:
        """A placer that knows the loads of `state`, and those of `tables` one by one."""
        table_loads = {
            table_id: Counter(m.uuid for tablet in state.tablets_of(table_id) for m in tablet.config.members)
            for table_id in tables
        }
        return cls(candidates, loads=state.replica_counts, table_loads=table_loads, rng=rng)

    def choose(
        self, count: int, *, table_id: TableId | None = None, existing: Sequence[Candidate] = ()
    ) -> list[Candidate]:
        """`count` distinct servers for replicas of one tablet, which has some on `existing` already.

        Args:
            table_id: of the tablet's table, whose replicas are to be spread; None: only the sum counts.
            existing: servers with a replica, whether they may take others or not: their domains are avoided.

        Raises:
            KuduError: REPLICATION_FACTOR_TOO_HIGH if there are too few.
        """
        taken = {candidate.uuid for candidate in existing}
        left = [seat for seat in self._seats if seat.candidate.uuid not in taken]
        if len(left) < count:
            raise KuduError(
                ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
                f"the tablet needs {counted(count, 'more tablet server')}; {len(left)} live without a replica of it",
            )
        of_table = self._table_loads.setdefault(table_id, Counter()) if table_id is not None else Counter[ServerId]()
        domains = Counter(candidate.domain for candidate in existing)
        hosts = Counter(candidate.host for candidate in existing)
        chosen = []
        for _ in range(count):
            winner = self._choose_one(_apart(left, domains, hosts), of_table)
            left.remove(winner)
            domains[winner.domain] += 1
            hosts[winner.host] += 1
            of_table[winner.candidate.uuid] += 1
            self._loads[winner.candidate.uuid] += 1
            chosen.append(winner.candidate)
        return chosen

    def _choose_one(self, among: Sequence[_Seat], of_table: Mapping[ServerId, int]) -> _Seat:
        if len(among) == 1:
            return among[0]
        i = _below(len(among), self._rng)
        j = (i + 1 + _below(len(among) - 1, self._rng)) % len(among)

        def load(seat: _Seat) -> tuple[int, int]:
            return of_table.get(seat.candidate.uuid, 0), self._loads.get(seat.candidate.uuid, 0)

        return min(among[i], among[j], key=load)


def least_sharing(candidates: Sequence[Candidate], existing: Sequence[Candidate]) -> list[Candidate]:
    """Those that share the fewest fault domains with replicas already placed: who else is chosen from, if not all."""
    domains = Counter(candidate.domain for candidate in existing)
    hosts = Counter(candidate.host for candidate in existing)
    return [seat.candidate for seat in _apart([_Seat(c, c.domain, c.host) for c in candidates], domains, hosts)]


def _apart(left: Sequence[_Seat], domains: Mapping[str, int], hosts: Mapping[str, int]) -> Sequence[_Seat]:
    """Those that share the least with replicas already placed."""
    if not hosts or not left:
        return left
    sharing = [(domains.get(seat.domain, 0), hosts.get(seat.host, 0)) for seat in left]
    least = min(sharing)
    return [seat for seat, shared in zip(left, sharing, strict=True) if shared == least]


def _below(bound: int, rng: RandomBits) -> int:
    """A draw from 0 to bound - 1; 32 bits more than needed make the bias too small to matter."""
    return rng.getrandbits(bound.bit_length() + 32) % bound
