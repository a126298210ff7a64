"""structlog configuration: events with fields, one line each, on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from kudu_py.daemon.kill_point import KillPoint

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_process_fields: dict[str, str] = {}
"""Fields of every line: role and uuid. Not context variables: gRPC starts tasks in contexts of its own."""


def configure(*, form: str, level: str, stream: TextIO | None = None, kill_point: KillPoint | None = None) -> None:
    """Sets up structlog, and the standard library's loggers to go through it.

    Args:
        form: "json" for machines, "console" for people.
        level: lines below it are left out.
        stream: standard error if not given.
        kill_point: the line after which the process ends itself, for tests of crashes.
    """
    out = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_process_fields,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        *([kill_point.see] if kill_point is not None else []),
    ]
    form_of: dict[str, list[structlog.typing.Processor]] = {
        "json": [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ],
        "console": [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback, timestamp_key="time"
            )
        ],
    }
    structlog.configure(
        processors=shared + form_of[form],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _Lines(out, kill_point),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    # Libraries say at INFO what only matters to their authors.
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def configure_for_tools() -> None:
    """Warnings only, for people, to standard error: what servers log of their steps is no result of a command."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: _Lines(sys.stderr, None),
    )


def set_process_fields(**fields: str) -> None:
    """Adds fields to every line of this process from now on."""
    _process_fields.update(fields)


def flush() -> None:
    """Hands to the system what is still in Python's buffers; before `os._exit`, which does not."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _add_process_fields(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in _process_fields.items():
        event.setdefault(key, value)
    return event


class _Lines:
    """Writes structlog's lines to a stream whose reader may go away: a line that cannot be written must not end what
    it tells of."""

    def __init__(self, stream: TextIO, kill_point: KillPoint | None) -> None:
        self._stream = stream
        self._kill_point = kill_point

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()
        if self._kill_point is not None:
            self._kill_point.line_written()

    debug = info = warning = error = critical = msg


class _ToStructlog(logging.Handler):
    """Lines of asyncio, uvicorn and other libraries, in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, "library_message", text=record.getMessage(), exc_info=record.exc_info or None)
