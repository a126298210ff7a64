"""A local cluster of real processes in one command.

A playground is a directory: one folder per daemon, one log file per daemon, and `playground.json`, which says for
    programs who runs where. Ports are chosen when the directory is first used (the usual ones if they are free) and
    kept, so that addresses are the same after a restart. A daemon that dies is reported and not revived: `restart
    NAME` does that.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from kudu_py.cli.health import is_serving
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon.layout import read_instance
from kudu_py.env.posix_disk import PosixDisk
from kudu_py.pb import master_pb2, master_pb2_grpc, server_pb2, server_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

FILE_NAME = "playground.json"
DEFAULT_TSERVERS = 3
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
POLL_INTERVAL_S = 0.05

_WARNING = re.compile(r'"level": "(?:warning|error|critical)"|\[(?:warning|error|critical) *\]')
"""In a line of a log, in either form (daemon/logs.py)."""

_USUAL_PORTS = {"master": (7051, 8051), "tserver": (7050, 8050)}
_FAULT_DOMAIN = "--fault_domain="


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """One daemon of a playground, as `playground.json` has it.

    Attributes:
        name: such as "master-1"; not in the file, where the position says it.
        uuid: of the data directory; empty until the first start has finished.
        rpc_address, http_address: host:port, fixed for the life of the directory.
        pid: of the running process; None when stopped.
        dir: where its data lies.
        argv: what starts it again, as it is.
    """

    name: str
    uuid: str
    rpc_address: str
    http_address: str
    pid: int | None
    dir: str
    argv: tuple[str, ...]

    @property
    def role(self) -> str:
        """ "master" or "tserver"."""
        return self.name.partition("-")[0]

    @property
    def log_path(self) -> Path:
        """Where its output goes."""
        return Path(self.dir).parent / f"{self.name}.log"

    def log_size(self) -> int:
        """Bytes of its output so far, of all its runs."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def last_warning(self, since: int) -> str:
        """The last line at level warning or above in its output from this byte on; empty if there is none."""
        try:
            lines = self.log_path.read_bytes()[since:].decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line for line in reversed(lines) if _WARNING.search(line)), "")

    def is_running(self) -> bool:
        """Whether the process of `pid` lives and is this daemon (pids are reused)."""
        if self.pid is None:
            return False
        try:
            command = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z" and [part.decode(errors="replace") for part in command[:-1]] == list(self.argv)


@dataclass(frozen=True, slots=True)
class PlaygroundRecord:
    """The content of `playground.json`."""

    masters: tuple[DaemonRecord, ...]
    tservers: tuple[DaemonRecord, ...]

    @property
    def daemons(self) -> tuple[DaemonRecord, ...]:
        """Masters first."""
        return self.masters + self.tservers

    @property
    def master_addresses(self) -> str:
        """Comma-separated, as the other commands take them."""
        return ",".join(master.rpc_address for master in self.masters)

    @property
    def next_fault_domain(self) -> str:
        """Of one more tablet server: the next in turn, or one of its own if each has its own."""
        named = {flag for tserver in self.tservers for flag in tserver.argv if flag.startswith(_FAULT_DOMAIN)}
        count = len(self.tservers)
        return _fault_domain(count + 1, len(named) if len(named) < count else count + 1)

    def with_daemon(self, changed: DaemonRecord) -> PlaygroundRecord:
        """The same with one daemon replaced by name."""
        return PlaygroundRecord(
            tuple(changed if m.name == changed.name else m for m in self.masters),
            tuple(changed if t.name == changed.name else t for t in self.tservers),
        )


def load(directory: Path) -> PlaygroundRecord:
    """Reads `playground.json`.

    Raises:
        KuduError: NOT_FOUND if the directory is no playground, CORRUPTION if the file cannot be understood.
    """
    path = directory / FILE_NAME
    try:
        content = json.loads(path.read_text())
        groups = {
            role: tuple(
                DaemonRecord(name=f"{role}-{i}", **{**daemon, "argv": tuple(daemon["argv"])})
                for i, daemon in enumerate(content[f"{role}s"], 1)
            )
            for role in ("master", "tserver")
        }
    except FileNotFoundError:
        raise KuduError(
            ErrorCode.NOT_FOUND,
            f"{directory} is no playground ({FILE_NAME} is missing); start one with `playground start`",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise KuduError(ErrorCode.CORRUPTION, f"{path} cannot be understood: {error}") from error
    return _as_running(PlaygroundRecord(groups["master"], groups["tserver"]))


def _as_running(record: PlaygroundRecord) -> PlaygroundRecord:
    """The record with the pids of now: a daemon that died may have been started again by running its `argv`."""
    gone = {daemon.argv: daemon for daemon in record.daemons if not daemon.is_running()}
    for entry in Path("/proc").glob("[0-9]*") if gone else ():
        try:
            argv = tuple(os.fsdecode(part) for part in (entry / "cmdline").read_bytes().split(b"\0")[:-1])
        except OSError:
            continue  # it has ended meanwhile
        found = gone.get(argv)
        if found is not None and (running := replace(found, pid=int(entry.name))).is_running():
            record = record.with_daemon(running)
    return record


def save(directory: Path, record: PlaygroundRecord) -> None:
    """Writes `playground.json` atomically."""

    def as_json(daemon: DaemonRecord) -> dict[str, object]:
        fields = asdict(daemon)
        del fields["name"]
        return fields

    content = {"masters": [as_json(m) for m in record.masters], "tservers": [as_json(t) for t in record.tservers]}
    temporary = directory / f".{FILE_NAME}.{os.getpid()}"
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(directory / FILE_NAME)


def prepare(
    directory: Path,
    *,
    master_count: int,
    tserver_count: int | None = None,
    fault_domains: int = 0,
    extra_flags: Sequence[str] = (),
) -> PlaygroundRecord:
    """The playground of `directory`: the one that is there, or a new one with ports chosen and nothing started.

    Args:
        tserver_count: None: those that are there, or 3 in a new one.
        fault_domains: to which the tablet servers of a new one are dealt; 0: one each.

    Raises:
        KuduError: INVALID_ARGUMENT if another number of daemons is asked for than the directory has; ILLEGAL_STATE if
            it runs.
    """
    if (directory / FILE_NAME).exists():
        record = load(directory)
        running = [daemon.name for daemon in record.daemons if daemon.is_running()]
        if running:
            raise KuduError(
                ErrorCode.ILLEGAL_STATE,
                f"the playground in {directory} is running already ({', '.join(running)}); stop it with "
                f"`kudu-py playground stop --dir {directory}`",
            )
        tserver_count = tserver_count or len(record.tservers)
        if (len(record.masters), len(record.tservers)) != (master_count, tserver_count):
            raise KuduError(
                ErrorCode.INVALID_ARGUMENT,
                f"the playground in {directory} has {counted(len(record.masters), 'master')} and "
                f"{counted(len(record.tservers), 'tablet server')}, not {master_count} and {tserver_count}; "
                "use those numbers or another directory",
            )
        return record
    tserver_count = tserver_count or DEFAULT_TSERVERS
    fault_domains = fault_domains or tserver_count
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"{directory} is not empty and no playground; choose an empty or new directory"
        )
    ports = _choose_ports("master", master_count)
    ports += _choose_ports("tserver", tserver_count, taken={port for pair in ports for port in pair})
    addresses = [(f"{HOST}:{rpc}", f"{HOST}:{http}") for rpc, http in ports]
    masters = ",".join(rpc for rpc, _ in addresses[:master_count])

    def daemon(role: str, i: int, rpc: str, http: str) -> DaemonRecord:
        own = [f"--master_addresses={masters}"]
        if role == "tserver":
            own = [f"--tserver_master_addrs={masters}", f"{_FAULT_DOMAIN}{_fault_domain(i, fault_domains)}"]
        return _daemon(directory, role, i, rpc, http, [*own, *extra_flags])

    return PlaygroundRecord(
        tuple(daemon("master", i, *address) for i, address in enumerate(addresses[:master_count], 1)),
        tuple(daemon("tserver", i, *address) for i, address in enumerate(addresses[master_count:], 1)),
    )


def grown(directory: Path, record: PlaygroundRecord, *, fault_domain: str = "") -> PlaygroundRecord:
    """The playground with one more tablet server, with the flags of those that are there; it is not started."""
    flags = [flag for flag in record.tservers[-1].argv[3:] if not flag.startswith((*_OWN_FLAGS, _FAULT_DOMAIN))]
    taken = {int(a.rpartition(":")[2]) for each in record.daemons for a in (each.rpc_address, each.http_address)}
    ((rpc, http),) = _choose_ports("tserver", 1, taken=taken)
    domain = f"{_FAULT_DOMAIN}{fault_domain or record.next_fault_domain}"
    number = len(record.tservers) + 1
    added = _daemon(directory, "tserver", number, f"{HOST}:{rpc}", f"{HOST}:{http}", [*flags, domain])
    return replace(record, tservers=(*record.tservers, added))


def add_tserver(directory: Path, *, fault_domain: str = "") -> DaemonRecord:
    """Starts one more tablet server; returns when it serves. Saved.

    Raises:
        KuduError: as `load`; UNAVAILABLE if it does not come up: it is part of the playground all the same.
    """
    record = grown(directory, load(directory), fault_domain=fault_domain)
    daemon = spawn(record.tservers[-1])
    save(directory, record.with_daemon(daemon))
    daemon = replace(daemon, uuid=_await_one(daemon, {daemon.name: 0}))
    save(directory, load(directory).with_daemon(daemon))
    return daemon


_OWN_FLAGS = ("--fs_wal_dir=", "--rpc_bind_addresses=", "--webserver_interface=", "--webserver_port=")


def _daemon(directory: Path, role: str, number: int, rpc: str, http: str, flags: Sequence[str]) -> DaemonRecord:
    """A daemon that does not run yet; `rpc` and `http` are its addresses."""
    data = directory / f"{role}-{number}"
    own = dict(zip(_OWN_FLAGS, (data, rpc, HOST, http.rpartition(":")[2]), strict=True))
    argv = (sys.executable, "-m", f"kudu_py.{role}", *(f"{flag}{value}" for flag, value in own.items()), *flags)
    return DaemonRecord(f"{role}-{number}", "", rpc, http, None, str(data), argv)


def _fault_domain(number: int, count: int) -> str:
    """The domain of the tablet server of this number if they are dealt to so many."""
    return f"playground-{(number - 1) % count + 1}"


def _choose_ports(role: str, count: int, *, taken: Set[int] = frozenset()) -> list[tuple[int, int]]:
    """Two ports a daemon: the usual ones and those after them where free, else whatever the system gives.

    Sockets are held until all are chosen, so that no port is given twice; those of `taken` belong to daemons that may
    not run now.
    """
    held: list[socket.socket] = []
    rpc, http = _USUAL_PORTS[role]
    # Masters take 7051, 7061, ...; tablet servers 7050, 7150, ...: the two series never meet.
    step = 10 if role == "master" else 100
    first = next(i for i in range(len(taken) + 1) if rpc + i * step not in taken)

    def take(wanted: int) -> int:
        for port in (wanted, *[0] * (len(taken) + 1)):
            candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                candidate.bind((HOST, port))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
            chosen: int = candidate.getsockname()[1]
            if chosen not in taken:
                return chosen
        raise KuduError(ErrorCode.UNAVAILABLE, f"no free port on {HOST}")

    try:
        return [(take(rpc + i * step), take(http + i * step)) for i in range(first, first + count)]
    finally:
        for each in held:
            each.close()


def spawn(daemon: DaemonRecord) -> DaemonRecord:
    """Starts the process in a session of its own (Ctrl-C is the playground's to handle); returns the record with its
    pid.
    """
    with daemon.log_path.open("ab") as log:
        process = subprocess.Popen(
            daemon.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    return replace(daemon, pid=process.pid)


def start(directory: Path, record: PlaygroundRecord, progress: Callable[[str], None]) -> PlaygroundRecord:
    """Starts every daemon and returns when all are SERVING and every tablet server is registered; saved on return.

    Raises:
        KuduError: UNAVAILABLE that names the daemon that ended, and shows the end of its log, or what was waited for,
            with the last warning of each daemon.
    """
    progress(f"starting {', '.join(daemon.name for daemon in record.daemons)}")
    log_starts = {daemon.name: daemon.log_size() for daemon in record.daemons}
    for daemon in record.daemons:
        record = record.with_daemon(spawn(daemon))
    save(directory, record)
    try:
        record = asyncio.run(await_serving(record, START_TIMEOUT_S, log_starts))
    except BaseException:
        stop(directory, record, lambda _: None)
        raise
    save(directory, record)
    return record


async def await_serving(record: PlaygroundRecord, timeout_s: float, log_starts: dict[str, int]) -> PlaygroundRecord:
    """Waits until all daemons, which were started, are SERVING and registered; the record with their uuids.

    Args:
        log_starts: by name, where the output of this run of each daemon begins.

    Raises:
        KuduError: as `start`.
    """
    dialer = GrpcDialer()

    async def poll(what: str, ask: Callable[[], Awaitable[str]]) -> str:
        return await _poll(record, deadline, what, ask, log_starts)

    deadline = time.monotonic() + timeout_s
    try:
        for daemon in record.daemons:
            uuid = await poll(f"{daemon.name} to serve", partial(_uuid_of, dialer, daemon))
            record = record.with_daemon(replace(daemon, uuid=uuid))
        wanted = {tserver.uuid for tserver in record.tservers}

        async def registered() -> str:
            leader_answers = [await _live_servers(dialer, master) for master in record.masters]
            return "yes" if any(wanted <= live for live in leader_answers) else ""

        await poll("all tablet servers to register", registered)
        return record
    finally:
        await dialer.close()


async def _poll(
    record: PlaygroundRecord,
    deadline: float,
    what: str,
    ask: Callable[[], Awaitable[str]],
    log_starts: dict[str, int],
) -> str:
    """Asks until the answer is not empty; refusals count as empty."""
    started = time.monotonic()
    while True:
        try:
            answer = await ask()
        except KuduError:
            answer = ""
        if answer:
            return answer
        dead = next((daemon for daemon in record.daemons if not _alive(daemon)), None)
        if dead is not None:
            raise KuduError(ErrorCode.UNAVAILABLE, f"{dead.name} ended while starting; {_log_tail(dead)}")
        if time.monotonic() > deadline:
            warnings = [(daemon, daemon.last_warning(log_starts[daemon.name])) for daemon in record.daemons]
            raise KuduError(
                ErrorCode.UNAVAILABLE,
                f"waited {time.monotonic() - started:.0f} s for {what}; logs are beside the data"
                + "".join(f"\n  {daemon.name} warned last: {line}" for daemon, line in warnings if line),
            )
        await asyncio.sleep(POLL_INTERVAL_S)


def _alive(daemon: DaemonRecord) -> bool:
    """Whether the process runs.

    Of a child of ours the kernel is asked: its command line is nobody's for a moment while it is being started.
    """
    if daemon.pid is None:
        return False
    try:
        return os.waitpid(daemon.pid, os.WNOHANG)[0] != daemon.pid
    except ChildProcessError:
        return daemon.is_running()  # another command started it


async def _uuid_of(dialer: GrpcDialer, daemon: DaemonRecord) -> str:
    """The uuid of the daemon once it is SERVING; not of another cluster's that was quicker to take the port."""
    channel = dialer.channel(daemon.rpc_address)
    if not await is_serving(channel):
        return ""
    stub = server_pb2_grpc.GenericServiceStub(channel)
    answer = await call(stub.GetStatus(server_pb2.GetStatusRequest(), timeout=2.0))
    return answer.registration.uuid if answer.registration.uuid == _owner(daemon.dir) else ""


def _owner(directory: str) -> str:
    try:
        return read_instance(PosixDisk(), directory).uuid
    except FileNotFoundError:
        return ""  # it has not come so far


async def _live_servers(dialer: GrpcDialer, master: DaemonRecord) -> set[str]:
    stub = master_pb2_grpc.MasterServiceStub(dialer.channel(master.rpc_address))
    try:
        answer = await call(stub.ListTabletServers(master_pb2.ListTabletServersRequest(), timeout=2.0))
    except KuduError:
        return set()
    return {server.uuid for server in answer.servers if server.state == master_pb2.LIVE}


def stop(directory: Path, record: PlaygroundRecord, progress: Callable[[str], None]) -> PlaygroundRecord:
    """Ends every daemon: tablet servers first, SIGTERM, and SIGKILL for what has not ended after the grace. Saved on
    return.
    """
    record = _as_running(record)
    for group in (record.tservers, record.masters):
        running = [daemon for daemon in group if _alive(daemon)]
        for daemon in running:
            assert daemon.pid is not None
            os.kill(daemon.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        for daemon in running:
            while _alive(daemon):
                if time.monotonic() > deadline:
                    progress(f"{daemon.name} did not end in {STOP_GRACE_S:.0f} s and was killed")
                    assert daemon.pid is not None
                    os.kill(daemon.pid, signal.SIGKILL)
                    break
                time.sleep(POLL_INTERVAL_S)
            progress(f"{daemon.name} stopped")
    for daemon in record.daemons:
        record = record.with_daemon(replace(daemon, pid=None))
    if (directory / FILE_NAME).exists():
        save(directory, record)
    return record


def watch(record: PlaygroundRecord, progress: Callable[[str], None]) -> None:
    """Waits for Ctrl-C or SIGTERM; says it when a daemon ends by itself."""
    ended: set[str] = set()
    waiting = True

    def on_signal(*_: object) -> None:
        nonlocal waiting
        waiting = False

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    while waiting:
        for daemon in record.daemons:
            if daemon.name not in ended and not _alive(daemon):
                ended.add(daemon.name)
                progress(f"{daemon.name} has ended by itself; {_log_tail(daemon)}")
        time.sleep(0.25)


def restart(directory: Path, name: str) -> DaemonRecord:
    """Starts one daemon that has ended, or ends and starts it; returns when it serves.

    Raises:
        KuduError: NOT_FOUND if no daemon has this name; UNAVAILABLE if it does not come up.
    """
    record = load(directory)
    daemon = next((d for d in record.daemons if name in (d.name, d.uuid)), None)
    if daemon is None:
        raise KuduError(
            ErrorCode.NOT_FOUND, f"no daemon is named {name}; there are {', '.join(d.name for d in record.daemons)}"
        )
    if daemon.is_running():
        assert daemon.pid is not None
        os.kill(daemon.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        while daemon.is_running():
            if time.monotonic() > deadline:
                os.kill(daemon.pid, signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)
    log_starts = {daemon.name: daemon.log_size()}
    daemon = spawn(daemon)
    record = record.with_daemon(daemon)
    save(directory, record)
    _await_one(daemon, log_starts)
    return daemon


def _await_one(daemon: DaemonRecord, log_starts: dict[str, int]) -> str:
    """Waits until one daemon serves; its uuid."""

    async def serving() -> str:
        dialer = GrpcDialer()
        try:
            only = PlaygroundRecord((daemon,), ()) if daemon.role == "master" else PlaygroundRecord((), (daemon,))
            deadline = time.monotonic() + START_TIMEOUT_S
            return await _poll(only, deadline, f"{daemon.name} to serve", lambda: _uuid_of(dialer, daemon), log_starts)
        finally:
            await dialer.close()

    return asyncio.run(serving())


def _log_tail(daemon: DaemonRecord) -> str:
    try:
        lines = daemon.log_path.read_text(errors="replace").strip().splitlines()[-5:]
    except OSError:
        lines = []
    return f"the end of {daemon.log_path}:\n  " + "\n  ".join(lines or ["(empty)"])
