"""Planner for the members of one tablet: records, the leader's report and the state of servers to the next change.

Upstream's way of replacing a replica, "3-4-3": a new member joins as PRE_VOTER, is copied and promoted by the leader,
and only then is the old one evicted, so that no fault is ever survived by fewer replicas than before. One step at a
time, derived afresh from what the leader reports; each is one ChangeConfig with the index of the committed config it
rests on, so that a late, repeated or second master's call changes nothing. Nothing is remembered between two steps.

The conditions, in upstream's words (`replica_management.cc`) where they are the same:

* Only the report of the leader counts, only while it has no change pending, and only if its committed config is the
  newest this master knows.
* *Add* if more voters are wanted than there are, without those to be replaced and with those about to be promoted, and
  if a majority of the voters is healthy.
* *Evict a PRE_VOTER* if it, or its server, has failed, if there are enough viable voters without it, or if a replica
  moved away from it to one that counts.
* *Evict a voter* if there are more voters than wanted, or if it is past help, and if the healthy ones among the rest
  are a majority of it. Worst health first; the leader only if it is to be replaced itself, for it hands over then.
* Two voters never become one unless one is wanted.

Where it differs: a PRE_VOTER that is not to be promoted was put there by an administrator and is not counted as excess.
A replica that lacks entries the log no longer has, or has failed, is copied anew in its place by its leader; it counts
as past help only if that has not worked for a while (`Surroundings.past_help`). Marks that follow from an operation (a
move, a retirement) are not written into the config: they are laid over it here, so that cancelling needs no change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, unique

from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.model import Member, MemberType, RaftConfig, Role
from kudu_py.consensus.core.quorum import majority
from kudu_py.master.catalog.entries import OperationEntry, TabletServerMode
from kudu_py.master.catalog.report_ops import PeerHealth, ReplicaState, ReportedReplica


@unique
class ChangeKind(Enum):
    """What ChangeConfig is asked to do."""

    ADD = "ADD"
    REMOVE = "REMOVE"
    CHANGE = "CHANGE"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One ChangeConfig call.

    Attributes:
        member_type, address, promote, replace: of the member to be, for ADD and CHANGE.
        expected_config_index: of the committed config it rests on; None: not checked.
        reason: for logs and people.
    """

    tablet_id: TabletId
    kind: ChangeKind
    server: ServerId
    member_type: MemberType | None = None
    address: str = ""
    promote: bool = False
    replace: bool = False
    expected_config_index: int | None = None
    reason: str = ""


@unique
class Health(IntEnum):
    """How a member is; worse is less."""

    PAST_HELP = 0
    """It answers, or its server does, but the replica is lost and copying it anew has not worked."""
    FAILED = 1
    """It has been silent for longer than the patience."""
    UNKNOWN = 2
    HEALTHY = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the planner needs to know beside the tablet itself.

    Attributes:
        gone: servers that the master has not heard of for longer than the patience.
        modes: what operators decided; absent: NORMAL.
        past_help: members of this tablet that have needed a copy for longer than the patience without getting anywhere.
        loads: replicas by server, to choose the fullest of several that may go.
        domains: fault domains by server, to choose one that shares its own.
    """

    gone: frozenset[ServerId] = frozenset()
    modes: Mapping[ServerId, TabletServerMode] = field(default_factory=dict)
    past_help: frozenset[ServerId] = frozenset()
    loads: Mapping[ServerId, int] = field(default_factory=dict)
    domains: Mapping[ServerId, str] = field(default_factory=dict)

    def mode(self, server: ServerId) -> TabletServerMode:
        """What an operator decided about a server."""
        return self.modes.get(server, TabletServerMode.NORMAL)


@dataclass(frozen=True, slots=True)
class Add:
    """A member is to be added; `server` is None if any that placement chooses will do."""

    server: ServerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """A member is to be removed."""

    server: ServerId
    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something should be done and cannot be, for now."""

    reason: str


Step = Add | Evict | Blocked


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """What the present leader of a tablet says."""

    leader: ServerId
    replica: ReportedReplica


def leader_report(hosts: Mapping[ServerId, ReportedReplica]) -> LeaderReport | None:
    """The report of the leader of the newest term that any replica knows; None if that leader has not reported itself.

    A leader of an older term may have been replaced without knowing it.
    """
    running = {server: replica for server, replica in hosts.items() if replica.state is ReplicaState.RUNNING}
    newest = max((replica.term for replica in running.values()), default=0)
    return next(
        (
            LeaderReport(server, replica)
            for server, replica in sorted(running.items())
            if replica.role is Role.LEADER and replica.term == newest
        ),
        None,
    )


def health_of(member: ServerId, report: LeaderReport, around: Surroundings) -> Health:
    """How a member is by its leader's word; by the master's own ears only where the leader has not made up its mind."""
    if member == report.leader:
        return Health.HEALTHY
    found = next((peer.health for peer in report.replica.peers if peer.uuid == member), PeerHealth.UNKNOWN)
    if found is PeerHealth.HEALTHY:
        return Health.HEALTHY
    if found is PeerHealth.UNREACHABLE:
        return Health.FAILED
    if member in around.past_help:
        return Health.PAST_HELP
    return Health.FAILED if found is PeerHealth.UNKNOWN and member in around.gone else Health.UNKNOWN


def joining_voters(config: RaftConfig) -> list[Member]:
    """Members that the leader will make voters."""
    return [m for m in config.members if m.member_type is MemberType.PRE_VOTER and m.promote]


def is_well(config: RaftConfig, report: LeaderReport, wanted: int) -> bool:
    """Whether all members are voters that are well and as many as are wanted: the usual case, told at little cost.

    Nothing is to be done then unless a server is on its way out, or a replica is being moved.
    """
    replica = report.replica
    return (
        replica.committed_config is not None
        and replica.committed_config.config_index == config.config_index
        and replica.pending_config is None
        and len(config.members) == wanted
        and all(member.member_type is MemberType.VOTER and not member.replace for member in config.members)
        and sum(peer.health is PeerHealth.HEALTHY for peer in replica.peers) == wanted - 1
    )


def is_lost(member: Member, health: Health, around: Surroundings) -> bool:
    """Whether a member is to be replaced because of its health.

    A server in maintenance is expected back; but one that is only joining can as well join elsewhere.
    """
    is_joining = member.member_type is MemberType.PRE_VOTER and member.promote
    is_expected = around.mode(member.uuid) is TabletServerMode.MAINTENANCE and not is_joining
    return health is Health.PAST_HELP or (health is Health.FAILED and not is_expected)


def voters_to_be(config: RaftConfig, leaving: Iterable[ServerId] = (), *, replacements: int = 0) -> int:
    """How many voters a config will have when all that has begun is done.

    A member about to be promoted and a voter that is to be replaced make one together.

    Args:
        config: the members.
        leaving: voters that are to be replaced although they are not marked.
        replacements: voters that stand in for one of these already.
    """
    outgoing = set(leaving)
    joining = len(joining_voters(config))
    replaced = sum(m.replace or m.uuid in outgoing for m in config.members if m.member_type is MemberType.VOTER)
    return len(config.voters) + joining - min(joining + replacements, replaced)


def next_step(
    config: RaftConfig,
    report: LeaderReport,
    *,
    wanted: int,
    around: Surroundings,
    move: OperationEntry | None = None,
    undone: ServerId | None = None,
) -> Step | None:
    """The next step towards `wanted` healthy voters, or None if there is nothing to do.

    Args:
        config: the newest committed config that the master knows.
        report: of the leader.
        wanted: voters.
        around: what else is to be known.
        move: an open MOVE_REPLICA of the tablet.
        undone: the target of a move that was cancelled or has failed: the first to go if one too many is there.
    """
    assert wanted > 0, wanted
    reported = report.replica.committed_config
    if reported is None or reported.config_index != config.config_index or report.replica.pending_config is not None:
        return None  # The next report tells more.
    return _Group(config, report, wanted, around, move, undone).step()


class _Group:
    """The members of one tablet, counted."""

    def __init__(
        self,
        config: RaftConfig,
        report: LeaderReport,
        wanted: int,
        around: Surroundings,
        move: OperationEntry | None,
        undone: ServerId | None,
    ) -> None:
        self._wanted = wanted
        self._around = around
        self._move = move
        self._undone = undone
        self._leader = report.leader
        self._members = {member.uuid: member for member in config.members}
        self._health = {uuid: health_of(uuid, report, around) for uuid in self._members}
        self._voters = list(config.voters)
        self._healthy = [uuid for uuid in self._voters if self._health[uuid] is Health.HEALTHY]
        self._marked = [uuid for uuid in self._voters if self._is_marked(uuid)]
        self._viable = [uuid for uuid in self._healthy if uuid not in self._marked]
        self._joining = [member.uuid for member in joining_voters(config)]
        self._lost = [uuid for uuid in self._voters if self._is_lost(uuid)]

    def step(self) -> Step | None:
        return self._evict_pre_voter() or self._evict_voter() or self._add()

    def _is_marked(self, uuid: ServerId) -> bool:
        return (
            self._members[uuid].replace
            or self._is_leaving(uuid)
            or (self._move is not None and self._move.from_ == uuid)
        )

    def _is_leaving(self, uuid: ServerId) -> bool:
        return self._around.mode(uuid) in (TabletServerMode.RETIRING, TabletServerMode.RETIRED)

    def _is_lost(self, uuid: ServerId) -> bool:
        return is_lost(self._members[uuid], self._health[uuid], self._around)

    def _has_majority(self) -> bool:
        return len(self._healthy) >= majority(len(self._voters))

    def _add(self) -> Step | None:
        promotable = [uuid for uuid in self._joining if not self._is_lost(uuid)]
        needing = {*self._marked, *self._lost}
        present = len(self._voters) - len(needing) + len(promotable)
        target = self._move.to if self._move is not None else None
        is_move_due = target is not None and target not in self._members and not self._is_leaving(target)
        if self._wanted <= present and not is_move_due:
            return None
        if is_move_due:
            assert self._move is not None
            reason = f"the replica at {self._move.from_} moves there"
        elif needing:
            reason = f"{self._why(min(needing, key=self._worst_first))}; {present} of {self._wanted} voters will stay"
        else:
            reason = f"{present} of {self._wanted} wanted voters are there"
        if not self._has_majority():
            return Blocked(f"{len(self._healthy)} of {len(self._voters)} voters are healthy, no majority; {reason}")
        return Add(target if is_move_due else None, reason)

    def _evict_pre_voter(self) -> Evict | None:
        others = [uuid for uuid in self._members if uuid not in self._voters]
        failed = [uuid for uuid in others if self._is_lost(uuid) or self._is_leaving(uuid)]
        target = self._move.to if self._move is not None else None
        spare = [uuid for uuid in self._joining if uuid != target and len(self._viable) >= self._wanted]
        # The source of a move may have been made one by an administrator meanwhile.
        moved = [
            uuid for uuid in others if self._move is not None and uuid == self._move.from_ and target in self._voters
        ]
        for candidates in (failed, moved, spare):
            if candidates and self._has_majority():
                chosen = min(candidates, key=self._worst_first)
                return Evict(chosen, self._why(chosen))
        return None

    def _evict_voter(self) -> Step | None:
        classes = [
            [uuid for uuid in self._lost if self._health[uuid] is Health.PAST_HELP],
            [uuid for uuid in self._lost if self._health[uuid] is not Health.PAST_HELP],
            self._marked,
        ]
        is_over = len(self._voters) > self._wanted
        if is_over and len(self._viable) >= self._wanted:
            classes.append(self._in_excess())
        for candidates in classes:
            # The leader hands over when it is told to remove itself: not unless it has to go.
            followers = [uuid for uuid in candidates if uuid != self._leader]
            leaving = followers or [uuid for uuid in candidates if uuid in self._marked]
            if not leaving:
                continue
            chosen = min(leaving, key=self._worst_first)
            is_past_help = self._health[chosen] is Health.PAST_HELP
            if (is_over or is_past_help) and self._can_go(chosen):
                return Evict(chosen, self._why(chosen))
        return None

    def _can_go(self, uuid: ServerId) -> bool:
        """Whether the others are enough to go on, and as safe as before."""
        left = len(self._voters) - 1
        if left == 0 or (left == 1 and self._wanted > 1):
            return False
        return len([each for each in self._healthy if each != uuid]) >= majority(left)

    def _in_excess(self) -> list[ServerId]:
        """Voters of which one may go because there are enough; those nobody knows of before those that are well."""
        unknown = [uuid for uuid in self._voters if self._health[uuid] is Health.UNKNOWN]
        followers = [uuid for uuid in self._voters if uuid != self._leader]
        return unknown or followers

    def _worst_first(self, uuid: ServerId) -> tuple[int, bool, bool, int, str]:
        domain = self._around.domains.get(uuid)
        shares = domain is not None and any(
            self._around.domains.get(other) == domain for other in self._members if other != uuid
        )
        return (
            self._health[uuid].value,
            uuid != self._undone,
            not shares,
            -self._around.loads.get(uuid, 0),
            uuid,
        )

    def _why(self, uuid: ServerId) -> str:
        health = self._health[uuid]
        if health is Health.PAST_HELP:
            return f"the replica at {uuid} is lost and could not be copied anew"
        if self._is_lost(uuid):
            return f"the replica at {uuid} has not been heard of for too long"
        if self._move is not None and self._move.from_ == uuid:
            return f"the replica at {uuid} moves to {self._move.to}"
        if self._is_leaving(uuid):
            return f"tablet server {uuid} is being retired"
        if self._members[uuid].replace:
            return f"the replica at {uuid} is marked to be replaced"
        return f"{len(self._viable)} other voters are enough for the {self._wanted} that are wanted"
