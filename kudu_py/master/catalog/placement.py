"""Which servers should host a new replica.

Each replica goes to the less loaded of two servers drawn at random ("the power of two choices", upstream's placement
too): loads stay close without the herd that "always the least loaded" sends to a new, empty server. The draw is among
the servers that share the fewest fault domains with replicas already placed: first the domain the operator named, then
the host, since processes on one host fail together. Sharing is accepted where there is no other way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import RandomBits, ServerId


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


class Placer:
    """Chooses servers for the replicas of one change; counts what it has placed towards the next choice.

    Args:
        candidates: live servers.
        loads: replicas by server; absent means none.
    """

    def __init__(self, candidates: Iterable[Candidate], *, loads: Mapping[ServerId, int], rng: RandomBits) -> None:
        # In the order of uuids, so that a seed gives the same choice whatever order the servers came in.
        self._candidates = [(c, c.host) for c in sorted(candidates, key=lambda c: c.uuid)]
        self._loads = dict(loads)
        self._rng = rng

    def choose(self, count: int, *, existing: Sequence[Candidate] = ()) -> list[Candidate]:
        """`count` distinct servers for replicas of one tablet, which has some on `existing` already.

        Raises:
            KuduError: REPLICATION_FACTOR_TOO_HIGH if there are too few.
        """
        taken = {candidate.uuid for candidate in existing}
        left = [pair for pair in self._candidates if pair[0].uuid not in taken]
        if len(left) < count:
            raise KuduError(
                ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
                f"the tablet needs {counted(count, 'more tablet server')}; {len(left)} live without a replica of it",
            )
        domains = Counter(candidate.fault_domain for candidate in existing if candidate.fault_domain)
        hosts = Counter(candidate.host for candidate in existing)
        chosen = []
        for _ in range(count):
            winner = self._choose_one(left, domains, hosts)
            left.remove(winner)
            candidate, host = winner
            domains.update([candidate.fault_domain] if candidate.fault_domain else [])
            hosts[host] += 1
            self._loads[candidate.uuid] = self._loads.get(candidate.uuid, 0) + 1
            chosen.append(candidate)
        return chosen

    def _choose_one(
        self, left: list[tuple[Candidate, str]], domains: Counter[str], hosts: Counter[str]
    ) -> tuple[Candidate, str]:
        apart = left
        if hosts:
            sharing = [(domains.get(candidate.fault_domain, 0), hosts.get(host, 0)) for candidate, host in left]
            least = min(sharing)
            apart = [pair for pair, shared in zip(left, sharing, strict=True) if shared == least]
        if len(apart) == 1:
            return apart[0]
        i = _below(len(apart), self._rng)
        j = (i + 1 + _below(len(apart) - 1, self._rng)) % len(apart)
        first, second = apart[i], apart[j]
        loads = self._loads
        return second if loads.get(second[0].uuid, 0) < loads.get(first[0].uuid, 0) else first


def _below(bound: int, rng: RandomBits) -> int:
    """A draw from 0 to bound - 1; 32 bits more than needed make the bias too small to matter."""
    return rng.getrandbits(bound.bit_length() + 32) % bound
