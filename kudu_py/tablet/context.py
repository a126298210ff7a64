"""What every replica of a server shares: its options, and the surroundings it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime, add_micros
from kudu_py.common.ids import ServerId, TabletId
from kudu_py.consensus.core.state import Chance
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.peer_links import PeerLinkOptions, PeerLinks
from kudu_py.env.clock import Clock, HybridClock
from kudu_py.env.disk import DiskThreads
from kudu_py.env.workers import Workers
from kudu_py.tablet.directories import ReplicaDirectories
from kudu_py.tablet.memory import MemoryBudget
from kudu_py.tablet.quarantine import QuarantineOptions
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.tablet_copy.board import CopyProgressBoard
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.wal.options import WalOptions
from kudu_py.wal.recent import CacheBudget


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Bounds and times of every replica.

    Attributes:
        consensus, links, wal, tablet, copy, quarantine: of the parts.
        write_bytes_max: serialised size of one Write. Several of them must fit into one message to a follower, with
            room to spare.
        write_timeout_s: a Write is answered "outcome unknown" if it was not decided within this.
        read_timeout_s: a read waits so long until its leadership is confirmed or its snapshot complete.
        clock_ahead_s_max: a snapshot further in the future than this is refused: reading it would drag the clock along.
        history_max_age_s: snapshots older than this need not be readable.
        log_retain_bytes: log kept although a checkpoint covers it, so that a follower that was away need not be copied.
        log_retain_bytes_max: log kept for followers that are still behind it; beyond, they have to be copied.
        log_cache_bytes_max: recent entries kept in memory for followers by all logs of the server together.
        checkpoint_log_bytes: after this much log a checkpoint is made even of few rows or none: writes that change no
            row (inserts that are ignored) fill the log as well.
        open_concurrently_max: replicas that are opened or deleted at the same time.
    """

    consensus: ConsensusOptions = field(default_factory=ConsensusOptions)
    links: PeerLinkOptions = field(default_factory=PeerLinkOptions)
    wal: WalOptions = field(default_factory=WalOptions)
    tablet: TabletOptions = field(default_factory=TabletOptions)
    copy: TabletCopyOptions = field(default_factory=TabletCopyOptions)
    quarantine: QuarantineOptions = field(default_factory=QuarantineOptions)
    write_bytes_max: int = 8 << 20
    write_timeout_s: float = 60.0
    read_timeout_s: float = 10.0
    clock_ahead_s_max: float = 10.0
    history_max_age_s: float = 7 * 24 * 3600.0
    log_retain_bytes: int = 64 << 20
    log_retain_bytes_max: int = 640 << 20
    log_cache_bytes_max: int = 128 << 20
    checkpoint_log_bytes: int = 256 << 20
    open_concurrently_max: int = 4

    def __post_init__(self) -> None:
        for name in ("write_bytes_max", "write_timeout_s", "open_concurrently_max"):
            if getattr(self, name) <= 0:
                raise KuduError(ErrorCode.CONFIGURATION_ERROR, f"{name} must be positive, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The surroundings of all replicas of one server.

    Attributes:
        uuid: the server's own.
        address: host:port of its services.
        directories: where the replicas' files are.
        threads, workers, peer_links, clock, hybrid_clock, rng: the seams, and the ways to other servers.
        options: of every replica.
        memory: of all of them together.
        log_cache: the recent entries that their logs keep in memory.
        copies: tablet copies that the server takes part in.
        on_report: something that the masters want to know of this tablet has changed: role, term, config, state.
        on_fatal: the log, the metadata or a replica's own code failed; the process has to end.
    """

    uuid: ServerId
    address: str
    directories: ReplicaDirectories
    threads: DiskThreads
    workers: Workers
    peer_links: PeerLinks
    clock: Clock
    hybrid_clock: HybridClock
    rng: Chance
    options: ReplicaOptions
    memory: MemoryBudget
    log_cache: CacheBudget
    copies: CopyProgressBoard
    on_report: Callable[[TabletId], None]
    on_fatal: Callable[[BaseException], None]

    def history_begin(self) -> HybridTime:
        """Snapshots from this time on are to be readable."""
        return add_micros(self.hybrid_clock.physical(), -int(self.options.history_max_age_s * 1e6))
