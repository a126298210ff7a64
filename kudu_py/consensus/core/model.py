"""Roles, member types, `RaftConfig`, `HardState`, `LogEntry`: the values the machine speaks in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId


@unique
class Role(Enum):
    """What a replica is in its group at the moment (seed 003, "Roles")."""

    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEADER = "LEADER"
    LEARNER = "LEARNER"
    NON_PARTICIPANT = "NON_PARTICIPANT"


@unique
class MemberType(Enum):
    """How a member counts. WITNESS and LOGGER of seed 000's appendix will be added here."""

    VOTER = "VOTER"
    PRE_VOTER = "PRE_VOTER"


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of a group.

    Attributes:
        address: the RPC address it was last known at; opaque to the machine.
        promote: of a PRE_VOTER: the leader makes it a VOTER once it has caught up.
        replace: the masters remove it as soon as enough other voters are there; opaque to the machine.
    """

    uuid: ServerId
    member_type: MemberType
    address: str = ""
    promote: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The members of a group.

    Attributes:
        config_index: index of the log entry that carries it; 0 for the config a tablet was created with.
        members: ordered by uuid, no uuid twice.
    """

    config_index: int
    members: tuple[Member, ...]

    @property
    def voters(self) -> tuple[ServerId, ...]:
        """Uuids of the members that are counted."""
        return tuple(m.uuid for m in self.members if m.member_type is MemberType.VOTER)

    def member(self, uuid: ServerId) -> Member | None:
        """The member of this uuid, if it is one."""
        return next((m for m in self.members if m.uuid == uuid), None)


@unique
class ConfigChange(Enum):
    """How a caller wants a config changed, one member at a time (AddServer, RemoveServer, ChangeRole of the seeds)."""

    ADD_SERVER = "ADD_SERVER"
    REMOVE_SERVER = "REMOVE_SERVER"
    CHANGE_ROLE = "CHANGE_ROLE"


class HardState(NamedTuple):
    """What must be durable before any promise is made: the latest term seen and the vote given in it, as one record."""

    term: int
    voted_for: ServerId | None


@unique
class EntryKind(Enum):
    """What a log entry carries."""

    NO_OP = "NO_OP"
    WRITE = "WRITE"
    CONFIG_CHANGE = "CONFIG_CHANGE"
    ALTER_SCHEMA = "ALTER_SCHEMA"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A log entry as the machine sees it: no payload, but the config of a CONFIG_CHANGE.

    `config.config_index` equals `op_id.index`.
    """

    op_id: OpId
    kind: EntryKind
    config: RaftConfig | None = None


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times in seconds; the driver adds nothing to them.

    Why these defaults: three heartbeats fit into the shortest election timeout, so that one may be lost and the next be
    late by a third of a second (a busy event loop) without an election. After a leader's death the first of two
    followers times out after 1.3 s in the median (the lower of two draws from 1.0..2.0), and pre-vote, vote and the own
    no-op take two round trips and two syncs, which leaves half of the two seconds that a failover may take to the
    client. Upstream waits 1.5 s at least and up to 20 s after failed elections; here a failed pre-vote costs nothing,
    so it is repeated soon and only then less often.

    Attributes:
        heartbeat_interval_s: a leader's idle peers hear from it this often.
        election_timeout_s: a follower that heard nothing for this long, times a factor drawn from 1.0..2.0, campaigns;
            a leader that heard no majority for this long (check-quorum) steps down; also the window in which pre-votes
            are refused, and in which a majority of a new config must have answered.
        initial_election_timeout_s: the same draw for the first campaign of a replica whose log is empty: a new tablet
            has no leader that could be disturbed, and its creator waits for one. Also the first pause after a failed
            pre-vote there.
        request_timeout_s: an append that was not answered for this long may be sent again.
        entries_per_append_max: longest range one append names.
        config_change_timeout_s: a config change that is not committed this long after its leader appended it is undone
            by that leader, as soon as the previous members could commit that. Also how long a member whose promotion
            was undone is not promoted again. Several times what a disk or a network that is merely slow takes, since
            an undone change was work for nothing.
        check_invariants: run `invariants.check` after each step (on in tests and simulation).
    """

    heartbeat_interval_s: float = 0.3
    election_timeout_s: float = 1.0
    initial_election_timeout_s: float = 0.12
    request_timeout_s: float = 3.0
    entries_per_append_max: int = 1024
    config_change_timeout_s: float = 10.0
    check_invariants: bool = False

    def __post_init__(self) -> None:
        _require(
            self.heartbeat_interval_s > 0, f"heartbeat_interval_s must be positive, not {self.heartbeat_interval_s}"
        )
        _require(
            self.election_timeout_s >= 2 * self.heartbeat_interval_s,
            f"election_timeout_s ({self.election_timeout_s}) must be at least twice"
            f" heartbeat_interval_s ({self.heartbeat_interval_s})",
        )
        _require(
            0 < self.initial_election_timeout_s <= self.election_timeout_s,
            f"initial_election_timeout_s ({self.initial_election_timeout_s}) must be positive and at most"
            f" election_timeout_s ({self.election_timeout_s})",
        )
        _require(self.request_timeout_s > 0, f"request_timeout_s must be positive, not {self.request_timeout_s}")
        _require(
            self.config_change_timeout_s >= self.election_timeout_s,
            f"config_change_timeout_s ({self.config_change_timeout_s}) must be at least"
            f" election_timeout_s ({self.election_timeout_s})",
        )
        _require(
            self.entries_per_append_max > 0,
            f"entries_per_append_max must be positive, not {self.entries_per_append_max}",
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise KuduError(ErrorCode.CONFIGURATION_ERROR, message)
