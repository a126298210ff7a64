"""How a daemon's process runs: loop, signals, ready notification, drain, ordered stop, and the fatal path.

The life of a daemon:
 1. Options, logs, event loop. A wrong flag ends it with status 2 and one line on standard error.
 2. The daemon's parts start, each entered after those it stands on. What fails here (a taken port, a directory in
 use) ends it
    with status 1 and one line.
 3. It serves: the ready notification is written.
 4. The first SIGTERM or SIGINT drains it: the hooks run, the last registered first (no longer SERVING, leaderships
 handed over),
    then the parts stop in reverse order. Status 0. A second signal, or a stop that takes too long, ends it at once,
    which is
    safe at any time: whatever was acknowledged is durable.
 5. `Process.fatal`, at any time: one line with the traceback, and the process is gone with status 70, without
 flushing anything
    but the log lines. After a failed sync nothing may be acknowledged any more, not even by a callback that is
    already queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import random
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon import logs
from kudu_py.daemon.flags import Loaded, Request, config_text, help_text
from kudu_py.daemon.metrics import LoopLag, new_registry
from kudu_py.daemon.options import CommonOptions, load_options
from kudu_py.daemon.supervisor import Supervisor
from kudu_py.env.clock import Clock, SystemClock

EXIT_OK = 0
EXIT_START_FAILED = 1
EXIT_USAGE = 2
EXIT_FATAL = 70

STOP_TIMEOUT_S = 10.0
"""What stopping may take beyond the grace for calls; then the process ends without waiting any longer."""

THREAD_SWITCH_INTERVAL_S = 0.0005
"""How long a thread that flushes or compacts may hold the interpreter before the loop gets it: with the default of 5
ms the longest stall of a write was 10 ms, with this 1.5 ms."""

OptionsT = TypeVar("OptionsT", bound=CommonOptions)
DrainHook = Callable[[], Awaitable[None]]

_log = structlog.get_logger("process")


@dataclass(frozen=True, slots=True)
class Ready:
    """What the world is told when the daemon serves.

    Attributes:
        uuid: of the server.
        rpc_address, http_address: host:port under which it is reached; no HTTP: empty.
    """

    uuid: str
    rpc_address: str
    http_address: str = ""


class Process:
    """What a daemon's composition root is given.

    Attributes:
        registry: of the process's metrics.
        rng: seeded from the system, once; everything that needs chance gets it, or one seeded from it.
        clock: the machine's.
        tasks: owner of background tasks that stand on no part: they are cancelled after all parts have stopped. A
            composition root whose tasks use its parts enters a `Supervisor(process.fatal)` of its own after them.
        host_name: of the machine.
        version: of the software.
    """

    def __init__(self, *, registry: CollectorRegistry, version: str, exit_now: Callable[[int], Any] = os._exit) -> None:
        self.registry = registry
        self.rng = random.Random(random.SystemRandom().getrandbits(128))
        self.clock: Clock = SystemClock()
        self.tasks = Supervisor(self.fatal)
        self.host_name = socket.gethostname()
        self.version = version
        self._exit_now = exit_now
        self._drain_hooks: list[tuple[str, DrainHook]] = []
        self._stop_requested = asyncio.Event()

    def fatal(self, error: BaseException) -> None:
        """Ends the process now, with status 70, because it may not go on: `on_fatal` of every part.

        Does not return, except in tests that pass another `exit_now`.
        """
        try:
            _log.critical("fatal_error", error=repr(error), exc_info=error)
            logs.flush()
        finally:
            self._exit_now(EXIT_FATAL)

    def on_drain(self, name: str, hook: DrainHook) -> None:
        """Registers what is done first when the process is asked to stop; the last registered runs first.

        A hook that fails is logged, and the others run.
        """
        self._drain_hooks.append((name, hook))

    def request_stop(self) -> None:
        """Begins an orderly stop, as SIGTERM does. Idempotent."""
        self._stop_requested.set()

    async def wait_for_stop(self) -> None:
        """Returns once a stop is requested."""
        await self._stop_requested.wait()

    async def drain(self) -> None:
        """Runs the hooks."""
        while self._drain_hooks:
            name, hook = self._drain_hooks.pop()
            try:
                await hook()
            except Exception as error:
                _log.error("drain_failed", step=name, exc_info=error)


Serve = Callable[[Process, Loaded[OptionsT]], AbstractAsyncContextManager[Ready]]
"""A composition root: entering builds and starts the parts and returns when they serve; leaving stops them in
reverse.
"""


def run_daemon(
    kind: type[OptionsT], serve: Serve[OptionsT], argv: Sequence[str], *, program: str, about: str, version: str
) -> int:
    """Runs a daemon until it is told to stop; the exit status. For the main thread of a process of its own.

    Args:
        argv: without the program's name.
        program, about: for `--help`.
    """
    try:
        loaded = load_options(kind, argv)
    except KuduError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    if loaded.request is Request.HELP:
        print(help_text(kind, program=program, about=about), end="")
        return EXIT_OK
    if loaded.request is Request.VERSION:
        print(f"kudu_py {version}")
        return EXIT_OK
    options = loaded.options
    assert options is not None
    if loaded.request is Request.PRINT_CONFIG:
        print(config_text(loaded.values), end="")
        return EXIT_OK
    logs.configure(form=options.log_format, level=options.log_level, kill_point=options.kill_point)
    logs.set_process_fields(role=options.role)
    _tune()
    with asyncio.Runner(debug=False, loop_factory=_loop_factory(uvloop=options.use_uvloop)) as runner:
        status = runner.run(_run(options, loaded, serve, version))
    logs.flush()
    return status


async def _run(options: OptionsT, loaded: Loaded[OptionsT], serve: Serve[OptionsT], version: str) -> int:
    loop = asyncio.get_running_loop()
    process = Process(registry=new_registry(role=options.role, version=version), version=version)
    loop.set_exception_handler(lambda loop, context: _on_loop_exception(process, loop, context))
    started = False
    signals = 0
    watchdog_s = options.shutdown_grace_ms / 1000 + STOP_TIMEOUT_S

    def on_signal(number: signal.Signals) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            _log.warning("stopping_now", signal=number.name)
            _end_now()
        _log.info("stopping", signal=number.name)
        loop.call_later(watchdog_s, _give_up, watchdog_s)
        if started:
            process.request_stop()
        else:
            body.cancel()

    async def life() -> int:
        nonlocal started
        async with process.tasks:
            process.tasks.run_forever(LoopLag(process.registry).watch(), name="loop-lag")
            async with serve(process, loaded) as ready:
                started = True
                _announce(options, ready)
                await process.wait_for_stop()
                await process.drain()
        _log.info("stopped")
        return EXIT_OK

    _remove_old_ready_file(options)
    body = asyncio.create_task(life(), name="daemon")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if loaded.ignored_environment:
        _log.warning("environment_ignored", variables=list(loaded.ignored_environment), why="they name no flag")
    try:
        return await body
    except asyncio.CancelledError:
        if not signals:
            raise
        return EXIT_OK  # told to stop before it had started
    except KuduError as error:
        # What an operator set wrong is said in the message; where in the code it was noticed only hides it.
        cause = None if error.code is ErrorCode.CONFIGURATION_ERROR else error.__cause__
        _log.error("start_failed" if not started else "stop_failed", error=str(error), exc_info=cause)
        logs.flush()
        print(f"error: {error.message}", file=sys.stderr)
        return EXIT_START_FAILED
    except Exception as error:
        _log.critical("start_failed" if not started else "stop_failed", error=repr(error), exc_info=error)
        return EXIT_START_FAILED


def _remove_old_ready_file(options: CommonOptions) -> None:
    """Whoever waits for the file must not read that of an earlier run."""
    if options.ready_file:
        Path(options.ready_file).unlink(missing_ok=True)


def _announce(options: CommonOptions, ready: Ready) -> None:
    """Tells that the daemon serves: the log, a line of JSON on standard output, and the ready file."""
    # What the start has made lives as long as the process; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    logs.set_process_fields(uuid=ready.uuid)
    _log.info("serving", rpc_address=ready.rpc_address, http_address=ready.http_address)
    line = json.dumps({"event": "ready", "role": options.role, "pid": os.getpid(), **asdict(ready)})
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)
    if options.ready_file:
        path = Path(options.ready_file)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(line + "\n", encoding="utf-8")
        temporary.replace(path)


def _on_loop_exception(process: Process, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What escaped from a callback or from a task that nobody awaited.

    A failed assertion there means that some part's state cannot be believed, and so does any error that a callback of
    ours lets out, such as one that is told what a write to the disk has come to: whoever waits for what it would have
    done would wait for ever. Both are fatal. The rest is logged; gRPC's poller lets harmless errors out when it races
    for its own wake-ups (grpc/grpc#42357).
    """
    error = context.get("exception")
    if isinstance(error, AssertionError) or (error is not None and "handle" in context and _is_ours(error)):
        error.add_note(str(context.get("message", "")))
        process.fatal(error)
    elif isinstance(error, BlockingIOError):
        _log.debug("poller_race", text=context.get("message"))
    else:
        _log.error("unhandled_error", text=context.get("message"), exc_info=error)


def _is_ours(error: BaseException) -> bool:
    """Whether code of this package was running when the error was raised."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0] for frame, _ in frames)


def _give_up(waited_s: float) -> None:
    _log.error("stop_timed_out", waited_s=waited_s)
    _end_now()


def _end_now() -> None:
    logs.flush()
    os._exit(EXIT_START_FAILED)


def _tune() -> None:
    """Settings of the interpreter and the process that every daemon wants."""
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error may not be a file
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)  # the stacks of all threads, for whoever wonders what it is doing
    # A tablet takes a handful of descriptors, a server may have hundreds of tablets, and the usual soft limit is 1024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory(*, uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    if not uvloop:
        return asyncio.new_event_loop
    import uvloop as library

    factory: Callable[[], asyncio.AbstractEventLoop] = library.new_event_loop
    return factory
