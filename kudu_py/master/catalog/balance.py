"""Planners of balance: which replicas, and which leaders, should be elsewhere. Servers and tablets to steps.

Replicas, in this order:

1. *Apart*: replicas of one tablet that share a fault domain although there is another way. A new rack is put to use.
2. *By table*: a server has two or more replicas of a table more than another one. Rows of one table are hot together.
3. *In all*: a server has two or more replicas more than another one; what moves is of a table of which the first has
   more than the second, so that no table gets less even.

Leaders follow 2 and 3 in the same way, among the voters there are; a difference below a tenth of the mean is left
alone, since a new leader costs its writers a moment.

Why this ends: with P the pairs of replicas in one domain, n the replicas of a table on a server, N those of all tables
on it, every step makes (sum of P, sum of n², sum of N²) smaller in the order of words. A step by table moves from a to
b with n(a) - n(b) >= 2, which lowers the second sum; one in all has n(a) - n(b) >= 1, which leaves it or lowers it, and
N(a) - N(b) >= 2, which lowers the third; neither adds a pair. For the same reason no step makes a table's skew (the
most minus the fewest) larger. A step by table may make the cluster's skew larger, but not beyond 2: from there the
steps in all take it back.

The source of order and of "table first" is upstream's rebalancer (`TwoDimensionalGreedyAlgo`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kudu_py.common.counted import counted
from kudu_py.common.ids import ServerId, TableId, TabletId
from kudu_py.master.catalog.placement import Candidate

GAP_MIN = 2
"""The least difference that a step can make smaller; one is rounding."""
LEADER_GAP_SHARE = 0.1
"""Of the mean number of leaders: a smaller difference between two servers is left alone."""


@dataclass(frozen=True, slots=True)
class BalanceServer:
    """A server that has replicas or could have some.

    Attributes:
        takes_part: it lives, takes copies, and is neither in maintenance nor on its way out. Others are not looked at:
            they neither give nor take, and what they have counts in no sum.
    """

    candidate: Candidate
    takes_part: bool = True

    @property
    def uuid(self) -> ServerId:
        """The server's uuid."""
        return self.candidate.uuid


@dataclass(frozen=True, slots=True)
class BalanceTablet:
    """A tablet as it will be when what is under way has ended.

    Attributes:
        members: servers of its replicas.
        leader: None if nobody is known to lead, or it will not be known who.
        is_held: it must be left alone, but counts.
    """

    tablet_id: TabletId
    table_id: TableId
    members: tuple[ServerId, ...]
    leader: ServerId | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class BalanceStep:
    """A replica goes from one server to another, or only the leadership does."""

    tablet_id: TabletId
    table_id: TableId
    source: ServerId
    target: ServerId
    leadership_only: bool
    reason: str


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """How much may be under way.

    Attributes:
        steps_max: to plan.
        per_server_max: a server takes part in at most so many, as source or as target.
        under_way: by server, steps that have not ended yet.
    """

    steps_max: int
    per_server_max: int
    under_way: Mapping[ServerId, int]


def unlimited(steps_max: int) -> MoveLimits:
    """No limit but the number of steps: for a look at the whole plan."""
    return MoveLimits(steps_max, steps_max, {})


def plan_replica_moves(
    servers: Iterable[BalanceServer], tablets: Sequence[BalanceTablet], limits: MoveLimits
) -> list[BalanceStep]:
    """Moves of replicas, the most useful first; none: balanced, or nothing may move.

    Each is planned on what the ones before it leave, and concerns a tablet that no other concerns.
    """
    layout = _Layout(servers, tablets)
    return _plan(lambda busy: _next_replica_move(layout, busy), layout, limits)


def plan_leader_moves(
    servers: Iterable[BalanceServer], tablets: Sequence[BalanceTablet], limits: MoveLimits
) -> list[BalanceStep]:
    """Moves of leadership to other voters, the most useful first; none: balanced, or nothing may move."""
    layout = _Layout(servers, tablets)
    return _plan(lambda busy: _next_leader_move(layout, busy), layout, limits)


def after(tablets: Iterable[BalanceTablet], steps: Iterable[BalanceStep]) -> list[BalanceTablet]:
    """The tablets as they are once the steps are done. Who leads after a leader's replica has moved is not known."""
    done = {tablet.tablet_id: tablet for tablet in tablets}
    for step in steps:
        tablet = done[step.tablet_id]
        members, leader = tablet.members, tablet.leader
        if step.leadership_only:
            leader = step.target
        else:
            members = (*(uuid for uuid in members if uuid != step.source), step.target)
            leader = None if leader == step.source else leader
        done[step.tablet_id] = BalanceTablet(tablet.tablet_id, tablet.table_id, members, leader, tablet.is_held)
    return list(done.values())


class Skews(NamedTuple):
    """The most less the fewest, over the servers that take part."""

    replicas: int
    leaders: int


def skews_of(servers: Iterable[BalanceServer], tablets: Iterable[BalanceTablet]) -> Skews:
    """How uneven the cluster is; 0 and 1 are as even as can be."""
    replicas = Counter({server.uuid: 0 for server in servers if server.takes_part})
    leaders = Counter(replicas)
    for tablet in tablets:
        replicas.update(uuid for uuid in tablet.members if uuid in replicas)
        if tablet.leader is not None and tablet.leader in leaders:
            leaders[tablet.leader] += 1
    skews = (max(c.values(), default=0) - min(c.values(), default=0) for c in (replicas, leaders))
    return Skews(*skews)


class _Spread:
    """How things of tables lie on the servers that take part.

    Attributes:
        at: by table and server, the tablets.
        counts: how many they are.
        sums: by table, over all servers.
        totals: by server, over all tables.
    """

    def __init__(self, servers: Sequence[ServerId]) -> None:
        self.servers = servers
        self.at: dict[TableId, dict[ServerId, set[TabletId]]] = {}
        self.counts: dict[TableId, dict[ServerId, int]] = {}
        self.sums: dict[TableId, int] = {}
        self.totals = dict.fromkeys(servers, 0)
        self._gaps: dict[TableId, int] = {}

    def add(self, tablet: BalanceTablet, server: ServerId) -> None:
        if server not in self.totals:
            return
        if tablet.table_id not in self.at:
            self.at[tablet.table_id] = {uuid: set() for uuid in self.servers}
            self.counts[tablet.table_id] = dict.fromkeys(self.servers, 0)
            self.sums[tablet.table_id] = 0
        self.at[tablet.table_id][server].add(tablet.tablet_id)
        self._count(tablet.table_id, server, 1)

    def move(self, tablet: BalanceTablet, source: ServerId, target: ServerId) -> None:
        self.at[tablet.table_id][source].discard(tablet.tablet_id)
        self._count(tablet.table_id, source, -1)
        self.add(tablet, target)

    def gap_of(self, table_id: TableId) -> int:
        """The most of a table on a server less the fewest."""
        if table_id not in self._gaps:
            counts = self.counts[table_id].values()
            self._gaps[table_id] = max(counts) - min(counts)
        return self._gaps[table_id]

    def _count(self, table_id: TableId, server: ServerId, by: int) -> None:
        self.counts[table_id][server] += by
        self.sums[table_id] += by
        self.totals[server] += by
        self._gaps.pop(table_id, None)


class _Layout:
    """Where everything is while a plan is made; changes with each step of it.

    Attributes:
        free: tablets that may be moved.
        sharing: those among them with several replicas in one domain; no step adds one.
    """

    def __init__(self, servers: Iterable[BalanceServer], tablets: Sequence[BalanceTablet]) -> None:
        seats = list(servers)
        # A member that never registered with this master is nowhere: it shares with nobody.
        self.domains = {s.uuid: s.candidate.domain for s in seats}
        self.hosts = {s.uuid: s.candidate.host for s in seats}
        taking_part = sorted(s.uuid for s in seats if s.takes_part)
        self.tablets = {tablet.tablet_id: tablet for tablet in tablets}
        self.free = {tablet.tablet_id for tablet in tablets if not tablet.is_held}
        self.sharing = [t.tablet_id for t in tablets if not t.is_held and self._shares(t)]
        self.replicas = _Spread(taking_part)
        self.leaders = _Spread(taking_part)
        for tablet in tablets:
            for uuid in tablet.members:
                self.replicas.add(tablet, uuid)
            if tablet.leader is not None:
                self.leaders.add(tablet, tablet.leader)

    def shared(self, tablet: BalanceTablet, source: ServerId, server: ServerId) -> tuple[int, int]:
        """With how many replicas one on `server` shares domain and host, the one on `source` left out."""
        domain, host = self.domains.get(server), self.hosts.get(server)
        in_domain = on_host = 0
        for uuid in tablet.members:
            if uuid != source:
                in_domain += self.domains.get(uuid) == domain
                on_host += self.hosts.get(uuid) == host
        return in_domain, on_host

    def may_host(self, tablet_id: TabletId, source: ServerId, target: ServerId) -> bool:
        """Whether the replica on `source` may go to `target`: no more is shared there."""
        tablet = self.tablets[tablet_id]
        if tablet_id not in self.free or target in tablet.members:
            return False
        there = self.shared(tablet, source, target)
        return there == (0, 0) or there <= self.shared(tablet, source, source)

    def may_lead(self, tablet_id: TabletId, source: ServerId, target: ServerId) -> bool:
        """Whether the leadership may go to `target`."""
        return tablet_id in self.free and target in self.tablets[tablet_id].members

    def take(self, step: BalanceStep) -> None:
        """Changes the layout as the step will. Its tablet is left alone from then on."""
        tablet = self.tablets[step.tablet_id]
        if step.leadership_only:
            self.leaders.move(tablet, step.source, step.target)
        else:
            self.replicas.move(tablet, step.source, step.target)
        (self.tablets[step.tablet_id],) = after([tablet], [step])
        self.free.discard(step.tablet_id)

    def _shares(self, tablet: BalanceTablet) -> bool:
        domains = [self.domains[uuid] for uuid in tablet.members if uuid in self.domains]
        return len(set(domains)) < len(domains)


_Busy = frozenset[ServerId]


def _plan(next_step: Callable[[_Busy], BalanceStep | None], layout: _Layout, limits: MoveLimits) -> list[BalanceStep]:
    under_way = Counter(limits.under_way)
    steps: list[BalanceStep] = []
    while len(steps) < limits.steps_max:
        busy = frozenset(uuid for uuid, count in under_way.items() if count >= limits.per_server_max)
        step = next_step(busy)
        if step is None:
            break
        layout.take(step)
        under_way.update((step.source, step.target))
        steps.append(step)
    return steps


def _next_replica_move(layout: _Layout, busy: _Busy) -> BalanceStep | None:
    return _next_apart(layout, busy) or _next_even(
        layout,
        layout.replicas,
        busy,
        may=layout.may_host,
        gap_min=lambda sum_: GAP_MIN,
        noun="replica",
        leadership_only=False,
    )


def _next_leader_move(layout: _Layout, busy: _Busy) -> BalanceStep | None:
    servers = len(layout.leaders.servers)
    return _next_even(
        layout,
        layout.leaders,
        busy,
        may=layout.may_lead,
        gap_min=lambda sum_: max(GAP_MIN, math.ceil(sum_ / servers * LEADER_GAP_SHARE)),
        noun="leader",
        leadership_only=True,
    )


def _next_apart(layout: _Layout, busy: _Busy) -> BalanceStep | None:
    """The move of a replica to a server where it shares its domain with fewer others."""
    spread = layout.replicas
    for tablet_id in layout.sharing:
        if tablet_id not in layout.free:
            continue
        tablet = layout.tablets[tablet_id]
        of_table = spread.counts.get(tablet.table_id, {})
        sources = [uuid for uuid in tablet.members if uuid in spread.totals and uuid not in busy]
        # A leader last: its writers would notice.
        for source in sorted(sources, key=lambda uuid: (uuid == tablet.leader, -spread.totals[uuid], uuid)):
            now = layout.shared(tablet, source, source)
            targets = [
                (layout.shared(tablet, source, uuid), of_table[uuid], spread.totals[uuid], uuid)
                for uuid in spread.servers
                if now[0] and uuid not in busy and uuid not in tablet.members
            ]
            if targets and min(targets)[0][0] < now[0]:
                shared = counted(now[0], "other replica")
                reason = f"shares fault domain {layout.domains[source]} with {shared} of its tablet"
                return BalanceStep(tablet_id, tablet.table_id, source, min(targets)[-1], False, reason)
    return None


def _next_even(
    layout: _Layout,
    spread: _Spread,
    busy: _Busy,
    *,
    may: Callable[[TabletId, ServerId, ServerId], bool],
    gap_min: Callable[[int], int],
    noun: str,
    leadership_only: bool,
) -> BalanceStep | None:
    """The step that takes most from the largest difference, of a table if there is one, else of all.

    Args:
        gap_min: the least difference to do anything about, by how many there are in all.
    """
    if len(spread.servers) < 2:
        return None
    totals = spread.totals
    highest, lowest = max(totals.values()), min(totals.values())

    def step(tablet_id: TabletId, source: ServerId, target: ServerId, more: int, fewer: int, what: str) -> BalanceStep:
        reason = f"{counted(more, noun)}{what} there, {fewer} here"
        table_id = layout.tablets[tablet_id].table_id
        return BalanceStep(tablet_id, table_id, source, target, leadership_only, reason)

    def first_of(tablet_ids: Iterable[TabletId], source: ServerId, target: ServerId) -> TabletId | None:
        fit = (tablet_id for tablet_id in tablet_ids if may(tablet_id, source, target))
        return min(fit, key=lambda tablet_id: (layout.tablets[tablet_id].leader == source, tablet_id), default=None)

    uneven = []
    for table_id in spread.counts:
        gap = spread.gap_of(table_id)
        if gap >= GAP_MIN and gap >= (needed := gap_min(spread.sums[table_id])):
            uneven.append((-gap, table_id, needed))
    for _, table_id, needed in sorted(uneven):
        counts = spread.counts[table_id]
        for source, target in _pairs(counts, totals, busy, needed):
            most, fewest = max(highest, totals[target] + 1), min(lowest, totals[source] - 1)
            if totals[source] <= totals[target] and most - fewest > max(highest - lowest, GAP_MIN):
                continue
            tablet_id = first_of(spread.at[table_id][source], source, target)
            if tablet_id is not None:
                return step(tablet_id, source, target, counts[source], counts[target], " of the table")

    for source, target in _pairs(totals, totals, busy, gap_min(sum(totals.values()))):
        more = (
            (counts[target] - counts[source], table_id)
            for table_id, counts in spread.counts.items()
            if counts[source] > counts[target]
        )
        for _, table_id in sorted(more):
            tablet_id = first_of(spread.at[table_id][source], source, target)
            if tablet_id is not None:
                return step(tablet_id, source, target, totals[source], totals[target], "")
    return None


def _pairs(
    counts: Mapping[ServerId, int], totals: Mapping[ServerId, int], busy: _Busy, needed: int
) -> Iterator[tuple[ServerId, ServerId]]:
    """Sources and targets that differ by what is needed: the largest difference first, then source by source.

    Of servers with the same count, the one with most in all gives first, and the one with fewest takes first.
    """
    sources = sorted((uuid for uuid in counts if uuid not in busy), key=lambda u: (-counts[u], -totals[u], u))
    for source in sources:
        for target in reversed(sources):
            if counts[source] - counts[target] < needed:
                break
            yield source, target
