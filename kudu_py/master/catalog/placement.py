"""Which servers should host a new replica.

Each replica goes to the less loaded of two servers drawn at random ("the power of two choices", upstream's placement
too): loads stay close without the herd that "always the least loaded" sends to a new, empty server. The draw is among
the servers that share the fewest fault domains with replicas already placed: first the domain the operator named, then
the host, since processes on one host fail together. Sharing is accepted where there is no other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def choose(
    candidates: Sequence[Candidate],
    count: int,
    *,
    loads: Mapping[ServerId, int],
    rng: RandomBits,
    existing: Sequence[Candidate] = (),
) -> list[Candidate]:
    """`count` distinct servers for replicas of one tablet.

    Args:
        candidates: live servers; those in `existing` are passed over.
        loads: replicas by server; absent means none.
        existing: servers that hold a replica of the tablet already.

    Raises:
        KuduError: REPLICATION_FACTOR_TOO_HIGH if there are too few.
    """
    taken = list(existing)
    left = sorted((c for c in candidates if all(c.uuid != t.uuid for t in taken)), key=lambda c: c.uuid)
    if len(left) < count:
        raise KuduError(
            ErrorCode.REPLICATION_FACTOR_TOO_HIGH,
            f"{count} more tablet servers are needed but only {len(left)} are live and have no replica of this tablet",
        )
    chosen: list[Candidate] = []
    for _ in range(count):
        winner = _choose_one(left, taken, loads, rng)
        left.remove(winner)
        taken.append(winner)
        chosen.append(winner)
    return chosen


def _choose_one(
    left: Sequence[Candidate], taken: Sequence[Candidate], loads: Mapping[ServerId, int], rng: RandomBits
) -> Candidate:
    closeness = [(_sharing(c, taken), c) for c in left]
    least = min(sharing for sharing, _ in closeness)
    apart = [c for sharing, c in closeness if sharing == least]
    if len(apart) == 1:
        return apart[0]
    i = _below(len(apart), rng)
    j = (i + 1 + _below(len(apart) - 1, rng)) % len(apart)
    first, second = apart[i], apart[j]
    return second if loads.get(second.uuid, 0) < loads.get(first.uuid, 0) else first


def _sharing(candidate: Candidate, taken: Sequence[Candidate]) -> tuple[int, int]:
    named = sum(1 for t in taken if candidate.fault_domain and t.fault_domain == candidate.fault_domain)
    return named, sum(1 for t in taken if t.host == candidate.host)


def _below(bound: int, rng: RandomBits) -> int:
    """A draw from 0 to bound - 1; 32 bits more than needed make the bias too small to matter."""
    return rng.getrandbits(bound.bit_length() + 32) % bound
