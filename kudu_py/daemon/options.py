"""The options of the daemons, with upstream's names where there is one, and the one place where they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import is_id
from kudu_py.daemon.flags import FlagValue, Loaded, Request, check_fields, flag, load, refusal
from kudu_py.daemon.kill_point import KillPoint, parse_kill_point
from kudu_py.rpc.address import HostPort, parse_address, parse_addresses

__all__ = ["CommonOptions", "FlagValue", "Loaded", "MasterOptions", "Request", "TabletServerOptions", "load_options"]

MASTER_RPC_PORT = 7051
MASTER_HTTP_PORT = 8051
TSERVER_RPC_PORT = 7050
TSERVER_HTTP_PORT = 8050

_NETWORK = "Network"
_STORAGE = "Storage"
_CONSENSUS = "Consensus"
_RESOURCES = "Resources"
_PROCESS = "Process"
_CLUSTER = "Cluster"
_WILDCARDS = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What both daemons have. Checked at construction: KuduError CONFIGURATION_ERROR names the flag."""

    role: ClassVar[str]
    rpc_port_default: ClassVar[int]

    fs_wal_dir: str = flag(
        MISSING,
        "Directory of this server's data: log, metadata and rows. Created if it does not exist; never shared.",
        group=_STORAGE,
    )
    expected_server_uuid: str = flag(
        "", "Refuse to start if the data directory belongs to a server with another uuid.", group=_STORAGE
    )
    log_segment_size_mb: int = flag(
        8,
        "Largest size of one segment of a tablet's log; segments begin small and double.",
        group=_STORAGE,
        minimum=1,
        maximum=1024,
    )
    log_retain_mb: int = flag(
        64,
        "Log kept per tablet although its rows are on disk, so that a replica that was away can catch up from it.",
        group=_STORAGE,
        minimum=0,
    )
    fs_wal_dir_reserved_bytes: int = flag(
        64 << 20,
        "Space on the file system that logs and compactions leave free; writes are told to try later when it is "
        "reached. Flushes leave half of it, for they let logs go.",
        group=_STORAGE,
        minimum=0,
    )
    quarantine_retention_s: int = flag(
        24 * 3600,
        "How long the files of a deleted replica, and what a copy has fetched that was not finished, are kept in "
        "quarantine/; 0: a deleted replica's are removed at once.",
        group=_STORAGE,
        minimum=0,
    )
    quarantine_bytes_max: int = flag(
        10 << 30,
        "Bytes that the quarantine may take; beyond, the oldest is removed. All of it goes when the disk is short of "
        "room.",
        group=_STORAGE,
        minimum=0,
    )
    flush_threshold_mb: int = flag(
        64, "Memory at which one tablet's new rows are flushed to disk.", group=_STORAGE, minimum=1
    )
    flush_threshold_secs: int = flag(
        120,
        "New rows of a megabyte and more are flushed after so long, however much memory is left.",
        group=_STORAGE,
        minimum=1,
    )

    rpc_bind_addresses: str = flag(
        "",
        "host:port of the gRPC services; port 0 takes a free one. Default: 127.0.0.1 and the daemon's usual port. "
        "There is no authentication: bind to an address that only the cluster and its users can reach.",
        group=_NETWORK,
    )
    rpc_advertised_addresses: str = flag(
        "",
        "host:port under which others reach the gRPC services. Default: where they are bound, with the host's name "
        "in place of 0.0.0.0 or [::].",
        group=_NETWORK,
    )
    rpc_max_message_size: int = flag(
        64 << 20, "Largest message in bytes, either way.", group=_NETWORK, minimum=1 << 20, maximum=1 << 30
    )
    rpc_service_queue_length: int = flag(
        512,
        "Calls of one service under way at once; more are told to try later. Consensus has no such bound.",
        group=_NETWORK,
        minimum=1,
    )
    webserver_enabled: bool = flag(True, "Serve pages, metrics and health over HTTP.", group=_NETWORK)
    webserver_interface: str = flag("127.0.0.1", "Host or address of the HTTP server.", group=_NETWORK)
    webserver_port: int = flag(
        0, "Port of the HTTP server; 0 takes a free one.", group=_NETWORK, minimum=0, maximum=65535
    )

    raft_heartbeat_interval_ms: int = flag(
        300, "How often an idle leader is heard of by its followers.", group=_CONSENSUS, minimum=10
    )
    leader_failure_max_missed_heartbeat_periods: float = flag(
        3.34,
        "Heartbeats missed before a follower thinks of an election; each time a random share is added, up to as much "
        "again.",
        group=_CONSENSUS,
        minimum=2.0,
    )
    follower_unavailable_considered_failed_sec: float = flag(
        300.0,
        "A replica whose server is silent for so long, or that can only be helped by a copy and does not get it, is "
        "replaced by one on another server.",
        group=_CONSENSUS,
        minimum=0.1,
    )
    raft_check_invariants: bool = flag(
        False, "Check every property of the consensus machine after each step; for test clusters.", group=_CONSENSUS
    )

    memory_limit_bytes: int = flag(
        2 << 30,
        "Memory the process may take; flushes begin well before it, and writes are told to try later near it.",
        group=_RESOURCES,
        minimum=256 << 20,
        aliases=("memory_limit_hard_bytes",),
    )

    num_tablets_to_copy_simultaneously: int = flag(
        10, "Replicas copied to this server at once; others wait.", group=_RESOURCES, minimum=1, maximum=256
    )
    tablet_copy_bytes_per_s: int = flag(
        32 << 20,
        "Bytes a second that all copies to this server take together; 0: as many as they can, at the cost of whoever "
        "reads and writes here and at the source.",
        group=_RESOURCES,
        minimum=0,
        aliases=("tablet_copy_throttler_bytes_per_sec",),
    )
    tablet_copy_idle_timeout_sec: int = flag(
        120,
        "A server that copies a replica from this one and asks for nothing for so long is given up; when it comes back "
        "it goes on where it was.",
        group=_RESOURCES,
        minimum=1,
    )

    log_format: str = flag("json", "Form of the log lines.", group=_PROCESS, choices=("json", "console"))
    log_level: str = flag(
        "info", "Lines below this level are left out.", group=_PROCESS, choices=("debug", "info", "warning", "error")
    )
    use_uvloop: bool = flag(True, "Run on uvloop instead of Python's own event loop.", group=_PROCESS)
    ready_file: str = flag(
        "", "Write uuid, addresses and pid as one line of JSON to this file once the server serves.", group=_PROCESS
    )
    shutdown_grace_ms: int = flag(
        5_000, "After SIGTERM: how long calls under way may take before they are cut off.", group=_PROCESS, minimum=0
    )

    fault_kill_on_event: str = flag(
        "",
        "For tests of crashes: the process kills itself after writing this event to its log; EVENT:N the Nth time. "
        "Single steps are logged with --log_level=debug.",
        group=_PROCESS,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            parse_kill_point(self.fault_kill_on_event)
        except KuduError as error:
            raise refusal("fault_kill_on_event", error.message, self.fault_kill_on_event) from None
        if not self.fs_wal_dir.strip():
            raise refusal("fs_wal_dir", "must name a directory", self.fs_wal_dir)
        if self.expected_server_uuid and not is_id(self.expected_server_uuid):
            wanted = "must be 32 lower-case hexadecimal characters"
            raise refusal("expected_server_uuid", wanted, self.expected_server_uuid)
        if "," in self.rpc_bind_addresses:
            raise refusal("rpc_bind_addresses", "takes one address", self.rpc_bind_addresses)
        self._address("rpc_bind_addresses", self.rpc_bind_address)
        if self.rpc_advertised_addresses:
            self._address("rpc_advertised_addresses", self.rpc_advertised_addresses)
        self._address("webserver_interface", str(HostPort(self.webserver_interface.strip("[]"), self.webserver_port)))

    @property
    def data_root(self) -> str:
        """The absolute path of the data directory."""
        return os.path.abspath(self.fs_wal_dir)

    @property
    def rpc_bind_address(self) -> str:
        """host:port to listen at; the port is the daemon's usual one if none is given."""
        given = self.rpc_bind_addresses or f"127.0.0.1:{self.rpc_port_default}"
        return str(self._address("rpc_bind_addresses", given))

    @property
    def kill_point(self) -> KillPoint | None:
        """Where in its log the process is to end itself; None: nowhere."""
        return parse_kill_point(self.fault_kill_on_event)

    @property
    def webserver_bind_address(self) -> HostPort:
        """Where HTTP is served."""
        return HostPort(self.webserver_interface.strip("[]"), self.webserver_port)

    @property
    def election_timeout_s(self) -> float:
        """The shortest time without a leader after which a follower campaigns."""
        return self.raft_heartbeat_interval_ms * self.leader_failure_max_missed_heartbeat_periods / 1000

    def advertised_address(self, bound: str, host_name: str) -> str:
        """host:port under which others reach what is bound at `bound`; `host_name` stands in for a wildcard.

        Only for the gRPC address if one is advertised by flag; for HTTP use `reachable_address`.
        """
        return self.rpc_advertised_addresses or reachable_address(bound, host_name)

    def _address(self, name: str, given: str) -> HostPort:
        try:
            return parse_address(given, what=f"--{name}", default_port=self.rpc_port_default)
        except KuduError as error:
            raise KuduError(ErrorCode.CONFIGURATION_ERROR, error.message, details={"flag": name}) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletServerOptions(CommonOptions):
    """Of a tablet server."""

    role: ClassVar[str] = "tserver"
    rpc_port_default: ClassVar[int] = TSERVER_RPC_PORT

    webserver_port: int = flag(
        TSERVER_HTTP_PORT, "Port of the HTTP server; 0 takes a free one.", group=_NETWORK, minimum=0, maximum=65535
    )
    tablet_history_max_age_sec: int = flag(
        7 * 24 * 3600,
        "How far back snapshots can be read; older history may be dropped by compaction. A scan takes its snapshot a "
        "little behind the clock, and reads all tablets at the same one.",
        group=_STORAGE,
        minimum=60,
    )
    tserver_master_addrs: str = flag(
        f"127.0.0.1:{MASTER_RPC_PORT}", "Comma-separated host:port of all masters.", group=_CLUSTER
    )
    heartbeat_interval_ms: int = flag(1_000, "How often each master hears of this server.", group=_CLUSTER, minimum=10)
    heartbeat_rpc_timeout_ms: int = flag(
        15_000, "After this a heartbeat without an answer is given up.", group=_CLUSTER, minimum=100
    )
    fault_domain: str = flag(
        "",
        "Replicas of one tablet are kept in different domains where there is a way. Default: the host's name.",
        group=_CLUSTER,
    )
    enable_rowset_compaction: bool = flag(
        True,
        "Merge rowsets, and fold deltas into them. Without it files stay as flushes wrote them: scans become slower, "
        "and space is not given back.",
        group=_RESOURCES,
    )
    maintenance_manager_num_threads: int = flag(
        1, "Flushes and compactions at once.", group=_RESOURCES, minimum=1, maximum=64
    )
    scanner_ttl_ms: int = flag(
        60_000, "A scan whose client takes nothing for so long is closed.", group=_RESOURCES, minimum=100
    )
    num_tablets_to_open_simultaneously: int = flag(
        4, "Tablets opened at once when the server starts.", group=_RESOURCES, minimum=1, maximum=256
    )

    def __post_init__(self) -> None:
        # dataclass(slots=True) makes a new class, which the zero-argument form of super does not know.
        CommonOptions.__post_init__(self)
        _masters("tserver_master_addrs", self.tserver_master_addrs)

    @property
    def master_addresses(self) -> tuple[str, ...]:
        """host:port of each master."""
        return _masters("tserver_master_addrs", self.tserver_master_addrs)

    def fault_domain_or(self, host_name: str) -> str:
        """The domain; the host is the smallest there is."""
        return self.fault_domain or host_name


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterOptions(CommonOptions):
    """Of a master."""

    role: ClassVar[str] = "master"
    rpc_port_default: ClassVar[int] = MASTER_RPC_PORT

    webserver_port: int = flag(
        MASTER_HTTP_PORT, "Port of the HTTP server; 0 takes a free one.", group=_NETWORK, minimum=0, maximum=65535
    )
    master_addresses: str = flag(
        "",
        "Comma-separated host:port of all masters of the cluster, this one among them. Default: this one alone.",
        group=_CLUSTER,
    )
    default_num_replicas: int = flag(
        3, "Replication factor of tables that ask for none; odd.", group=_CLUSTER, minimum=1, maximum=7
    )
    max_num_replicas: int = flag(7, "Largest replication factor of a table; odd.", group=_CLUSTER, minimum=1, maximum=7)
    max_create_tablets_per_ts: int = flag(
        60, "Replicas that one new table may bring per live tablet server; 0: no bound.", group=_CLUSTER, minimum=0
    )
    tserver_unresponsive_timeout_ms: int = flag(
        60_000, "A tablet server silent for longer gets no replicas and is dead.", group=_CLUSTER, minimum=100
    )
    heartbeat_interval_ms: int = flag(
        1_000, "How often tablet servers are expected to report; the same as theirs.", group=_CLUSTER, minimum=10
    )
    tablet_creation_timeout_ms: int = flag(
        30_000, "A new tablet that does not run after this is placed anew.", group=_CLUSTER, minimum=100
    )
    table_locations_ttl_ms: int = flag(
        300_000,
        "After so long clients are to ask again where tablets are before they scan them.",
        group=_CLUSTER,
        minimum=1,
    )
    max_copies_per_server: int = flag(
        10,
        "Replicas that masters have on their way to, or from, one tablet server at once.",
        group=_CLUSTER,
        minimum=1,
    )

    auto_rebalancing_enabled: bool = flag(
        True, "Keep replicas and leaders evenly spread over the tablet servers.", group=_CLUSTER
    )
    auto_rebalancing_interval_seconds: float = flag(
        30.0,
        "How often an even cluster is looked at; what is uneven is seen to without a pause.",
        group=_CLUSTER,
        minimum=0.1,
        aliases=("auto_rebalancing_interval_s",),
    )
    auto_rebalancing_max_moves_per_server: int = flag(
        1,
        "Replicas that one tablet server gives or takes at once for the sake of balance.",
        group=_CLUSTER,
        minimum=1,
        aliases=("auto_rebalancing_max_moves",),
    )
    rebalance_cooldown_s: float = flag(
        300.0,
        "The rebalancer leaves a tablet alone for so long after an administrator changed its members, after its leader "
        "changed, and after a move of it failed.",
        group=_CLUSTER,
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        CommonOptions.__post_init__(self)
        for name in ("default_num_replicas", "max_num_replicas"):
            if getattr(self, name) % 2 == 0:
                raise refusal(name, "must be odd", getattr(self, name))
        if self.default_num_replicas > self.max_num_replicas:
            wanted = f"must be at most --max_num_replicas ({self.max_num_replicas})"
            raise refusal("default_num_replicas", wanted, self.default_num_replicas)
        if self.master_addresses:
            _masters("master_addresses", self.master_addresses)

    @property
    def all_master_addresses(self) -> tuple[str, ...]:
        """host:port of each master; empty if this one is alone."""
        return _masters("master_addresses", self.master_addresses) if self.master_addresses else ()


OptionsT = TypeVar("OptionsT", bound=CommonOptions)


def load_options(
    kind: type[OptionsT],
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    read_file: Callable[[str], str] = lambda path: Path(path).read_text(encoding="utf-8"),
) -> Loaded[OptionsT]:
    """The options of a daemon from all sources; see `flags.load`. The process's environment unless one is given."""
    return load(kind, argv, os.environ if environ is None else environ, section=kind.role, read_file=read_file)


def reachable_address(bound: str, host_name: str) -> str:
    """`bound` with the host's name in place of a wildcard, which nobody can dial."""
    address = parse_address(bound)
    return str(HostPort(host_name, address.port)) if address.host in _WILDCARDS else bound


def _masters(name: str, given: str) -> tuple[str, ...]:
    try:
        return tuple(str(each) for each in parse_addresses(given, what=f"--{name}", default_port=MASTER_RPC_PORT))
    except KuduError as error:
        raise KuduError(ErrorCode.CONFIGURATION_ERROR, error.message, details={"flag": name}) from None
